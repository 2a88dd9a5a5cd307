// SPDX-License-Identifier: MIT
// Helpers of the EXL3 tests: an independent packer, checksums, and made-up matrices.
#pragma once

#include <cstring>

#include "plugins/quant_exl3/codec.h"
#include "tenon/numeric.h"
#include "tenon/testing/quant_samples.h"

namespace tenon::testing {

/// zlib's CRC-32, bit by bit.
inline uint32_t crc32(const void* data, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; ++i) {
        crc ^= static_cast<const uint8_t*>(data)[i];
        for (int b = 0; b < 8; ++b) {
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
        }
    }
    return ~crc;
}

/// The generator of docs/exl3.md 2.5.
class WordGenerator {
  public:
    explicit WordGenerator(uint32_t seed) : state_(seed) {}
    uint32_t next() { return state_ = state_ * 1664525u + 1013904223u; }

  private:
    uint32_t state_;
};

/// 8 K words of a tile (twice_k = 2 K), as stored 16-bit words.
inline std::vector<uint16_t> generated_tile(int twice_k, WordGenerator& generator) {
    std::vector<uint16_t> tile;
    for (int i = 0; i < 4 * twice_k; ++i) {
        const uint32_t word = generator.next();
        tile.push_back(static_cast<uint16_t>(word));
        tile.push_back(static_cast<uint16_t>(word >> 16));
    }
    return tile;
}

/// New bits that a position adds to the stream.
inline int new_bits(int twice_k, int p) {
    return twice_k / 2 + ((twice_k & 1) != 0 && (p & 1) != 0);
}

/// Packs a ring of states: the stream is the low bits of all states in turn, most significant
/// first.
inline std::vector<uint16_t> pack_tile(const std::vector<uint16_t>& states, int twice_k) {
    std::vector<uint32_t> words(static_cast<size_t>(4 * twice_k), 0);
    size_t at = 0;
    for (int p = 0; p < 256; ++p) {
        for (int b = new_bits(twice_k, p) - 1; b >= 0; --b, ++at) {
            const uint32_t bit = (states[static_cast<size_t>(p)] >> b) & 1u;
            words[at / 32] |= bit << (31 - at % 32);
        }
    }
    std::vector<uint16_t> tile;
    for (const uint32_t word : words) {
        tile.push_back(static_cast<uint16_t>(word));
        tile.push_back(static_cast<uint16_t>(word >> 16));
    }
    return tile;
}

/// A made-up EXL3 matrix, with the codebook as the codec names it.
struct FakeMatrix {
    int twice_k = 6;
    exl3::Codebook codebook = exl3::Codebook::mul1;
    int64_t k = 128, n = 128;
    bool bias = false;
    bool legacy_signs = false;
    uint32_t seed = 1;
};

inline void add_fake(MemorySource& source, const std::string& base, const FakeMatrix& f) {
    const char* marker = f.codebook == exl3::Codebook::inst3 ? "" : codebook_name(f.codebook);
    add_exl3(source, base, {f.twice_k, marker, f.k, f.n, f.bias, f.legacy_signs, f.seed});
}

}  // namespace tenon::testing
