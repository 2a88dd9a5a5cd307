// SPDX-License-Identifier: MIT
// Scalar decoding of EXL3 tiles (see codec.h).
#include "codec.h"

#include <array>
#include <memory>

#include "tenon/numeric.h"

namespace tenon::exl3 {

namespace {

constexpr uint32_t kInst3Multiplier = 89226354;
constexpr uint32_t kInst3Addend = 64248484;
constexpr uint32_t kMcgMultiplier = 0xCBAC1FED;
constexpr uint32_t kMul1Multiplier = 0x83DCD12D;

// Two halves with magnitudes in [0.125, 2), added with one rounding. Their sum is exact in f32.
uint16_t sum_of_halves(uint32_t x) {
    const uint32_t h = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
    return f32_to_f16(f16_to_f32(static_cast<uint16_t>(h)) +
                      f16_to_f32(static_cast<uint16_t>(h >> 16)));
}

// half((1774 S - 905216) 2^-18), S = sum of the four bytes: the product is exact in f32.
uint16_t scaled_byte_sum(uint32_t x) {
    const uint32_t sum = (x & 0xFF) + ((x >> 8) & 0xFF) + ((x >> 16) & 0xFF) + (x >> 24);
    return f32_to_f16((1774.0f * static_cast<float>(sum) - 905216.0f) * 0x1p-18f);
}

std::unique_ptr<float[]> build_table(Codebook codebook) {
    auto table = std::make_unique<float[]>(65536);
    for (uint32_t state = 0; state < 65536; ++state) {
        table[state] = f16_to_f32(codebook_half(codebook, static_cast<uint16_t>(state)));
    }
    return table;
}

}  // namespace

const char* codebook_name(Codebook codebook) {
    switch (codebook) {
        case Codebook::inst3:
            return "3inst";
        case Codebook::mcg:
            return "mcg";
        case Codebook::mul1:
            return "mul1";
    }
    return "unknown";
}

uint16_t tile_state(const uint16_t* tile, int twice_k, int p) {
    const int pieces = tile_words(twice_k);
    const int last = window_end(twice_k, p) - 1;  // last bit of the window
    const int piece = last / 16;
    const uint32_t low = tile[stream_piece(piece)];
    const uint32_t high = tile[stream_piece((piece + pieces - 1) % pieces)];
    return static_cast<uint16_t>((high << 16 | low) >> (15 - last % 16));
}

uint16_t codebook_half(Codebook codebook, uint16_t state) {
    switch (codebook) {
        case Codebook::inst3:
            return sum_of_halves(state * kInst3Multiplier + kInst3Addend);
        case Codebook::mcg:
            return sum_of_halves(state * kMcgMultiplier);
        case Codebook::mul1:
            break;
    }
    return scaled_byte_sum(state * kMul1Multiplier);
}

const float* codebook_table(Codebook codebook) {
    static const std::unique_ptr<float[]> inst3 = build_table(Codebook::inst3);
    static const std::unique_ptr<float[]> mcg = build_table(Codebook::mcg);
    static const std::unique_ptr<float[]> mul1 = build_table(Codebook::mul1);
    return codebook == Codebook::inst3 ? inst3.get()
                                       : (codebook == Codebook::mcg ? mcg.get() : mul1.get());
}

void decode_tile(const uint16_t* tile, int twice_k, Codebook codebook, uint16_t* out) {
    for (int p = 0; p < kTileWeights; ++p) {
        out[kTile * tile_row(p) + tile_column(p)] =
            codebook_half(codebook, tile_state(tile, twice_k, p));
    }
}

}  // namespace tenon::exl3
