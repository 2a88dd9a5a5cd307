// SPDX-License-Identifier: MIT
// Exact int8 sums of keys with heads: E2M1 codes times a factor as bytes, their products on the
// tensor core, and the weighted sum over heads (score_pages.cuh says how they fit together).
#pragma once

#include "common/wgmma.cuh"
#include "index/prepare.cuh"

namespace tenon::cuda::index {

__device__ inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t r;  // __byte_perm would mask the sign bits of the selector
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
    return r;
}

/// Bytes of E2M1 codes times 2 and a factor. `one` is 1, unknown to the compiler: shifts and sums
/// as products leave the integer pipe, which is the busy one, to the permutations.
struct KeyTable {
    uint32_t up[2], one;
    __device__ KeyTable(uint32_t factor, uint32_t one_) : one(one_) {
        up[0] = kSteps[0] * factor;
        up[1] = kSteps[1] * factor;
    }
    __device__ uint32_t upper(uint32_t x) const { return __umulhi(x, one << 16); }
    /// Eight codes, columns 0..3 and columns 4..7: the positive ones, and the negative ones without
    /// their sign. A selector with a set sign bit replicates the sign of the byte: 0.
    __device__ void split(uint32_t x, uint32_t& low, uint32_t& high, uint32_t& minus_low,
                          uint32_t& minus_high) const {
        const uint32_t y = x ^ 0x88888888u;
        low = permute(up[0], up[1], x);
        high = permute(up[0], up[1], upper(x));
        minus_low = permute(up[0], up[1], y);
        minus_high = permute(up[0], up[1], upper(y));
    }
    /// The same in one number each, 64 above.
    __device__ void bytes(uint32_t x, uint32_t& low, uint32_t& high) const {
        const uint32_t above[2] = {up[0] + kZero, up[1] + kZero};
        const uint32_t below[2] = {kZero - up[0], kZero - up[1]};
        const uint32_t y = x ^ 0x88888888u;
        low = permute(above[0], above[1], x) * one + permute(below[0], below[1], y);
        high = permute(above[0], above[1], upper(x)) * one + permute(below[0], below[1], upper(y));
    }

  private:
    static constexpr uint32_t kZero = 0x40404040u;
    static constexpr uint32_t kSteps[2] = {0x03020100u, 0x0C080604u};
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// d += a b over 32 columns, b at the descriptor; all four warps of a warpgroup call together.
template <int N>
__device__ inline void wgmma_s8(int (&d)[N / 2], const uint32_t* a, uint64_t b, int add);

template <>
__device__ inline void wgmma_s8<32>(int (&d)[16], const uint32_t* a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p;\n}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
          "+r"(d[14]), "+r"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
template <>
__device__ inline void wgmma_s8<64>(int (&d)[32], const uint32_t* a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, p;\n}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
          "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]),
          "+r"(d[21]), "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]),
          "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
#endif

__device__ inline void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline uint32_t shared_word(uint32_t at) {
    uint32_t w;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w) : "r"(at));
    return w;
}

/// Starts d = the sums over 128 columns, in kPlanes planes, of this warp's 16 keys with N heads at
/// shared address `q`, whose k steps lie `step` bytes apart and whose planes `plane` bytes.
template <int N, int kPlanes>
__device__ inline void start_sums(int (&d)[N / 2], const uint32_t (&a)[kPlanes][16], uint32_t q,
                                  uint32_t step, uint32_t plane, int lane) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr uint64_t kLayout = uint64_t{128 / 16} << 16 | uint64_t{256 / 16} << 32;
    wgmma_fence();
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            wgmma_s8<N>(d, a[p] + 4 * s, kLayout | ((q + p * plane + s * step) & 0x3FFFFu) >> 4,
                        s + p > 0);
        }
    }
    wgmma_commit();
#else
#pragma unroll
    for (int nt = 0; nt < N / 8; ++nt) {
        int e[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 4 * kPlanes; ++i) {
            const uint32_t at = q + i / 4 * plane + i % 4 * step + nt * 256 + lane * 4;
            const uint32_t* from = a[i / 4] + i % 4 * 4;
            const uint32_t f[4] = {from[0], from[1], from[2], from[3]};
            mma_s8(e, f, shared_word(at), shared_word(at + 128));
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            d[4 * nt + k] = e[k];
        }
    }
#endif
}
/// Waits until at most `kOpen` started sums are open; d is one of the others. Not before `after`.
template <int kOpen, int N>
__device__ inline void finish_sums(int (&d)[N], float& after) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.wait_group.sync.aligned %1;" : "+f"(after) : "n"(kOpen) : "memory");
    hold(d);
#endif
}

/// Sums of a row over this lane's heads for keys r and r + 8 of a tile half, then over half of the
/// lanes of a quad: the result is of key r + 8 (c / 2).
template <int kBlocks, bool kSplit>
__device__ inline float sum_heads(const int (&d)[16 * kBlocks], const int4* weight, int c) {
    float part[2] = {0, 0};
#pragma unroll
    for (int nt = 0; nt < 4 * kBlocks; ++nt) {
        const int4 w = weight[nt * 4 + c];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int dot = d[4 * nt + k];
            const int sum = kSplit ? max(dot, 0) : __viaddmax_s32(dot, k % 2 == 0 ? w.z : w.w, 0);
            part[k / 2] =
                __fmaf_rn(__int_as_float(k % 2 == 0 ? w.x : w.y), __int_as_float(sum), part[k / 2]);
        }
    }
    return (c >= 2 ? part[1] : part[0]) + __shfl_xor_sync(~0u, c >= 2 ? part[0] : part[1], 2);
}

}  // namespace tenon::cuda::index
