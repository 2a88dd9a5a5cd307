// SPDX-License-Identifier: MIT
// Sampling: filters, keyed noise, penalties inside a verify window, logprobs, counts.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tenon/ops/sample.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

/// ops.md 3.9 once more, by a full sort in double.
int32_t expected_draw(std::vector<float> l, const SampleParams& s,
                      const std::vector<bool>& allowed) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < l.size(); ++i) {
        if (allowed.empty() || allowed[i]) {
            if (l[i] > -INFINITY) {
                ids.push_back(static_cast<int32_t>(i));
            }
        }
    }
    if (ids.empty()) {
        return -1;
    }
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
        return l[static_cast<size_t>(a)] > l[static_cast<size_t>(b)];
    });
    if (s.temperature == 0) {
        return ids[0];
    }
    if (s.top_k > 0 && ids.size() > static_cast<size_t>(s.top_k)) {
        ids.resize(static_cast<size_t>(s.top_k));
    }
    const auto x = [&](int32_t id) {
        return static_cast<double>(l[static_cast<size_t>(id)]) / static_cast<double>(s.temperature);
    };
    const double top = x(ids[0]);
    if (s.top_p < 1) {
        double sum = 0;
        for (int32_t id : ids) {
            sum += std::exp(x(id) - top);
        }
        double prefix = 0;
        for (size_t i = 0; i < ids.size(); ++i) {
            prefix += std::exp(x(ids[i]) - top);
            if (prefix >= static_cast<double>(s.top_p) * sum) {
                ids.resize(i + 1);
                break;
            }
        }
    }
    double best = -INFINITY;
    int32_t token = -1;
    for (int32_t id : ids) {
        if (std::exp(x(id) - top) < static_cast<double>(s.min_p)) {
            continue;
        }
        const double v = x(id) + gumbel_noise(s.seed, s.pos, id);
        if (v > best || (v == best && id < token)) {
            best = v;
            token = id;
        }
    }
    return token;
}

class OpsSample : public OpTest {
  protected:
    SampleDraw make(const std::vector<float>& logits, int64_t V,
                    const std::vector<SampleParams>& s) {
        const auto M = static_cast<int64_t>(s.size());
        SampleDraw p;
        p.logits = f32({M, V}, logits);
        p.params = structs(s);
        p.token = filled(DType::i32, {M}, 0x11);
        p.logprob = filled(DType::f32, {M}, 0x11);
        return p;
    }
    std::vector<int32_t> draw(const SampleDraw& p) {
        run(p);
        return get<int32_t>(p.token);
    }
};

TEST_P(OpsSample, Philox_known_answers) {
    EXPECT_EQ(philox4x32_10(0, 0, 0, 0, 0, 0).word[0], 0x6627E8D5u);
    EXPECT_EQ(philox4x32_10(0, 0, 0, 0, 0, 0).word[3], 0x9B00DBD8u);
    const Philox4 ones = philox4x32_10(~0u, ~0u, ~0u, ~0u, ~0u, ~0u);
    EXPECT_EQ(ones.word[0], 0x408F276Du);
    EXPECT_EQ(ones.word[1], 0x41C83B0Eu);
    const Philox4 pi =
        philox4x32_10(0xA4093822u, 0x299F31D0u, 0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u);
    EXPECT_EQ(pi.word[0], 0xD16CFE09u);
    EXPECT_EQ(pi.word[1], 0x94FDCCEBu);
    EXPECT_EQ(pi.word[2], 0x5001E420u);
    EXPECT_EQ(pi.word[3], 0x24126EA1u);
}

TEST_P(OpsSample, Draws_follow_the_definition_for_every_filter) {
    Random random(61);
    const int64_t V = 1000;
    for (float sharpness : {0.5f, 4.0f, 30.0f}) {
        std::vector<SampleParams> params;
        std::vector<float> logits;
        for (float temperature : {0.0f, 0.3f, 1.0f, 2.5f}) {
            for (float top_p : {1.0f, 0.95f, 0.3f, 1e-6f}) {
                for (float min_p : {0.0f, 0.05f, 0.9f}) {
                    for (int32_t top_k : {0, 1, 7, 1000, 5000}) {
                        SampleParams s;
                        s.temperature = temperature;
                        s.top_p = top_p;
                        s.min_p = min_p;
                        s.top_k = top_k;
                        s.seed = random.word();
                        s.pos = static_cast<int32_t>(random.below(1 << 20));
                        params.push_back(s);
                        const auto row = random.bells(V, sharpness);
                        logits.insert(logits.end(), row.begin(), row.end());
                    }
                }
            }
        }
        const std::vector<int32_t> got = draw(make(logits, V, params));
        for (size_t m = 0; m < params.size(); ++m) {
            const auto first = logits.begin() + static_cast<long>(m) * V;
            ASSERT_EQ(got[m], expected_draw({first, first + V}, params[m], {}))
                << "temperature " << params[m].temperature << ", top_p " << params[m].top_p
                << ", min_p " << params[m].min_p << ", top_k " << params[m].top_k;
        }
    }
}

// serving.md 10: a full sort of the vocabulary for each token cost most of the speed elsewhere.
// What replaces it has to draw the same token at the released size; its time is a matter of
// benchmarks.
TEST_P(OpsSample, Pitfall_15_Partial_selection_draws_what_a_full_sort_draws) {
    const int64_t V = 129'280;
    Random random(67);
    for (const float sharpness : {0.1F, 1.0F, 4.0F}) {
        const std::vector<float> logits = random.bells(V, sharpness);
        for (const float top_p : {1.0F, 0.95F, 0.5F}) {
            for (const int32_t top_k : {0, 1, 40, 20'000}) {
                SampleParams s;
                s.temperature = 1;
                s.top_p = top_p;
                s.top_k = top_k;
                s.min_p = top_k == 40 ? 0.02F : 0;
                s.seed = random.word();
                EXPECT_EQ(draw(make(logits, V, {s}))[0], expected_draw(logits, s, {}))
                    << "sharpness " << sharpness << ", top_p " << top_p << ", top_k " << top_k;
            }
        }
    }
}

TEST_P(OpsSample, Ties_go_to_the_lower_id) {
    std::vector<float> logits(64, 1.0f);
    logits[3] = 0;
    SampleParams s;
    EXPECT_EQ(draw(make(logits, 64, {s}))[0], 0);
    s.top_k = 1;
    s.temperature = 1;
    EXPECT_EQ(draw(make(logits, 64, {s}))[0], 0) << "top_k = 1 keeps the lowest of the tied";
}

TEST_P(OpsSample, Top_p_keeps_the_shortest_prefix_that_reaches_it_exactly) {
    // Four equal ids: each 0.25, exact in binary. top_p = 0.5 keeps ids 0 and 1, never a third.
    std::vector<float> logits(32, -INFINITY);
    std::fill(logits.begin(), logits.begin() + 4, 1.5f);
    std::vector<SampleParams> params(300);
    std::vector<float> rows_of_logits;
    for (size_t m = 0; m < params.size(); ++m) {
        params[m].temperature = 1;
        params[m].top_p = 0.5f;
        params[m].seed = m;
        rows_of_logits.insert(rows_of_logits.end(), logits.begin(), logits.end());
    }
    int64_t seen[4] = {};
    for (int32_t id : draw(make(rows_of_logits, 32, params))) {
        ASSERT_LT(id, 2);
        ++seen[id];
    }
    EXPECT_GT(seen[0], 100);
    EXPECT_GT(seen[1], 100);
}

TEST_P(OpsSample, Masked_forbidden_and_infinite_ids_are_never_drawn) {
    Random random(62);
    const int64_t V = 100;  // the last mask word is partial
    std::vector<float> logits = random.bells(V);
    logits[10] = -INFINITY;
    SampleParams s;
    s.temperature = 1;
    for (uint64_t seed = 0; seed < 200; ++seed) {
        s.seed = seed;
        SampleDraw p = make(logits, V, {s});
        std::vector<uint32_t> mask(4, 0);
        std::vector<bool> allowed(static_cast<size_t>(V), false);
        for (int64_t i = 0; i < V; i += 3) {
            mask[static_cast<size_t>(i / 32)] |= 1u << (i % 32);
            allowed[static_cast<size_t>(i)] = true;
        }
        p.mask = put(DType::u32, {1, 4}, mask);
        std::vector<uint32_t> forbid(4, 0);
        forbid[0] = 1;  // id 0
        allowed[0] = false;
        p.forbid = put(DType::u32, {4}, forbid);
        ASSERT_EQ(draw(p)[0], expected_draw(logits, s, allowed));
    }
    SampleDraw p = make(logits, V, {s});
    p.mask = put(DType::u32, {1, 4}, std::vector<uint32_t>(4, 0));
    EXPECT_EQ(draw(p)[0], -1) << "no id left";
    EXPECT_EQ(floats(p.logprob)[0], 0.0f);
    p = make(std::vector<float>(static_cast<size_t>(V), -INFINITY), V, {s});
    EXPECT_EQ(draw(p)[0], -1);
}

TEST_P(OpsSample, Bad_logits_give_minus_two_in_their_row_only) {
    Random random(63);
    std::vector<float> logits = random.bells(3 * 64);
    logits[5] = NAN;
    logits[64 + 63] = INFINITY;
    const std::vector<int32_t> got = draw(make(logits, 64, std::vector<SampleParams>(3)));
    EXPECT_EQ(got[0], -2);
    EXPECT_EQ(got[1], -2);
    EXPECT_EQ(got[2], expected_draw({logits.begin() + 128, logits.end()}, {}, {}));
}

TEST_P(OpsSample, Bias_is_added_before_everything_else) {
    std::vector<float> logits(32, 0.0f);
    SampleDraw p = make({logits.begin(), logits.end()}, 32, {SampleParams{}});
    p.bias_begin = i32({2}, {0, 3});
    p.bias_ids = i32({3}, {7, 9, 900});  // an id outside the vocabulary is ignored
    p.bias_add = f32({3}, {1.0f, 2.0f, 50.0f});
    EXPECT_EQ(draw(p)[0], 9);
    // The logprob is of the raw logits.
    EXPECT_NEAR(floats(p.logprob)[0], -std::log(32.0), 1e-6);
}

TEST_P(OpsSample, A_row_draws_the_same_alone_in_a_batch_and_at_any_index) {
    Random random(64);
    const int64_t V = 4224;
    SampleParams s;
    s.temperature = 0.8f;
    s.top_p = 0.9f;
    s.seed = 99;
    s.pos = 1234;
    const std::vector<float> row = random.bells(V, 3);
    const int32_t alone = draw(make(row, V, {s}))[0];
    for (size_t at : {size_t{0}, size_t{3}, size_t{8}}) {
        std::vector<float> logits;
        std::vector<SampleParams> params;
        for (size_t m = 0; m < 9; ++m) {
            const auto other = m == at ? row : random.bells(V, 9);
            logits.insert(logits.end(), other.begin(), other.end());
            SampleParams q = s;
            q.seed = m == at ? s.seed : m;
            q.temperature = m == at ? s.temperature : 2.0f;
            params.push_back(q);
        }
        EXPECT_EQ(draw(make(logits, V, params))[at], alone);
    }
    s.pos = 1235;
    int32_t changed = 0;
    for (int32_t i = 0; i < 20; ++i) {
        s.pos = 1235 + i;
        changed += draw(make(row, V, {s}))[0] != alone;
    }
    EXPECT_GT(changed, 0) << "the position is part of the key";
}

TEST_P(OpsSample, Frequencies_match_the_distribution) {
    // 10^5 seeds, 6 ids: chi-square with 5 degrees of freedom stays below 25.7 (p = 1e-4).
    const std::vector<float> row = {2.0f, 1.0f, 0.0f, -1.0f, 1.5f, 0.3f};
    const int64_t each = 1000;
    std::vector<double> p;
    for (float v : row) {
        p.push_back(std::exp(static_cast<double>(v) / 0.7));
    }
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    std::vector<int64_t> count(6, 0);
    for (uint64_t batch = 0; batch < 100; ++batch) {
        std::vector<float> logits;
        std::vector<SampleParams> params;
        for (uint64_t i = 0; i < static_cast<uint64_t>(each); ++i) {
            logits.insert(logits.end(), row.begin(), row.end());
            logits.insert(logits.end(), 2, -INFINITY);
            SampleParams s;
            s.temperature = 0.7f;
            s.seed = batch * 100003 + i * 7919;
            s.pos = 17;
            params.push_back(s);
        }
        for (int32_t id : draw(make(logits, 8, params))) {
            ++count[static_cast<size_t>(id)];
        }
    }
    double chi = 0;
    for (size_t i = 0; i < 6; ++i) {
        const double want = p[i] / sum * 100.0 * static_cast<double>(each);
        chi +=
            (static_cast<double>(count[i]) - want) * (static_cast<double>(count[i]) - want) / want;
    }
    EXPECT_LT(chi, 25.7);
}

TEST_P(OpsSample, Logprobs_are_of_raw_logits) {
    Random random(65);
    const int64_t V = 300;
    const std::vector<float> row = random.bells(V, 4);
    SampleParams s;
    s.temperature = 0.5f;
    s.top_p = 0.5f;
    s.seed = 3;
    const SampleDraw p = make(row, V, {s});
    const int32_t token = draw(p)[0];
    double sum = 0;
    for (float v : row) {
        sum += std::exp(static_cast<double>(v));
    }
    const double want = row[static_cast<size_t>(token)] - std::log(sum);
    EXPECT_NEAR(floats(p.logprob)[0], want, 2e-6);

    SampleLogprobs q;
    q.logits = f32({1, V}, row);
    q.token = i32({1}, {token});
    q.ids = zeros(DType::i32, {1, 5});
    q.lp = zeros(DType::f32, {1, 5});
    q.token_lp = zeros(DType::f32, {1});
    run(q);
    EXPECT_NEAR(floats(q.token_lp)[0], want, 2e-6);
    std::vector<int32_t> order(static_cast<size_t>(V));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
    });
    const std::vector<int32_t> ids = get<int32_t>(q.ids);
    const std::vector<float> lp = floats(q.lp);
    for (size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(ids[i], order[i]);
        EXPECT_NEAR(lp[i], row[static_cast<size_t>(order[i])] - std::log(sum), 2e-6);
    }
}

TEST_P(OpsSample, Logprobs_list_ties_by_id_and_short_vocabularies) {
    SampleLogprobs q;
    q.logits = f32({1, 4}, {1, 2, 2, 1});
    q.token = i32({1}, {-1});
    q.ids = zeros(DType::i32, {1, 6});
    q.lp = zeros(DType::f32, {1, 6});
    q.token_lp = filled(DType::f32, {1}, 0x11);
    run(q);
    EXPECT_EQ(get<int32_t>(q.ids), (std::vector<int32_t>{1, 2, 0, 3, -1, -1}));
    EXPECT_EQ(floats(q.token_lp)[0], 0.0f);
}

TEST_P(OpsSample, Counts_saturate_and_keep_the_prompt_bit) {
    std::vector<uint16_t> seen(2 * 8, 0);
    seen[3] = kSeenPrompt;
    seen[4] = kSeenCount - 1;
    seen[8 + 5] = kSeenPrompt | kSeenCount;
    SampleCount p;
    p.seen = put(DType::u16, {2, 8}, seen);
    p.token = i32({7}, {3, 3, 4, 4, 5, -1, 2});
    p.slot = i32({7}, {0, 0, 0, 0, 1, 0, -1});
    run(p);
    const auto got = get<uint16_t>(p.seen);
    EXPECT_EQ(got[3], kSeenPrompt | 2);
    EXPECT_EQ(got[4], kSeenCount);
    EXPECT_EQ(got[8 + 5], kSeenPrompt | kSeenCount);
    EXPECT_EQ(got[2], 0);
}

class OpsPenalties : public OpsSample {
  protected:
    static constexpr int64_t kV = 64;
    SampleDraw window(const std::vector<float>& logits, const std::vector<SampleParams>& s,
                      const std::vector<uint16_t>& seen, const std::vector<int32_t>& ids,
                      int32_t pos0) {
        SampleDraw p = make(logits, kV, s);
        const auto n = static_cast<int32_t>(ids.size());
        p.seen = put(DType::u16, {2, kV}, seen);
        p.rows = one_segment(1, pos0, n, kRowLogits);
        std::vector<int32_t> index(static_cast<size_t>(n));
        std::iota(index.begin(), index.end(), 0);
        p.index = i32({n}, index);
        p.ids = i32({n}, ids);
        return p;
    }
};

TEST_P(OpsPenalties, Formulas) {
    // id 1: three times in the output; id 2: in the prompt only; id 3: never seen.
    std::vector<uint16_t> seen(2 * kV, 0);
    seen[kV + 1] = 3;
    seen[kV + 2] = kSeenPrompt;
    SampleParams s;
    s.repetition = 2;
    s.presence = 0.25f;
    s.frequency = 0.5f;
    // id 1: 10 / 2 - 0.5 * 3 - 0.25 = 3.25; id 2: 6.4 / 2 = 3.2; id 3: 3.24; a negative one: -1
    // * 2.
    std::vector<float> logits(static_cast<size_t>(kV), -9.0f);
    logits[1] = 10;
    logits[2] = 6.4f;
    logits[3] = 3.24f;
    EXPECT_EQ(draw(window(logits, {s}, seen, {0}, 4))[0], 1);
    logits[3] = 3.26f;
    EXPECT_EQ(draw(window(logits, {s}, seen, {0}, 4))[0], 3);
    logits[3] = 3.22f;
    logits[1] = 9.9f;  // 3.2
    EXPECT_EQ(draw(window(logits, {s}, seen, {0}, 4))[0], 3);
    logits[2] = 6.5f;  // 3.25: presence and frequency leave prompt tokens alone
    EXPECT_EQ(draw(window(logits, {s}, seen, {0}, 4))[0], 2);
    logits.assign(logits.size(), -1.0f);
    logits[1] = -0.6f;
    seen[kV + 1] = kSeenPrompt;  // -0.6 * 2 = -1.2, below the others
    EXPECT_EQ(draw(window(logits, {s}, seen, {0}, 4))[0], 0);
}

TEST_P(OpsPenalties, A_window_counts_drafts_up_to_its_row_as_if_they_were_committed) {
    // Rows of [t, d1, d2, d3] against undrafted decoding, where each token is counted before the
    // next draw.
    Random random(66);
    for (int round = 0; round < 20; ++round) {
        const std::vector<int32_t> ids = {5, static_cast<int32_t>(random.below(4)),
                                          static_cast<int32_t>(random.below(4)), 5};
        std::vector<uint16_t> seen(2 * kV, 0);
        seen[kV + 5] = 1;
        seen[kV + 2] = kSeenPrompt | 1;
        std::vector<SampleParams> params;
        std::vector<float> logits;
        for (int32_t r = 0; r < 4; ++r) {
            SampleParams s;
            s.temperature = 1;
            s.repetition = 1.3f;
            s.presence = 0.7f;
            s.frequency = 0.4f;
            s.seed = random.word();
            s.pos = 10 + r;
            params.push_back(s);
            std::vector<float> row = random.bells(kV);
            for (size_t i = 0; i < 6; ++i) {
                row[i] += 3;
            }
            logits.insert(logits.end(), row.begin(), row.end());
        }
        const std::vector<int32_t> drafted = draw(window(logits, params, seen, ids, 9));
        std::vector<uint16_t> counts = seen;
        for (int32_t r = 0; r < 4; ++r) {
            if (r > 0) {
                ++counts[static_cast<size_t>(kV + ids[static_cast<size_t>(r)])];
            }
            const auto first = logits.begin() + r * kV;
            const int32_t plain = draw(window({first, first + kV}, {params[static_cast<size_t>(r)]},
                                              counts, {ids[static_cast<size_t>(r)]}, 9 + r))[0];
            ASSERT_EQ(drafted[static_cast<size_t>(r)], plain) << "row " << r;
        }
    }
}

TENON_INSTANTIATE_OPS(OpsSample);
TENON_INSTANTIATE_OPS(OpsPenalties);

}  // namespace
}  // namespace tenon::testing
