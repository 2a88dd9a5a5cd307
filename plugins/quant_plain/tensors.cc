// SPDX-License-Identifier: MIT
// Shapes and values of ordinary matrices; every refusal names tensor, found and expected.
#include "tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tenon/numeric.h"

namespace tenon::plain {

namespace {

// Weights are decoded as (half with a shifted exponent) * (scale with the opposite shift), both
// exact. Beyond these codes the shifted scale would leave f32; such a weight could not be used
// anyway.
constexpr int kLargestScaleCode = 240;  // 2^113

template <class T>
T load(const uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

std::string shape_text(const TensorInfo& info) {
    std::string text = dtype_name(info.dtype);
    text += '[';
    for (int i = 0; i < info.rank; ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(info.shape[i]);
    }
    return text + ']';
}

Status check_bytes(const std::string& name, const TensorInfo& info) {
    const auto expected = static_cast<uint64_t>(info.shape[0] * info.shape[1]) *
                          static_cast<uint64_t>(dtype_bytes(info.dtype));
    if (info.bytes != expected) {
        return error(Code::invalid_argument, "{}: holds {} bytes, expected {} for {}", name,
                     info.bytes, expected, shape_text(info));
    }
    return {};
}

Status read_shape(const std::string& name, const TensorInfo& info, Tensors* t) {
    switch (info.dtype) {
        case DType::f32:
            t->encoding = Encoding::f32;
            break;
        case DType::bf16:
            t->encoding = Encoding::bf16;
            break;
        case DType::f16:
            t->encoding = Encoding::f16;
            break;
        case DType::e4m3:
            t->encoding = Encoding::fp8;
            break;
        case DType::i8:
        case DType::u8:
            t->encoding = Encoding::fp4;
            break;
        default:
            return error(Code::invalid_argument,
                         "{}: is {}, expected f32, bf16, f16, e4m3 or packed FP4 (i8)", name,
                         shape_text(info));
    }
    constexpr int64_t kMost = int64_t{1} << 31;
    if (info.rank != 2 || info.shape[0] < 1 || info.shape[1] < 1 || info.shape[0] > kMost ||
        info.shape[1] > kMost) {
        return error(Code::invalid_argument, "{}: is {}, expected a matrix [out, in]", name,
                     shape_text(info));
    }
    t->out = info.shape[0];
    t->in = t->encoding == Encoding::fp4 ? 2 * info.shape[1] : info.shape[1];
    return check_bytes(name, info);
}

Status read_scale(WeightSource& source, const std::string& base, Want want, Tensors* t) {
    const std::string name = base + ".scale";
    TensorInfo info;
    Status found = source.find(name, &info);
    if (!found.ok() && found.code() != Code::not_found) {
        return found;
    }
    if (!has_scales(t->encoding)) {
        return found.ok()
                   ? error(Code::invalid_argument,
                           "{}: belongs to a weight in {}, expected only beside e4m3 or packed FP4",
                           name, encoding_name(t->encoding))
                   : Status();
    }
    const bool fp8 = t->encoding == Encoding::fp8;
    if (!fp8 && t->in % kScaleGroup != 0) {
        return error(Code::invalid_argument,
                     "{}.weight: packed FP4 with {} columns, expected a multiple of 32", base,
                     t->in);
    }
    const int64_t rows = fp8 ? (t->out + kScaleGroup - 1) / kScaleGroup : t->out;
    t->scale_columns = (t->in + kScaleGroup - 1) / kScaleGroup;
    if (!found.ok()) {
        return error(Code::invalid_argument,
                     "{}: is missing, expected e8m0[{}, {}] for a weight in {}", name, rows,
                     t->scale_columns, encoding_name(t->encoding));
    }
    if ((info.dtype != DType::e8m0 && info.dtype != DType::u8) || info.rank != 2 ||
        info.shape[0] != rows || info.shape[1] != t->scale_columns) {
        return error(Code::invalid_argument, "{}: is {}, expected e8m0[{}, {}] ({})", name,
                     shape_text(info), rows, t->scale_columns,
                     fp8 ? "one per 32 x 32 elements" : "one per 32 elements of a row");
    }
    TENON_TRY(check_bytes(name, info));
    t->bytes += static_cast<int64_t>(info.bytes);
    if (want == Want::data) {
        TensorView view;
        TENON_TRY_CTX(source.map(name, &view), "{}", name);
        t->scale = view.as<uint8_t>();
    }
    return {};
}

}  // namespace

const char* encoding_name(Encoding encoding) {
    switch (encoding) {
        case Encoding::f32:
            return "f32";
        case Encoding::bf16:
            return "bf16";
        case Encoding::f16:
            return "f16";
        case Encoding::fp8:
            return "fp8 32x32";
        case Encoding::fp4:
            return "fp4 1x32";
    }
    return "unknown";
}

Status read_tensors(WeightSource& source, const std::string& base, Want want, Tensors* out) {
    const std::string name = base + ".weight";
    TensorInfo info;
    Status found = source.find(name, &info);
    if (!found.ok()) {
        return found.code() == Code::not_found
                   ? error(Code::not_found, "{}: no tensor of this name", name)
                   : std::move(found);
    }
    Tensors t;
    t.base = base;
    t.source = &source;
    TENON_TRY(read_shape(name, info, &t));
    t.bytes = static_cast<int64_t>(info.bytes);
    TENON_TRY(read_scale(source, base, want, &t));
    if (want == Want::data) {
        TensorView view;
        TENON_TRY_CTX(source.map(name, &view), "{}", name);
        t.weight = view.as<uint8_t>();
    }
    *out = std::move(t);
    return {};
}

int64_t first_scale_row(const Part& part) {
    return part.tensors->encoding == Encoding::fp8 ? part.o0 / kScaleGroup : part.o0;
}

int64_t scale_rows(const Part& part) {
    const bool fp8 = part.tensors->encoding == Encoding::fp8;
    return fp8 ? (part.o0 + part.out - 1) / kScaleGroup + 1 - first_scale_row(part) : part.out;
}

int64_t scale_columns(const Part& part) {
    return (part.in + kScaleGroup - 1) / kScaleGroup;
}

Status check_codes(const Part& part, const uint8_t* bytes, int64_t count, int64_t at) {
    const Tensors& t = *part.tensors;
    const auto fail = [&](int64_t offset, float value) {
        const int64_t row = row_bytes(t.encoding, part.in);
        return error(Code::invalid_argument,
                     "{}.weight: row {}, column {} is {}, expected a finite number", t.base,
                     part.o0 + (at + offset) / row,
                     part.i0 + (at + offset) % row / row_bytes(t.encoding, 1), value);
    };
    switch (t.encoding) {
        case Encoding::f32:
            for (int64_t i = 0; i < count; i += 4) {
                if (const auto v = load<float>(bytes + i); !std::isfinite(v)) {
                    return fail(i, v);
                }
            }
            break;
        case Encoding::bf16:
            for (int64_t i = 0; i < count; i += 2) {
                if (const auto v = load<uint16_t>(bytes + i); (v & 0x7F80) == 0x7F80) {
                    return fail(i, bf16_to_f32(v));
                }
            }
            break;
        case Encoding::f16:
            for (int64_t i = 0; i < count; i += 2) {
                if (const auto v = load<uint16_t>(bytes + i); (v & 0x7C00) == 0x7C00) {
                    return fail(i, f16_to_f32(v));
                }
            }
            break;
        case Encoding::fp8:  // with scales that passed, the product is finite too
            for (int64_t i = 0; i < count; ++i) {
                if ((bytes[i] & 0x7F) == 0x7F) {
                    return fail(i, e4m3_to_f32(bytes[i]));
                }
            }
            break;
        case Encoding::fp4:
            break;  // every code is a number
    }
    return {};
}

Status check_scales(const Part& part, const uint8_t* bytes, int64_t count, int64_t at) {
    for (int64_t n = 0; n < count; ++n) {
        const int code = bytes[n];
        if (code <= kLargestScaleCode) {
            continue;
        }
        const Tensors& t = *part.tensors;
        const int64_t row = first_scale_row(part) + (at + n) / scale_columns(part);
        const int64_t o = t.encoding == Encoding::fp8 ? std::max(part.o0, row * kScaleGroup) : row;
        const int64_t i = part.i0 + (at + n) % scale_columns(part) * kScaleGroup;
        if (code == 0xFF) {
            return error(
                Code::invalid_argument,
                "{}.scale: the scale of row {}, column {} is NaN (0xff), expected a number", t.base,
                o, i);
        }
        return error(Code::invalid_argument,
                     "{}.scale: the scale of row {}, column {} is 2^{}, expected at most 2^{}",
                     t.base, o, i, code - 127, kLargestScaleCode - 127);
    }
    return {};
}

Status check_values(const Part& part) {
    const Tensors& t = *part.tensors;
    for (int64_t r = 0; has_scales(t.encoding) && r < scale_rows(part); ++r) {
        const uint8_t* row =
            t.scale + (first_scale_row(part) + r) * t.scale_columns + part.i0 / kScaleGroup;
        TENON_TRY(check_scales(part, row, scale_columns(part), r * scale_columns(part)));
    }
    const int64_t bytes = row_bytes(t.encoding, part.in);
    for (int64_t o = 0; o < part.out; ++o) {
        TENON_TRY(check_codes(part, t.row(part.o0 + o) + row_bytes(t.encoding, part.i0), bytes,
                              o * bytes));
    }
    return {};
}

void decode_row(const Tensors& t, int64_t o, int64_t i0, int64_t count, float* out) {
    const uint8_t* at = t.row(o) + row_bytes(t.encoding, i0);
    for (int64_t i = 0; i < count; ++i) {
        switch (t.encoding) {
            case Encoding::f32:
                out[i] = load<float>(at + 4 * i);
                break;
            case Encoding::bf16:
                out[i] = bf16_to_f32(load<uint16_t>(at + 2 * i));
                break;
            case Encoding::f16:
                out[i] = f16_to_f32(load<uint16_t>(at + 2 * i));
                break;
            case Encoding::fp8:
                out[i] = e4m3_to_f32(at[i]) * e8m0_to_f32(t.scale_code(o, i0 + i));
                break;
            case Encoding::fp4: {
                const auto code =
                    static_cast<uint8_t>(i % 2 == 0 ? at[i / 2] & 15 : at[i / 2] >> 4);
                out[i] = e2m1_to_f32(code) * e8m0_to_f32(t.scale_code(o, i0 + i));
                break;
            }
        }
    }
}

}  // namespace tenon::plain
