// SPDX-License-Identifier: MIT
// engram.gate, reference: sums in f64, gate in f32, one rounding of each stream.
#include "engram/gate.h"

#include "common/elements.h"
#include "common/registry.h"

namespace tenon::cpu {

namespace {

void gate_stream(const EngramGate& p, int64_t t, int64_t j, int64_t d) {
    const Source kv(p.kv, t);
    const Source qw(p.q_weight, j);
    const Source kw(p.k_weight, j);
    uint16_t* h = p.h.row<uint16_t>(t) + j * d;
    double dot = 0;
    double square_h = 0;
    double square_key = 0;
    for (int64_t i = 0; i < d; ++i) {
        const double hi = bf16_to_f32(h[i]);
        const double key = round_bf16(kv[j * d + i]);
        dot += hi * qw[i] * kw[i] * key;
        square_h += hi * hi;
        square_key += key * key;
    }
    const auto n = static_cast<double>(d);
    const float g = engram_gate_value(static_cast<float>(dot), static_cast<float>(square_h / n),
                                      static_cast<float>(square_key / n), p.eps, d);
    for (int64_t i = 0; i < d; ++i) {
        h[i] = f32_to_bf16(bf16_to_f32(h[i]) + g * round_bf16(kv[4 * d + i]));
    }
}

Status gate(void* self, const EngramGate& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t d = p.h.shape[2];
    share(context(self), p.rows.T, 1, d * 30, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const RowInfo& row = row_infos(p.rows)[t];
            if (row.slot < 0 || (row.flags & kRowImage) != 0) {
                continue;
            }
            for (int64_t j = 0; j < 4; ++j) {
                gate_stream(p, t, j, d);
            }
        }
    });
    return {};
}

}  // namespace

void add_engram_gate(Registry& r) {
    r.add_best<EngramGate>(&gate, engram_gate_simd(), Exactness::invariant);
}

}  // namespace tenon::cpu
