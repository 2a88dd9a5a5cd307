// SPDX-License-Identifier: MIT
// Real geometry on two providers: the one under test against the oracle, bits for class X, a stated
// tolerance for class I.
#include <cmath>

#include "tenon/ops/cache.h"
#include "tenon/ops/compress.h"
#include "tenon/ops/embed.h"
#include "tenon/ops/engram.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/linear.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/pages.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/route.h"
#include "tenon/ops/spec.h"
#include "tenon/ops/window.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

constexpr int64_t kWidth = 5120;
constexpr int64_t kHead = 512;

class OpsOracle : public OpTest {
  protected:
    void SetUp() override {
        OpTest::SetUp();
        if (IsSkipped()) {
            return;
        }
        const auto provider = op_oracle();
        if (!provider.has_value()) {
            GTEST_SKIP() << "no oracle: give another compute plugin by --oracle";
        }
        const Status s = oracle_.start(*provider);
        ASSERT_TRUE(s.ok()) << s.message().view();
    }

    /// `body(bench)` builds its inputs on that bench, runs ops and returns outputs. Both lists.
    template <class Body>
    void both(Body&& body) {
        mine_ = body(static_cast<OpBench&>(*this));
        theirs_ = body(oracle_);
        ASSERT_EQ(mine_.size(), theirs_.size());
    }
    void expect_equal(size_t i, const char* what) {
        const std::vector<uint8_t> a = bytes(mine_[i]);
        const std::vector<uint8_t> b = oracle_.bytes(theirs_[i]);
        ASSERT_EQ(a.size(), b.size());
        size_t differs = 0;
        size_t first = a.size();
        for (size_t k = 0; k < a.size(); ++k) {
            if (a[k] != b[k]) {
                ++differs;
                first = std::min(first, k);
            }
        }
        EXPECT_EQ(differs, 0u) << what << ": first differing byte " << first << " of " << a.size();
    }
    void expect_ulps(size_t i, int64_t ulps, const char* what) {
        const std::vector<float> a = floats(mine_[i]);
        const std::vector<float> b = oracle_.floats(theirs_[i]);
        int64_t most = 0;
        for (size_t k = 0; k < a.size(); ++k) {
            most = std::max(most, bf16_ulps(a[k], b[k]));
        }
        EXPECT_LE(most, ulps) << what;
    }
    void expect_near(size_t i, double relative, double absolute, const char* what) {
        const std::vector<float> a = floats(mine_[i]);
        const std::vector<float> b = oracle_.floats(theirs_[i]);
        double worst = 0;
        for (size_t k = 0; k < a.size(); ++k) {
            const double allowed = absolute + relative * std::fabs(b[k]);
            const double d = std::fabs(static_cast<double>(a[k]) - b[k]);
            worst = std::max(worst, std::isfinite(d) ? d / allowed : 1e300);
        }
        EXPECT_LE(worst, 1.0) << what << ": largest error in units of the tolerance";
    }

    OpBench oracle_;
    std::vector<TensorView> mine_;
    std::vector<TensorView> theirs_;
};

TEST_P(OpsOracle, Rows_and_embedding) {
    both([](OpBench& b) -> std::vector<TensorView> {
        Random random(101);
        const TensorView table = b.bf16({64, kWidth}, random.bells(64 * kWidth));
        EmbedGather e;
        e.ids = b.i32({6}, {3, 63, -1, 64, 0, 9});
        e.table = table;
        e.inject = b.bf16({2, kWidth}, random.bells(2 * kWidth));
        e.inject_index = b.i32({6}, {-1, -1, -1, -1, 1, -1});
        e.out = b.zeros(DType::bf16, {6, 4, kWidth});
        e.pre = b.zeros(DType::f32, {6, 4});
        b.run(e);
        RowsGather g{table, b.i32({5}, {9, -1, 63, 0, 9}), b.zeros(DType::bf16, {5, kWidth})};
        b.run(g);
        RowsDigest d{e.out, b.one_segment(1, 77, 6), b.zeros(DType::u64, {1})};
        b.run(d);
        return {e.out, e.pre, g.out, d.out};
    });
    for (size_t i = 0; i < mine_.size(); ++i) {
        expect_equal(i, "rows");
    }
}

TEST_P(OpsOracle, Norm) {
    // f32: mean, root, product and weight round once each on both sides, the sum of squares by at
    // most 2^-20: 5 2^-24 + 2^-21 relative. bf16: that and one rounding, at most one step.
    for (const int64_t n : {64, 128, 504, 512, 1280, 5120, 25600}) {
        both([n](OpBench& b) -> std::vector<TensorView> {
            Random random(102);
            NormRms p{b.bf16({5, n}, random.bells(5 * n)), b.bf16({n}, random.bells(n)),
                      b.zeros(DType::bf16, {5, n}), 1e-20f};
            b.run(p);
            NormRms q{b.f32({5, n}, random.bells(5 * n, 1e-3f)), b.f32({n}, random.bells(n)),
                      b.zeros(DType::f32, {5, n}), 1e-6f};
            b.run(q);
            return {p.out, q.out};
        });
        expect_ulps(0, 1, "norm bf16");
        expect_near(1, 0x1p-20, 1e-30, "norm f32");
    }
}

TEST_P(OpsOracle, Mhc) {
    for (const Regime regime : {Regime::decode, Regime::prefill}) {
        both([regime](OpBench& b) -> std::vector<TensorView> {
            const int64_t T = 9;
            Random random(103);
            MhcMix m;
            m.h = b.bf16({T, 4, kWidth}, random.bells(T * 4 * kWidth));
            m.fn = b.f32({24, 4 * kWidth}, random.bells(24 * 4 * kWidth, 0.01f));
            m.scale = b.f32({3}, {1, 0.5f, 2});
            m.base = b.f32({24}, random.bells(24));
            m.pre = b.zeros(DType::f32, {T, 4});
            m.post = b.zeros(DType::f32, {T, 4});
            m.comb = b.zeros(DType::f32, {T, 4, 4});
            b.run(m, regime);
            // The following get the same coefficients on both sides.
            const TensorView pre = b.f32({T, 4}, random.bells(T * 4));
            const TensorView post = b.f32({T, 4}, random.bells(T * 4));
            const TensorView comb = b.f32({T, 4, 4}, random.bells(T * 16));
            MhcCollapse c{m.h, pre, b.zeros(DType::bf16, {T, kWidth})};
            b.run(c, regime);
            MhcExpand e{b.f32({T, kWidth}, random.bells(T * kWidth)), m.h, post, comb,
                        b.zeros(DType::bf16, {T, 4, kWidth})};
            b.run(e, regime);
            MhcMean a{m.h, b.zeros(DType::bf16, {T, kWidth})};
            b.run(a, regime);
            return {m.pre, m.post, m.comb, c.out, e.out, a.out};
        });
        // Dots of 20480 f32 products in pieces, then 40 normalisations that contract: below 1e-5.
        expect_near(0, 0, 1e-5, "pre");
        expect_near(1, 0, 1e-5, "post");
        expect_near(2, 0, 1e-5, "comb");
        expect_equal(3, "collapse");
        expect_equal(4, "expand");
        expect_equal(5, "mean");
    }
}

TEST_P(OpsOracle, Linear) {
    struct Case {
        int64_t T, N, K;
        DType x, w;
    };
    for (const Case& c :
         {Case{3, 384, kWidth, DType::bf16, DType::bf16},
          Case{9, 32, kWidth, DType::bf16, DType::bf16},
          Case{17, 1024, 592, DType::bf16, DType::f32}, Case{2, 6, 100, DType::f32, DType::bf16},
          Case{70, 132, 256, DType::bf16, DType::bf16}}) {
        for (const Regime regime : {Regime::decode, Regime::prefill}) {
            std::vector<float> xs;
            std::vector<float> ws;
            both([&](OpBench& b) -> std::vector<TensorView> {
                Random random(104);
                const auto put = [&](DType t, int64_t rows) {
                    const std::vector<float> v = random.bells(rows * c.K);
                    return t == DType::bf16 ? b.bf16({rows, c.K}, v) : b.f32({rows, c.K}, v);
                };
                LinearPlain p;
                p.x = put(c.x, c.T);
                p.w = put(c.w, c.N);
                p.bias = b.f32({c.N}, random.bells(c.N));
                p.y = b.zeros(DType::f32, {c.T, c.N});
                b.run(p, regime);
                xs = b.floats(p.x);
                ws = b.floats(p.w);
                return {p.y};
            });
            // K 2^-24 times the sum of absolute products, which is below K max|x| max|w|; products
            // of bells average 1.
            double size = 0;
            for (int64_t k = 0; k < c.K; ++k) {
                size += std::fabs(static_cast<double>(xs[static_cast<size_t>(k)]) *
                                  ws[static_cast<size_t>(k)]);
            }
            expect_near(0, 0, 0x1p-24 * static_cast<double>(c.K) * size * 0.25 + 1e-6, "linear");
        }
    }
}

TEST_P(OpsOracle, Rope) {
    both([](OpBench& b) -> std::vector<TensorView> {
        Random random(105);
        std::vector<RowInfo> row;
        for (int32_t i = 0; i < 40; ++i) {
            row.push_back({static_cast<int32_t>(random.below(1 << 20)), i % 7 == 3 ? -1 : i, 0, 0});
        }
        alignas(64) float freq[32];
        for (int i = 0; i < 32; ++i) {
            freq[i] = 1.0f / std::pow(10000.0f, static_cast<float>(2 * i) / 64.0f);
        }
        RopeAngles a;
        a.rows = b.rows(row, {});
        a.freq = make_view(static_cast<const void*>(freq), DType::f32, {32});
        a.cs = b.zeros(DType::f32, {40, 64});
        b.run(a);
        const TensorView cs = b.f32({40, 64}, random.bells(40 * 64));
        RopeTurn t{b.bf16({40, 3, kHead}, random.bells(40 * 3 * kHead)), cs, true,
                   b.zeros(DType::bf16, {40, 3, kHead})};
        b.run(t);
        return {a.cs, t.out};
    });
    expect_near(0, 0x1p-22, 1e-30, "angles: 2 ulp");
    expect_equal(1, "turn");
}

TEST_P(OpsOracle, Quantisers_and_stores) {
    for (const RowFormat f : {RowFormat::q8, RowFormat::q4u, RowFormat::q4e}) {
        both([f](OpBench& b) -> std::vector<TensorView> {
            const int64_t T = 37;
            Random random(106);
            std::vector<float> x;
            for (int64_t i = 0; i < T * kHead / 32; ++i) {
                const int exponent = static_cast<int>(random.below(60)) - 40;
                const std::vector<float> group = random.bells(32, std::ldexp(1.0f, exponent));
                x.insert(x.end(), group.begin(), group.end());
            }
            KvqQuantize q{.x = b.bf16({T, kHead}, x), .format = f};
            q.values = b.zeros(DType::bf16, {T, kHead});
            q.codes = b.zeros(DType::u8, {T, code_bytes(f, kHead)});
            q.scales = b.zeros(DType::u8, {T, scale_bytes(f, kHead)});
            b.run(q);
            KvqDequantize d{q.codes, q.scales, f, b.zeros(DType::bf16, {T, kHead})};
            b.run(d);
            const Rows rows = b.one_segment(1, 130, T);
            if (f == RowFormat::q8) {
                WindowStore w{q.x, rows, {}};
                w.ring = {b.zeros(DType::u8, {2, 144, kHead}),
                          b.zeros(DType::u8, {2, 144, kHead / 32}), 144, kHead, f};
                b.run(w);
                return {q.values, q.codes, q.scales, d.out, w.ring.codes, w.ring.scales};
            }
            CacheStore s{q.x, rows, {}, f};
            s.pages.pool = b.zeros(DType::u8, {4, 65536});
            s.pages.table = b.i32({2, 2}, {-1, -1, 3, 1});
            s.pages.scales_at = 49152;
            s.pages.rows_per_page = 64;
            s.pages.ratio = 2;
            s.pages.width = kHead;
            s.pages.format = f;
            b.run(s);
            CacheStore values = s;
            values.pages.pool = b.zeros(DType::u8, {4, 65536});
            values.pages.format = RowFormat::bf16;
            b.run(values);
            return {q.values, q.codes, q.scales, d.out, s.pages.pool, values.pages.pool};
        });
        for (size_t i = 0; i < mine_.size(); ++i) {
            expect_equal(i, row_format_name(f));
        }
    }
}

TEST_P(OpsOracle, Compressor) {
    both([](OpBench& b) -> std::vector<TensorView> {
        const int64_t T = 70;
        Random random(107);
        CompressPool p;
        p.a = b.f32({T, kHead}, random.bells(T * kHead));
        p.s = b.f32({T, kHead}, random.bells(T * kHead, 3));
        p.rows = b.one_segment(1, 101, T);
        p.raw = b.f32({2, 64, 2, kHead}, random.bells(2 * 64 * 2 * kHead));
        p.out = b.zeros(DType::bf16, {T, kHead});
        b.run(p);
        return {p.out, p.raw};
    });
    // Weights of the pair within 4 ulp (two exponentials, a sum, a quotient): cancellation of the
    // two terms is bounded by their size.
    expect_near(0, 0x1p-7, 1e-5, "latents");
    expect_equal(1, "raw ring");
}

TEST_P(OpsOracle, Router) {
    both([](OpBench& b) -> std::vector<TensorView> {
        const int64_t T = 33;
        const int64_t E = 384;
        Random random(108);
        RouteTopk p;
        p.logits = b.f32({T, E}, random.bells(T * E));
        p.bias = b.f32({E}, random.bells(E, 0.05f));
        p.k = 6;
        p.scale = 1.5f;
        p.rows = b.one_segment(0, 5, T);
        p.ids = b.zeros(DType::i32, {T, 6});
        p.weights = b.zeros(DType::f32, {T, 6});
        b.run(p);
        return {p.ids, p.weights};
    });
    expect_equal(0, "ids");  // margins of this seed are far above 8 ulp
    expect_near(1, 2e-6, 0, "weights");
}

TEST_P(OpsOracle, Engram) {
    both([](OpBench& b) -> std::vector<TensorView> {
        const int64_t T = 5;
        Random random(109);
        std::vector<uint8_t> record(static_cast<size_t>(T * 24 * 264));
        for (uint8_t& v : record) {
            v = static_cast<uint8_t>(random.below(126) + 128 * random.below(2));
        }
        for (int64_t i = 0; i < T * 24; ++i) {
            for (int64_t s = 0; s < 8; ++s) {
                record[static_cast<size_t>(i * 264 + 256 + s)] =
                    static_cast<uint8_t>(110 + random.below(20));
            }
        }
        const TensorView all = b.u8({T * 24 * 264}, record);
        EngramDecode d;
        d.values = all;
        d.values.rank = 3;
        const int64_t shape[3] = {T, 24, 256};
        const int64_t stride[3] = {24 * 264, 264, 1};
        std::copy(shape, shape + 3, d.values.shape);
        std::copy(stride, stride + 3, d.values.stride);
        d.scales = d.values;
        d.scales.data = static_cast<char*>(all.data) + 256;
        d.scales.shape[2] = 8;
        std::vector<RowInfo> row = {
            {3, 0, 0, 0}, {4, 0, 0, 0}, {}, {5, 0, 0, kRowImage}, {6, 0, 0, 0}};
        d.rows = b.rows(row, {});
        d.out = b.zeros(DType::bf16, {T, 24 * 256});
        b.run(d);
        EngramGate g;
        g.kv = b.f32({T, 5 * kWidth}, random.bells(T * 5 * kWidth));
        g.h = b.bf16({T, 4, kWidth}, random.bells(T * 4 * kWidth));
        g.q_weight = b.bf16({4, kWidth}, random.bells(4 * kWidth));
        g.k_weight = b.bf16({4, kWidth}, random.bells(4 * kWidth));
        g.rows = d.rows;
        b.run(g);
        return {d.out, g.h};
    });
    expect_equal(0, "decode");
    // g within 1e-5, |value| below 4: 4e-5 before one rounding to bf16.
    expect_near(1, 0x1p-7, 1e-4, "gate");
}

TEST_P(OpsOracle, Verify_and_pages) {
    both([](OpBench& b) -> std::vector<TensorView> {
        Random random(110);
        const int32_t S = 20;
        std::vector<RowInfo> row;
        std::vector<SegInfo> seg;
        std::vector<int32_t> ids;
        std::vector<int32_t> drawn;
        std::vector<VerifyLimits> limits;
        for (int32_t s = 0; s < S; ++s) {
            const auto n = static_cast<int32_t>(1 + random.below(16));
            seg.push_back({s % 6 == 5 ? -1 : s,
                           static_cast<int32_t>(row.size()),
                           n,
                           9 * s,
                           {0, 0},
                           static_cast<int32_t>(drawn.size()),
                           0});
            VerifyLimits l;
            l.forced = static_cast<int32_t>(random.below(3));
            l.accept_max = static_cast<int32_t>(random.below(17));
            l.stop_ids[3] = 2;
            limits.push_back(l);
            for (int32_t i = 0; i < n; ++i) {
                const bool wants = i + 1 >= l.forced;
                row.push_back({9 * s + i, s, s, wants ? kRowLogits : 0u});
                ids.push_back(static_cast<int32_t>(random.below(3)));
                if (wants) {
                    drawn.push_back(static_cast<int32_t>(random.below(4)) - 1);
                }
            }
        }
        SpecVerify v;
        v.drawn = b.i32({static_cast<int64_t>(drawn.size())}, drawn);
        v.ids = b.i32({static_cast<int64_t>(ids.size())}, ids);
        v.rows = b.rows(row, seg);
        v.limits = b.structs(limits);
        v.decision = b.filled(DType::u8, {S, sizeof(VerifyDecision)}, 0x33);
        b.run(v);
        std::vector<uint8_t> pool(static_cast<size_t>(6 * 227840));
        for (uint8_t& x : pool) {
            x = static_cast<uint8_t>(random.below(256));
        }
        const PagePlane planes[3] = {{0, 256, 2, 0}, {32768, 32, 2, 0}, {136704, 256, 1, 0}};
        PagesCopy c;
        c.pool = b.u8({6, 227840}, pool);
        c.src = b.i32({3}, {0, 1, 2});
        c.dst = b.i32({3}, {3, 4, 5});
        c.tokens = b.i32({3}, {101, 256, 0});
        c.planes = planes;
        c.page_tokens = 256;
        b.run(c);
        PagesPack k{c.pool, b.i32({2}, {4, 3}), b.zeros(DType::u8, {2, 227840})};
        b.run(k);
        return {v.decision, c.pool, k.records};
    });
    for (size_t i = 0; i < mine_.size(); ++i) {
        expect_equal(i, "verify and pages");
    }
}

TENON_INSTANTIATE_OPS(OpsOracle);

}  // namespace
}  // namespace tenon::testing
