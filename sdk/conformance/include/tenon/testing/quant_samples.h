// SPDX-License-Identifier: MIT
// Made-up matrices in the formats that checkpoints use: EXL3 and the ordinary ones. For unit tests
// and the conformance suite of quantisation formats.
#pragma once

#include <cmath>
#include <random>

#include "tenon/numeric.h"
#include "tenon/testing/memory_source.h"

namespace tenon::testing {

/// What a made-up EXL3 matrix looks like.
struct Exl3Sample {
    int twice_k = 6;              ///< 2 K
    const char* marker = "mul1";  ///< "mul1", "mcg" or "" (3inst)
    int64_t k = 128, n = 128;
    bool bias = false;
    bool legacy_signs = false;
    uint32_t seed = 1;
};

/// Random codes (any words are a valid tile) and scales of a usual size.
inline void add_exl3(MemorySource& source, const std::string& base, const Exl3Sample& f) {
    std::mt19937 rng(f.seed);
    const int64_t words = 8 * f.twice_k;
    std::vector<uint16_t> trellis(static_cast<size_t>(f.k / 16 * (f.n / 16) * words));
    for (uint16_t& w : trellis) {
        w = static_cast<uint16_t>(rng());
    }
    source.add(base + ".trellis", DType::i16, {f.k / 16, f.n / 16, words}, trellis);
    const auto scales = [&](const char* half, const char* sign, int64_t length, float size) {
        if (f.legacy_signs) {
            std::vector<uint16_t> packed(static_cast<size_t>(length / 16));
            for (uint16_t& w : packed) {
                w = static_cast<uint16_t>(rng());
            }
            source.add(base + "." + sign, DType::i16, {length / 16}, packed);
            return;
        }
        std::vector<uint16_t> values;
        for (int64_t i = 0; i < length; ++i) {
            const float magnitude = size * (0.5f + static_cast<float>(rng() % 1024) / 1024.0f);
            values.push_back(f32_to_f16((rng() & 1) != 0 ? magnitude : -magnitude));
        }
        source.add(base + "." + half, DType::f16, {length}, values);
    };
    scales("suh", "su", f.k, 0.02f);
    scales("svh", "sv", f.n, 1.0f);
    if (f.bias) {
        std::vector<uint16_t> values;
        for (int64_t i = 0; i < f.n; ++i) {
            values.push_back(
                f32_to_f16(static_cast<float>(static_cast<int>(rng() % 2001)) / 1000 - 1));
        }
        source.add(base + ".bias", DType::f16, {f.n}, values);
    }
    if (*f.marker != '\0') {
        const bool mul1 = std::string_view(f.marker) == "mul1";
        source.add<uint32_t>(base + "." + f.marker, DType::i32, {},
                             {mul1 ? 0x83DCD12Du : 0xCBAC1FEDu});
    }
}

/// Encodings of ordinary matrices.
enum class Fake { f32, bf16, f16, fp8, fp4 };
constexpr Fake kFakes[] = {Fake::f32, Fake::bf16, Fake::f16, Fake::fp8, Fake::fp4};
inline const char* fake_name(Fake f) {
    constexpr const char* kNames[] = {"f32", "bf16", "f16", "fp8", "fp4"};
    return kNames[static_cast<int>(f)];
}

/// Adds `base.weight` (and `base.scale`) and returns W [out, in].
inline std::vector<float> add_plain(MemorySource& source, const std::string& base, Fake kind,
                                    int64_t out, int64_t in, uint32_t seed = 1) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    std::vector<float> w(static_cast<size_t>(out * in));
    const auto at = [&](int64_t o, int64_t i) -> float& {
        return w[static_cast<size_t>(o * in + i)];
    };
    if (kind == Fake::fp8 || kind == Fake::fp4) {
        const bool fp8 = kind == Fake::fp8;
        const int64_t scale_rows = fp8 ? (out + 31) / 32 : out;
        const int64_t scale_columns = (in + 31) / 32;
        std::vector<uint8_t> scale(static_cast<size_t>(scale_rows * scale_columns));
        for (uint8_t& s : scale) {
            s = static_cast<uint8_t>(115 + rng() % 8);
        }
        std::vector<uint8_t> codes(static_cast<size_t>(fp8 ? out * in : out * in / 2), 0);
        for (int64_t o = 0; o < out; ++o) {
            for (int64_t i = 0; i < in; ++i) {
                const uint8_t s =
                    scale[static_cast<size_t>((fp8 ? o / 32 : o) * scale_columns + i / 32)];
                const float size = std::ldexp(1.0f, s - 127);
                if (fp8) {
                    uint8_t code = static_cast<uint8_t>(rng());
                    code = (code & 0x7F) == 0x7F ? 0 : code;
                    codes[static_cast<size_t>(o * in + i)] = code;
                    at(o, i) = e4m3_to_f32(code) * size;
                } else {
                    const uint8_t code = rng() & 15;
                    codes[static_cast<size_t>((o * in + i) / 2)] |=
                        static_cast<uint8_t>(code << (i % 2 == 0 ? 0 : 4));
                    at(o, i) = e2m1_to_f32(code) * size;
                }
            }
        }
        if (fp8) {
            source.add(base + ".weight", DType::e4m3, {out, in}, codes);
        } else {
            source.add(base + ".weight", DType::i8, {out, in / 2}, codes);
        }
        source.add(base + ".scale", DType::e8m0, {scale_rows, scale_columns}, scale);
        return w;
    }
    std::vector<uint16_t> halves;
    for (float& v : w) {
        v = normal(rng);
        if (kind == Fake::bf16) {
            halves.push_back(f32_to_bf16(v));
            v = round_bf16(v);
        } else if (kind == Fake::f16) {
            halves.push_back(f32_to_f16(v));
            v = f16_to_f32(halves.back());
        }
    }
    if (kind == Fake::f32) {
        source.add(base + ".weight", DType::f32, {out, in}, w);
    } else {
        source.add(base + ".weight", kind == Fake::bf16 ? DType::bf16 : DType::f16, {out, in},
                   halves);
    }
    return w;
}

}  // namespace tenon::testing
