// SPDX-License-Identifier: MIT
// The order-free hash of live rows, mod 2^64.
#pragma once

#include "common/device.cuh"
#include "tenon/numeric.h"
#include "tenon/ops/rows.h"

namespace tenon::cuda {

constexpr int kDigestThreads = 256;

// One block a row; integer sums wrap, so the order of the atomic additions does not show.
__global__ void digest_kernel(const uint64_t* x, int64_t words, const RowInfo* rows,
                              unsigned long long* out) {
    __shared__ unsigned long long partial[kDigestThreads / 32];
    const int64_t t = blockIdx.x;
    const RowInfo row = rows[t];
    if (row.slot < 0) {
        return;
    }
    unsigned long long sum = 0;
    for (int64_t i = threadIdx.x; i < words; i += kDigestThreads) {
        sum += splitmix64_mix(x[t * words + i] ^
                              (static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15ull));
    }
    sum = block_sum<unsigned long long, kDigestThreads / 32>(sum, partial);
    if (threadIdx.x == 0) {
        const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(row.slot)) << 32) |
                             static_cast<uint32_t>(row.pos);
        atomicAdd(out, (2 * splitmix64_mix(key) + 1) * sum);
    }
}

}  // namespace tenon::cuda
