// SPDX-License-Identifier: MIT
// The product on Hopper: blocks stay and walk over tiles of 128 rows and 256 columns. One thread
// keeps a ring of bulk copies full, two warpgroups multiply 64 rows each.
#pragma once

#include "../common/async.cuh"
#include "dense_epilogue.cuh"
#include "wgmma.cuh"

namespace tenon::gemm::cuda {

namespace async = tenon::cuda::async;

constexpr int kColumns = 2 * kTileRows;  ///< of y, in a tile
constexpr int kStages = 4;
constexpr int kStageBytes = 3 * kTileBytes;
constexpr int kGroupThreads = 128;
constexpr int kDenseThreads = 3 * kGroupThreads;
constexpr int kDenseShared = kStages * kStageBytes + 1024 + 16 * kStages;

/// Tiles of a call in order: jobs, then columns, then rows.
struct Schedule {
    int32_t row_tiles = 0;
    int32_t tile_end[kMaxJobs] = {};
};

// Butterflies over 128 columns: column bit 0 and bits 3 to 6 lie in a thread, bits 1 and 2 in
// lanes.
__device__ __forceinline__ void rotate_sums(float* v, int lane) {
#pragma unroll
    for (int at = 0; at < 64; at += 2) {
        const float a = v[at], b = v[at + 1];
        v[at] = __fadd_rn(a, b);
        v[at + 1] = __fsub_rn(a, b);
    }
#pragma unroll
    for (int step = 4; step < 64; step *= 2) {
#pragma unroll
        for (int at = 0; at < 64; ++at) {
            if ((at & step) == 0) {
                const float a = v[at], b = v[at + step];
                v[at] = __fadd_rn(a, b);
                v[at + step] = __fsub_rn(a, b);
            }
        }
    }
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const float sign = (lane & bit) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (int at = 0; at < 64; ++at) {
            v[at] = __fmaf_rn(sign, v[at], __shfl_xor_sync(0xFFFFFFFFu, v[at], bit));
        }
    }
}

// A thread's sums of 128 columns from `first` on: v[4 block + 2 h + i] is row + 8 h, column
// 8 block + 2 (lane % 4) + i. Scales them; `by` as the kernel loads it, two words.
__device__ __forceinline__ void finish_sums(const Job& job, float* v, const uint32_t* by,
                                            const float (&scale)[2], int first, int lane) {
#pragma unroll
    for (int block = 0; block < 16; ++block) {
        float2 columns = make_float2(1.0f, 1.0f);
        if (job.column_scale != nullptr) {
            const uint32_t raw = __shfl_sync(0xFFFFFFFFu, by[block / 8], block % 8 * 4 + lane % 4);
            const float2 s = __half22float2(*reinterpret_cast<const __half2*>(&raw));
            columns = make_float2(s.x * 0x1p-7f, s.y * 0x1p-7f);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            v[4 * block + 2 * h] = __fmul_rn(v[4 * block + 2 * h], __fmul_rn(columns.x, scale[h]));
            v[4 * block + 2 * h + 1] =
                __fmul_rn(v[4 * block + 2 * h + 1], __fmul_rn(columns.y, scale[h]));
        }
    }
    if (job.bias != nullptr) {
#pragma unroll
        for (int at = 0; at < 64; ++at) {
            const int column = first + at / 4 * 8 + 2 * (lane % 4) + at % 2;
            v[at] = __fadd_rn(v[at], column < job.out ? __ldg(job.bias + column) : 0.0f);
        }
    }
}

__device__ __forceinline__ void store_f32(const Job& job, const float* v, int64_t row, int rows,
                                          int first, int lane) {
    const bool paired = stores_pairs(job);
#pragma unroll
    for (int block = 0; block < 16; ++block) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (row + 8 * h < rows) {
                store_pair(job, paired, row + 8 * h, first + 8 * block + 2 * (lane % 4),
                           v[4 * block + 2 * h], v[4 * block + 2 * h + 1]);
            }
        }
    }
}

// Four lanes exchange what they have of 32 columns, so that each stores eight of them at once.
__device__ __forceinline__ void store_bf16(const Job& job, const float* v, int64_t row, int rows,
                                           int first, int lane) {
    const bool aligned = job.y_stride % 8 == 0 && reinterpret_cast<uintptr_t>(job.y) % 16 == 0;
    auto* y = static_cast<__nv_bfloat16*>(job.y);
#pragma unroll
    for (int quad = 0; quad < 4; ++quad) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 16 * quad + 4 * i + 2 * h;
                const __nv_bfloat162 two = __floats2bfloat162_rn(v[at], v[at + 1]);
                w[i] = *reinterpret_cast<const uint32_t*>(&two);
            }
#pragma unroll
            for (int bit = 1; bit < 4; bit *= 2) {
                const bool high = (lane & bit) != 0;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if ((i & bit) == 0) {
                        const uint32_t send = high ? w[i] : w[i + bit];
                        const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, send, bit);
                        w[i] = high ? got : w[i];
                        w[i + bit] = high ? w[i + bit] : got;
                    }
                }
            }
            const int column = first + 32 * quad + 8 * (lane % 4);
            if (row + 8 * h >= rows || column >= job.out) {
                continue;
            }
            __nv_bfloat16* to = y + (row + 8 * h) * job.y_stride + column;
            if (aligned && column + 8 <= job.out) {
                *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
            } else {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    if (column + i < job.out) {
                        const uint32_t bits = i % 2 == 0 ? w[i / 2] & 0xFFFFu : w[i / 2] >> 16;
                        to[i] = __ushort_as_bfloat16(static_cast<unsigned short>(bits));
                    }
                }
            }
        }
    }
}

template <Input kInput>
__global__ void __launch_bounds__(kDenseThreads, 1)
    dense_kernel(const __grid_constant__ Call call, const __grid_constant__ Schedule schedule) {
#if TENON_HAS_WGMMA
    extern __shared__ uint8_t shared_raw[];
    uint8_t* tiles = shared_raw + (1024 - async::shared_address(shared_raw) % 1024) % 1024;
    auto* full = reinterpret_cast<uint64_t*>(tiles + kStages * kStageBytes);
    uint64_t* empty = full + kStages;
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            async::barrier_init(full + s, 1);
            async::barrier_init(empty + s, 8);
        }
        async::fence_barrier_init();
    }
    __syncthreads();
    async::let_next_kernel_start();
    async::wait_for_previous_kernel();
    const int k_tiles = call.k / kTileK;
    const int w_tiles = (call.w_k > 0 ? call.w_k : call.k) / kTileK;
    const int tiles_all = schedule.tile_end[call.job_count - 1];
    const int group = threadIdx.x / kGroupThreads;
    const auto locate = [&](int tile, int* job, int* row_tile, int* column_tile) {
        int j = 0;
        while (tile >= schedule.tile_end[j]) {
            ++j;
        }
        const int local = tile - (j == 0 ? 0 : schedule.tile_end[j - 1]);
        *job = j;
        *row_tile = local % schedule.row_tiles;
        *column_tile = local / schedule.row_tiles;
    };
    int stage = 0;
    uint32_t parity = 0;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            for (int tile = static_cast<int>(blockIdx.x); tile < tiles_all;
                 tile += static_cast<int>(gridDim.x)) {
                int j, row_tile, column_tile;
                locate(tile, &j, &row_tile, &column_tile);
                const Job& job = call.jobs[j];
                const auto* x =
                    static_cast<const uint8_t*>(job.x) + int64_t{row_tile} * k_tiles * kTileBytes;
                const auto* w = static_cast<const uint8_t*>(job.w) +
                                int64_t{column_tile} * 2 * w_tiles * kTileBytes;
                const bool two = column_tile * kColumns + kTileRows < job.out;
                const uint32_t bytes = (two ? 3 : 2) * kTileBytes;
                int kw = 0;
                for (int kt = 0; kt < k_tiles; ++kt) {
                    async::barrier_wait(empty + stage, parity ^ 1);
                    uint8_t* to = tiles + stage * kStageBytes;
                    async::barrier_expect(full + stage, bytes);
                    async::bulk_load_kept(to, x + int64_t{kt} * kTileBytes, kTileBytes,
                                          full + stage);
                    for (int half = 0; half < (two ? 2 : 1); ++half) {
                        async::bulk_load_kept(to + (1 + half) * kTileBytes,
                                              w + (int64_t{half} * w_tiles + kw) * kTileBytes,
                                              kTileBytes, full + stage);
                    }
                    kw = kw + 1 == w_tiles ? 0 : kw + 1;
                    stage = stage + 1 == kStages ? 0 : stage + 1;
                    parity ^= stage == 0 ? 1 : 0;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int lane = threadIdx.x % 32;
        const int warp = threadIdx.x % kGroupThreads / 32;
        const int half_rows = (group - 1) * 64;
        const auto release = [&](int s) {
            if (lane == 0) {
                async::barrier_arrive(empty + s);
            }
        };
        for (int tile = static_cast<int>(blockIdx.x); tile < tiles_all;
             tile += static_cast<int>(gridDim.x)) {
            int j, row_tile, column_tile;
            locate(tile, &j, &row_tile, &column_tile);
            const Job& job = call.jobs[j];
            uint32_t by[4];  // scales of columns 8 (lane / 4 + 8 i) + 2 (lane % 4) and the next
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = column_tile * kColumns + 8 * (lane / 4 + 8 * i) + 2 * (lane % 4);
                by[i] = job.column_scale != nullptr && column < job.out
                            ? __ldg(reinterpret_cast<const uint32_t*>(job.column_scale + column))
                            : 0;
            }
            float acc[128];
            int before = 0;
            for (int kt = 0; kt < k_tiles; ++kt) {
                async::barrier_wait(full + stage, parity);
                const uint32_t at = async::shared_address(tiles + stage * kStageBytes);
                const uint64_t a = operand(at + half_rows * 128);
                const uint64_t b = operand(at + kTileBytes);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < kTileK / 16; ++step) {
                    if constexpr (kInput == Input::f16) {
                        wgmma_f16(acc, a + 2 * step, b + 2 * step, kt + step);
                    } else {
                        wgmma_bf16(acc, a + 2 * step, b + 2 * step, kt + step);
                    }
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (kt > 0) {
                    release(before);
                }
                before = stage;
                stage = stage + 1 == kStages ? 0 : stage + 1;
                parity ^= stage == 0 ? 1 : 0;
            }
            wgmma_wait<0>();
            release(before);
            const int64_t row = int64_t{row_tile} * kTileRows + half_rows + 16 * warp + lane / 4;
            float scale[2] = {1.0f, 1.0f};
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (job.row_scale != nullptr && row + 8 * h < call.rows) {
                    scale[h] = __ldg(job.row_scale + row + 8 * h);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int first = column_tile * kColumns + half * kTileRows;
                if (first >= job.out) {
                    continue;
                }
                float* v = acc + 64 * half;
                if (job.column_scale != nullptr) {
                    rotate_sums(v, lane);
                }
                finish_sums(job, v, by + 2 * half, scale, first, lane);
                if (job.y_is_f32 != 0) {
                    store_f32(job, v, row, call.rows, first, lane);
                } else {
                    store_bf16(job, v, row, call.rows, first, lane);
                }
            }
        }
    }
#else
    asm volatile("trap;");  // built for another device
#endif
}

}  // namespace tenon::gemm::cuda
