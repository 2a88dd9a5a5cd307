// SPDX-License-Identifier: MIT
// Reference of the cache quantisers: one group at a time, the steps of M 3.4 as they stand there.
#include "kvq/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tenon/numeric.h"

namespace tenon::cpu {

namespace {

constexpr float kReciprocal448 = static_cast<float>(1.0 / 448.0);
constexpr float kReciprocal6 = static_cast<float>(1.0 / 6.0);
constexpr float kLeastQ8 = 1e-4f;
constexpr float kLeastQ4u = 6.0f * 0x1p-126f;
constexpr float kLeastQ4e = 6.0f * 0x1p-9f;
constexpr int64_t kLargestGroup = 32;

constexpr int64_t group_of(RowFormat f) {
    return f == RowFormat::q4e ? 16 : 32;
}

}  // namespace

float quantiser_scale_value(RowFormat f, uint8_t scale) {
    return f == RowFormat::q4e ? e4m3_to_f32(scale) : e8m0_to_f32(scale);
}

uint8_t quantiser_scale(RowFormat f, float amax) {
    switch (f) {
        case RowFormat::q8:
            return e8m0_ceil(std::max(amax, kLeastQ8) * kReciprocal448);
        case RowFormat::q4u:
            return e8m0_ceil(std::max(amax, kLeastQ4u) * kReciprocal6);
        default:
            return f32_to_e4m3(std::max(amax, kLeastQ4e) / 6.0f);
    }
}

namespace {

// One code a value, not packed yet.
uint8_t quantise_group(RowFormat f, const uint16_t* x, int64_t n, uint8_t* code) {
    float amax = 0;
    for (int64_t i = 0; i < n; ++i) {
        amax = std::max(amax, std::fabs(bf16_to_f32(x[i])));  // a NaN leaves amax as it is
    }
    const uint8_t scale = quantiser_scale(f, amax);
    const float s = quantiser_scale_value(f, scale);
    for (int64_t i = 0; i < n; ++i) {
        const float q = bf16_to_f32(x[i]) / s;
        code[i] = f == RowFormat::q8 ? f32_to_e4m3(q) : f32_to_e2m1(q);
    }
    return scale;
}

float code_value(RowFormat f, uint8_t code) {
    return f == RowFormat::q8 ? e4m3_to_f32(code) : e2m1_to_f32(code);
}

void pack_row(RowFormat format, const uint16_t* x, int64_t n, uint8_t* codes, uint8_t* scales) {
    const int64_t group = group_of(format);
    uint8_t code[kLargestGroup];
    for (int64_t g = 0; g < n / group; ++g) {
        scales[g] = quantise_group(format, x + g * group, group, code);
        if (format == RowFormat::q8) {
            std::memcpy(codes + g * group, code, static_cast<size_t>(group));
        } else {
            for (int64_t i = 0; i < group / 2; ++i) {
                codes[g * group / 2 + i] =
                    static_cast<uint8_t>(code[2 * i] | (code[2 * i + 1] << 4));
            }
        }
    }
}

void quantise_row(RowFormat format, const uint16_t* x, int64_t n, uint16_t* values) {
    const int64_t group = group_of(format);
    uint8_t code[kLargestGroup];
    for (int64_t g = 0; g < n / group; ++g) {
        const float s =
            quantiser_scale_value(format, quantise_group(format, x + g * group, group, code));
        for (int64_t i = 0; i < group; ++i) {
            values[g * group + i] = f32_to_bf16(code_value(format, code[i]) * s);
        }
    }
}

}  // namespace

const RowQuantiser& reference_quantiser() {
    static constexpr RowQuantiser kReference{&pack_row, &quantise_row};
    return kReference;
}

void unpack_row(RowFormat format, const uint8_t* codes, const uint8_t* scales, int64_t n,
                float* out) {
    if (format == RowFormat::bf16) {
        for (int64_t i = 0; i < n; ++i) {
            uint16_t v;
            std::memcpy(&v, codes + 2 * i, sizeof v);
            out[i] = bf16_to_f32(v);
        }
        return;
    }
    const int64_t group = group_of(format);
    for (int64_t i = 0; i < n; ++i) {
        const uint8_t code = format == RowFormat::q8
                                 ? codes[i]
                                 : static_cast<uint8_t>(codes[i / 2] >> (4 * (i & 1)) & 15);
        out[i] = code_value(format, code) * quantiser_scale_value(format, scales[i / group]);
    }
}

void store_row(const RowQuantiser& quantiser, RowFormat format, RowFormat values, const uint16_t* x,
               int64_t n, uint8_t* codes, uint8_t* scales) {
    if (format == RowFormat::bf16) {
        quantiser.values(values, x, n, reinterpret_cast<uint16_t*>(codes));
    } else {
        quantiser.pack(format, x, n, codes, scales);
    }
}

}  // namespace tenon::cpu
