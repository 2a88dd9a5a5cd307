// SPDX-License-Identifier: MIT
// Shapes, markers and values of EXL3 tensors; every refusal names tensor, found and expected.
#include "tensors.h"

#include <bit>
#include <cmath>

#include "tenon/numeric.h"

namespace tenon::exl3 {

namespace {

static_assert(std::endian::native == std::endian::little, "trellis words are read in place");

// Tensors lie anywhere in a mapped file.
template <class T>
T load(const TensorView& view, int64_t index) {
    T value;
    std::memcpy(&value, view.as<uint8_t>() + index * static_cast<int64_t>(sizeof value),
                sizeof value);
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

bool has(WeightSource& source, const std::string& name) {
    TensorInfo info;
    return source.find(name, &info).ok();
}

// Finds a tensor; an I/O error stays what it is, absence is reported in *found.
Status look_up(WeightSource& source, const std::string& name, TensorInfo* info, bool* found) {
    Status status = source.find(name, info);
    *found = status.ok();
    return status.ok() || status.code() == Code::not_found ? Status() : std::move(status);
}

Status check_bytes(const std::string& name, const TensorInfo& info) {
    uint64_t expected = static_cast<uint64_t>(dtype_bytes(info.dtype));
    for (int i = 0; i < info.rank; ++i) {
        expected *= static_cast<uint64_t>(info.shape[i]);
    }
    if (info.bytes != expected) {
        return error(Code::invalid_argument, "{}: holds {} bytes, expected {} for {}", name,
                     info.bytes, expected, shape_text(info));
    }
    return {};
}

Status read_data(WeightSource& source, const std::string& name, TensorView* view) {
    TENON_TRY_CTX(source.map(name, view), "{}", name);
    return {};
}

// Reads `base.<half_name>` (f16 [n]) or its legacy form `base.<sign_name>` (packed signs, i16
// [n/16]).
Status read_scales(WeightSource& source, const std::string& base, const char* half_name,
                   const char* sign_name, int64_t n, Want want, Tensors* t, bool* signs,
                   std::vector<float>* out) {
    const std::string half = base + "." + half_name;
    const std::string sign = base + "." + sign_name;
    TensorInfo info;
    TensorInfo sign_info;
    bool has_half = false;
    bool has_sign = false;
    TENON_TRY(look_up(source, half, &info, &has_half));
    TENON_TRY(look_up(source, sign, &sign_info, &has_sign));
    if (has_half && has_sign) {
        return error(Code::invalid_argument, "{}: has both {} and {}, expected one of them", base,
                     half_name, sign_name);
    }
    if (!has_half && !has_sign) {
        return error(Code::invalid_argument, "{}: has a trellis but neither {} nor {}", base,
                     half_name, sign_name);
    }
    const std::string& name = has_half ? half : sign;
    const DType dtype = has_half ? DType::f16 : DType::i16;
    const int64_t length = has_half ? n : n / 16;
    if (has_sign) {
        info = sign_info;
    }
    if (info.dtype != dtype || info.rank != 1 || info.shape[0] != length) {
        return error(Code::invalid_argument, "{}: is {}, expected {}[{}] to match the trellis",
                     name, shape_text(info), dtype_name(dtype), length);
    }
    TENON_TRY(check_bytes(name, info));
    t->bytes += static_cast<int64_t>(info.bytes);
    *signs = has_sign;
    if (want == Want::shapes) {
        return {};
    }
    TensorView view;
    TENON_TRY(read_data(source, name, &view));
    if (has_half) {
        TENON_TRY(check_halves(name, view.as<uint8_t>(), 0, n));
    }
    out->resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
        (*out)[static_cast<size_t>(i)] =
            has_half ? f16_to_f32(load<uint16_t>(view, i))
                     : (((load<uint16_t>(view, i / 16) >> (i % 16)) & 1) != 0 ? -1.0f : 1.0f);
    }
    return {};
}

Status read_bias(WeightSource& source, const std::string& base, Want want, Tensors* t) {
    const std::string name = base + ".bias";
    TensorInfo info;
    bool found = false;
    TENON_TRY(look_up(source, name, &info, &found));
    if (!found) {
        return {};
    }
    const bool half = info.dtype == DType::f16;
    if ((!half && info.dtype != DType::f32) || info.rank != 1 || info.shape[0] != t->n) {
        return error(Code::invalid_argument, "{}: is {}, expected f16[{}] or f32[{}]", name,
                     shape_text(info), t->n, t->n);
    }
    TENON_TRY(check_bytes(name, info));
    t->bytes += static_cast<int64_t>(info.bytes);
    t->has_bias = true;
    if (want == Want::shapes) {
        return {};
    }
    TensorView view;
    TENON_TRY(read_data(source, name, &view));
    t->bias.resize(static_cast<size_t>(t->n));
    for (int64_t i = 0; i < t->n; ++i) {
        const uint16_t bits = half ? load<uint16_t>(view, i) : f32_to_f16(load<float>(view, i));
        const float value = f16_to_f32(bits);
        if (!std::isfinite(value)) {
            return error(Code::invalid_argument,
                         "{}: element {} is {} as f16, expected a finite number", name, i, value);
        }
        t->bias[static_cast<size_t>(i)] = value;
    }
    return {};
}

Status read_codebook(WeightSource& source, const std::string& base, Tensors* t) {
    TensorInfo info;
    bool has_mcg = false;
    bool has_mul1 = false;
    TENON_TRY(look_up(source, base + ".mcg", &info, &has_mcg));
    TENON_TRY(look_up(source, base + ".mul1", &info, &has_mul1));
    if (has_mcg && has_mul1) {
        return error(Code::invalid_argument,
                     "{}: has both markers mcg and mul1, expected at most one codebook", base);
    }
    t->codebook = has_mul1 ? Codebook::mul1 : (has_mcg ? Codebook::mcg : Codebook::inst3);
    if (has_mcg || has_mul1) {
        t->bytes += 4;
    }
    return {};
}

Status check_trellis(const std::string& name, const TensorInfo& info, Tensors* t) {
    if ((info.dtype != DType::i16 && info.dtype != DType::u16) || info.rank != 3) {
        return error(Code::invalid_argument, "{}: is {}, expected i16[in/16, out/16, 16 K]", name,
                     shape_text(info));
    }
    const int64_t words = info.shape[2];
    if (words <= 0 || words % 8 != 0 || words > 128) {
        return error(Code::invalid_argument,
                     "{}: is {}, expected 16 K words per tile for K = 1 to 8 or 1.5, 2.5, 3.5 (a "
                     "multiple of 8, at most 128)",
                     name, shape_text(info));
    }
    t->twice_k = static_cast<int>(words / 8);
    if (!valid_rate(t->twice_k, t->codebook)) {
        return error(Code::invalid_argument,
                     "{}: is {}, K = {} with codebook {}; half rates are 1.5, 2.5 and 3.5 and need "
                     "the mul1 marker",
                     name, shape_text(info), t->twice_k / 2.0, codebook_name(t->codebook));
    }
    constexpr int64_t kMost = int64_t{1} << 32;
    if (info.shape[0] <= 0 || info.shape[1] <= 0 || info.shape[0] % 8 != 0 ||
        info.shape[1] % 8 != 0 || info.shape[0] > kMost || info.shape[1] > kMost) {
        return error(Code::invalid_argument,
                     "{}: is {}, {} x {} channels; expected whole rotations (multiples of 128)",
                     name, shape_text(info), info.shape[0] * 16, info.shape[1] * 16);
    }
    t->k = info.shape[0] * kTile;
    t->n = info.shape[1] * kTile;
    return check_bytes(name, info);
}

}  // namespace

Status check_halves(const std::string& name, const uint8_t* bytes, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes + 2 * i, sizeof bits);
        if ((bits & 0x7C00) == 0x7C00) {
            return error(Code::invalid_argument, "{}: element {} is {}, expected a finite number",
                         name, first + i, f16_to_f32(bits));
        }
    }
    return {};
}

Status read_tensors(WeightSource& source, const std::string& base, Want want, Tensors* out) {
    const std::string name = base + ".trellis";
    TensorInfo info;
    bool found = false;
    TENON_TRY(look_up(source, name, &info, &found));
    if (!found) {
        if (has(source, base + ".suh") && has(source, base + ".svh")) {
            return error(Code::invalid_argument, "{}: has suh and svh but no trellis", base);
        }
        return error(Code::not_found, "{}: no EXL3 tensors of this name", base);
    }
    Tensors t;
    t.base = base;
    t.source = &source;
    if (has(source, base + ".scale")) {
        return error(
            Code::invalid_argument,
            "{}: has a tensor 'scale', which only obsolete EXL3 files do; convert it again", base);
    }
    TENON_TRY(read_codebook(source, base, &t));
    TENON_TRY(check_trellis(name, info, &t));
    t.bytes += static_cast<int64_t>(info.bytes);
    TENON_TRY(read_scales(source, base, "suh", "su", t.k, want, &t, &t.suh_signs, &t.suh));
    TENON_TRY(read_scales(source, base, "svh", "sv", t.n, want, &t, &t.svh_signs, &t.svh));
    TENON_TRY(read_bias(source, base, want, &t));
    if (want == Want::data) {
        TensorView view;
        TENON_TRY(read_data(source, name, &view));
        t.trellis = view.as<uint8_t>();
    }
    *out = std::move(t);
    return {};
}

Status read_groups(WeightSource& source, const std::string& base, Want want,
                   std::vector<Tensors>* out) {
    std::vector<Tensors> list(1);
    Status whole = read_tensors(source, base, want, &list[0]);
    if (whole.ok()) {
        *out = std::move(list);
        return {};
    }
    if (whole.code() != Code::not_found || !has(source, base + ".slice.0.trellis")) {
        return whole;
    }
    list.clear();
    for (int64_t g = 0; has(source, format("{}.slice.{}.trellis", base, g)); ++g) {
        list.emplace_back();
        TENON_TRY(read_tensors(source, format("{}.slice.{}", base, g), want, &list.back()));
        const Tensors& t = list.back();
        if (t.k != list[0].k || t.n != list[0].n) {
            return error(Code::invalid_argument, "{}: is {} x {} channels, but slice 0 is {} x {}",
                         t.base, t.k, t.n, list[0].k, list[0].n);
        }
    }
    *out = std::move(list);
    return {};
}

}  // namespace tenon::exl3
