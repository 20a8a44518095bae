#pragma once

#include "cpu/pairs/tile.h"

namespace kcalib {

// The table of the best instruction set this machine has (level == nullptr), or of
// the one named ("x86-64-v4-amx", "x86-64-v4-vnni", "x86-64-v4", "x86-64-v3", "baseline"); null if it cannot run here.
const TileTable* tile_table(const char* level);

}  // namespace kcalib
