// SPDX-License-Identifier: MIT
// Verification of drafts, and the DSpark ops.
#include <cmath>

#include "tenon/ops/draft.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

class OpsVerify : public OpTest {
  protected:
    VerifyDecision one(const std::vector<int32_t>& ids, const std::vector<int32_t>& drawn,
                       VerifyLimits limits = {}) {
        SpecVerify p;
        const auto n = static_cast<int32_t>(ids.size());
        p.ids = i32({n}, ids);
        p.drawn = i32({n}, drawn);
        p.rows = one_segment(0, 7, n, kRowLogits);
        p.limits = structs<VerifyLimits>({limits});
        p.decision = filled(DType::u8, {1, sizeof(VerifyDecision)}, 0x11);
        run(p);
        return get<VerifyDecision>(p.decision)[0];
    }
    static std::vector<int32_t> tokens(const VerifyDecision& d) {
        return {d.tokens, d.tokens + d.emitted};
    }
};

TEST_P(OpsVerify, Accepts_the_longest_agreeing_run) {
    // ids: pending token, then drafts; drawn[r] is what row r says comes next.
    EXPECT_EQ(tokens(one({9, 1, 2, 3}, {5, 6, 7, 8})), (std::vector<int32_t>{5}));
    EXPECT_EQ(tokens(one({9, 1, 2, 3}, {1, 6, 7, 8})), (std::vector<int32_t>{1, 6}));
    EXPECT_EQ(tokens(one({9, 1, 2, 3}, {1, 2, 3, 8})), (std::vector<int32_t>{1, 2, 3, 8}));
    EXPECT_EQ(tokens(one({9, 1, 2, 3}, {1, 6, 3, 8})), (std::vector<int32_t>{1, 6}));
    EXPECT_EQ(tokens(one({9}, {4})), (std::vector<int32_t>{4}));
    EXPECT_EQ(tokens(one({4, 4, 4, 4}, {4, 4, 4, 4})), (std::vector<int32_t>{4, 4, 4, 4}));
    const VerifyDecision d = one({9, 1, 2, 3}, {1, 6, 7, 8});
    EXPECT_EQ(d.accepted, 1);
    EXPECT_EQ(d.emitted, 2);
    EXPECT_EQ(d.last, 6);
    EXPECT_EQ(d.finish, 0);
    EXPECT_EQ(d.tokens[2], -1);
}

TEST_P(OpsVerify, Forced_rows_are_taken_untested) {
    VerifyLimits limits;
    limits.forced = 2;
    EXPECT_EQ(tokens(one({9, 1, 2, 3}, {50, 60, 3, 8}, limits)),
              (std::vector<int32_t>{1, 2, 3, 8}));
    EXPECT_EQ(tokens(one({9, 1, 2, 3}, {50, 60, 7, 8}, limits)), (std::vector<int32_t>{1, 2, 7}));
}

TEST_P(OpsVerify, Cuts_after_a_stop_id_and_at_accept_max) {
    VerifyLimits limits;
    limits.stop_ids[3] = 2;
    VerifyDecision d = one({9, 1, 2, 3}, {1, 2, 3, 8}, limits);
    EXPECT_EQ(tokens(d), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(d.finish, static_cast<int32_t>(VerifyFinish::stop_id));
    EXPECT_EQ(d.accepted, 1);
    limits = {};
    limits.accept_max = 2;
    d = one({9, 1, 2, 3}, {1, 2, 3, 8}, limits);
    EXPECT_EQ(tokens(d), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(d.finish, static_cast<int32_t>(VerifyFinish::accept_max));
    limits.stop_ids[0] = 2;
    EXPECT_EQ(one({9, 1, 2, 3}, {1, 2, 3, 8}, limits).finish,
              static_cast<int32_t>(VerifyFinish::stop_id));
}

TEST_P(OpsVerify, A_draw_without_a_token_ends_the_segment) {
    const VerifyDecision d = one({9, 1, 2, 3}, {1, -2, 3, 8});
    EXPECT_EQ(tokens(d), (std::vector<int32_t>{1}));
    EXPECT_EQ(d.last, -2);
    EXPECT_EQ(d.accepted, 1);
    EXPECT_EQ(d.finish, static_cast<int32_t>(VerifyFinish::no_token));
}

TEST_P(OpsVerify, Mixed_segments_dead_segments_and_rows_without_logits) {
    // Segment 0: three rows of which only the last wants logits (forced); segment 1: dead; segment
    // 2: one row.
    SpecVerify p;
    p.ids = i32({5}, {9, 1, 2, -1, 30});
    p.rows =
        rows({{4, 0, 0, 0}, {5, 0, 0, 0}, {6, 0, 0, kRowLogits}, {}, {11, 3, 2, kRowLogits}},
             {SegInfo{0, 0, 3, 4, {0, 0}, 0, 0}, SegInfo{}, SegInfo{3, 4, 1, 11, {0, 0}, 1, 0}});
    p.drawn = i32({2}, {7, 8});
    VerifyLimits forced;
    forced.forced = 2;
    p.limits = structs<VerifyLimits>({forced, {}, {}});
    p.decision = filled(DType::u8, {3, sizeof(VerifyDecision)}, 0x11);
    run(p);
    const auto d = get<VerifyDecision>(p.decision);
    EXPECT_EQ(tokens(d[0]), (std::vector<int32_t>{1, 2, 7}));
    EXPECT_EQ(d[1].emitted, 0);
    EXPECT_EQ(d[1].last, -1);
    EXPECT_EQ(tokens(d[2]), (std::vector<int32_t>{8}));
}

class OpsDraft : public OpTest {};

TEST_P(OpsDraft, Rows_follow_the_decision) {
    DraftRows p;
    VerifyDecision going;
    going.emitted = 3;
    going.last = 77;
    VerifyDecision ended = going;
    ended.finish = static_cast<int32_t>(VerifyFinish::stop_id);
    p.decision = structs<VerifyDecision>({going, ended, going, going});
    p.window =
        rows({{}}, {SegInfo{4, 0, 3, 100, {0, 64}, 0, 0}, SegInfo{5, 3, 3, 200, {0, 0}, 3, 0},
                    SegInfo{6, 6, 3, 300, {0, 0}, 6, 0}, SegInfo{}});
    p.slot = i32({4}, {4, 5, -1, 7});
    p.noise_id = 999;
    p.B = 5;
    p.ids = filled(DType::i32, {20}, 0x11);
    p.row = filled(DType::u8, {20, sizeof(RowInfo)}, 0x11);
    p.seg = filled(DType::u8, {4, sizeof(SegInfo)}, 0x11);
    run(p);
    const auto ids = get<int32_t>(p.ids);
    const auto row = get<RowInfo>(p.row);
    const auto seg = get<SegInfo>(p.seg);
    EXPECT_EQ(seg[0].slot, 4);
    EXPECT_EQ(seg[0].pos0, 103);
    EXPECT_EQ(seg[0].win_lo[1], 64);
    for (int i = 0; i < 20; ++i) {
        const auto at = static_cast<size_t>(i);
        if (i < 5) {
            EXPECT_EQ(ids[at], i == 0 ? 77 : 999);
            EXPECT_EQ(row[at].pos, 103 + i);
            EXPECT_EQ(row[at].slot, 4);
            EXPECT_EQ(row[at].seg, 0);
            EXPECT_EQ(row[at].flags & kRowDraft, 0u);
        } else {
            EXPECT_EQ(ids[at], -1);
            EXPECT_LT(row[at].slot, 0);
        }
    }
    EXPECT_LT(seg[1].slot, 0);
    EXPECT_LT(seg[2].slot, 0);
    EXPECT_LT(seg[3].slot, 0);
}

TEST_P(OpsDraft, Greedy_step_takes_the_largest_sum_and_respects_forbidden_ids) {
    Random random(71);
    const int64_t V = 1030, r = 32;
    const std::vector<float> embed = random.bells(V * r, 0.3f);
    const std::vector<float> head = random.bells(V * r, 0.3f);
    const std::vector<float> base = random.bells(3 * 4 * V);  // [S = 3, B = 4, V]
    DraftStep p;
    const TensorView all =
        f32({3, 4, V + 2}, std::vector<float>(static_cast<size_t>(3 * 4 * (V + 2)), 0.0f));
    TensorView rows_of_base = all;
    rows_of_base.rank = 2;
    rows_of_base.shape[0] = 3;
    rows_of_base.shape[1] = V;
    rows_of_base.stride[0] = 4 * (V + 2);
    rows_of_base.stride[1] = 1;
    write(rows_of_base, base.data());
    p.base = rows_of_base;
    p.prev = i32({3}, {4, 8, 15});
    p.embed = bf16({V, r}, embed);
    p.head = bf16({V, r}, head);
    p.rows = rows({{50, 0, 0, 0}, {60, 1, 2, 0}}, {SegInfo{0, 0, 1, 50, {0, 0}, 0, 0}, SegInfo{},
                                                   SegInfo{1, 1, 1, 60, {0, 0}, 0, 0}});
    p.best = filled(DType::u8, {3, sizeof(DraftBest)}, 0x11);
    run(p);
    const auto best = get<DraftBest>(p.best);
    const std::vector<float> e = floats(p.embed);
    const std::vector<float> w = floats(p.head);
    for (size_t s : {size_t{0}, size_t{2}}) {
        const size_t prev = s == 0 ? 4 : 15;
        double top = -1e30;
        int32_t id = -1;
        for (size_t v = 0; v < static_cast<size_t>(V); ++v) {
            double sum = base[s * static_cast<size_t>(V) + v];
            for (size_t i = 0; i < static_cast<size_t>(r); ++i) {
                sum += static_cast<double>(w[v * static_cast<size_t>(r) + i]) *
                       e[prev * static_cast<size_t>(r) + i];
            }
            if (sum > top) {
                top = sum;
                id = static_cast<int32_t>(v);
            }
        }
        EXPECT_EQ(best[s].id, id);
        EXPECT_NEAR(best[s].value, top, 1e-5);
    }
    EXPECT_EQ(best[1].id, -1) << "dead segment";
    EXPECT_EQ(best[1].value, -INFINITY);
    std::vector<uint32_t> forbid(static_cast<size_t>((V + 31) / 32), 0);
    forbid[static_cast<size_t>(best[0].id / 32)] = 1u << (best[0].id % 32);
    p.forbid = put(DType::u32, {(V + 31) / 32}, forbid);
    run(p);
    EXPECT_NE(get<DraftBest>(p.best)[0].id, best[0].id);
    EXPECT_GE(get<DraftBest>(p.best)[0].id, 0);
}

TEST_P(OpsDraft, Equal_values_go_to_the_lower_id) {
    DraftStep p;
    std::vector<float> base(600, 0.0f);
    base[7] = base[300] = base[599] = 2.0f;
    p.base = f32({1, 600}, base);
    p.prev = i32({1}, {0});
    p.embed = zeros(DType::bf16, {600, 32});
    p.head = zeros(DType::bf16, {600, 32});
    p.rows = one_segment(0, 3, 5);
    p.vocab_at = 1000;
    p.best = zeros(DType::u8, {1, sizeof(DraftBest)});
    run(p);
    EXPECT_EQ(get<DraftBest>(p.best)[0].id, 1007);
    EXPECT_EQ(get<DraftBest>(p.best)[0].value, 2.0f);
}

TEST_P(OpsDraft, Two_shards_and_a_pick_equal_one_rank) {
    Random random(72);
    const int64_t V = 512, r = 32, S = 6;
    const std::vector<float> embed = random.bells(V * r);
    const std::vector<float> head = random.bells(V * r);
    const std::vector<float> base = random.bells(S * V);
    std::vector<SampleParams> params(static_cast<size_t>(S));
    std::vector<RowInfo> row;
    std::vector<SegInfo> seg;
    for (int32_t s = 0; s < S; ++s) {
        params[static_cast<size_t>(s)].temperature = s % 2 == 0 ? 0.0f : 0.9f;
        params[static_cast<size_t>(s)].seed = random.word();
        row.push_back({40 + s, s, s, 0});
        seg.push_back({s, s, 1, 40 + s, {0, 0}, 0, 0});
    }
    const Rows group = rows(row, seg);
    const TensorView prev = i32({S}, {1, 2, 3, 500, 501, 502});
    const auto step = [&](int64_t from, int64_t to) {
        std::vector<float> part;
        for (int64_t s = 0; s < S; ++s) {
            part.insert(part.end(), base.begin() + s * V + from, base.begin() + s * V + to);
        }
        DraftStep p;
        p.base = f32({S, to - from}, part);
        p.prev = prev;
        p.embed = bf16({V, r}, embed);
        p.head = bf16({to - from, r}, {head.begin() + from * r, head.begin() + to * r});
        p.params = structs(params);
        p.rows = group;
        p.step = 2;
        p.vocab_at = static_cast<int32_t>(from);
        p.best = zeros(DType::u8, {S, sizeof(DraftBest)});
        run(p);
        return bytes(p.best);
    };
    const auto pick = [&](const std::vector<uint8_t>& best, int64_t W) {
        DraftPick p;
        p.best = u8({W, S, sizeof(DraftBest)}, best);
        const TensorView table = filled(DType::i32, {S, 5}, 0);
        p.token = table;
        p.token.rank = 1;
        p.token.shape[0] = S;
        p.token.stride[0] = 5;
        p.token.data = static_cast<char*>(table.data) + 8;  // column 2
        p.mirror = zeros(DType::i32, {S});
        run(p);
        const auto tokens = get<int32_t>(table);
        std::vector<int32_t> column;
        for (int64_t s = 0; s < S; ++s) {
            column.push_back(tokens[static_cast<size_t>(s * 5 + 2)]);
        }
        EXPECT_EQ(get<int32_t>(p.mirror), column);
        return column;
    };
    std::vector<uint8_t> two = step(0, 128);
    const std::vector<uint8_t> rest = step(128, V);
    two.insert(two.end(), rest.begin(), rest.end());
    EXPECT_EQ(pick(two, 2), pick(step(0, V), 1));
}

TEST_P(OpsDraft, Coupled_noise_makes_drafts_from_the_targets_own_logits_agree) {
    // With a zero Markov head the draft's logits are the target's: every draft equals the keyed
    // draw.
    Random random(73);
    const int64_t V = 4224, B = 5;
    const std::vector<float> base = random.bells(B * V, 2);
    SampleParams s;
    s.temperature = 1;
    s.seed = 4242;
    std::vector<SampleParams> params;
    for (int32_t i = 0; i < B; ++i) {
        SampleParams q = s;
        q.pos = 100 + i + 1;
        params.push_back(q);
    }
    SampleDraw d;
    d.logits = f32({B, V}, base);
    d.params = structs(params);
    d.token = zeros(DType::i32, {B});
    run(d);
    const auto drawn = get<int32_t>(d.token);
    for (int32_t i = 0; i < B; ++i) {
        DraftStep p;
        p.base = f32({1, V}, {base.begin() + i * V, base.begin() + (i + 1) * V});
        p.prev = i32({1}, {0});
        p.embed = zeros(DType::bf16, {V, 32});
        p.head = zeros(DType::bf16, {V, 32});
        p.params = structs<SampleParams>({s});
        p.rows = one_segment(0, 100, B);
        p.step = i;
        p.best = zeros(DType::u8, {1, sizeof(DraftBest)});
        run(p);
        EXPECT_EQ(get<DraftBest>(p.best)[0].id, drawn[static_cast<size_t>(i)]) << "draft " << i;
    }
}

TEST_P(OpsDraft, Pick_takes_the_lower_id_of_equal_values) {
    DraftPick p;
    p.best = zeros(DType::u8, {3, 1, sizeof(DraftBest)});
    write(p.best, std::vector<DraftBest>{{1.5f, 900}, {1.5f, 20}, {-INFINITY, -1}}.data());
    p.token = zeros(DType::i32, {1});
    run(p);
    EXPECT_EQ(get<int32_t>(p.token)[0], 20);
}

TEST_P(OpsDraft, Confidence_is_a_plain_dot) {
    Random random(74);
    const int64_t d = 64, r = 32, V = 20;
    const std::vector<float> c = random.bells(2 * 3 * d);
    DraftConfidence p;
    p.c = bf16({2, 3, d}, c);
    p.prev = i32({2, 3}, {1, 2, 3, 4, -1, 19});
    p.embed = bf16({V, r}, random.bells(V * r));
    p.proj = bf16({d + r}, random.bells(d + r));
    p.out = zeros(DType::f32, {2, 3});
    run(p);
    const auto cv = floats(p.c);
    const auto e = floats(p.embed);
    const auto w = floats(p.proj);
    const auto out = floats(p.out);
    const std::vector<int32_t> prev = get<int32_t>(p.prev);
    for (size_t i = 0; i < 6; ++i) {
        double sum = 0;
        for (size_t k = 0; prev[i] >= 0 && k < static_cast<size_t>(d); ++k) {
            sum += static_cast<double>(cv[i * static_cast<size_t>(d) + k]) * w[k];
        }
        for (size_t k = 0; prev[i] >= 0 && k < static_cast<size_t>(r); ++k) {
            sum +=
                static_cast<double>(e[static_cast<size_t>(prev[i]) * static_cast<size_t>(r) + k]) *
                w[static_cast<size_t>(d) + k];
        }
        EXPECT_NEAR(out[i], sum, 1e-4);
    }
}

TENON_INSTANTIATE_OPS(OpsVerify);
TENON_INSTANTIATE_OPS(OpsDraft);

}  // namespace
}  // namespace tenon::testing
