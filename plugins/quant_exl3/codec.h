// SPDX-License-Identifier: MIT
// The EXL3 code itself, scalar: bit stream, states, codebooks, tile order and rotation
// (docs/exl3.md 2). This is the specification that faster code is tested against.
#pragma once

#include <cmath>
#include <cstdint>

namespace tenon::exl3 {

constexpr int kTile = 16;           ///< rows and columns of a tile
constexpr int kTileWeights = 256;   ///< positions of a tile
constexpr int64_t kRotation = 128;  ///< channels that one Hadamard block mixes

/// Which function turns a 16-bit state into a weight; chosen per tensor by a marker.
enum class Codebook : uint8_t { inst3, mcg, mul1 };
const char* codebook_name(Codebook codebook);

/// Rates are kept doubled, so that half rates are integers: 2 .. 16 for K = 1 .. 8, and 3, 5, 7.
constexpr bool valid_rate(int twice_k, Codebook codebook) {
    return twice_k >= 2 && twice_k <= 16 &&
           (twice_k % 2 == 0 || (twice_k <= 7 && codebook == Codebook::mul1));
}

/// 16-bit words of a packed tile.
constexpr int tile_words(int twice_k) {
    return 8 * twice_k;
}

/// Stream bit at which the window of position `p` ends (exclusive). Half rates give odd positions
/// the extra bit.
constexpr int window_end(int twice_k, int p) {
    return (p + 1) * twice_k / 2;
}

/// Place of stream position `p` in the tile: row along the input, column along the output.
constexpr int tile_row(int p) {
    return 2 * ((p >> 3) & 3) + (p & 1) + 8 * ((p >> 1) & 1);
}
constexpr int tile_column(int p) {
    return (p >> 5) + 8 * ((p >> 2) & 1);
}

/// The stream is read most significant bit first in 32-bit words; in 16-bit pieces that swaps
/// neighbours.
constexpr int stream_piece(int index) {
    return index ^ 1;
}

/// State of position `p`: the 16 stream bits before `window_end`, circular.
uint16_t tile_state(const uint16_t* tile, int twice_k, int p);

/// Weight of a state as IEEE half bits. Exact by definition: no tolerance anywhere.
uint16_t codebook_half(Codebook codebook, uint16_t state);

/// All 65536 weights of a codebook as f32 (each is exact). Built once per codebook, thread-safe.
const float* codebook_table(Codebook codebook);

/// Decodes a tile to half bits, row major (`out[16 * row + column]`).
void decode_tile(const uint16_t* tile, int twice_k, Codebook codebook, uint16_t* out);

/// Multiplies 128 values by the Sylvester matrix of order 128, without the factor 1 / sqrt(128).
template <class T>
void hadamard128(T* v) {
    for (int half = 1; half < 128; half *= 2) {
        for (int base = 0; base < 128; base += 2 * half) {
            for (int i = base; i < base + half; ++i) {
                const T a = v[i];
                const T b = v[i + half];
                v[i] = a + b;
                v[i + half] = a - b;
            }
        }
    }
}

/// The factor of one rotation. Two of them give 1/128, which is exact.
inline const double kRotationScale = 1.0 / std::sqrt(128.0);

}  // namespace tenon::exl3
