// Chooses the instruction level at run time.
#include "cpu/simd/cpu_level.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/simd/for_each_level.h"

#ifdef KCALIB_X86_LEVELS
#include <cpuid.h>
#endif

namespace kcalib {

extern const TileTable tile_baseline;
#ifdef KCALIB_X86_LEVELS
extern const TileTable tile_v3, tile_v4;
#endif

namespace {

#ifdef KCALIB_X86_LEVELS
// Not by __builtin_cpu_supports: in the library of zig, which compiles wheels for Windows, it is always false.
CpuLevel level_of_processor() {
  unsigned eax, ebx, ecx, edx, saved, upper;  // saved: the registers that the operating system saves
  constexpr unsigned v3 = bit_OSXSAVE | bit_AVX | bit_FMA, v3_saved = 0x6, v4_saved = 0xe6;
  constexpr unsigned v4 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & v3) != v3) return CpuLevel::BASELINE;
  __asm__("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
#ifdef __APPLE__
  saved |= v4_saved & ~v3_saved;  // macOS saves the registers of AVX-512 from their first use on
#endif
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ebx & bit_AVX2) || (saved & v3_saved) != v3_saved)
    return CpuLevel::BASELINE;
  return (ebx & v4) == v4 && (saved & v4_saved) == v4_saved ? CpuLevel::V4 : CpuLevel::V3;
}
#endif

std::vector<const TileTable*> tables_of_processor() {
  std::vector<const TileTable*> tables;
#ifdef KCALIB_X86_LEVELS
  const CpuLevel level = level_of_processor();
  if (level == CpuLevel::V4) tables.push_back(&tile_v4);
  if (level != CpuLevel::BASELINE) tables.push_back(&tile_v3);
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
