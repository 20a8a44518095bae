// operator new, of which the k-th call after `arm(k)` fails: preloaded by tests/backend/test_no_memory.py.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

static std::atomic<long> failing{-1}, seen{0};

extern "C" void arm(long k) {
  seen = 0;
  failing = k;
}

// How many calls there were.
extern "C" long disarm() {
  failing = -1;
  return seen;
}

static void *made(std::size_t size, std::size_t alignment) {
  if (failing >= 0 && ++seen == failing) throw std::bad_alloc();
  void *found = std::aligned_alloc(alignment, (size / alignment + 1) * alignment);
  if (!found) throw std::bad_alloc();
  return found;
}

constexpr std::size_t plain = alignof(std::max_align_t);
void *operator new(std::size_t size) { return made(size, plain); }
void *operator new[](std::size_t size) { return made(size, plain); }
void *operator new(std::size_t size, std::align_val_t a) { return made(size, static_cast<std::size_t>(a)); }
void *operator new[](std::size_t size, std::align_val_t a) { return made(size, static_cast<std::size_t>(a)); }
void operator delete(void *p) noexcept { std::free(p); }
void operator delete[](void *p) noexcept { std::free(p); }
void operator delete(void *p, std::size_t) noexcept { std::free(p); }
void operator delete[](void *p, std::size_t) noexcept { std::free(p); }
void operator delete(void *p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void *p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void *p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void *p, std::size_t, std::align_val_t) noexcept { std::free(p); }
