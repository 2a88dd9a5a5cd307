// SPDX-License-Identifier: MIT
// Attention, selection, sampling and drafts at the released geometry: the provider under test
// against the oracle.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tenon/ops/attn.h"
#include "tenon/ops/cache.h"
#include "tenon/ops/draft.h"
#include "tenon/ops/index.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/sample.h"
#include "tenon/ops/window.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

class OpsTokenOracle : public OpTest {
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
    OpBench oracle_;
};

TensorView quantised(OpBench& b, RowFormat format, const TensorView& x) {
    KvqQuantize q;
    q.x = x;
    q.format = format;
    q.values = b.zeros(DType::bf16, {x.shape[0], x.shape[1]});
    b.run(q);
    return q.values;
}

// Compressed rows or index keys of `slots` slots through the store.
Pages stored(OpBench& b, RowFormat format, int64_t width, int64_t slots, int64_t rows,
             int32_t ratio) {
    Pages p;
    p.rows_per_page = 256 / ratio;
    p.ratio = ratio;
    p.width = static_cast<int32_t>(width);
    p.format = format;
    p.scales_at = p.rows_per_page * code_bytes(format, width);
    const int64_t each = (rows + p.rows_per_page - 1) / p.rows_per_page;
    std::vector<int32_t> table(static_cast<size_t>(slots * each));
    std::iota(table.begin(), table.end(), 0);
    Random(17).shuffle(table);
    p.pool = b.zeros(DType::u8, {slots * each, p.rows_per_page * (code_bytes(format, width) +
                                                                  scale_bytes(format, width))});
    p.table = b.i32({slots, each}, table);
    for (int64_t s = 0; s < slots; ++s) {
        Random random(static_cast<uint64_t>(s + 3));
        std::vector<RowInfo> row;
        for (int64_t g = 0; g < rows; ++g) {
            row.push_back(
                {static_cast<int32_t>(g * ratio + ratio - 1), static_cast<int32_t>(s), 0, 0});
        }
        CacheStore c{b.bf16({rows, width}, random.bells(rows * width)), b.rows(row, {}), p, format};
        b.run(c);
    }
    return p;
}

TEST_P(OpsTokenOracle, Attention) {
    const int64_t H = 64, D = 512, K = 512, R = 144, T = 7;
    const int32_t pos0 = 3000;
    for (Regime regime : {Regime::decode, Regime::prefill}) {
        for (AttnMode mode : {AttnMode::causal, AttnMode::block}) {
            const auto once = [&](OpBench& b) {
                Random random(5);
                AttnSparse p;
                p.ring.codes = b.zeros(DType::u8, {2, R, D});
                p.ring.scales = b.zeros(DType::u8, {2, R, D / 32});
                p.ring.R = static_cast<int32_t>(R);
                p.ring.width = static_cast<int32_t>(D);
                p.ring.format = RowFormat::q8;
                WindowStore w{b.bf16({128, D}, random.bells(128 * D)),
                              b.one_segment(1, pos0 - 128, 128), p.ring};
                b.run(w);
                p.comp = stored(b, RowFormat::q4e, D, 2, 1500, 2);
                p.q = b.bf16({T, H, D}, random.bells(T * H * D, 2));
                p.kv = quantised(b, RowFormat::q8, b.bf16({T, D}, random.bells(T * D)));
                std::vector<int32_t> sel;
                std::vector<int32_t> count;
                for (int64_t t = 0; t < T; ++t) {
                    const int64_t n = t == 3 ? 0 : t == 4 ? 130 : K;
                    for (int64_t i = 0; i < K; ++i) {
                        sel.push_back(i < n ? static_cast<int32_t>(i * 1500 / n) : -1);
                    }
                    count.push_back(static_cast<int32_t>(n));
                }
                p.sel = b.i32({T, K}, sel);
                p.count = b.i32({T}, count);
                p.sink = b.f32({H}, random.bells(H, 2));
                p.scale = 0.0441941738f;
                p.mode = mode;
                p.rows = b.one_segment(1, pos0, static_cast<int32_t>(T));
                p.out = b.filled(DType::bf16, {T, H, D}, 0xFF);
                b.run(p, regime);
                return b.floats(p.out);
            };
            const std::vector<float> mine = once(*this);
            const std::vector<float> theirs = once(oracle_);
            for (int64_t row = 0; row < T * H; ++row) {
                float most = 0;
                for (int64_t i = 0; i < D; ++i) {
                    most = std::max(most, std::fabs(theirs[static_cast<size_t>(row * D + i)]));
                }
                for (int64_t i = 0; i < D; ++i) {
                    const auto at = static_cast<size_t>(row * D + i);
                    ASSERT_NEAR(mine[at], theirs[at], most * 0x1p-7)
                        << "row and head " << row << ", " << i;
                }
            }
        }
    }
    EXPECT_EQ(device().fault_count(), 0u);
}

TEST_P(OpsTokenOracle, Scores_and_choice) {
    const int64_t Hi = 32, Di = 128, N = 20000, K = 512, T = 5, C = 2048;
    const auto once = [&](OpBench& b, std::vector<int32_t>* cand, std::vector<int32_t>* sel) {
        Random random(8);
        IndexScore p;
        const TensorView raw = b.bf16({T, Hi * Di}, random.bells(T * Hi * Di));
        p.iq = quantised(b, RowFormat::q4u, raw);
        p.iq.rank = 3;
        p.iq.shape[1] = Hi;
        p.iq.shape[2] = Di;
        p.iq.stride[1] = Di;
        p.iq.stride[2] = 1;
        p.w = b.bf16({T, Hi}, random.bells(T * Hi));
        p.w_scale = 1.0f / 64;
        p.keys = stored(b, RowFormat::q4u, Di, 2, N, 1);
        p.rows = b.one_segment(1, static_cast<int32_t>(N - T), static_cast<int32_t>(T));
        p.out = b.filled(DType::f32, {T, N}, 0xFF);
        b.run(p);
        IndexBlocks c;
        c.scores = p.out;
        c.rows = p.rows;
        c.cand = b.zeros(DType::i32, {T, C});
        c.count = b.zeros(DType::i32, {T});
        b.run(c);
        *cand = b.get<int32_t>(c.cand);
        IndexTopk k;
        k.scores = p.out;
        k.rows = p.rows;
        k.sel = b.zeros(DType::i32, {T, K});
        k.count = b.zeros(DType::i32, {T});
        b.run(k);
        *sel = b.get<int32_t>(k.sel);
        return b.floats(p.out);
    };
    std::vector<int32_t> my_cand, my_sel, their_cand, their_sel;
    const std::vector<float> mine = once(*this, &my_cand, &my_sel);
    const std::vector<float> theirs = once(oracle_, &their_cand, &their_sel);
    double worst = 0;
    for (size_t i = 0; i < mine.size(); ++i) {
        if (std::isinf(theirs[i])) {
            ASSERT_EQ(mine[i], theirs[i]) << i;
        } else {
            worst = std::max(worst, std::fabs(static_cast<double>(mine[i]) - theirs[i]));
        }
    }
    // Terms of these sums stay below 2^7 in all: 2^-20 of them.
    EXPECT_LE(worst, 0x1p-13);
    // Ids may differ where two scores are closer than that: fewer than one in a thousand here.
    const auto differing = [](const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
        std::vector<int32_t> d;
        std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(),
                                      std::back_inserter(d));
        return d.size();
    };
    for (int64_t t = 0; t < T; ++t) {
        const auto row = [&](const std::vector<int32_t>& v, int64_t n) {
            return std::vector<int32_t>(v.begin() + t * n, v.begin() + (t + 1) * n);
        };
        EXPECT_LE(differing(row(my_sel, K), row(their_sel, K)), 2u) << t;
        EXPECT_LE(differing(row(my_cand, C), row(their_cand, C)), 4u) << t;
    }
}

TEST_P(OpsTokenOracle, Tokens) {
    const int64_t V = 129280, M = 24;
    for (float width : {0.3f, 3.0f}) {
        const auto once = [&](OpBench& b, std::vector<float>* lp) {
            Random random(12);
            SampleDraw p;
            p.logits = b.f32({M, V}, random.bells(M * V, width));
            std::vector<SampleParams> params(static_cast<size_t>(M));
            for (size_t m = 0; m < params.size(); ++m) {
                SampleParams& s = params[m];
                s.temperature = m % 6 == 0 ? 0.0f : 0.4f + 0.1f * static_cast<float>(m % 7);
                s.top_p = m % 3 == 0 ? 1.0f : m % 3 == 1 ? 0.95f : 0.3f;
                s.top_k = m % 4 == 3 ? 40 : m % 8 == 2 ? 100000 : 0;
                s.min_p = m % 5 == 4 ? 0.01f : 0.0f;
                s.seed = random.word();
                s.pos = static_cast<int32_t>(m) * 31;
            }
            p.params = b.structs(params);
            p.token = b.zeros(DType::i32, {M});
            p.logprob = b.zeros(DType::f32, {M});
            b.run(p);
            *lp = b.floats(p.logprob);
            return b.get<int32_t>(p.token);
        };
        std::vector<float> my_lp, their_lp;
        EXPECT_EQ(once(*this, &my_lp), once(oracle_, &their_lp));
        for (size_t m = 0; m < my_lp.size(); ++m) {
            EXPECT_NEAR(my_lp[m], their_lp[m], 1e-5f);
        }
    }
}

TEST_P(OpsTokenOracle, Drafts) {
    const int64_t V = 129280, r = 256;
    for (int64_t S : {1, 9, 40}) {
        const auto once = [&](OpBench& b) {
            Random random(14);
            DraftStep p;
            p.base = b.f32({S, V}, random.bells(S * V, 2));
            std::vector<int32_t> prev;
            std::vector<SampleParams> params;
            std::vector<SegInfo> seg;
            for (int32_t s = 0; s < S; ++s) {
                prev.push_back(static_cast<int32_t>(random.below(2000)));
                SampleParams q;
                q.temperature = s % 2 == 0 ? 0.0f : 0.9f;
                q.seed = random.word();
                params.push_back(q);
                seg.push_back({s, s * 5, 5, 70 + s, {0, 0}, s * 5, 0});
            }
            p.prev = b.i32({S}, prev);
            p.embed = b.bf16({2000, r}, random.bells(2000 * r, 0.1f));
            p.head = b.bf16({V, r}, random.bells(V * r, 0.1f));
            p.params = b.structs(params);
            p.rows = b.rows({}, seg);
            p.step = 3;
            p.best = b.zeros(DType::u8, {S, sizeof(DraftBest)});
            b.run(p);
            return b.get<DraftBest>(p.best);
        };
        const std::vector<DraftBest> mine = once(*this);
        const std::vector<DraftBest> theirs = once(oracle_);
        for (size_t s = 0; s < mine.size(); ++s) {
            EXPECT_EQ(mine[s].id, theirs[s].id) << "segment " << s << " of " << S;
            EXPECT_NEAR(mine[s].value, theirs[s].value, 1e-5f);
        }
    }
}

TENON_INSTANTIATE_OPS(OpsTokenOracle);

}  // namespace
}  // namespace tenon::testing
