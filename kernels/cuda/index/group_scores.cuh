// SPDX-License-Identifier: MIT
// Scores by sums of single groups, for the keys and rows of index/score_pages.cuh whose scales
// differ by more than bytes hold.
#pragma once

#include "index/int8_sums.cuh"
#include "index/score.cuh"

namespace tenon::cuda::index {

/// Score of key lane / 4 + 8 (lane % 4 / 2) + 16 (lane % 2) of a tile by sums of single groups,
/// before the factors of row and key. `q` is the shared address of the row's heads, `codes` and
/// `scales` are those of the tile's first key, `largest` the largest scale of the keys r, r + 8,
/// r + 16, r + 24.
template <int kBlocks>
__device__ __forceinline__ float group_score(const uint8_t* codes, const uint8_t* scales,
                                             uint32_t q, uint32_t step, const int4* weight,
                                             const float4* factor) {
    const int lane = threadIdx.x % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    float sum[2] = {0, 0};
#pragma unroll 1
    for (int m = 0; m < 2; ++m) {
        uint32_t a[kGroups][4];
        float scale[2][kGroups];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = 16 * m + 8 * half + r;
            const uint32_t e = *reinterpret_cast<const uint32_t*>(scales + key * 4);
            int largest = 0;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                largest = max(largest, static_cast<int>(e >> 8 * g & 255u));
            }
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                // Word c of the group: columns 8 c .. 8 c + 7.
                const uint32_t x =
                    *reinterpret_cast<const uint32_t*>(codes + key * 64 + g * 16 + c * 4);
                uint32_t low, high;
                KeyTable(1, 1).bytes(x, low, high);
                a[g][half] = __vadd4(low, 0xC0C0C0C0u);
                a[g][2 + half] = __vadd4(high, 0xC0C0C0C0u);
                scale[half][g] =
                    ldexpf(1.0f, static_cast<int>(e >> 8 * g & 255u) - largest + kKeyOctaves - 49);
            }
        }
        float part[2] = {0, 0};
#pragma unroll 1
        for (int nt = 0; nt < 4 * kBlocks; ++nt) {
            const float4* of_head = factor + c * 8 * kBlocks + 2 * nt;
            const float4 both[2] = {of_head[0], of_head[1]};
            float dot[4] = {0, 0, 0, 0};
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                // The bytes of these columns stand in k step c, bytes 4 g .. 4 g + 3 of each half.
                const uint32_t at = q + c * step + nt * 256 + r * 16 + g * 4;
                int d[4] = {0, 0, 0, 0};
                mma_s8(d, a[g], shared_word(at), shared_word(at + 128));
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const float4& f = both[k % 2];
                    const float s = static_cast<float>(d[k]) * (g == 0   ? f.x
                                                                : g == 1 ? f.y
                                                                : g == 2 ? f.z
                                                                         : f.w);
                    dot[k] = g == 0 ? s * scale[k / 2][g] : __fmaf_rn(s, scale[k / 2][g], dot[k]);
                }
            }
            const int4 w = weight[nt * 4 + c];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float wk = __int_as_float(k % 2 == 0 ? w.x : w.y) * 0x1p-100f;
                part[k / 2] = __fmaf_rn(wk, fmaxf(dot[k], 0.0f), part[k / 2]);
            }
        }
        float s = c >= 2 ? part[1] : part[0];
        s += __shfl_xor_sync(~0u, c >= 2 ? part[0] : part[1], 2);
        s += __shfl_xor_sync(~0u, s, 1);
        sum[m] = s;
    }
    return c % 2 == 0 ? sum[0] : sum[1];
}

/// Score of the key that this lane owns, by FP8 sums of single groups (score.cuh); `codes` and
/// `scales` are those of the tile, in shared memory. All four warps of a warpgroup call together.
template <int kBlocks>
__device__ __forceinline__ float fp8_score(const uint8_t* codes, const uint8_t* scales, uint32_t q,
                                           uint32_t group_bytes, const int4* weight) {
    const int lane = threadIdx.x % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    float sum[2];
#pragma unroll 1
    for (int m = 0; m < 2; ++m) {
        uint32_t fragment[kGroups][1][4];
        float scale[2][kGroups];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = 16 * m + 8 * half + r;
            const uint32_t e = *reinterpret_cast<const uint32_t*>(scales + key * 4);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                e2m1_to_e4m3(*reinterpret_cast<const uint32_t*>(codes + key * 64 + g * 16 + c * 4),
                             fragment[g][0][half], fragment[g][0][2 + half]);
                scale[half][g] = e8m0(e >> 8 * g & 255u);
            }
        }
        float part[2] = {0, 0};
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            float dot[16];  // one group at a time: registers
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                float d[1][16];
                group_sums(d, fragment[g], q + block * 1024 + g * group_bytes, 0, lane);
#pragma unroll
                for (int k = 0; k < 16; ++k) {
                    const float by = scale[k % 4 / 2][g];
                    dot[k] = g == 0 ? d[0][k] * by : __fmaf_rn(d[0][k], by, dot[k]);
                }
            }
#pragma unroll
            for (int nt = 0; nt < 4; ++nt) {
                const int4 w = weight[(4 * block + nt) * 4 + c];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    part[k / 2] = __fmaf_rn(__int_as_float(k % 2 == 0 ? w.x : w.y),
                                            fmaxf(dot[4 * nt + k], 0.0f), part[k / 2]);
                }
            }
        }
        float half_sum =
            (c >= 2 ? part[1] : part[0]) + __shfl_xor_sync(~0u, c >= 2 ? part[0] : part[1], 2);
        half_sum += __shfl_xor_sync(~0u, half_sum, 1);
        if (m == 0) {
            sum[0] = half_sum;
        } else {
            sum[1] = half_sum;
        }
    }
    return c % 2 == 0 ? sum[0] : sum[1];
}

}  // namespace tenon::cuda::index
