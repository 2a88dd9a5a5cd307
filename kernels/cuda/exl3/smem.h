// SPDX-License-Identifier: MIT
// Shared memory of the linear kernel, for host and device.
#pragma once

#include "layout.h"

namespace tenon::exl3::cuda {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kSplits =
    kWarps / 2;             ///< warps that share 64 columns split k; fixed: part of the bits
constexpr int kStages = 4;  ///< most units that a warp keeps in flight
constexpr int kSumStride = kBlock + 4;
constexpr int kMaxRows = 16;    ///< of one launch
constexpr int kRowsExact = 16;  ///< of one launch of the exact kernel
constexpr int kRowsWide = 32;   ///< of one launch of the wide kernel
constexpr int kRowsFused = 4;   ///< up to these share one n8 block
/// mul1 weights up to this many in an object take the kernel of slices (linear.cuh): it starts
/// faster, while the exact kernel has the higher rate. Counted before a rank's cut of the outputs,
/// so that a cut keeps the bits.
constexpr int64_t kSlicedMost = int64_t{16} << 20;
/// Fewer rows are faster in the exact kernel: in the wide one most column blocks have sums to
/// share. Changes speed, never bits.
constexpr bool wide_pays(int64_t k, int64_t rows) {
    return rows > 8 && k >= 2048;
}
/// Whether the rows of a launch of the exact kernel are rotated once into scratch; fewer are
/// rotated by every block. Changes speed, never bits.
constexpr bool rotated_first(int64_t k, int64_t rows) {
    return rows > kRowsFused || (rows > 1 && rows * (k / kBlock) > 64);
}
/// Most rows that every block rotates.
constexpr int fused_rows(int64_t k) {
    int rows = kRowsFused;
    while (rotated_first(k, rows)) {
        --rows;
    }
    return rows;
}
/// n8 blocks of a launch of the exact kernel.
constexpr int exact_n8_blocks(int rows) {
    return rows <= kRowsFused ? 1 : (rows <= 2 * kRowsFused ? 2 : 4);
}
/// Inputs of the exact kernel: sums of this many digit products fit 32 bits, 128 * 1020 * 16384 <
/// 2^31. Longer ones take the kernel of slices.
constexpr int kMostExactK = 16384;
constexpr int kHeaderBytes = 640;        ///< barriers, scales, row numbers
constexpr int kSharedMost = 227 * 1024;  ///< of a block on sm_90; other devices give less

/// Rows that one n8 block of the tensor core carries.
TENON_HD constexpr int rows_per_block(Code code) {
    return code == Code::mul1 ? 4 : 8;
}
/// Bytes of staged x per 16 rows of k and n8 block: eight columns of 16 digits or halves.
TENON_HD constexpr int staged_tile_bytes(Code code) {
    return code == Code::mul1 ? 128 : 256;
}

/// Offsets in bytes.
struct SmemLayout {
    int ring, staged, rotated, sums, total;
};

/// `n_blocks` n8 blocks for `rows` rows; `slice` is the longest slice; `stages` units in flight.
TENON_HD constexpr SmemLayout smem_layout(Code code, int twice_k, int n_blocks, int rows, int slice,
                                          int stages) {
    SmemLayout l{};
    int at = kHeaderBytes;
    l.ring = at;
    const int ring = kWarps * stages * unit_words(twice_k) * 4;
    const int slots = kSplits * 8 * n_blocks * kSumStride * 4;  // take the place of the ring
    at += ring > slots ? ring : slots;
    l.staged = at;
    at += n_blocks * (slice / 16) * staged_tile_bytes(code);
    l.rotated = at;  // f32 [rows][slice]
    at += rows * slice * 4;
    l.sums = at;  // f32 [ceil(rows / slices)][slices][128]
    at += (rows + 7) * kBlock * 4;
    l.total = at;
    return l;
}

/// n8 blocks that an instance for `rows` rows has.
constexpr int n_blocks_of(Code code, int rows) {
    const int per = rows_per_block(code);
    return rows <= per ? 1 : (rows <= 2 * per ? 2 : 4);
}

/// Most rows of a launch, at most kMaxRows, where a block may have `limit` bytes.
constexpr int rows_that_fit(Code code, int twice_k, int slice, int limit) {
    int rows = kMaxRows;
    while (rows > 0 &&
           smem_layout(code, twice_k, n_blocks_of(code, rows), rows, slice, 1).total > limit) {
        --rows;
    }
    return rows;
}

/// Units in flight: a power of two, at most kStages.
constexpr int stages_that_fit(Code code, int twice_k, int rows, int slice, int limit) {
    int stages = kStages;
    while (stages > 1 &&
           smem_layout(code, twice_k, n_blocks_of(code, rows), rows, slice, stages).total > limit) {
        stages /= 2;
    }
    return stages;
}

}  // namespace tenon::exl3::cuda
