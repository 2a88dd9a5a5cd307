// SPDX-License-Identifier: MIT
// Device side of the keyed noise (ops.md 3.9) and of order-free sums of probabilities.
#pragma once

#include "common/device.cuh"
#include "tenon/numeric.h"

namespace tenon::cuda {

/// -log(-log u) with u = (word + 0.5) 2^-32, in f64.
__device__ inline double gumbel_of(uint32_t word) {
    return -log(-log((static_cast<double>(word) + 0.5) * 0x1p-32));
}
/// u <= 1 - 2^-(k+1) with k leading one bits, so the noise is at most (k + 1) log 2.
__device__ inline double gumbel_bound_of(uint32_t word) {
    return 0.6931471805599454 * (__clz(~word) + 1);
}
/// Above every value of gumbel_of.
constexpr double kMostNoise = 22.9;

__device__ inline Philox4 noise_block(uint64_t seed, int pos, uint32_t block) {
    return philox4x32_10(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), block,
                         static_cast<uint32_t>(pos), 0, 0);
}
__device__ inline uint32_t noise_of(uint64_t seed, int pos, int id) {
    const auto u = static_cast<uint32_t>(id);
    const Philox4 p = noise_block(seed, pos, u >> 2);
    const uint32_t low = (u & 1u) != 0 ? p.word[1] : p.word[0];
    const uint32_t high = (u & 1u) != 0 ? p.word[3] : p.word[2];
    return (u & 2u) != 0 ? high : low;
}

/// Floats as unsigned numbers in the same order, -0 equal to +0; NaN lowest.
__device__ inline uint32_t ordered(float x) {
    if (x != x) {
        return 0;
    }
    const uint32_t u = __float_as_uint(x == 0.0f ? 0.0f : x);
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
__device__ inline float unordered(uint32_t key) {
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// A value and the id that it belongs to; larger value first, ties to the lower id, id -1 last.
struct Ranked {
    double value;
    int id;
};
__device__ inline Ranked better_of(Ranked a, Ranked b) {
    const bool second =
        b.id >= 0 && (a.id < 0 || b.value > a.value || (b.value == a.value && b.id < a.id));
    return second ? b : a;
}

}  // namespace tenon::cuda
