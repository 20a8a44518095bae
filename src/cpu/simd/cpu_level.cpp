// Chooses the instruction level at run time.
#include "cpu/simd/cpu_level.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/simd/for_each_level.h"

namespace kcalib {

extern const TileTable tile_baseline;
#ifdef KCALIB_X86_LEVELS
extern const TileTable tile_v3, tile_v4;
#endif

namespace {

std::vector<const TileTable*> tables_of_processor() {
  std::vector<const TileTable*> tables;
#ifdef KCALIB_X86_LEVELS
  const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (has_v4) tables.push_back(&tile_v4);
  if (has_v3) tables.push_back(&tile_v3);
#endif
  tables.push_back(&tile_baseline);
  return tables;
}

std::vector<const TileTable*> allowed_tables() {
  std::vector<const TileTable*> tables = tables_of_processor();
  const char* const variable = std::getenv("KCALIB_CPU_LEVEL");
  const std::string highest = variable ? variable : "";
  if (highest.empty()) return tables;
  const auto chosen = std::find_if(tables.begin(), tables.end(), [&](const TileTable* table) { return table->name == highest; });
  if (chosen == tables.end()) {
    std::string names;
    for (const TileTable* table : tables) names += (names.empty() ? "" : ", ") + std::string(table->name);
    throw std::invalid_argument("the environment variable KCALIB_CPU_LEVEL is '" + highest +
                                "', expected a level that this processor has: " + names + "; unset it for the best of them");
  }
  tables.erase(tables.begin(), chosen);
  return tables;
}

}  // namespace

const TileTable* tile_table(std::size_t k) {
  static const std::vector<const TileTable*> tables = allowed_tables();
  return k < tables.size() ? tables[k] : nullptr;
}

CpuLevel cpu_level() {
#ifdef KCALIB_X86_LEVELS
  static const TileTable* const best = tile_table(0);
  if (best == &tile_baseline) return CpuLevel::BASELINE;
  return best == &tile_v3 ? CpuLevel::V3 : CpuLevel::V4;
#else
  return CpuLevel::BASELINE;
#endif
}

}  // namespace kcalib
