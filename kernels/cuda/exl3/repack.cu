// SPDX-License-Identifier: MIT
// From the order of a checkpoint to the order in which lanes read (layout.h).
#include "api.h"

namespace tenon::exl3::cuda {

namespace {

// 16-bit piece `index` of the stream of a tile. In storage, pairs of pieces are swapped.
__device__ uint32_t piece(const uint16_t* tile, int index) {
    return tile[index ^ 1];
}

// One thread a word of rows [k_first, k_first + k_count).
__global__ void repack_kernel(const uint16_t* trellis, uint32_t* words, int64_t k, int64_t n,
                              int twice_k, int64_t k_first, int64_t k_count) {
    const int64_t total = packed_words(k_count, n, twice_k);
    const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (at >= total) {
        return;
    }
    const int64_t unit = at / unit_words(twice_k);
    const int offset = static_cast<int>(at % unit_words(twice_k));
    const int64_t units_k = k_count / kUnit;
    const int64_t k_unit = unit / 2 % units_k;  // of these rows
    const int64_t n_unit = unit / 2 / units_k * 2 + unit % 2;
    const bool whole = twice_k % 2 == 0;
    const int width = whole ? 4 : 2;  // runs or strings side by side
    const int side = offset % width;
    const int lane = offset / width % 32;
    const int word = offset / width / 32;
    uint32_t value = 0;
    for (int half = 0; half < 2; ++half) {
        const int in_string = 2 * word + half;
        const int run = whole ? side : 2 * side + (in_string >= twice_k ? 1 : 0);
        const int in_run = in_string % twice_k;
        const int64_t tile = (4 * k_unit + lane % 4) * (n / 16) + 4 * n_unit + run;
        value = value << 16 | piece(trellis + tile * 8 * twice_k, twice_k * (lane / 4) + in_run);
    }
    const int64_t to = unit_index(k / kUnit, k_first / kUnit + k_unit, n_unit);
    words[to * unit_words(twice_k) + offset] = value;
}

}  // namespace

cudaError_t repack(const uint16_t* trellis, uint32_t* words, int64_t k, int64_t n, int twice_k,
                   int64_t k_first, int64_t k_count, cudaStream_t stream) {
    const int64_t total = packed_words(k_count, n, twice_k);
    const auto blocks = static_cast<unsigned int>((total + 255) / 256);
    repack_kernel<<<blocks, 256, 0, stream>>>(trellis, words, k, n, twice_k, k_first, k_count);
    return cudaGetLastError();
}

}  // namespace tenon::exl3::cuda
