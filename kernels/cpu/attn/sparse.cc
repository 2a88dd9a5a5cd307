// SPDX-License-Identifier: MIT
// attn.sparse, reference: two passes over the key list of a row, all sums and the softmax in f64.
#include "attn/sparse.h"

#include <cmath>
#include <limits>

#include "common/registry.h"
#include "kvq/quantise.h"

namespace tenon::cpu {

namespace {

// Key i of a list as f32 values; false if its page is missing.
bool load_key(const AttnSparse& p, const KeyList& list, int64_t D, int64_t i, float* key) {
    const int64_t ring = list.ring_last - list.ring_first;
    if (i < ring) {
        const StoredRow r = ring_row(p.ring, list.slot, list.ring_first + i);
        unpack_row(p.ring.format, r.codes, r.scales, D, key);
        return true;
    }
    if (i < list.window()) {
        const uint16_t* kv = p.kv.row<uint16_t>(list.kv_first + i - ring);
        unpack_row(RowFormat::bf16, reinterpret_cast<const uint8_t*>(kv), nullptr, D, key);
        return true;
    }
    const StoredRow r = page_row(p.comp, list.slot, list.sel[i - list.window()]);
    if (r.codes == nullptr) {
        return false;
    }
    unpack_row(p.comp.format, r.codes, r.scales, D, key);
    return true;
}

void attend(Context& c, const AttnSparse& p, const SparseShape& s, int64_t t, int64_t h) {
    const KeyList list = key_list(c, p, s, t);
    const uint16_t* q = p.q.row<uint16_t>(t) + h * s.D;
    float key[kMaxHeadWidth];
    const auto logit = [&] {
        double sum = 0;
        for (int64_t i = 0; i < s.D; ++i) {
            sum += static_cast<double>(bf16_to_f32(q[i])) * key[i];
        }
        return sum * p.scale;
    };
    const double sink = p.sink.as<float>()[h];
    double top = sink;
    int64_t keys = 0;
    for (int64_t i = 0; i < list.size(); ++i) {
        if (load_key(p, list, s.D, i, key)) {
            top = std::max(top, logit());
            ++keys;
        } else {
            c.fault();
        }
    }
    double sum = 0;
    double out[kMaxHeadWidth] = {};
    for (int64_t i = 0; i < list.size() && keys > 0; ++i) {
        if (load_key(p, list, s.D, i, key)) {
            const double weight = std::exp(logit() - top);
            sum += weight;
            for (int64_t j = 0; j < s.D; ++j) {
                out[j] += weight * key[j];
            }
        }
    }
    if (sink > -std::numeric_limits<double>::infinity()) {
        sum += std::exp(sink - top);
    }
    uint16_t* o = p.out.row<uint16_t>(t) + h * s.D;
    for (int64_t j = 0; j < s.D; ++j) {
        o[j] = keys == 0 ? uint16_t{0} : f32_to_bf16(static_cast<float>(out[j] / sum));
    }
}

Status sparse(void* self, const AttnSparse& p, Stream&) noexcept {
    SparseShape s{};
    TENON_TRY(check_op(p, &s));
    Context& ctx = context(self);
    const int64_t row_ns = s.H * s.D * (p.window + s.K) * 4;
    share(ctx, s.T, 1, row_ns, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t h = 0; h < s.H; ++h) {
                attend(ctx, p, s, t, h);
            }
        }
    });
    return {};
}

}  // namespace

void add_attn_sparse(Registry& r) {
    r.add_best<AttnSparse>(&sparse, attn_sparse_simd(), Exactness::invariant);
}

}  // namespace tenon::cpu
