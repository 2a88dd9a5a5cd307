// SPDX-License-Identifier: MIT
// How EXL3 weights lie in device memory, and how a product is cut: shared by host and device code.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TENON_HD __host__ __device__
#else
#define TENON_HD
#endif

namespace tenon::exl3::cuda {

/// Columns that one output rotation mixes, and rows that one input rotation mixes.
constexpr int kBlock = 128;
/// A unit is the packed weight of 64 rows (k) and 64 columns (n): what a warp decodes at once.
constexpr int kUnit = 64;

enum class Code : int { inst3 = 0, mcg = 1, mul1 = 2 };

/// 32-bit words of a unit. `twice_k` is 2 K.
///
/// A lane (g = lane / 4, t = lane % 4) owns columns g and g + 8 of the four 16-column tiles of the
/// unit, and rows 16 t .. 16 t + 15: four runs of 32 stream positions, 32 K bits each.
///   whole K:    word i of the four runs is quad [i][lane] of the unit
///   half rates: two runs are one string of 2 K words; word i of both strings is pair [i][lane]
/// Units are ordered [n / 128][k / 64][n / 64 % 2].
TENON_HD constexpr int unit_words(int twice_k) {
    return 64 * twice_k;
}
TENON_HD constexpr int64_t unit_index(int64_t units_k, int64_t k_unit, int64_t n_unit) {
    return ((n_unit >> 1) * units_k + k_unit) * 2 + (n_unit & 1);
}
TENON_HD constexpr int64_t packed_words(int64_t k, int64_t n, int twice_k) {
    return k / kUnit * (n / kUnit) * unit_words(twice_k);
}

/// Stream bit, relative to the run, at which the window of position q of a run ends.
TENON_HD constexpr int run_end(int twice_k, int q) {
    return (q + 1) * twice_k / 2;
}
/// Row (in its 16) and column (in its 16, for g = 0) of position q of a run.
TENON_HD constexpr int run_row(int q) {
    return 2 * (q >> 3) + (q & 1) + 8 * ((q >> 1) & 1);
}
TENON_HD constexpr int run_column(int q) {
    return 8 * ((q >> 2) & 1);
}

/// Slices of k: each is one thread block of a cluster, with one activation scale per row. Depends
/// on k alone, so that bits depend neither on a row's company nor on a cut of the outputs.
TENON_HD constexpr int slices_of(int64_t k) {
    return static_cast<int>(k / kBlock < 8 ? k / kBlock : 8);
}
TENON_HD constexpr int64_t slice_begin(int64_t k, int slices, int slice) {
    return k / kBlock * slice / slices * kBlock;
}

}  // namespace tenon::exl3::cuda
