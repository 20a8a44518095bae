// Chooses the instruction set at run time.
#include "cpu/simd/cpu_level.h"

#include <cstring>

namespace kcalib {

extern const TileTable tile_baseline;
#ifdef KCALIB_X86_LEVELS
extern const TileTable tile_v3;
extern const TileTable tile_v4;

namespace {

TileTable table_with_avx512() {
  TileTable table = tile_v4;
  // AMD's first processors with AVX-512, Zen 4, work on halves of its registers; those that came next have this instruction.
  table.roots_by_divider = __builtin_cpu_is("amd") && !__builtin_cpu_supports("avx512vp2intersect");
  return table;
}

}  // namespace
#endif
const TileTable* tile_table(const char* level) {
  const bool best = level == nullptr;
#ifdef KCALIB_X86_LEVELS
  const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  static const TileTable tile_avx512 = table_with_avx512();
  if (has_v4 && (best || !std::strcmp(level, tile_avx512.name))) return &tile_avx512;
  if (has_v3 && (best || !std::strcmp(level, tile_v3.name))) return &tile_v3;
#endif
  if (best || !std::strcmp(level, tile_baseline.name)) return &tile_baseline;
  return nullptr;
}

}  // namespace kcalib
