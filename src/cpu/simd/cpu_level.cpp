// Chooses the instruction set at run time.
#include "cpu/simd/cpu_level.h"

#include <cstring>

#ifdef KCALIB_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
#ifdef KCALIB_VNNI
extern const ByteForms byte_dots, byte_pairs;
extern const ByteLabels byte_labels;
extern const RoughProducts rough_products;

namespace {

bool has_vnni() { return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni"); }

TileTable table_with_vnni() {
  TileTable table = table_with_avx512();
  table.name = "x86-64-v4-vnni";
  // AMD's processors add bytes in units that do not multiply them, Intel's in those that do.
  table.bytes = __builtin_cpu_is("amd") ? &byte_pairs : &byte_dots;
  table.byte_labels = &byte_labels;
  table.rough_products = &rough_products;
  return table;
}

}  // namespace
#endif
#ifdef KCALIB_AMX
extern const ByteForms byte_forms;
extern const HalfProducts half_products;

namespace {

// Whether the processor has tile registers that multiply bytes and bfloat16 (and what else such processors have), and the
// operating system lets this process use them, for which it has to be asked: its threads then have 8 KiB more to save, once
// they do.
bool has_amx() {
  constexpr unsigned HALVES = 1u << 22, TILES = 1u << 24, BYTES = 1u << 25;
  constexpr int64_t REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  if (!has_vnni()) return false;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & TILES) || !(d & BYTES) || !(d & HALVES)) return false;
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

TileTable table_with_amx() {
  TileTable table = table_with_vnni();
  table.name = "x86-64-v4-amx";
  table.bytes = &byte_forms;
  table.half_products = &half_products;
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
#ifdef KCALIB_AMX
  static const TileTable tile_amx = table_with_amx();
  if (has_v4 && (best || !std::strcmp(level, tile_amx.name))) {
    static const bool allowed = has_amx();
    if (allowed) return &tile_amx;
  }
#endif
#ifdef KCALIB_VNNI
  static const TileTable tile_vnni = table_with_vnni();
  if (has_v4 && has_vnni() && (best || !std::strcmp(level, tile_vnni.name))) return &tile_vnni;
#endif
  static const TileTable tile_avx512 = table_with_avx512();
  if (has_v4 && (best || !std::strcmp(level, tile_avx512.name))) return &tile_avx512;
  if (has_v3 && (best || !std::strcmp(level, tile_v3.name))) return &tile_v3;
#endif
  if (best || !std::strcmp(level, tile_baseline.name)) return &tile_baseline;
  return nullptr;
}

}  // namespace kcalib
