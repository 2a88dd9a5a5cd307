// SPDX-License-Identifier: MIT
// Moving byte ranges inside a kernel, 16 bytes at a time where both ends allow it.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace tenon::cuda {

/// Thread `at` of `of` takes its share of `n` bytes; a null `from` writes zeros.
__device__ inline void move_bytes(uint8_t* to, const uint8_t* from, int64_t n, int64_t at,
                                  int64_t of) {
    const bool wide = ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                        static_cast<uintptr_t>(n)) &
                       15) == 0;
    if (wide) {
        for (int64_t i = at; i < n / 16; i += of) {
            reinterpret_cast<uint4*>(to)[i] =
                from == nullptr ? make_uint4(0, 0, 0, 0) : reinterpret_cast<const uint4*>(from)[i];
        }
        return;
    }
    for (int64_t i = at; i < n; i += of) {
        to[i] = from == nullptr ? uint8_t{0} : from[i];
    }
}

}  // namespace tenon::cuda
