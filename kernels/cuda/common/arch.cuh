// SPDX-License-Identifier: MIT
// What the architecture has that code is being compiled for. Device code asks these constants where
// its form depends on them; launchers ask built_for.h which form there is on a device.
#pragma once

namespace tenon::cuda {

#if defined(__CUDA_ARCH__)
constexpr int kArch = __CUDA_ARCH__ / 10;
#else
constexpr int kArch = 90;  // host code only reads the text of kernels
#endif

/// Thread block clusters with distributed shared memory; else a block is its own cluster.
constexpr bool kHasClusters = kArch >= 90;
/// Bulk copies, and barriers that count their bytes; else 16-byte copies and their arrival.
constexpr bool kHasBulkCopies = kArch >= 90;
/// griddepcontrol; else a kernel starts when those before it in the stream have ended.
constexpr bool kHasDependentLaunch = kArch >= 90;
/// Products of E4M3 bytes on tensor cores; else of halves.
constexpr bool kHasE4m3Products = kArch >= 89;
/// mul of two bf16; else their fma.
constexpr bool kHasBf16Mul = kArch >= 90;

}  // namespace tenon::cuda
