// SPDX-License-Identifier: MIT
// Experts as a composition of linears, with the rounding points of ops.md 3.4.
#include "experts_by_linear.h"

#include <algorithm>
#include <cmath>

#include "tenon/numeric.h"

namespace tenon::dsv41 {

namespace {

constexpr int64_t aligned(int64_t bytes) {
    return (bytes + 255) / 256 * 256;
}

}  // namespace

/// Offsets of the parts of `scratch`.
struct ExpertsByLinear::Layout {
    int64_t x = 0, g = 0, u = 0, a = 0, y = 0;  ///< rows of one expert
    int64_t parts = 0;  ///< f32 [rows * k, d]: an expert's output per (row, slot)
    int64_t inner = 0, inner_bytes = 0;
    int64_t total = 0;
};

int64_t ExpertsByLinear::inner_scratch(int64_t rows, Regime regime) {
    int64_t most = 0;
    const auto look = [&](const ExpertMatrices& e) {
        if (e.w1) {
            most = std::max({most, e.w1.weight->scratch_bytes(rows, regime, DType::bf16),
                             e.w3.weight->scratch_bytes(rows, regime, DType::bf16),
                             e.w2.weight->scratch_bytes(rows, regime, DType::bf16),
                             e.w2.weight->scratch_bytes(rows, regime, DType::f32)});
        }
    };
    for (const ExpertMatrices& e : experts_) {
        look(e);
    }
    look(shared_);
    return most;
}

ExpertsByLinear::Layout ExpertsByLinear::layout(int64_t rows, int32_t k, Regime regime) {
    Layout at;
    int64_t next = 0;
    const auto take = [&](int64_t bytes) {
        const int64_t here = next;
        next += aligned(bytes);
        return here;
    };
    at.x = take(rows * hidden_ * 2);
    at.g = take(rows * width_ * 2);
    at.u = take(rows * width_ * 2);
    at.a = take(rows * width_ * 2);
    at.y = take(rows * hidden_ * 4);
    at.parts = take(rows * k * hidden_ * 4);
    at.inner_bytes = inner_scratch(rows, regime);
    at.inner = take(at.inner_bytes);
    at.total = next;
    return at;
}

int64_t ExpertsByLinear::device_bytes() noexcept {
    int64_t sum = 0;
    const auto add = [&](const ExpertMatrices& e) {
        if (e.w1) {
            sum += e.w1.weight->device_bytes() + e.w3.weight->device_bytes() +
                   e.w2.weight->device_bytes();
        }
    };
    for (const ExpertMatrices& e : experts_) {
        add(e);
    }
    add(shared_);
    return sum;
}

int64_t ExpertsByLinear::scratch_bytes(int64_t rows, int32_t k, Regime regime) noexcept {
    return layout(rows, k, regime).total;
}

/// y = w2 . bf16(weight * silu(g) * u) for `rows` gathered rows; weights null: 1.
Status ExpertsByLinear::product(const ExpertMatrices& e, const Layout& at, uint8_t* base,
                                int64_t rows, const float* weights, const ExpertsArgs& args,
                                Stream& stream) {
    const TensorView x = make_view(base + at.x, DType::bf16, {rows, hidden_}, args.x.place);
    const TensorView g = make_view(base + at.g, DType::bf16, {rows, width_}, args.x.place);
    const TensorView u = make_view(base + at.u, DType::bf16, {rows, width_}, args.x.place);
    const TensorView a = make_view(base + at.a, DType::bf16, {rows, width_}, args.x.place);
    const TensorView y = make_view(base + at.y, DType::f32, {rows, hidden_}, args.x.place);
    const TensorView inner =
        at.inner_bytes == 0 ? make_view(static_cast<void*>(nullptr), DType::u8, {0})
                            : make_view(base + at.inner, DType::u8, {at.inner_bytes}, args.x.place);
    TENON_TRY(e.w1.weight->linear({x, g, args.regime, inner}, stream));
    TENON_TRY(e.w3.weight->linear({x, u, args.regime, inner}, stream));
    for (int64_t r = 0; r < rows; ++r) {
        const float w = weights == nullptr ? 1.0F : weights[r];
        const auto* gate = g.row<uint16_t>(r);
        const auto* up = u.row<uint16_t>(r);
        auto* act = a.row<uint16_t>(r);
        for (int64_t i = 0; i < width_; ++i) {
            float gi = bf16_to_f32(gate[i]);
            float ui = bf16_to_f32(up[i]);
            if (args.limit > 0) {
                gi = std::min(gi, args.limit);
                ui = std::clamp(ui, -args.limit, args.limit);
            }
            const double z = gi;
            const auto silu = static_cast<float>(z / (1.0 + std::exp(-z)));
            act[i] = f32_to_bf16(w * silu * ui);
        }
    }
    TENON_TRY(e.w2.weight->linear({a, y, args.regime, inner}, stream));
    if (whole_ && !keep_f32_) {
        auto* value = y.as<float>();
        for (int64_t i = 0; i < rows * hidden_; ++i) {
            value[i] = round_bf16(value[i]);
        }
    }
    return {};
}

Status ExpertsByLinear::run(const ExpertsArgs& args, Stream& stream) noexcept {
    const int64_t rows = args.x.shape[0];
    const int64_t k = args.ids.shape[1];
    if (rows == 0) {
        return {};
    }
    const Layout at = layout(rows, static_cast<int32_t>(k), args.regime);
    if (args.scratch.null() || args.scratch.bytes() < at.total) {
        return error(Code::invalid_argument, "quant.experts: scratch has {} bytes, expected {}",
                     args.scratch.null() ? 0 : args.scratch.bytes(), at.total);
    }
    auto* base = args.scratch.as<uint8_t>();
    auto* parts = reinterpret_cast<float*>(base + at.parts);
    auto* gathered = reinterpret_cast<uint16_t*>(base + at.x);
    const auto* y = reinterpret_cast<const float*>(base + at.y);
    const auto d = static_cast<size_t>(hidden_);
    std::fill_n(parts, static_cast<size_t>(rows * k) * d, 0.0F);

    for (size_t e = 0; e < experts_.size(); ++e) {
        int64_t n = 0;
        auto* weights = reinterpret_cast<float*>(base + at.y);  // free until w2 writes y
        for (int64_t t = 0; t < rows; ++t) {
            for (int64_t s = 0; s < k; ++s) {
                if (args.ids.row<int32_t>(t)[s] == static_cast<int32_t>(e)) {
                    std::memcpy(gathered + static_cast<size_t>(n) * d, args.x.row<uint16_t>(t),
                                d * 2);
                    weights[n++] = args.weights.row<float>(t)[s];
                }
            }
        }
        if (n == 0) {
            continue;
        }
        TENON_TRY(product(experts_[e], at, base, n, weights, args, stream));
        int64_t r = 0;
        for (int64_t t = 0; t < rows; ++t) {
            for (int64_t s = 0; s < k; ++s) {
                if (args.ids.row<int32_t>(t)[s] == static_cast<int32_t>(e)) {
                    std::memcpy(parts + static_cast<size_t>(t * k + s) * d,
                                y + static_cast<size_t>(r++) * d, d * 4);
                }
            }
        }
    }
    if (shared_.w1) {
        for (int64_t t = 0; t < rows; ++t) {
            std::memcpy(gathered + static_cast<size_t>(t) * d, args.x.row<uint16_t>(t), d * 2);
        }
        TENON_TRY(product(shared_, at, base, rows, nullptr, args, stream));
    }
    for (int64_t t = 0; t < rows; ++t) {
        auto* out = args.out.row<float>(t);
        for (size_t i = 0; i < d; ++i) {
            float sum = 0;
            for (int64_t s = 0; s < k; ++s) {
                sum += parts[static_cast<size_t>(t * k + s) * d + i];
            }
            out[i] = shared_.w1 ? sum + y[static_cast<size_t>(t) * d + i] : sum;
        }
    }
    return {};
}

}  // namespace tenon::dsv41
