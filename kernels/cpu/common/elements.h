// SPDX-License-Identifier: MIT
// Reading and writing single elements of bf16 or f32 views, for reference loops.
#pragma once

#include "tenon/numeric.h"
#include "tenon/tensor.h"

namespace tenon::cpu {

/// A row of bf16 or f32 elements.
struct Source {
    const void* data;
    bool bf16;

    Source(const TensorView& v, int64_t row)
        : data(static_cast<const char*>(v.data) +
               (v.rank > 1 ? row * v.stride[0] * dtype_bytes(v.dtype) : 0)),
          bf16(v.dtype == DType::bf16) {}
    float operator[](int64_t i) const {
        return bf16 ? bf16_to_f32(static_cast<const uint16_t*>(data)[i])
                    : static_cast<const float*>(data)[i];
    }
};

/// As Source, for writing; bf16 rounds to nearest even.
struct Sink {
    void* data;
    bool bf16;

    Sink(const TensorView& v, int64_t row)
        : data(static_cast<char*>(v.data) +
               (v.rank > 1 ? row * v.stride[0] * dtype_bytes(v.dtype) : 0)),
          bf16(v.dtype == DType::bf16) {}
    void set(int64_t i, float value) const {
        if (bf16) {
            static_cast<uint16_t*>(data)[i] = f32_to_bf16(value);
        } else {
            static_cast<float*>(data)[i] = value;
        }
    }
};

}  // namespace tenon::cpu
