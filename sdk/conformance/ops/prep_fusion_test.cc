// SPDX-License-Identifier: MIT
// The fused emits, query preparation, rank sums and routing against the parts that their headers
// name, on one provider. Absent ones skip.
#include <cmath>

#include "tenon/ops/cache.h"
#include "tenon/ops/compress.h"
#include "tenon/ops/engram.h"
#include "tenon/ops/index.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/linear.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/route.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

class OpsPrepFusion : public OpTest {
  protected:
    /// Pages of 16 rows for two slots, 300 positions each, filled with 0x55.
    Pages pages(RowFormat format, int32_t width, int32_t ratio) {
        Pages p;
        p.rows_per_page = 16;
        p.ratio = ratio;
        p.width = width;
        p.format = format;
        p.scales_at = 16 * code_bytes(format, width);
        const int64_t page_bytes =
            (p.scales_at + 16 * scale_bytes(format, width) + 255) / 256 * 256;
        const int32_t each = 300 / 16 + 1;
        std::vector<int32_t> table;
        for (int32_t i = 0; i < 2 * each; ++i) {
            table.push_back(2 * each - 1 - i);
        }
        p.pool = filled(DType::u8, {2 * each, page_bytes}, 0x55);
        p.table = i32({2, each}, table);
        return p;
    }
    /// A dead row, then `n` rows of slot 1 from pos0, a dead row, and three rows of slot 0 from 8.
    Rows two_segments(int32_t pos0, int32_t n) {
        std::vector<RowInfo> row(1);
        for (int32_t i = 0; i < n; ++i) {
            row.push_back({pos0 + i, 1, 0, 0});
        }
        row.emplace_back();
        for (int32_t i = 0; i < 3; ++i) {
            row.push_back({8 + i, 0, 1, 0});
        }
        return rows(row,
                    {SegInfo{1, 1, n, pos0, {0, 0}, 0, 0}, SegInfo{0, n + 2, 3, 8, {0, 0}, 0, 0}});
    }
    TensorView turns(int64_t T, int64_t R, Random& random) {
        return f32({T, R}, random.bells(T * R, 0.5f));
    }
    Rows live_rows(int64_t T) { return one_segment(0, 5, static_cast<int32_t>(T)); }
};

TEST_P(OpsPrepFusion, Emitted_latents_equal_pool_norm_turn_store) {
    if (!offered<CompressEmit>()) {
        GTEST_SKIP() << "this provider has no compress.emit";
    }
    const int64_t D = 512, R = 64;
    for (const RowFormat format : {RowFormat::q4e, RowFormat::bf16}) {
        // Segments longer than the raw ring store where their first row reads.
        for (const auto& [pos0, n] : {std::pair<int32_t, int32_t>{4, 1},
                                      {5, 1},
                                      {7, 6},
                                      {3, 40},
                                      {9, 64},
                                      {11, 70},
                                      {0, 130},
                                      {33, 257}}) {
            const Rows r = two_segments(pos0, n);
            Random random(static_cast<uint64_t>(141 + n));
            CompressEmit p;
            p.a = f32({r.T, D}, random.bells(r.T * D));
            p.s = f32({r.T, D}, random.bells(r.T * D, 3));
            const std::vector<float> raw = random.bells(2 * kRawPositions * 2 * D);
            p.raw = f32({2, kRawPositions, 2, D}, raw);
            p.norm_weight = bf16({D}, random.bells(D));
            p.cs = turns(r.T, R, random);
            p.rows = r;
            p.comp = pages(format, 512, 2);
            p.latent = filled(DType::bf16, {r.T, D}, 0x11);
            run(p);
            const CompressPool pool{p.a, p.s, r, f32({2, kRawPositions, 2, D}, raw),
                                    zeros(DType::bf16, {r.T, D})};
            run(pool);
            const NormRms norm{pool.out, p.norm_weight, zeros(DType::bf16, {r.T, D}), p.eps};
            run(norm);
            const RopeTurn turn{norm.out, p.cs, false, zeros(DType::bf16, {r.T, D})};
            run(turn);
            const CacheStore store{turn.out, r, pages(format, 512, 2), RowFormat::q4e};
            run(store);
            EXPECT_EQ(bytes(p.latent), bytes(norm.out)) << pos0 << ", " << n;
            EXPECT_EQ(bytes(p.comp.pool), bytes(store.pages.pool)) << pos0 << ", " << n;
            EXPECT_EQ(bytes(p.raw), bytes(pool.raw)) << pos0 << ", " << n;
            CompressEmit given = p;  // ratio 1: the row itself is the latent
            given.latent_raw = pool.out;
            given.a = given.s = given.raw = {};
            given.comp = pages(format, 512, 2);
            given.latent = filled(DType::bf16, {r.T, D}, 0x11);
            run(given);
            EXPECT_EQ(bytes(given.latent), bytes(norm.out));
            EXPECT_EQ(bytes(given.comp.pool), bytes(store.pages.pool));
            EXPECT_EQ(device().fault_count(), 0u);
        }
    }
}

TEST_P(OpsPrepFusion, Emitted_keys_equal_norm_turn_store) {
    if (!offered<IndexKeyEmit>()) {
        GTEST_SKIP() << "this provider has no index.key_emit";
    }
    const int64_t n = 128, R = 64;
    for (const RowFormat format : {RowFormat::q4u, RowFormat::bf16}) {
        for (const int32_t ratio : {1, 2}) {
            const Rows r = two_segments(6, 21);
            Random random(142);
            IndexKeyEmit p;
            p.k_raw = bf16({r.T, n}, random.bells(r.T * n));
            p.norm_weight = f32({n}, random.bells(n));
            p.cs = turns(r.T, R, random);
            p.rows = r;
            p.keys = pages(format, 128, ratio);
            run(p);
            const NormRms norm{p.k_raw, p.norm_weight, zeros(DType::bf16, {r.T, n}), p.eps};
            run(norm);
            const RopeTurn turn{norm.out, p.cs, false, norm.out};
            run(turn);
            const CacheStore store{turn.out, r, pages(format, 128, ratio), RowFormat::q4u};
            run(store);
            EXPECT_EQ(bytes(p.keys.pool), bytes(store.pages.pool)) << "ratio " << ratio;
            EXPECT_EQ(device().fault_count(), 0u);
        }
    }
}

TEST_P(OpsPrepFusion, Prepared_queries_equal_turn_quantize_linear) {
    for (const Regime regime : {Regime::decode, Regime::prefill}) {
        if (!offered<IndexQueryPrep>(regime)) {
            if (regime == Regime::decode) {
                GTEST_SKIP() << "this provider has no index.query_prep";
            }
            continue;
        }
        for (const auto& [T, Hi] :
             {std::pair<int64_t, int64_t>{1, 32}, {6, 64}, {17, 5}, {64, 4}}) {
            const int64_t Di = 128, R = 64, d = 5120;
            Random random(143);
            const std::vector<float> q = random.bells(T * Hi * Di);
            IndexQueryPrep p;
            p.iq = bf16({T, Hi, Di}, q);
            p.cs = turns(T, R, random);
            p.x = bf16({T, d}, random.bells(T * d));
            p.weights_proj = bf16({Hi, d}, random.bells(Hi * d, 0.1f));
            p.w = filled(DType::bf16, {T, Hi}, 0x11);
            p.codes = filled(DType::u8, {T, Hi, Di / 2}, 0x11);
            p.scales = filled(DType::u8, {T, Hi, Di / 32}, 0x11);
            run(p, regime);
            const TensorView iq = bf16({T, Hi, Di}, q);
            run(RopeTurn{iq, p.cs, false, iq}, regime);
            const TensorView flat = make_view(iq.data, DType::bf16, {T, Hi * Di}, iq.place);
            KvqQuantize z;
            z.x = z.values = flat;
            z.format = RowFormat::q4u;
            z.codes = zeros(DType::u8, {T, Hi * Di / 2});
            z.scales = zeros(DType::u8, {T, Hi * Di / 32});
            run(z, regime);
            const LinearPlain w{p.x, p.weights_proj, {}, zeros(DType::bf16, {T, Hi}), {}};
            run(w, regime);
            EXPECT_EQ(bytes(p.iq), bytes(iq)) << T;
            EXPECT_EQ(bytes(p.codes), bytes(z.codes)) << T;
            EXPECT_EQ(bytes(p.scales), bytes(z.scales)) << T;
            const std::vector<float> got = floats(p.w);
            const std::vector<float> want = floats(w.y);
            int64_t most = 0;
            for (size_t i = 0; i < got.size(); ++i) {
                most = std::max(most, bf16_ulps(got[i], want[i]));
            }
            EXPECT_LE(most, 1) << T;
        }
    }
}

TEST_P(OpsPrepFusion, A_gate_adds_ranks_in_order) {
    if (!offered<EngramReduceGate>()) {
        GTEST_SKIP() << "this provider has no engram.reduce_gate";
    }
    const int64_t T = 5, d = 320;
    for (const int64_t W : {1, 2, 3}) {
        Random random(144);
        const std::vector<float> parts = random.bells(W * T * 5 * d);
        std::vector<float> sum(parts.begin(), parts.begin() + T * 5 * d);
        for (size_t i = static_cast<size_t>(T * 5 * d); i < parts.size(); ++i) {
            sum[i % sum.size()] += parts[i];
        }
        const std::vector<float> h = random.bells(T * 4 * d);
        EngramReduceGate p;
        p.parts = f32({W, T, 5 * d}, parts);
        p.h = bf16({T, 4, d}, h);
        p.q_weight = bf16({4, d}, random.bells(4 * d));
        p.k_weight = bf16({4, d}, random.bells(4 * d));
        p.rows = rows({{0, 0, 0, 0}, {}, {1, 0, 0, kRowImage}, {2, 0, 0, 0}, {3, 0, 0, 0}},
                      {SegInfo{0, 0, 5, 0, {0, 0}, 0, 0}});
        run(p);
        EngramGate g{
            f32({T, 5 * d}, sum), bf16({T, 4, d}, h), p.q_weight, p.k_weight, p.eps, p.rows};
        run(g);
        EXPECT_EQ(bytes(p.h), bytes(g.h)) << W << " ranks";
    }
}

class OpsGateFusion : public OpsPrepFusion {
  protected:
    struct Geometry {
        int64_t E, d;
        int32_t k;
        DType gate;
    };
    RouteGateTopk call(const Geometry& g) {
        Random random(static_cast<uint64_t>(145 + g.E));
        RouteGateTopk p;
        const std::vector<float> gate = random.bells(g.E * g.d, 0.03f);
        p.gate = g.gate == DType::bf16 ? bf16({g.E, g.d}, gate) : f32({g.E, g.d}, gate);
        p.bias = f32({g.E}, random.bells(g.E, 0.1f));
        p.bias_image = f32({g.E}, random.bells(g.E, 0.1f));
        p.k = g.k;
        p.scale = 1.5f;
        return p;
    }
    void rows_of_values(RouteGateTopk* p, const std::vector<float>& x, const Rows& r) {
        const int64_t T = r.T;
        p->x = bf16({T, p->gate.shape[1]}, x);
        p->rows = r;
        p->ids = filled(DType::i32, {T, p->k}, 0x11);
        p->weights = filled(DType::f32, {T, p->k}, 0x11);
    }
};

TEST_P(OpsGateFusion, Gate_and_choice_equal_linear_and_topk) {
    for (const Regime regime : {Regime::decode, Regime::prefill}) {
        if (!offered<RouteGateTopk>(regime)) {
            if (regime == Regime::decode) {
                GTEST_SKIP() << "this provider has no route.gate_topk";
            }
            continue;
        }
        for (const Geometry& g : {Geometry{384, 5120, 6, DType::bf16},
                                  {128, 5120, 3, DType::bf16},
                                  {4, 128, 2, DType::bf16},
                                  {24, 264, 16, DType::f32},
                                  {512, 256, 8, DType::f32},
                                  {40, 1000, 5, DType::bf16}}) {
            for (const int64_t T : {1, 6, 19, 64}) {
                RouteGateTopk p = call(g);
                Random random(146);
                std::vector<RowInfo> row;
                for (int32_t t = 0; t < T; ++t) {
                    row.push_back({t, t % 5 == 3 ? -1 : 0, 0, t % 3 == 1 ? kRowImage : 0});
                }
                rows_of_values(&p, random.bells(T * g.d), rows(row, {}));
                run(p, regime);
                const LinearPlain linear{p.x, p.gate, {}, zeros(DType::f32, {T, g.E}), {}};
                run(linear, regime);
                const RouteTopk topk{linear.y,
                                     p.bias,
                                     p.bias_image,
                                     p.k,
                                     p.scale,
                                     p.rows,
                                     zeros(DType::i32, {T, p.k}),
                                     zeros(DType::f32, {T, p.k})};
                run(topk, regime);
                const auto ids = get<int32_t>(p.ids);
                const auto want = get<int32_t>(topk.ids);
                const std::vector<float> w = floats(p.weights);
                const std::vector<float> want_w = floats(topk.weights);
                const std::vector<float> z = floats(linear.y);
                const std::vector<float> bias = floats(p.bias);
                const std::vector<float> bias_image = floats(p.bias_image);
                for (int64_t t = 0; t < T; ++t) {
                    // Keys of the last one chosen and of the best one left, if they are close the
                    // choice may differ.
                    std::vector<double> keys;
                    for (int64_t e = 0; e < g.E; ++e) {
                        const double v = z[static_cast<size_t>(t * g.E + e)];
                        const bool image = t % 3 == 1;
                        keys.push_back(std::sqrt(v > 20 ? v : std::log1p(std::exp(v))) +
                                       (image ? bias_image : bias)[static_cast<size_t>(e)]);
                    }
                    std::sort(keys.rbegin(), keys.rend());
                    const auto k = static_cast<size_t>(g.k);
                    if (k < keys.size() && keys[k - 1] - keys[k] < 1e-5) {
                        continue;
                    }
                    for (size_t i = 0; i < k; ++i) {
                        const size_t at = static_cast<size_t>(t) * k + i;
                        ASSERT_EQ(ids[at], want[at]) << g.E << " experts, T " << T << ", row " << t;
                        ASSERT_NEAR(w[at], want_w[at], 4e-6) << g.E << " experts, row " << t;
                    }
                }
            }
        }
    }
}

TEST_P(OpsGateFusion, Rows_are_invariant) {
    if (!offered<RouteGateTopk>()) {
        GTEST_SKIP() << "this provider has no route.gate_topk";
    }
    for (const Geometry& g : {Geometry{384, 512, 6, DType::bf16}, {40, 320, 4, DType::f32}}) {
        RouteGateTopk p = call(g);
        expect_row_invariant([&](const std::vector<int>& list, const Variation&) {
            std::vector<float> x;
            std::vector<RowInfo> row;
            for (const int r : list) {
                Random random(static_cast<uint64_t>(r + 1000) * 31 + 7);
                const std::vector<float> values = random.bells(g.d, r == kHugeRow ? 1e15f : 1.0f);
                x.insert(x.end(), values.begin(), values.end());
                row.push_back({r < 0 ? 77 : 3 * r + 1, r == kDeadRow ? -1 : 0, 0, 0});
            }
            rows_of_values(&p, x, rows(row, {}));
            run(p);
            const std::vector<uint8_t> ids = bytes(p.ids);
            const std::vector<uint8_t> weights = bytes(p.weights);
            std::vector<std::vector<uint8_t>> out(list.size());
            const auto n = static_cast<long>(4 * g.k);
            for (size_t t = 0; t < list.size(); ++t) {
                const auto at = static_cast<long>(t) * n;
                out[t].assign(ids.begin() + at, ids.begin() + at + n);
                out[t].insert(out[t].end(), weights.begin() + at, weights.begin() + at + n);
            }
            return out;
        });
    }
}

TEST_P(OpsGateFusion, Nan_is_never_chosen_and_ties_go_to_the_lower_expert) {
    if (!offered<RouteGateTopk>()) {
        GTEST_SKIP() << "this provider has no route.gate_topk";
    }
    // Gate rows pick single columns of x, so that logits are what stands there.
    const int64_t E = 8, d = 64;
    std::vector<float> gate(static_cast<size_t>(E * d), 0.0f);
    for (int64_t e = 0; e < E; ++e) {
        gate[static_cast<size_t>(e * d + e)] = 1;
    }
    RouteGateTopk p;
    p.gate = bf16({E, d}, gate);
    p.bias = f32({E}, {0, 0, 1, NAN, 0, 0, 1, 0});
    p.k = 4;
    p.scale = 1.5f;
    rows_of_values(&p, std::vector<float>(static_cast<size_t>(3 * d), 0.5f),
                   rows({{0, 0, 0, 0}, {}, {1, 0, 0, 0}}, {}));
    run(p);
    EXPECT_EQ(get<int32_t>(p.ids), (std::vector<int32_t>{0, 1, 2, 6, -1, -1, -1, -1, 0, 1, 2, 6}));
    p.bias = f32({E}, {NAN, NAN, NAN, NAN, 0, NAN, 0, NAN});
    run(p);
    EXPECT_EQ(get<int32_t>(p.ids),
              (std::vector<int32_t>{4, 6, -1, -1, -1, -1, -1, -1, 4, 6, -1, -1}));
    EXPECT_NEAR(floats(p.weights)[0], 0.75f, 1e-6f);
    EXPECT_EQ(floats(p.weights)[2], 0.0f);
}

TENON_INSTANTIATE_OPS(OpsPrepFusion);
TENON_INSTANTIATE_OPS(OpsGateFusion);

}  // namespace
}  // namespace tenon::testing
