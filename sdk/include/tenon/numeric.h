// SPDX-License-Identifier: MIT
// Conversions between the narrow number formats and f32, and the counter noise of sampling: one
// definition for all.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tenon {

/// bf16 bits -> f32, exact.
constexpr float bf16_to_f32(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// f32 -> bf16 bits, round to nearest even; overflow gives infinity, NaN stays a quiet NaN.
constexpr uint16_t f32_to_bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) {
        return static_cast<uint16_t>((u >> 16) | 0x0040u);
    }
    return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

/// The f32 value of the nearest bf16 number.
constexpr float round_bf16(float value) {
    return bf16_to_f32(f32_to_bf16(value));
}

/// IEEE half bits -> f32, exact.
constexpr float f16_to_f32(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1Fu;
    const uint32_t fraction = bits & 0x3FFu;
    if (exponent == 31) {
        return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
    }
    if (exponent != 0) {
        return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
    }
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

/// f32 -> IEEE half bits, round to nearest even; overflow gives infinity, NaN stays a quiet NaN.
constexpr uint16_t f32_to_f16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
    const uint32_t magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
        return static_cast<uint16_t>(sign | 0x7E00u | ((u >> 13) & 0x1FFu));
    }
    if (magnitude >= 0x47800000u) {  // 65536 and more
        return static_cast<uint16_t>(sign | 0x7C00u);
    }
    if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, unit 2^-24
        // Adding 0.5 puts the unit of the result, 2^-24, at the last bit of the f32 sum.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
    }
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// E4M3 (bias 7, no infinity, NaN = 0x7F and 0xFF, largest 448) -> f32, exact.
constexpr float e4m3_to_f32(uint8_t code) {
    const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
    const uint32_t exponent = (code >> 3) & 0xFu;
    const uint32_t fraction = code & 7u;
    if (exponent == 15 && fraction == 7) {
        return std::bit_cast<float>(sign | 0x7FC00000u);
    }
    if (exponent != 0) {
        return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (fraction << 20));
    }
    const float magnitude = static_cast<float>(fraction) * 0x1p-9f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

/// f32 -> E4M3, round to nearest even, saturating at 448 (infinities too); NaN -> NaN. Keeps the
/// sign of zero.
constexpr uint8_t f32_to_e4m3(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint8_t>((u >> 24) & 0x80u);
    const uint32_t magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
        return static_cast<uint8_t>(sign | 0x7Fu);
    }
    if (magnitude >= 0x43E00000u) {  // 448 and more
        return static_cast<uint8_t>(sign | 0x7Eu);
    }
    if (magnitude < 0x3C800000u) {  // below 2^-6: subnormal, unit 2^-9
        // Adding 2^14 puts the unit of the result, 2^-9, at the last bit of the f32 sum.
        const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
        return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
    }
    const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
    const uint32_t code = (rounded - 0x3C000000u) >> 20;
    return static_cast<uint8_t>(sign | (code > 0x7Eu ? 0x7Eu : code));
}

/// E8M0: 2^(code - 127); 0xFF is NaN; 0 is the subnormal 2^-127.
constexpr float e8m0_to_f32(uint8_t code) {
    if (code == 0xFF) {
        return std::bit_cast<float>(0x7FC00000u);
    }
    return code == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

/// The E8M0 code of 2^ceil(log2(value)) for a finite value > 0 (exponent bits, plus one if the
/// mantissa is not zero).
constexpr uint8_t e8m0_ceil(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
    const uint32_t code = (u >> 23) + ((u & 0x7FFFFFu) != 0 ? 1u : 0u);
    return static_cast<uint8_t>(code > 254 ? 254 : code);
}

/// E2M1 code (low 4 bits: sign, 2 exponent bits, 1 fraction bit): 0 .5 1 1.5 2 3 4 6.
constexpr float e2m1_to_f32(uint8_t code) {
    constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return kValues[code & 15u];
}

/// f32 -> E2M1 code, nearest, ties to the even code, saturating at 6. A negative that rounds to
/// zero keeps its sign (code 8). NaN, which the format lacks, gives zero of its sign.
constexpr uint8_t f32_to_e2m1(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint8_t>((u >> 28) & 8u);
    const float a = std::bit_cast<float>(u & 0x7FFFFFFFu);
    int code = 0;
    code += a > 0.25f;
    code += a >= 0.75f;
    code += a > 1.25f;
    code += a >= 1.75f;
    code += a > 2.5f;
    code += a >= 3.5f;
    code += a > 5.0f;
    return static_cast<uint8_t>(sign | code);
}

/// Four words of Philox4x32 with 10 rounds (Salmon et al., 2011).
struct Philox4 {
    uint32_t word[4];
};

constexpr Philox4 philox4x32_10(uint32_t key0, uint32_t key1, uint32_t c0, uint32_t c1, uint32_t c2,
                                uint32_t c3) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
        const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
        const auto n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
        const auto n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
        c0 = n0;
        c1 = static_cast<uint32_t>(p1);
        c2 = n2;
        c3 = static_cast<uint32_t>(p0);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

/// The word that belongs to (seed, position, token id): ops.md 3.9.
constexpr uint32_t noise_word(uint64_t seed, int32_t pos, int32_t id) {
    const auto u = static_cast<uint32_t>(id);
    return philox4x32_10(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), u >> 2,
                         static_cast<uint32_t>(pos), 0, 0)
        .word[u & 3u];
}

/// -log(-log u) with u = (word + 0.5) 2^-32, in f64. Finite for every word.
inline double gumbel_of_word(uint32_t word) {
    return -std::log(-std::log((static_cast<double>(word) + 0.5) * 0x1p-32));
}
inline double gumbel_noise(uint64_t seed, int32_t pos, int32_t id) {
    return gumbel_of_word(noise_word(seed, pos, id));
}

/// The finaliser of splitmix64, a bijection of 64-bit words (rows.digest).
constexpr uint64_t splitmix64_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

}  // namespace tenon
