// The tile registers of AMX. Included by what is compiled for machines that have them.
#pragma once

#include "cpu/simd/pack.h"

namespace kcalib {
namespace {

// Compilers may take loads of tiles to read no memory, and GCC up to 13.2 that of their configuration to read 8 bytes.
KCALIB_FN void all_written(const void* at) { __asm__ volatile("" : : "r"(at) : "memory"); }

// All tile registers have 16 rows of 64 bytes.
class TilesOn {
 public:
  TilesOn() {
    alignas(64) unsigned char config[64] = {1};
    for (int t = 0; t < 8; ++t) {
      config[16 + 2 * t] = 64;
      config[48 + t] = 16;
    }
    all_written(config);
    _tile_loadconfig(config);
  }
  ~TilesOn() { _tile_release(); }
};

}  // namespace
}  // namespace kcalib
