#pragma once

#include <cstddef>

#include "cpu/pairs/tile.h"

namespace kcalib {

// The table of the k-th best level that may be used, null beyond the last. Those are the levels that the processor has, but
// none above the environment variable KCALIB_CPU_LEVEL, which is read once. Throws std::invalid_argument if its value is not
// one of them.
const TileTable* tile_table(std::size_t k);

}  // namespace kcalib
