// SPDX-License-Identifier: MIT
// Whole page records and parts of them.
#pragma once

#include "common/bytes.cuh"
#include "common/device.cuh"
#include "tenon/ops/pages.h"

namespace tenon::cuda {

constexpr int kPlanesAtOnce = 64;  // planes that travel as a kernel argument

struct Planes {
    PagePlane plane[kPlanesAtOnce];
    int32_t count;
};

// blockIdx.y: page pair. `whole`: this launch copies the records that are copied entirely.
__global__ void copy_pages_kernel(uint8_t* pool, int64_t pages, int64_t page_bytes,
                                  const int32_t* src, const int32_t* dst, const int32_t* tokens,
                                  __grid_constant__ const Planes planes, int32_t page_tokens,
                                  bool whole, unsigned long long* faults) {
    const int64_t i = blockIdx.y;
    const int32_t from = src[i];
    const int32_t to = dst[i];
    if (from < 0 || from >= pages || to < 0 || to >= pages || from == to) {
        if (whole && blockIdx.x == 0 && threadIdx.x == 0) {
            fault(faults);
        }
        return;
    }
    const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    const int64_t of = int64_t{gridDim.x} * blockDim.x;
    const int32_t n = min(max(tokens[i], 0), page_tokens);
    if (n == page_tokens) {
        if (whole) {
            move_bytes(pool + to * page_bytes, pool + from * page_bytes, page_bytes, at, of);
        }
        return;
    }
    for (int32_t k = 0; k < planes.count; ++k) {
        const PagePlane& plane = planes.plane[k];
        move_bytes(pool + to * page_bytes + plane.at, pool + from * page_bytes + plane.at,
                   n / plane.ratio * plane.row_bytes, at, of);
    }
}

// blockIdx.y: record. kPack: records[i] = pool[ids[i]], else the other way.
template <bool kPack>
__global__ void move_pages_kernel(uint8_t* pool, int64_t pages, int64_t page_bytes,
                                  const int32_t* ids, uint8_t* records,
                                  unsigned long long* faults) {
    const int64_t i = blockIdx.y;
    const int32_t page = ids[i];
    if (page < 0 || page >= pages) {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            fault(faults);
        }
        return;
    }
    uint8_t* in_pool = pool + page * page_bytes;
    uint8_t* record = records + i * page_bytes;
    move_bytes(kPack ? record : in_pool, kPack ? in_pool : record, page_bytes,
               blockIdx.x * int64_t{blockDim.x} + threadIdx.x, int64_t{gridDim.x} * blockDim.x);
}

}  // namespace tenon::cuda
