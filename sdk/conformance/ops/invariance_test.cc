// SPDX-License-Identifier: MIT
// Row invariance (ops.md 1.6) of the ops that keep no state; attention, index and pool have theirs
// beside their own tests.
#include "tenon/ops/draft.h"
#include "tenon/ops/embed.h"
#include "tenon/ops/engram.h"
#include "tenon/ops/linear.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/route.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

class OpsInvariance : public OpTest {
  protected:
    /// Data of the listed rows: a row's numbers follow from its own number.
    static std::vector<float> data(const std::vector<int>& list, int64_t n, uint64_t salt,
                                   float scale = 1) {
        std::vector<float> out;
        for (int r : list) {
            Random random(static_cast<uint64_t>(r + 1000) * 31 + salt);
            const std::vector<float> row = random.bells(n, r == kHugeRow ? scale * 1e15f : scale);
            out.insert(out.end(), row.begin(), row.end());
        }
        return out;
    }
    Rows rows_for(const std::vector<int>& list) {
        std::vector<RowInfo> row;
        std::vector<SegInfo> seg;
        for (int r : list) {
            const auto t = static_cast<int32_t>(row.size());
            if (r == kDeadRow) {
                row.push_back({});
                continue;
            }
            const int32_t pos = r < 0 ? 77 : 3 * r + 1;
            row.push_back({pos, t, static_cast<int32_t>(seg.size()), 0});
            seg.push_back({t, t, 1, pos, {0, 0}, 0, 0});
        }
        return rows(row, seg);
    }
    /// Bytes of each row of several outputs, joined.
    std::vector<std::vector<uint8_t>> split(size_t T, const std::vector<TensorView>& outs) {
        std::vector<std::vector<uint8_t>> result(T);
        for (const TensorView& v : outs) {
            const std::vector<uint8_t> all = bytes(v);
            const size_t n = all.size() / T;
            for (size_t t = 0; t < T; ++t) {
                result[t].insert(result[t].end(), all.begin() + static_cast<long>(t * n),
                                 all.begin() + static_cast<long>((t + 1) * n));
            }
        }
        return result;
    }
    static int64_t count(const std::vector<int>& list) { return static_cast<int64_t>(list.size()); }
};

TEST_P(OpsInvariance, Norm) {
    for (int64_t n : {128, 400}) {
        const TensorView w = bf16({n}, Random(1).bells(n));
        expect_row_invariant([&](const std::vector<int>& list, const Variation&) {
            NormRms p{bf16({count(list), n}, data(list, n, 1)), w,
                      zeros(DType::bf16, {count(list), n}), 1e-20f};
            run(p);
            return split(list.size(), {p.out});
        });
    }
}

TEST_P(OpsInvariance, Mhc) {
    const int64_t d = 320;  // 1280 columns: more than one piece
    MhcMix m;
    m.fn = f32({24, 4 * d}, Random(2).bells(24 * 4 * d, 0.05f));
    m.scale = f32({3}, {1, 0.5f, 2});
    m.base = f32({24}, Random(3).bells(24));
    expect_row_invariant([&](const std::vector<int>& list, const Variation&) {
        const int64_t T = count(list);
        m.h = bf16({T, 4, d}, data(list, 4 * d, 2));
        m.pre = zeros(DType::f32, {T, 4});
        m.post = zeros(DType::f32, {T, 4});
        m.comb = zeros(DType::f32, {T, 4, 4});
        run(m);
        MhcCollapse c{m.h, m.pre, zeros(DType::bf16, {T, d})};
        run(c);
        MhcExpand e{f32({T, d}, data(list, d, 4)), m.h, m.post, m.comb,
                    zeros(DType::bf16, {T, 4, d})};
        run(e);
        MhcMean a{m.h, zeros(DType::bf16, {T, d})};
        run(a);
        return split(list.size(), {m.pre, m.post, m.comb, c.out, e.out, a.out});
    });
}

TEST_P(OpsInvariance, Linear) {
    for (int64_t K : {64, 200}) {
        for (int64_t N : {4, 8, 136}) {
            LinearPlain p;
            p.w = bf16({N, K}, Random(5).bells(N * K));
            expect_row_invariant([&](const std::vector<int>& list, const Variation&) {
                p.x = bf16({count(list), K}, data(list, K, 6));
                p.y = zeros(DType::f32, {count(list), N});
                run(p);
                return split(list.size(), {p.y});
            });
        }
    }
}

TEST_P(OpsInvariance, Linear_prefill_with_many_rows) {
    for (const DType type : {DType::f32, DType::bf16}) {
        LinearPlain p;
        const std::vector<float> w = Random(7).bells(72 * 144);
        p.w = type == DType::f32 ? f32({72, 144}, w) : bf16({72, 144}, w);
        expect_row_invariant(
            [&](const std::vector<int>& list, const Variation&) {
                p.x = bf16({count(list), 144}, data(list, 144, 8));
                p.y = zeros(DType::f32, {count(list), 72});
                run(p, Regime::prefill);
                return split(list.size(), {p.y});
            },
            512);
    }
}

TEST_P(OpsInvariance, Router) {
    RouteTopk p;
    p.bias = f32({24}, Random(9).bells(24, 0.1f));
    p.k = 4;
    p.scale = 1.5f;
    expect_row_invariant([&](const std::vector<int>& list, const Variation&) {
        p.logits = f32({count(list), 24}, data(list, 24, 10));
        p.rows = rows_for(list);
        p.ids = zeros(DType::i32, {count(list), 4});
        p.weights = zeros(DType::f32, {count(list), 4});
        run(p);
        return split(list.size(), {p.ids, p.weights});
    });
}

TEST_P(OpsInvariance, Engram_gate) {
    const int64_t d = 176;
    EngramGate p;
    p.q_weight = bf16({4, d}, Random(11).bells(4 * d));
    p.k_weight = bf16({4, d}, Random(12).bells(4 * d));
    expect_row_invariant([&](const std::vector<int>& list, const Variation&) {
        p.kv = f32({count(list), 5 * d}, data(list, 5 * d, 13));
        p.h = bf16({count(list), 4, d}, data(list, 4 * d, 14));
        p.rows = rows_for(list);
        run(p);
        return split(list.size(), {p.h});
    });
}

TEST_P(OpsInvariance, Rope) {
    alignas(64) float freq[32];
    for (int i = 0; i < 32; ++i) {
        freq[i] = 1.0f / static_cast<float>(1 << (i / 3));
    }
    expect_row_invariant([&](const std::vector<int>& list, const Variation&) {
        RopeAngles a;
        a.rows = rows_for(list);
        a.freq = make_view(static_cast<const void*>(freq), DType::f32, {32});
        a.cs = zeros(DType::f32, {count(list), 64});
        run(a);
        RopeTurn t{bf16({count(list), 2, 96}, data(list, 192, 15)), a.cs, false,
                   zeros(DType::bf16, {count(list), 2, 96})};
        run(t);
        return split(list.size(), {a.cs, t.out});
    });
}

TEST_P(OpsInvariance, Sampling) {
    const int64_t V = 640;
    expect_row_invariant(
        [&](const std::vector<int>& list, const Variation&) {
            SampleDraw p;
            std::vector<SampleParams> params;
            for (int r : list) {
                SampleParams s;
                s.temperature = r % 3 == 0 ? 0.0f : 0.9f;
                s.top_p = r % 2 == 0 ? 0.8f : 1.0f;
                s.seed = static_cast<uint64_t>(r + 5);
                s.pos = r + 10;
                params.push_back(s);
            }
            p.logits = f32({count(list), V}, data(list, V, 16, 3));
            p.params = structs(params);
            p.token = zeros(DType::i32, {count(list)});
            p.logprob = zeros(DType::f32, {count(list)});
            run(p);
            return split(list.size(), {p.token, p.logprob});
        },
        65);
}

TEST_P(OpsInvariance, Draft_steps) {
    const int64_t V = 300, r = 32;
    DraftStep p;
    p.embed = bf16({40, r}, Random(17).bells(40 * r));
    p.head = bf16({V, r}, Random(18).bells(V * r));
    expect_row_invariant(
        [&](const std::vector<int>& list, const Variation&) {
            const int64_t S = count(list);
            std::vector<SampleParams> params;
            std::vector<int32_t> prev;
            std::vector<SegInfo> seg;
            for (int i : list) {
                SampleParams s;
                s.temperature = i % 2 == 0 ? 0.0f : 1.0f;
                s.seed = static_cast<uint64_t>(i + 7);
                params.push_back(s);
                prev.push_back((i + 40) % 40);
                const int32_t slot = i == kDeadRow ? -1 : static_cast<int32_t>(seg.size());
                seg.push_back({slot, 0, 5, 2 * i + 9, {0, 0}, 0, 0});
            }
            p.base = f32({S, V}, data(list, V, 19));
            p.prev = i32({S}, prev);
            p.params = structs(params);
            p.rows = rows({}, seg);
            p.best = zeros(DType::u8, {S, sizeof(DraftBest)});
            run(p);
            return split(list.size(), {p.best});
        },
        33);
}

TENON_INSTANTIATE_OPS(OpsInvariance);

}  // namespace
}  // namespace tenon::testing
