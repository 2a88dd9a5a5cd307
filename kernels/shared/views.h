// SPDX-License-Identifier: MIT
// Walking strided views by runs of contiguous elements: what whole-view copies are made of.
#pragma once

#include "tenon/tensor.h"

namespace tenon::kernels {

// Calls row(dst, src) for each run of contiguous elements of two views of one shape.
template <class Row>
void for_runs(const TensorView& v, int64_t run_dims, Row&& row) {
    int64_t index[kMaxRank] = {};
    const int64_t outer = v.rank - run_dims;
    for (;;) {
        row(index);
        int64_t i = outer - 1;
        for (; i >= 0; --i) {
            if (++index[i] < v.shape[i]) {
                break;
            }
            index[i] = 0;
        }
        if (i < 0) {
            return;
        }
    }
}

// Trailing dimensions that are contiguous in v.
inline int64_t dense_dims(const TensorView& v) {
    int64_t want = 1;
    int64_t dims = 0;
    for (int i = v.rank - 1; i >= 0; --i) {
        if (v.shape[i] != 1 && v.stride[i] != want) {
            break;
        }
        want *= v.shape[i];
        ++dims;
    }
    return dims;
}

inline char* at(const TensorView& v, const int64_t* index, int64_t outer) {
    int64_t offset = 0;
    for (int64_t i = 0; i < outer; ++i) {
        offset += index[i] * v.stride[i];
    }
    return static_cast<char*>(v.data) + offset * dtype_bytes(v.dtype);
}

inline int64_t run_bytes(const TensorView& v, int64_t run_dims) {
    int64_t n = dtype_bytes(v.dtype);
    for (int64_t i = v.rank - run_dims; i < v.rank; ++i) {
        n *= v.shape[i];
    }
    return n;
}

/// errors  invalid_argument: dtypes or shapes differ, or one of two non-empty views has no data
inline Status check_copy(const TensorView& dst, const TensorView& src) {
    bool same = dst.dtype == src.dtype && dst.rank == src.rank;
    for (int i = 0; same && i < dst.rank; ++i) {
        same = dst.shape[i] == src.shape[i];
    }
    if (!same) {
        return error(Code::invalid_argument, "copy: dst is {}, src is {}, expected equal views",
                     describe(dst), describe(src));
    }
    if (dst.elements() > 0 && (dst.null() || src.null())) {
        return error(Code::invalid_argument, "copy: {} of {} has no data",
                     dst.null() ? "dst" : "src", describe(dst));
    }
    return {};
}

}  // namespace tenon::kernels
