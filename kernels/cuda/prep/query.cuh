// SPDX-License-Identifier: MIT
// index.query_prep: turn and quantisation of the index queries, and their heads' weights, in one
// grid. The arithmetic is that of rope.turn, kvq.quantize and linear.plain (decode), so the outputs
// have the parts' bits.
#pragma once

#include "common/dependent.cuh"
#include "kvq/quantise.cuh"
#include "linear/plain.cuh"
#include "rope/rope.cuh"

namespace tenon::cuda {

struct QueryPrepArgs {
    PlainArgs<uint16_t, uint16_t, uint16_t> weights;  ///< w = x weights_proj
    uint16_t* iq;                                     ///< [T, Hi, Di]
    const float* cs;                                  ///< [T, R]
    uint8_t* codes;                                   ///< [T, Hi, Di / 2]; null: not wanted
    uint8_t* scales;                                  ///< [T, Hi, Di / 32]
    int64_t Di, R;
};

// The grid's first N T blocks: a head's weight of one row each (its arithmetic knows no other row);
// the rest: queries, four values a thread.
[[maybe_unused]] static __global__ void __launch_bounds__(kPlainThreads)
    query_prep_kernel(QueryPrepArgs a) {
    let_next_start();
    wait_for_previous();
    const auto heads = static_cast<unsigned>(a.weights.N);
    const unsigned dots = heads * static_cast<unsigned>(a.weights.T);
    if (blockIdx.x < dots) {
        plain_block<1, 1, 8>(a.weights, blockIdx.x % heads, blockIdx.x / heads);
        return;
    }
    // Di is a multiple of 32: a group of 32 values is eight lanes of one warp, all inside or out.
    const int64_t at = (int64_t{blockIdx.x - dots} * kPlainThreads + threadIdx.x) * 4;
    if (at >= a.weights.T * a.weights.N * a.Di) {
        return;
    }
    const int64_t t = at / (a.weights.N * a.Di);
    const int64_t i = at % a.Di;
    uint2 v = *reinterpret_cast<const uint2*>(a.iq + at);
    const auto turn = [&](uint32_t pair, int64_t column) {
        const int64_t turned = (column - (a.Di - a.R)) / 2;
        return column < a.Di - a.R
                   ? pair
                   : turn_pair(pair, a.cs[t * a.R + turned], a.cs[t * a.R + a.R / 2 + turned]);
    };
    v.x = turn(v.x, i);
    v.y = turn(v.y, i + 2);
    const Quantised4 q = quantise4<RowFormat::q4u>(v);
    *reinterpret_cast<uint2*>(a.iq + at) = q.values;
    if (a.codes != nullptr) {
        store_packed<RowFormat::q4u>(q, at, a.codes, a.scales);
    }
}

}  // namespace tenon::cuda
