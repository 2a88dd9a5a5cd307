// SPDX-License-Identifier: MIT
// index.score with SIMD: 16 keys side by side in the lanes, so that no sum crosses lanes. Group
// sums are exact in f32 (E2M1 products under one scale), hence the reference's bits.
#include <algorithm>

#include "common/simd_targets.h"
#include "index/score.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/score_simd.cc"
#include <hwy/foreach_target.h>

#include "common/simd-inl.h"
#include "kvq/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

constexpr int64_t kMaxWidth = 256;
constexpr int64_t kTile = 16;        // keys in the lanes
constexpr int64_t kBlockKeys = 256;  // unit of work
constexpr int kTileHeads = 4;        // independent sums in flight

// 16 keys, columns first: key[column][lane].
struct KeyTile {
    HWY_ALIGN float key[kMaxWidth][kTile];

    void load_packed(const StoredRow* rows, int64_t Di) {
        HWY_ALIGN float scale[kTile];
        const DByte d8;
        const hn::Repartition<uint16_t, DByte> d16;
        const auto mask = hn::Set(d8, 15);
        for (int64_t group = 0; group < Di / kIndexGroup; ++group) {
            hn::Vec<DByte> code[kTile];  // a key each, then, transposed, a byte of all keys each
            for (int64_t k = 0; k < kTile; ++k) {
                const bool here = rows[k].codes != nullptr;
                scale[k] = here ? 0.5f * e8m0_to_f32(rows[k].scales[group]) : 0.0f;
                code[k] = here ? hn::LoadU(d8, rows[k].codes + group * 16) : hn::Zero(d8);
            }
            transpose(code);
            for (int64_t byte = 0; byte < 16; ++byte) {
                const auto high = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, code[byte])));
                float* out = key[group * kIndexGroup + 2 * byte];
                spread(doubled_e2m1(hn::And(code[byte], mask)), scale, out);
                spread(doubled_e2m1(hn::And(high, mask)), scale, out + kTile);
            }
        }
    }
    void load_bf16(const StoredRow* rows, int64_t Di) {
        for (int64_t k = 0; k < kTile; ++k) {
            const auto* values = reinterpret_cast<const uint16_t*>(rows[k].codes);
            for (int64_t i = 0; i < Di; ++i) {
                key[i][k] = values == nullptr ? 0.0f : bf16_to_f32(values[i]);
            }
        }
    }

  private:
    // 16 x 16 bytes, in four rounds of pairing row i with row i + 8.
    static void transpose(hn::Vec<DByte> (&rows)[kTile]) {
        for (int round = 0; round < 4; ++round) {
            hn::Vec<DByte> next[kTile];
            for (int64_t i = 0; i < kTile / 2; ++i) {
                next[2 * i] = hn::InterleaveLower(DByte(), rows[i], rows[i + kTile / 2]);
                next[2 * i + 1] = hn::InterleaveUpper(DByte(), rows[i], rows[i + kTile / 2]);
            }
            std::copy(next, next + kTile, rows);
        }
    }
    static void spread(hn::Vec<DByte> twice, const float* scale, float* out) {
        HWY_ALIGN int8_t bytes[kTile];
        hn::Store(twice, DByte(), reinterpret_cast<uint8_t*>(bytes));
        const F16 s = load16(scale);
        F16 r;
        TENON_PARTS {
            const auto wide = hn::PromoteTo(DI32(), hn::LoadU(DI8(), bytes + i * kLanes));
            r.p[i] = hn::Mul(hn::ConvertTo(D16(), wide), s.p[i]);
        }
        store16(r, out);
    }
};

HWY_INLINE F16 relu(const F16& x) {
    F16 r;
    TENON_PARTS r.p[i] = hn::IfThenElseZero(hn::Gt(x.p[i], hn::Zero(D16())), x.p[i]);
    return r;
}

// A row's query as f32, and its head weights.
struct Query {
    HWY_ALIGN float q[kMaxIndexHeads * kMaxWidth];
    float w[kMaxIndexHeads];

    void load(const IndexScore& p, const ScoreShape& s, int64_t t) {
        const uint16_t* iq = p.iq.row<const uint16_t>(t);
        for (int64_t i = 0; i < s.Hi * s.Di; i += 16) {
            store16(load16(iq + i), q + i);
        }
        for (int64_t h = 0; h < s.Hi; ++h) {
            w[h] = bf16_to_f32(p.w.row<const uint16_t>(t)[h]) * p.w_scale;
        }
    }
    template <int kHeads>
    void heads(const KeyTile& tile, int64_t Di, int64_t h, F16& acc) const {
        F16 dot[kHeads];
        for (int64_t g = 0; g < Di; g += kIndexGroup) {
            F16 sum[kHeads];
            for (int r = 0; r < kHeads; ++r) {
                sum[r] = zero16();
            }
            for (int64_t i = g; i < g + kIndexGroup; ++i) {
                const F16 key = load16(tile.key[i]);
                for (int r = 0; r < kHeads; ++r) {
                    sum[r] = fma16(set16(q[(h + r) * Di + i]), key, sum[r]);
                }
            }
            for (int r = 0; r < kHeads; ++r) {
                dot[r] = g == 0 ? sum[r] : add16(dot[r], sum[r]);
            }
        }
        for (int r = 0; r < kHeads; ++r) {
            acc = fma16(set16(w[h + r]), relu(dot[r]), acc);
        }
    }
    F16 score(const KeyTile& tile, const ScoreShape& s) const {
        F16 acc = zero16();
        int64_t h = 0;
        for (; h + kTileHeads <= s.Hi; h += kTileHeads) {
            heads<kTileHeads>(tile, s.Di, h, acc);
        }
        for (; h < s.Hi; ++h) {
            heads<1>(tile, s.Di, h, acc);
        }
        return acc;
    }
};

struct Scorer {
    Context& c;
    const IndexScore& p;
    const ScoreShape& s;

    void load_tile(KeyTile& tile, const StoredRow* rows) const {
        if (p.keys.format == RowFormat::bf16) {
            tile.load_bf16(rows, s.Di);
        } else {
            tile.load_packed(rows, s.Di);
        }
    }
    // Writes the 16 scores of columns [j, j + 16); those that are not `visible` become -inf.
    void store(const F16& acc, const bool* visible, float* out, int64_t j) const {
        HWY_ALIGN float x[kTile];
        store16(acc, x);
        const int64_t n = HWY_MIN(kTile, s.N - j);
        for (int64_t k = 0; k < n; ++k) {
            out[j + k] = visible[k] ? x[k] : -__builtin_inff();
        }
    }

    // Columns [j0, j1) of one row, whose keys are its own candidates.
    void candidates(int64_t t, int64_t j0, int64_t j1) const {
        float* out = p.out.row<float>(t);
        const RowInfo& row = row_infos(p.rows)[t];
        if (row.slot < 0) {
            std::fill(out + j0, out + j1, -__builtin_inff());
            return;
        }
        const int64_t most = visible_rows(row.pos, p.keys.ratio);
        Query query;
        query.load(p, s, t);
        KeyTile tile;
        for (int64_t j = j0; j < j1; j += kTile) {
            StoredRow rows[kTile] = {};
            bool visible[kTile] = {};
            for (int64_t k = 0; k < HWY_MIN(kTile, j1 - j); ++k) {
                const int64_t g = score_column(p, s, t, j + k);
                if (g >= 0 && g < most) {
                    rows[k] = page_row(p.keys, row.slot, g);
                    visible[k] = rows[k].codes != nullptr;
                    if (!visible[k]) {
                        c.fault();
                    }
                }
            }
            load_tile(tile, rows);
            store(query.score(tile, s), visible, out, j);
        }
    }

    // Columns [j0, j1) of all rows of a segment: each key is unpacked once for the whole segment.
    void segment(const SegInfo& seg, int64_t j0, int64_t j1) const {
        const int64_t last_visible = visible_rows(seg.pos0 + seg.rows - 1, p.keys.ratio);
        Query query;
        KeyTile tiles[kBlockKeys / kTile];
        bool mapped[kBlockKeys] = {};
        for (int64_t j = j0; j < HWY_MIN(j1, last_visible); j += kTile) {
            StoredRow rows[kTile] = {};
            for (int64_t k = 0; k < HWY_MIN(kTile, last_visible - j); ++k) {
                rows[k] = page_row(p.keys, seg.slot, j + k);
                mapped[j - j0 + k] = rows[k].codes != nullptr;
                if (j + k < j1 && !mapped[j - j0 + k]) {
                    c.fault();
                }
            }
            load_tile(tiles[(j - j0) / kTile], rows);
        }
        for (int64_t t = seg.row0; t < int64_t{seg.row0} + seg.rows; ++t) {
            float* out = p.out.row<float>(t);
            const int64_t most = visible_rows(row_infos(p.rows)[t].pos, p.keys.ratio);
            if (most > j0) {
                query.load(p, s, t);
            }
            for (int64_t j = j0; j < j1; j += kTile) {
                if (j >= most) {
                    std::fill(out + j, out + j1, -__builtin_inff());
                    break;
                }
                bool visible[kTile];
                for (int64_t k = 0; k < kTile; ++k) {
                    visible[k] = j + k < most && mapped[j - j0 + k];
                }
                store(query.score(tiles[(j - j0) / kTile], s), visible, out, j);
            }
        }
    }
};

// Rows outside every usable segment get -inf.
void clear_stray_rows(Context& c, const IndexScore& p, const ScoreShape& s) {
    for (int64_t t = 0; t < s.T; ++t) {
        const RowInfo& row = row_infos(p.rows)[t];
        if (row.slot < 0 || segment_of(c, p.rows, row, t) == nullptr) {
            std::fill(p.out.row<float>(t), p.out.row<float>(t) + s.N, -__builtin_inff());
        }
    }
}

Status score(void* self, const IndexScore& p, Stream&) noexcept {
    ScoreShape s{};
    TENON_TRY(check_op(p, &s));
    Context& c = context(self);
    const Scorer scorer{c, p, s};
    const int64_t blocks = (s.N + kBlockKeys - 1) / kBlockKeys;
    const int64_t pair_ns = s.Hi * s.Di / 16 + s.Di / 4;
    const auto column = [&](int64_t block) { return block % blocks * kBlockKeys; };
    if (s.C > 0) {
        share(c, s.T * blocks, 1, HWY_MIN(s.N, kBlockKeys) * pair_ns,
              [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
                  for (int64_t u = begin; u < end; ++u) {
                      scorer.candidates(u / blocks, column(u),
                                        HWY_MIN(s.N, column(u) + kBlockKeys));
                  }
              });
        return {};
    }
    clear_stray_rows(c, p, s);
    const int64_t rows = p.rows.S == 0 ? 0 : (s.T + p.rows.S - 1) / p.rows.S;
    share(c, p.rows.S * blocks, 1, HWY_MIN(s.N, kBlockKeys) * rows * pair_ns,
          [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
              for (int64_t u = begin; u < end; ++u) {
                  const SegInfo& seg = seg_infos(p.rows)[u / blocks];
                  if (seg.slot >= 0 && seg.rows > 0 && seg.row0 >= 0 && seg.pos0 >= 0 &&
                      int64_t{seg.row0} + seg.rows <= s.T) {
                      scorer.segment(seg, column(u), HWY_MIN(s.N, column(u) + kBlockKeys));
                  }
              }
          });
    return {};
}

OpCall<IndexScore> index_score_target() {
    return &score;
}
#else
OpCall<IndexScore> index_score_target() {
    return nullptr;
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(index_score_target);
OpCall<IndexScore> index_score_simd() {
    return HWY_DYNAMIC_DISPATCH(index_score_target)();
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
