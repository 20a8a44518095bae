// Memory for packed samples and sums. Included by the files with parallel loops over tiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace kcalib {

// Uninitialised numbers, aligned to a line of the cache.
template <class T> class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t size)
      : bytes_(sizeof(T) * std::size_t(std::max<int64_t>(size, 1))),
        alignment_(std::align_val_t(bytes_ < HUGE_PAGE ? 64 : HUGE_PAGE)),
        data_(static_cast<T*>(::operator new(bytes_, alignment_))) {
#ifdef MADV_HUGEPAGE
    // Touching fresh memory page by page takes longer than packing into it.
    if (bytes_ >= HUGE_PAGE) {
      const std::size_t skipped = -reinterpret_cast<std::uintptr_t>(data_) % PAGE;
      madvise(reinterpret_cast<char*>(data_) + skipped, bytes_ - skipped, MADV_HUGEPAGE);
    }
#endif
  }
  ~AlignedBuffer() { ::operator delete(data_, alignment_); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  static constexpr std::size_t HUGE_PAGE = std::size_t(1) << 21, PAGE = 4096;
  std::size_t bytes_;
  std::align_val_t alignment_;
  T* data_;
};

}  // namespace kcalib
