// SPDX-License-Identifier: MIT
// Routed experts and the shared one, codebook mul1, up to sixteen tokens, in five launches:
//   prepare  the list of experts with their rows; rotated inputs of gate and up as digits
//   stream   exact products of gate and up, all experts as one list (experts_stream.cuh)
//   middle   output rotation, activation, input rotation of the down projection
//   stream   exact products of the down projection
//   combine  output rotation; the slots of each token, added in order
// Sums are exact integers as in exact.cuh, so neither the company of a row nor the machine shows.
#include "experts_exact.h"

#include <algorithm>

#include "device_state.h"
#include "experts_list.cuh"
#include "experts_stream.cuh"
#include "linear.h"

namespace tenon::exl3::cuda {

namespace {

__device__ __forceinline__ float round_bf16(float v) {
    return __bfloat162float(__float2bfloat16_rn(v));
}

constexpr int kPrepareThreads = 512;

// Writes digits of four channels of a row: [16 channels][high, low][16].
__device__ __forceinline__ int put_digits(const float (&v)[4], float most, int channel,
                                          uint8_t* digits) {
    uint32_t high, low;
    const int sum = digits4(v, most, &high, &low);
    uint8_t* to = digits + channel / 16 * 32 + channel % 16;
    *reinterpret_cast<uint32_t*>(to) = high;
    *reinterpret_cast<uint32_t*>(to + 16) = low;
    return __reduce_add_sync(0xFFFFFFFFu, sum);
}

__device__ __forceinline__ void clear(int64_t* sums, int count) {
    auto* pairs = reinterpret_cast<longlong2*>(sums);
    for (int i = threadIdx.x; i < count / 2; i += kPrepareThreads) {
        pairs[i] = make_longlong2(0, 0);
    }
}

// Grid (2, entries + 1): gate and up of an entry; the last makes the list.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const __grid_constant__ ExpertStep c) {
    __shared__ unsigned int most_bits;
    __shared__ int total;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int projection = static_cast<int>(blockIdx.x);
    const int entry = static_cast<int>(blockIdx.y);
    if (entry == c.rows * (c.k + 1)) {
        if (projection == 0) {
            make_list(c);
        }
        return;
    }
    const int lane = threadIdx.x % 32;
    const int64_t row = entry / (c.k + 1);
    const int blocks = c.k_up / kBlock;
    const auto load = [&](int block, float(&v)[16]) {
        if (block < blocks) {
            const int at = block * kBlock + 16 * (lane % 8);
            load_x16(c.x, Element::bf16, row * c.x_stride + at, c.hidden - at, v);
        }
    };
    const int first = static_cast<int>(threadIdx.x) / 8;
    float held[16] = {};
    load(first, held);  // while the expert is looked up
    int id = -1;
    if (!find_expert(c, entry, &id)) {
        return;
    }
    const uint16_t* suh = (projection == 0 ? c.gate : c.up)[id].suh;
    if (threadIdx.x == 0) {
        most_bits = 0;
        total = 0;
    }
    __syncthreads();
    const auto rotate = [&](int block, float(&v)[16]) {
        if (block < blocks) {
            scale16(suh + block * kBlock + 16 * (lane % 8), v);
        }
        rotate_eighth(v, lane);
        const unsigned int most = largest16(v);
        if (block < blocks && lane % 8 == 0) {
            atomicMax(&most_bits, most);
        }
    };
    constexpr int kTurn = kPrepareThreads / 8;  // blocks of 128 channels at a time
    rotate(first, held);
#pragma unroll 1
    for (int block = first + kTurn; block - first < blocks; block += kTurn) {
        float v[16] = {};
        load(block, v);
        rotate(block, v);
    }
    const int64_t product = int64_t{entry} * 2 + projection;
    clear(c.scratch.sums_up + product * c.k_down, c.k_down);
    clear(c.scratch.sums_down + product * c.blocks_down * (kBlock / 2), c.blocks_down * kBlock / 2);
    __syncthreads();
    const float most = __uint_as_float(most_bits);
    uint8_t* digits = c.scratch.digits_up + product * 2 * c.k_up;
    const auto put = [&](int block, const float(&v)[16]) {
        uint4 high, low;
        const int sum = sum_of_eight(digits16(v, most, &high, &low));
        if (block < blocks) {
            auto* to = reinterpret_cast<uint4*>(digits + (block * kBlock + 16 * (lane % 8)) * 2);
            to[0] = high;
            to[1] = low;
            if (lane % 8 == 0) {
                atomicAdd(&total, sum);
            }
        }
    };
    put(first, held);
#pragma unroll 1
    for (int block = first + kTurn; block - first < blocks; block += kTurn) {
        float v[16] = {};
        load(block, v);
        rotate(block, v);  // the maximum stays what it is
        put(block, v);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        c.scratch.most_up[product] = most;
        c.scratch.total_up[product] = total;
    }
}

// Four columns of a product, output rotation and scale applied.
__device__ __forceinline__ void finish(const int64_t* sums, float most, int total, uint2 svh,
                                       int column, float (&v)[4]) {
    const auto* from = reinterpret_cast<const longlong2*>(sums + column);
    const longlong2 a = __ldcg(from);
    const longlong2 b = __ldcg(from + 1);
    const long long sum[4] = {a.x, a.y, b.x, b.y};
    const float unit = most * (1.0f / kFixedMax) * 0x1p-18f * 0x1p-7f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        v[j] = __fmul_rn(static_cast<float>(1774LL * sum[j] - 905216LL * total), unit);
    }
    rotate128(v, static_cast<int>(threadIdx.x % 32));
    scale_by(svh, v);
}
__device__ __forceinline__ uint2 four_scales(const uint16_t* scales, int column) {
    return *reinterpret_cast<const uint2*>(scales + column);
}

constexpr int kMiddleWarps = 32;

// Grid (entries).
__global__ void __launch_bounds__(32 * kMiddleWarps)
    middle_kernel(const __grid_constant__ ExpertStep c) {
    __shared__ unsigned int most_bits;
    __shared__ int total;
    // Choices and scales are older than the kernel before.
    const int entry = static_cast<int>(blockIdx.x);
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int row = entry / (c.k + 1);
    const int slot = entry % (c.k + 1);
    const int blocks = c.k_down / kBlock;
    struct Scales {
        uint2 gate, up, down;
    };
    Scales scales{};  // of the first block
    float weight = 1.0f;
    int id = -1;
    const bool found = find_expert(c, entry, &id);
    const auto load = [&](int block) {
        const int column = block * kBlock + 4 * lane;
        return Scales{four_scales(c.gate[id].svh, column), four_scales(c.up[id].svh, column),
                      four_scales(c.down[id].suh, column)};
    };
    if (found) {
        if (warp < blocks) {
            scales = load(warp);
        }
        if (slot < c.k) {
            weight = c.weights[row * c.k + slot];
        }
        if (threadIdx.x == 0) {
            most_bits = 0;
            total = 0;
        }
        __syncthreads();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (!found) {
        return;
    }
    const ExpertScratch& s = c.scratch;
    const auto make = [&](int block, const Scales& scale, float(&v)[4]) {
        const int column = block * kBlock + 4 * lane;
        const int64_t product = int64_t{entry} * 2;
        float other[4];
        finish(s.sums_up + product * c.k_down, s.most_up[product], s.total_up[product], scale.gate,
               column, v);
        finish(s.sums_up + (product + 1) * c.k_down, s.most_up[product + 1],
               s.total_up[product + 1], scale.up, column, other);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float gate = round_bf16(v[j]);
            float up = round_bf16(other[j]);
            if (c.limit > 0) {
                gate = gate > c.limit ? c.limit : gate;
                up = up < -c.limit ? -c.limit : (up > c.limit ? c.limit : up);
            }
            const double z = gate;
            const auto silu = static_cast<float>(z / (1.0 + exp(-z)));
            v[j] = column + j < c.width ? round_bf16(weight * silu * up) : 0.0f;
        }
        scale_by(scale.down, v);
        rotate128(v, lane);
    };
    const auto note = [&](const float(&v)[4]) {
        const unsigned int most = largest4(v);
        if (lane == 0) {
            atomicMax(&most_bits, most);
        }
    };
    float held[4];  // the first block stays in registers; others are made twice
    if (warp < blocks) {
        make(warp, scales, held);
        note(held);
    }
#pragma unroll 1
    for (int block = warp + kMiddleWarps; block < blocks; block += kMiddleWarps) {
        float v[4];
        make(block, load(block), v);
        note(v);
    }
    __syncthreads();
    const float most = __uint_as_float(most_bits);
    const auto put = [&](int block, const float(&v)[4]) {
        const int sum = put_digits(v, most, block * kBlock + 4 * lane,
                                   s.digits_down + int64_t{entry} * 2 * c.k_down);
        if (lane == 0) {
            atomicAdd(&total, sum);
        }
    };
    if (warp < blocks) {
        put(warp, held);
    }
#pragma unroll 1
    for (int block = warp + kMiddleWarps; block < blocks; block += kMiddleWarps) {
        float v[4];
        make(block, load(block), v);
        put(block, v);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        s.most_down[entry] = most;
        s.total_down[entry] = total;
    }
}

// Grid (blocks_down, rows); a warp a slot, at least four warps.
__global__ void __launch_bounds__(32 * (kMostSlots + 1))
    combine_kernel(const __grid_constant__ ExpertStep c) {
    __shared__ float parts[kMostSlots + 1][kBlock];
    __shared__ bool used[kMostSlots + 1];
    // Choices and scales are older than the kernel before.
    const int slot = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int row = static_cast<int>(blockIdx.y);
    const int entry = row * (c.k + 1) + slot;
    const int column = static_cast<int>(blockIdx.x) * kBlock + 4 * lane;
    int id = -1;
    const bool found = slot <= c.k && find_expert(c, entry, &id);
    uint2 scales{};
    if (found) {
        scales = four_scales(c.down[id].svh, column);
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (slot <= c.k && lane == 0) {
        used[slot] = found;
    }
    if (found) {
        float v[4];
        finish(c.scratch.sums_down + int64_t{entry} * c.blocks_down * kBlock,
               c.scratch.most_down[entry], c.scratch.total_down[entry], scales, column, v);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            parts[slot][4 * lane + j] = c.round ? round_bf16(v[j]) : v[j];
        }
    }
    __syncthreads();
    const int at = static_cast<int>(blockIdx.x * kBlock + threadIdx.x);
    if (threadIdx.x < kBlock && at < c.hidden) {
        float sum = 0;
        for (int i = 0; i <= c.k; ++i) {
            sum += used[i] ? parts[i][threadIdx.x] : 0.0f;
        }
        c.out[row * c.out_stride + at] = sum;
    }
}

template <class Argument>
cudaError_t launch(void (*kernel)(Argument), dim3 grid, int threads, int shared_bytes,
                   const Argument& argument, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned int>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = has_clusters() ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, argument);
}

// Warps of a block, two of which share a multiprocessor; 0: not even one fits.
int stream_warps(int twice_k, int stages) {
    const int half = std::min(
        shared_most(), device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 - 1024);
    return std::min(kStreamWarps, half / stream_bytes(twice_k, 1, stages));
}

cudaError_t launch_stream(UnitStream stream_call, int twice_k, cudaStream_t stream) {
    static DeviceFlags allowed;
    const cudaError_t status =
        allow_shared(&allowed, reinterpret_cast<const void*>(stream_kernel), shared_most());
    if (status != cudaSuccess) {
        return status;
    }
    // Warps matter more than a second stage.
    const int stages = stream_warps(twice_k, 2) == kStreamWarps ? 2 : 1;
    const int warps = stream_warps(twice_k, stages);
    stream_call.stages = stages;
    stream_call.stage_bytes = stage_bytes(twice_k);
    const int blocks = 2 * device_attribute(cudaDevAttrMultiProcessorCount);
    return launch(stream_kernel, dim3(static_cast<unsigned int>(blocks)), 32 * warps,
                  stream_bytes(twice_k, warps, stages), stream_call, stream);
}

}  // namespace

bool experts_fit(int twice_k_up, int k_up, int twice_k_down, int k_down, int k) {
    return k <= kMostSlots && k_up <= kMostExactK && k_down <= kMostExactK &&
           stream_warps(twice_k_up, 1) > 0 && stream_warps(twice_k_down, 1) > 0;
}

cudaError_t run_experts(const ExpertStep& c, cudaStream_t stream) {
    const auto entries = static_cast<unsigned int>(c.rows * (c.k + 1));
    const ExpertScratch& s = c.scratch;
    cudaError_t status =
        launch(prepare_kernel, dim3(2, entries + 1), kPrepareThreads, 0, c, stream);
    if (status == cudaSuccess) {
        status = launch_stream({s.groups, s.items, 2, c.k_up / kUnit, c.k_down / kBlock, false,
                                s.digits_up, s.sums_up, 0, 0, 0},
                               c.twice_k_up, stream);
    }
    if (status == cudaSuccess) {
        status = launch(middle_kernel, dim3(entries), 32 * kMiddleWarps, 0, c, stream);
    }
    if (status == cudaSuccess) {
        status =
            launch_stream({s.groups, s.items + 2 * most_groups(c.rows, c.k), 1, c.k_down / kUnit,
                           c.blocks_down, true, s.digits_down, s.sums_down, 0, 0, 0},
                          c.twice_k_down, stream);
    }
    if (status == cudaSuccess) {
        const int threads = 32 * std::max(kBlock / 32, c.k + 1);
        status = launch(
            combine_kernel,
            dim3(static_cast<unsigned int>(c.blocks_down), static_cast<unsigned int>(c.rows)),
            threads, 0, c, stream);
    }
    return status;
}

}  // namespace tenon::exl3::cuda
