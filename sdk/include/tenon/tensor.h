// SPDX-License-Identifier: MIT
// Element types, places and the view that ops and interfaces pass instead of tensors.
#pragma once

#include "tenon/base.h"

namespace tenon {

/// Element types. Packed FP4 is `u8` together with a RowFormat (tenon/ops/state.h).
enum class DType : uint8_t { f32, f16, bf16, e4m3, e8m0, u8, i8, u16, i16, u32, i32, u64, i64 };

constexpr int64_t dtype_bytes(DType t) {
    constexpr int64_t kBytes[] = {4, 2, 2, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8};
    return kBytes[static_cast<uint8_t>(t)];
}
constexpr const char* dtype_name(DType t) {
    constexpr const char* kNames[] = {"f32", "f16", "bf16", "e4m3", "e8m0", "u8", "i8",
                                      "u16", "i16", "u32",  "i32",  "u64",  "i64"};
    return kNames[static_cast<uint8_t>(t)];
}

/// Where memory lies. `pinned` is host memory that the device reads while a stream runs.
enum class Place : uint8_t { host, pinned, device };

constexpr int kMaxRank = 6;

/// A borrowed, strided view. Strides count elements. The innermost stride is 1 (ops.md 1.2).
struct TensorView {
    void* data = nullptr;
    DType dtype = DType::f32;
    Place place = Place::host;
    uint16_t rank = 0;
    uint32_t reserved = 0;
    int64_t shape[kMaxRank] = {};
    int64_t stride[kMaxRank] = {};

    template <class T>
    T* as() const {
        return static_cast<T*>(data);
    }
    bool null() const { return data == nullptr; }
    int64_t elements() const {
        int64_t n = 1;
        for (int i = 0; i < rank; ++i) {
            n *= shape[i];
        }
        return n;
    }
    int64_t bytes() const { return elements() * dtype_bytes(dtype); }
    bool dense() const {
        int64_t want = 1;
        for (int i = rank - 1; i >= 0; --i) {
            if (shape[i] != 1 && stride[i] != want) {
                return false;
            }
            want *= shape[i];
        }
        return true;
    }
    /// Address of row `i` (index into dimension 0).
    template <class T>
    T* row(int64_t i) const {
        return static_cast<T*>(data) + i * stride[0];
    }
    /// Rows [first, first + count) of dimension 0.
    TensorView rows(int64_t first, int64_t count) const {
        TensorView v = *this;
        v.data = data == nullptr
                     ? nullptr
                     : static_cast<char*>(data) + first * stride[0] * dtype_bytes(dtype);
        v.shape[0] = count;
        return v;
    }
};

/// A dense view of the given shape.
inline TensorView make_view(void* data, DType dtype, std::initializer_list<int64_t> shape,
                            Place place = Place::host) {
    TensorView v;
    v.data = data;
    v.dtype = dtype;
    v.place = place;
    v.rank = static_cast<uint16_t>(shape.size());
    int i = 0;
    for (int64_t n : shape) {
        v.shape[i++] = n;
    }
    int64_t stride = 1;
    for (i = v.rank - 1; i >= 0; --i) {
        v.stride[i] = stride;
        stride *= v.shape[i];
    }
    return v;
}
inline TensorView make_view(const void* data, DType dtype, std::initializer_list<int64_t> shape,
                            Place place = Place::host) {
    return make_view(const_cast<void*>(data), dtype, shape, place);
}

/// "bf16[3, 128]", for messages.
inline std::string describe(const TensorView& v) {
    std::string out = dtype_name(v.dtype);
    out += '[';
    for (int i = 0; i < v.rank; ++i) {
        out += (i ? ", " : "") + std::to_string(v.shape[i]);
    }
    return out + ']';
}

}  // namespace tenon
