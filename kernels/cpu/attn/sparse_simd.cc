// SPDX-License-Identifier: MIT
// attn.sparse with SIMD: 64 keys at a time become f32 rows that serve all heads of a group; a
// running maximum joins the chunks. A row's chunks follow from its own list, so its bits do not
// depend on the call.
#include "attn/sparse.h"
#include "common/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attn/sparse_simd.cc"
#include <hwy/foreach_target.h>

#include <hwy/contrib/math/math-inl.h>

#include "common/simd-inl.h"
#include "kvq/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

constexpr int64_t kChunk = 64;
constexpr int64_t kGroupHeads = 16;  // heads that share one unpacking of the keys
constexpr int kTileHeads = HWY_MAX_BYTES >= 64 ? 4 : 2;
constexpr int kTileColumns = HWY_MAX_BYTES >= 64 ? 8 : 4;  // vectors of 16 columns

HWY_INLINE F16 exp_of(const F16& x) {
    const D16 d;
    F16 r;
    TENON_PARTS r.p[i] = hn::Exp(d, hn::Max(x.p[i], hn::Set(d, -110.0f)));  // below -104: 0
    return r;
}
HWY_INLINE float exp_of(float x) {
    return hn::GetLane(hn::Exp(D16(), hn::Max(hn::Set(D16(), x), hn::Set(D16(), -110.0f))));
}

// One row's heads [h0, h0 + heads).
struct Group {
    Context& c;
    const AttnSparse& p;
    const SparseShape& s;
    int64_t t;
    int64_t h0;
    int64_t heads;
    KeyList list;
    int64_t keys = 0;
    HWY_ALIGN float tile[kChunk * kMaxHeadWidth];
    HWY_ALIGN float logit[kGroupHeads][kChunk];
    HWY_ALIGN float acc[kGroupHeads][kMaxHeadWidth];
    HWY_ALIGN float sum[kGroupHeads][16];
    float top[kGroupHeads];

    Group(Context& context, const AttnSparse& params, const SparseShape& shape, int64_t row,
          int64_t head)
        : c(context),
          p(params),
          s(shape),
          t(row),
          h0(head),
          heads(HWY_MIN(kGroupHeads, shape.H - head)),
          list(key_list(context, params, shape, row)) {}

    const uint16_t* q(int64_t h) const { return p.q.row<const uint16_t>(t) + (h0 + h) * s.D; }

    // Key i of the list into a tile row; false if its page is missing.
    bool load(int64_t i, float* key) const {
        const int64_t ring = list.ring_last - list.ring_first;
        StoredRow r{};
        RowFormat format = RowFormat::bf16;
        if (i < ring) {
            r = ring_row(p.ring, list.slot, list.ring_first + i);
            format = p.ring.format;
        } else if (i < list.window()) {
            r.codes = p.kv.row<uint8_t>(0) + (list.kv_first + i - ring) * s.D * 2;
        } else {
            r = page_row(p.comp, list.slot, list.sel[i - list.window()]);
            format = p.comp.format;
        }
        if (r.codes == nullptr) {
            return false;
        }
        unpack_vector(format, r.codes, r.scales, s.D, key);
        return true;
    }

    void score(int64_t n, const bool* present) {
        const int64_t padded = (n + 15) / 16 * 16;
        for (int64_t j = 0; j < n; j += 4) {
            const float* w[4];
            for (int64_t k = 0; k < 4; ++k) {
                w[k] = tile + HWY_MIN(j + k, n - 1) * s.D;
            }
            int64_t h = 0;
            float out[kTileHeads * 4];
            for (; h + kTileHeads <= heads; h += kTileHeads) {
                dots<kTileHeads>(q(h), s.D, w, s.D, out);
                for (int64_t r = 0; r < kTileHeads; ++r) {
                    std::copy_n(out + r * 4, 4, logit[h + r] + j);
                }
            }
            for (; h < heads; ++h) {
                dots<1>(q(h), s.D, w, s.D, logit[h] + j);
            }
        }
        for (int64_t h = 0; h < heads; ++h) {
            for (int64_t j = 0; j < n; ++j) {
                logit[h][j] = present[j] ? logit[h][j] * p.scale : -__builtin_inff();
            }
            std::fill(logit[h] + n, logit[h] + padded, -__builtin_inff());
        }
    }

    // Turns logits into weights relative to the new maximum; earlier sums are scaled down.
    void weigh(int64_t h, int64_t n) {
        F16 most = load16(logit[h]);
        for (int64_t j = 16; j < n; j += 16) {
            most = max16(most, load16(logit[h] + j));
        }
        const float old_top = top[h];
        const float new_top = HWY_MAX(old_top, max1(most));
        if (!(new_top > -__builtin_inff())) {
            std::fill(logit[h], logit[h] + (n + 15) / 16 * 16, 0.0f);
            return;
        }
        top[h] = new_top;
        const float factor = old_top == new_top ? 1.0f : exp_of(old_top - new_top);
        F16 total = mul16(load16(sum[h]), set16(factor));
        const F16 shift = set16(-new_top);
        for (int64_t j = 0; j < n; j += 16) {
            const F16 w = exp_of(add16(load16(logit[h] + j), shift));
            store16(w, logit[h] + j);
            total = add16(total, w);
        }
        store16(total, sum[h]);
        if (factor != 1.0f) {
            for (int64_t i = 0; i < s.D; i += 16) {
                store16(mul16(load16(acc[h] + i), set16(factor)), acc[h] + i);
            }
        }
    }

    template <int kVectors>
    void gather_columns(int64_t h, int64_t n, int64_t column) {
        F16 a[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            a[v] = load16(acc[h] + column + 16 * v);
        }
        for (int64_t j = 0; j < n; ++j) {
            const F16 w = set16(logit[h][j]);
            for (int v = 0; v < kVectors; ++v) {
                a[v] = fma16(w, load16(tile + j * s.D + column + 16 * v), a[v]);
            }
        }
        for (int v = 0; v < kVectors; ++v) {
            store16(a[v], acc[h] + column + 16 * v);
        }
    }

    void chunk(int64_t first, int64_t n) {
        bool present[kChunk];
        for (int64_t j = 0; j < n; ++j) {
            present[j] = load(first + j, tile + j * s.D);
            keys += present[j];
            if (!present[j]) {
                std::fill(tile + j * s.D, tile + (j + 1) * s.D, 0.0f);
                c.fault();
            }
        }
        score(n, present);
        for (int64_t h = 0; h < heads; ++h) {
            weigh(h, n);
            int64_t column = 0;
            for (; column + 16 * kTileColumns <= s.D; column += 16 * kTileColumns) {
                gather_columns<kTileColumns>(h, n, column);
            }
            for (; column < s.D; column += 16) {
                gather_columns<1>(h, n, column);
            }
        }
    }

    void run() {
        for (int64_t h = 0; h < heads; ++h) {
            top[h] = p.sink.as<const float>()[h0 + h];
            store16(zero16(), sum[h]);
            std::fill(acc[h], acc[h] + s.D, 0.0f);
        }
        for (int64_t i = 0; i < list.window(); i += kChunk) {
            chunk(i, HWY_MIN(kChunk, list.window() - i));
        }
        for (int64_t i = 0; i < list.selected; i += kChunk) {
            chunk(list.window() + i, HWY_MIN(kChunk, list.selected - i));
        }
        for (int64_t h = 0; h < heads; ++h) {
            uint16_t* o = p.out.row<uint16_t>(t) + (h0 + h) * s.D;
            if (keys == 0) {
                std::fill(o, o + s.D, uint16_t{0});
                continue;
            }
            const float sink = p.sink.as<const float>()[h0 + h];
            const V total = hn::Set(D16(), sum1(load16(sum[h])) + exp_of(sink - top[h]));
            for (int64_t i = 0; i < s.D; i += 16) {
                F16 a = load16(acc[h] + i);
                for (V& part : a.p) {
                    part = hn::Div(part, total);
                }
                store16(a, o + i);
            }
        }
    }
};

Status sparse(void* self, const AttnSparse& p, Stream&) noexcept {
    SparseShape s{};
    TENON_TRY(check_op(p, &s));
    Context& c = context(self);
    const int64_t groups = (s.H + kGroupHeads - 1) / kGroupHeads;
    const int64_t keys = p.window + s.K;
    const int64_t unit_ns = keys * s.D * (HWY_MIN(s.H, kGroupHeads) * 2 + 4) / 32;
    share(c, s.T * groups, 1, unit_ns, [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
        for (int64_t u = begin; u < end; ++u) {
            Group(c, p, s, u / groups, u % groups * kGroupHeads).run();
        }
    });
    return {};
}

OpCall<AttnSparse> attn_sparse_target() {
    return &sparse;
}
#else
OpCall<AttnSparse> attn_sparse_target() {
    return nullptr;
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(attn_sparse_target);
OpCall<AttnSparse> attn_sparse_simd() {
    return HWY_DYNAMIC_DISPATCH(attn_sparse_target)();
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
