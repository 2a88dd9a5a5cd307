// SPDX-License-Identifier: MIT
// The elementwise parts of the experts: activation between the projections, ordered sum after them.
#include <cuda_bf16.h>

#include "steps.h"

namespace tenon::experts::cuda {

namespace {

constexpr int kThreads = 256;

__device__ float round_bf16(float v) {
    return __bfloat162float(__float2bfloat16_rn(v));
}

__global__ void activate_kernel(ActivationCall c) {
    const int64_t total = int64_t{c.rows} * (c.k + 1) * c.width;
    const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (at >= total) {
        return;
    }
    const int64_t entry = at / c.width;
    const int64_t row = entry / (c.k + 1);
    const auto slot = static_cast<int>(entry % (c.k + 1));
    const float weight = slot == c.k ? 1.0f : c.weights[row * c.k + slot];
    float gate = round_bf16(c.gate[at]);
    float up = round_bf16(c.up[at]);
    if (c.limit > 0) {
        gate = gate > c.limit ? c.limit : gate;
        up = up < -c.limit ? -c.limit : (up > c.limit ? c.limit : up);
    }
    const double z = gate;
    const auto silu = static_cast<float>(z / (1.0 + exp(-z)));
    reinterpret_cast<__nv_bfloat16*>(c.a)[entry * c.a_stride + at % c.width] =
        __float2bfloat16_rn(weight * silu * up);
}

__global__ void combine_kernel(CombineCall c) {
    const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (at >= int64_t{c.rows} * c.width) {
        return;
    }
    const int64_t row = at / c.width;
    const int64_t column = at % c.width;
    float sum = 0;
    for (int slot = 0; slot <= c.k; ++slot) {
        const int id = slot == c.k ? c.experts : c.ids[row * c.k + slot];
        if (id < 0 || (slot < c.k && id >= c.experts) || c.held[id] == 0) {
            continue;
        }
        const float p = c.products[(row * (c.k + 1) + slot) * c.width + column];
        sum += c.round ? round_bf16(p) : p;
    }
    c.out[row * c.out_stride + column] = sum;
}

unsigned int blocks_for(int64_t elements) {
    return static_cast<unsigned int>((elements + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t activate(const ActivationCall& call, cudaStream_t stream) {
    activate_kernel<<<blocks_for(int64_t{call.rows} * (call.k + 1) * call.width), kThreads, 0,
                      stream>>>(call);
    return cudaGetLastError();
}

cudaError_t combine(const CombineCall& call, cudaStream_t stream) {
    combine_kernel<<<blocks_for(int64_t{call.rows} * call.width), kThreads, 0, stream>>>(call);
    return cudaGetLastError();
}

}  // namespace tenon::experts::cuda
