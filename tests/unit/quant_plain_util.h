// SPDX-License-Identifier: MIT
// Made-up matrices in every encoding of the plugin `plain`, and their values by the definition.
#pragma once

#include "plugins/quant_plain/format.h"
#include "quant_util.h"

namespace tenon::testing {

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
