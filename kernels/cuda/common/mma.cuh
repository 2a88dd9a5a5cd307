// SPDX-License-Identifier: MIT
// Warp-level bf16 tensor-core steps and asynchronous copies to shared memory.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace tenon::cuda {

/// 16 bytes from global to shared memory; `valid` false fills zeros.
__device__ inline void copy16_async(void* shared, const void* global, bool valid) {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(bytes));
}
__device__ inline void commit_copies() {
    asm volatile("cp.async.commit_group;");
}
/// Waits until at most kPending committed groups are open.
template <int kPending>
__device__ inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
}

/// Four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrix4(const void* shared, uint32_t (&m)[4]) {
    const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(from));
}

/// d += a b, a [16, 16] row-major, b [16, 8] column-major, bf16 in, f32 sums.
__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tenon::cuda
