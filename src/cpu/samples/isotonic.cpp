#include "cpu/samples/isotonic.h"

#include <vector>

namespace kcalib {

namespace {

struct Corner {
  double x, y;
};

// Add a corner on the left of a convex function, whose corners that are not below their neighbours go.
void push(std::vector<Corner>& stack, Corner corner) {
  while (stack.size() > 1) {
    const Corner a = stack.back(), b = stack[stack.size() - 2];
    if ((a.y - corner.y) * (b.x - corner.x) < (b.y - corner.y) * (a.x - corner.x)) {
      break;
    }
    stack.pop_back();
  }
  stack.push_back(corner);
}

}  // namespace

// Sums up to each point are the corners of a diagram whose greatest convex minorant has the regression for slopes. One
// more sample of the class moves those before it by (-1, -1). The minorant's part on the right is kept as a stack while
// the new sample goes from the first point to the last (algorithms 1 and 2 of Vovk et al. 2015).
void isotonic_with_hit(const double* weight, const double* hits, std::int64_t k, double* values) {
  std::vector<Corner> corners(k), stack;  // the stack from right to left
  double x = 0, y = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    corners[i] = {x += weight[i], y += hits[i]};
  }
  for (std::int64_t i = k; i-- > 0;) {
    push(stack, corners[i]);
  }
  push(stack, {-1, -1});
  for (std::int64_t i = 0; i < k; ++i) {
    const Corner a = stack.back(), b = stack[stack.size() - 2], moved{corners[i].x - 1, corners[i].y - 1};
    values[i] = (b.y - a.y) / (b.x - a.x);
    if ((moved.y - a.y) * (b.x - a.x) < (moved.x - a.x) * (b.y - a.y) && i < k - 1) {
      stack.pop_back();
      while (stack.size() > 1 && stack.back().x <= corners[i].x) {
        stack.pop_back();
      }
      push(stack, moved);
    }
  }
}

}  // namespace kcalib
