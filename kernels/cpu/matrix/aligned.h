// SPDX-License-Identifier: MIT
// A fixed array at a cache line, for packed weights.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace tenon::packed {

/// `count` zeroed elements; the address is a multiple of 64.
template <class T>
class AlignedArray {
  public:
    AlignedArray() = default;
    explicit AlignedArray(int64_t count)
        : count_(count),
          data_(static_cast<T*>(
              ::operator new (static_cast<size_t>(bytes_of(count)), std::align_val_t{64}))) {
        std::uninitialized_value_construct_n(data_.get(), count);
    }
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    int64_t size() const { return count_; }
    int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(T)); }

    static constexpr int64_t bytes_of(int64_t count) {
        return count * static_cast<int64_t>(sizeof(T));
    }

  private:
    struct Free {
        void operator()(T* p) const { ::operator delete (p, std::align_val_t{64}); }
    };
    int64_t count_ = 0;
    std::unique_ptr<T, Free> data_;
};

}  // namespace tenon::packed
