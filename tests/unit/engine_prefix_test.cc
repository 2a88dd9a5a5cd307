// SPDX-License-Identifier: MIT
// Prefix reuse on the scripted model (engine.md 9: 11, 14, 16, 17, 19 to 24).
#include <algorithm>

#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

using engine::Cut;
using engine::CutOrigin;
using engine::PrefixIndex;
using engine::SnapshotCells;

ScriptedOptions with_cells(int32_t cells = 40, int64_t distance = 0) {
    ScriptedOptions options;
    options.snapshot_cells = cells;
    options.partial_distance = distance;
    options.eos_permille = 0;
    return options;
}

int64_t cut_at_or_above(const Bench& bench, int64_t position) {
    const PrefixIndex& index = bench.core->planner().cache().index();
    int64_t n = 0;
    for (int32_t i = 0; i < index.capacity(); ++i) {
        n += index.cut(i).live && index.cut(i).at >= position ? 1 : 0;
    }
    return n;
}

void expect_all_free(Bench& bench) {
    bench.core->set_memory_level(1);  // gives up all cuts
    ASSERT_TRUE(bench.run());
    const engine::Planner& planner = bench.core->planner();
    EXPECT_EQ(planner.pages().free(), planner.pages().total());
    EXPECT_EQ(planner.cache().cells().used(), 0);
    EXPECT_EQ(planner.cache().index().count(), 0);
    EXPECT_EQ(bench.core->mirror().cells_in_use(), 0);
    EXPECT_EQ(bench.core->mirror().pages_in_use(), 0);
}

std::vector<int32_t> fresh_ids(Ask ask, ScriptedOptions options) {
    options.snapshot_cells = 0;
    Bench bench(options);
    return bench.ask(ask).ids;
}

TEST(SnapshotCells, Pairs_are_split_and_joined_again) {
    SnapshotCells cells(5);
    EXPECT_EQ(cells.take(plan::CutKind::partial), 5U);  // the lone one first
    const uint32_t half = cells.take(plan::CutKind::partial);
    EXPECT_EQ(half, 1U);
    EXPECT_EQ(cells.take(plan::CutKind::full), 3U);
    EXPECT_EQ(cells.take(plan::CutKind::full), 0U);
    const uint32_t other = cells.take(plan::CutKind::partial);
    EXPECT_EQ(other, 2U);
    EXPECT_EQ(cells.take(plan::CutKind::partial), 0U);
    EXPECT_EQ(cells.used(), 5);
    cells.release(half, plan::CutKind::partial);
    EXPECT_EQ(cells.take(plan::CutKind::tail), 0U);
    cells.release(other, plan::CutKind::partial);
    EXPECT_EQ(cells.take(plan::CutKind::tail), 1U);
}

/// An index with hand-made cuts: each sequence has pages of its own.
class Index : public testing::Test {
  protected:
    Index() : index(64, 4, 8, 16) {}
    int32_t add(const std::vector<int32_t>& ids, uint64_t salt = 0) {
        const int32_t id = index.take();
        Cut& c = index.cut(id);
        c.at = static_cast<int64_t>(ids.size());
        c.salt = salt;
        for (size_t p = 0; p < ids.size(); p += 4) {
            c.pages.push_back(next_page++);
        }
        EXPECT_TRUE(index.write_symbols(id, {salt, ids, {}}, 0));
        EXPECT_EQ(index.link(id), -1);
        return id;
    }
    int32_t find(const std::vector<int32_t>& ids, uint64_t salt = 0) {
        return index.find({salt, ids, {}}, &matched, [](int32_t) { return true; });
    }

    PrefixIndex index;
    int32_t next_page = 0;
    int64_t matched = 0;
};

TEST_F(Index, Finds_the_deepest_cut_on_the_path) {
    const int32_t deep = add({1, 2, 3, 4, 5, 6});
    const int32_t shallow = add({1, 2, 3});  // linked above the one that was there
    const int32_t side = add({1, 2, 3, 9});
    EXPECT_EQ(find({1, 2, 3, 4, 5, 6, 7}), deep);
    EXPECT_EQ(matched, 6);
    EXPECT_EQ(find({1, 2, 3, 4, 5, 7}), shallow);
    EXPECT_EQ(matched, 5);
    EXPECT_EQ(find({1, 2, 3, 9, 9}), side);
    EXPECT_EQ(find({1, 2}), -1);
    EXPECT_EQ(find({2, 2, 3}), -1);
    EXPECT_EQ(index.cut(deep).parent, shallow);
    index.release(shallow);
    EXPECT_EQ(index.cut(deep).parent, -1);
    EXPECT_EQ(find({1, 2, 3, 4, 5, 6}), deep);
    EXPECT_EQ(find({1, 2, 3, 4}), -1);
}

TEST_F(Index, Salts_are_trees_of_their_own) {
    const int32_t a = add({1, 2, 3}, 7);
    EXPECT_EQ(find({1, 2, 3}, 7), a);
    EXPECT_EQ(find({1, 2, 3}, 8), -1);
    EXPECT_EQ(matched, 0);
}

TEST_F(Index, The_same_cut_again_is_reported) {
    const int32_t first = add({1, 2, 3, 4, 5});
    const int32_t again = index.take();
    index.cut(again).at = 5;
    index.cut(again).pages = {40, 41};
    const std::vector<int32_t> ids = {1, 2, 3, 4, 5};
    ASSERT_TRUE(index.write_symbols(again, {0, ids, {}}, 0));
    EXPECT_EQ(index.link(again), first);
}

TEST_F(Index, Random_trees_answer_like_a_list) {
    std::mt19937_64 rng(test_seed());
    for (int round = 0; round < 200; ++round) {
        PrefixIndex tree(200, 4, 8, 24);
        std::vector<std::pair<std::vector<int32_t>, int32_t>> kept;
        int32_t page = 0;
        for (int step = 0; step < 40; ++step) {
            std::vector<int32_t> ids(1 + rng() % 12);
            for (int32_t& id : ids) {
                id = static_cast<int32_t>(rng() % 2);
            }
            if (rng() % 3 == 0 && !kept.empty()) {
                const size_t i = rng() % kept.size();
                tree.release(kept[i].second);
                kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
            } else if (tree.count() < tree.capacity()) {
                const int32_t id = tree.take();
                Cut& c = tree.cut(id);
                c.at = static_cast<int64_t>(ids.size());
                for (size_t p = 0; p < ids.size(); p += 4) {
                    c.pages.push_back(page++);
                }
                ASSERT_TRUE(tree.write_symbols(id, {0, ids, {}}, 0));
                const int32_t other = tree.link(id);
                const auto same = std::find_if(kept.begin(), kept.end(),
                                               [&](const auto& k) { return k.first == ids; });
                ASSERT_EQ(other, same == kept.end() ? -1 : same->second);
                if (other >= 0) {
                    tree.release(id);
                } else {
                    kept.emplace_back(ids, id);
                }
            }
            std::vector<int32_t> asked(1 + rng() % 14);
            for (int32_t& id : asked) {
                id = static_cast<int32_t>(rng() % 2);
            }
            int32_t expected = -1;
            int64_t best = 0;
            int64_t longest = 0;
            for (const auto& [k, id] : kept) {
                const size_t n = std::min(k.size(), asked.size());
                const auto shared =
                    std::mismatch(k.begin(), k.begin() + static_cast<std::ptrdiff_t>(n),
                                  asked.begin())
                        .first -
                    k.begin();
                longest = std::max<int64_t>(longest, shared);
                if (shared == static_cast<std::ptrdiff_t>(k.size()) && shared > best) {
                    best = shared;
                    expected = id;
                }
            }
            int64_t shared_most = 0;
            ASSERT_EQ(tree.find({0, asked, {}}, &shared_most, [](int32_t) { return true; }),
                      expected);
            ASSERT_EQ(shared_most, longest);
        }
    }
}

TEST(Prefix, A_second_turn_computes_only_what_is_new) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    Ask first = ask_for(random_ids(rng, 201));
    const Got one = bench.ask(first);
    EXPECT_EQ(one.timings.cached_tokens, 0);
    ASSERT_EQ(one.ids.size(), 12U);
    std::vector<int32_t> next = first.prompt;
    next.insert(next.end(), one.ids.begin(), one.ids.end());
    const std::vector<int32_t> more = random_ids(rng, 30);
    next.insert(next.end(), more.begin(), more.end());
    Ask second = ask_for(next);

    const Got two = bench.ask(second);

    EXPECT_EQ(two.timings.cached_tokens, 201 + 11);  // all but the last token, never computed
    EXPECT_EQ(two.ids, fresh_ids(second, with_cells()));
    EXPECT_EQ(bench.core->stats().cached_tokens_total, 212);
    expect_all_free(bench);
}

TEST(Prefix, A_reply_whose_reasoning_is_dropped_leaves_no_cut_behind_the_header) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    Ask first = ask_for(random_ids(rng, 150));
    first.desc.keeps_reasoning = false;
    bench.ask(first);
    EXPECT_EQ(cut_at_or_above(bench, 150), 0);
    EXPECT_EQ(cut_at_or_above(bench, 149), 1);
    std::vector<int32_t> next = first.prompt;
    next.back() = 33;  // the close marker where the open one was
    const std::vector<int32_t> more = random_ids(rng, 40);
    next.insert(next.end(), more.begin(), more.end());
    Ask second = ask_for(next);
    const Got two = bench.ask(second);
    EXPECT_EQ(two.timings.cached_tokens, 149);
    EXPECT_EQ(two.ids, fresh_ids(second, with_cells()));
}

TEST(Prefix, A_retry_of_a_finished_prompt_computes_no_row_of_it) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    Ask ask = ask_for(random_ids(rng, 300));
    const std::vector<int32_t> ids = bench.ask(ask).ids;
    const Got again = bench.ask(ask);
    EXPECT_EQ(again.timings.cached_tokens, 299);
    EXPECT_EQ(again.ids, ids);
}

TEST(Prefix, A_retry_of_a_cancelled_prompt_goes_on_at_the_last_chunk_end) {
    std::mt19937_64 rng(test_seed());
    for (const int64_t distance : {0, 60}) {
        ScriptedOptions options = with_cells(40, distance);
        for (int rounds = 2; rounds < 12; ++rounds) {
            Bench bench(options);
            Ask ask = ask_for(random_ids(rng, 400));
            engine::Request* request = bench.submit(ask);
            for (int i = 0; i < rounds; ++i) {
                bench.round();
            }
            const int64_t length = bench.core->planner().slot(0).length;
            ASSERT_GT(length, 32);
            ASSERT_LT(length, 399);
            request->cancel(CancelReason::client_gone);
            ASSERT_TRUE(bench.run());
            const Got retry = bench.ask(ask);
            EXPECT_GE(retry.timings.cached_tokens, length) << rounds;
            EXPECT_EQ(retry.timings.cached_tokens % 32, 0);
            EXPECT_EQ(retry.ids, fresh_ids(ask, options));
            expect_all_free(bench);
        }
    }
}

TEST(Prefix, Chunk_ends_are_given_up_when_the_pass_ends) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    Ask ask = ask_for(random_ids(rng, 400));
    ask.desc.keeps_reasoning = false;
    bench.ask(ask);
    EXPECT_EQ(bench.core->planner().cache().index().count(), 1);
    EXPECT_EQ(cut_at_or_above(bench, 399), 1);
}

TEST(Prefix, Requests_with_one_new_prefix_compute_it_once) {
    std::mt19937_64 rng(test_seed());
    for (const int64_t distance : {0, 60}) {
        const ScriptedOptions options = with_cells(60, distance);
        Bench bench(options);
        int64_t rows = 0;
        bench.model.on_submit([&](const StepPlan& plan) {
            for (const plan::Chunk& c : plan.chunks) {
                rows += c.end - c.begin;
            }
        });
        const std::vector<int32_t> shared = random_ids(rng, 330);
        std::vector<Ask> asks;
        std::vector<engine::Request*> requests;
        for (int i = 0; i < 6; ++i) {
            std::vector<int32_t> prompt = shared;
            const std::vector<int32_t> own = random_ids(rng, 20 + static_cast<size_t>(i) * 5);
            prompt.insert(prompt.end(), own.begin(), own.end());
            asks.push_back(ask_for(prompt));
        }
        for (Ask& ask : asks) {
            requests.push_back(bench.submit(ask));
        }
        ASSERT_TRUE(bench.run());
        EXPECT_LE(rows, 330 + 6 * 50 + 32) << "distance " << distance;
        for (size_t i = 0; i < asks.size(); ++i) {
            EXPECT_EQ(bench.result(requests[i]).ids, fresh_ids(asks[i], options)) << i;
        }
        expect_all_free(bench);
    }
}

TEST(Prefix, Replies_of_one_request_share_its_prompt) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    int64_t rows = 0;
    bench.model.on_submit([&](const StepPlan& plan) {
        for (const plan::Chunk& c : plan.chunks) {
            rows += c.end - c.begin;
        }
    });
    Ask ask = ask_for(random_ids(rng, 100));
    ask.desc.replies = 4;
    ask.desc.sampling.temperature = 1;
    engine::Request* request = bench.submit(ask);
    ASSERT_TRUE(bench.run());
    EXPECT_EQ(rows, 99);
    for (int32_t r = 0; r < 4; ++r) {
        EXPECT_EQ(bench.result(request, r).ids.size(), 12U);
    }
    EXPECT_NE(bench.result(request, 0).ids, bench.result(request, 1).ids);
}

TEST(Prefix, A_joiner_whose_producer_is_cancelled_computes_the_rest_itself) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    const std::vector<int32_t> prompt = random_ids(rng, 300);
    Ask first = ask_for(prompt);
    Ask second = ask_for(prompt);
    engine::Request* a = bench.submit(first);
    engine::Request* b = bench.submit(second);
    for (int i = 0; i < 4; ++i) {
        bench.round();
    }
    EXPECT_EQ(bench.core->planner().slot(1).state, engine::SlotState::free);
    a->cancel(CancelReason::client_gone);
    ASSERT_TRUE(bench.run());
    const Got got = bench.result(b);
    EXPECT_EQ(got.ids, fresh_ids(second, with_cells()));
    EXPECT_GE(got.timings.cached_tokens, 64);
}

TEST(Prefix, A_joiner_waits_no_longer_than_the_limit) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    const std::vector<int32_t> prompt = random_ids(rng, 300);
    Ask first = ask_for(prompt);
    Ask second = ask_for(prompt);
    bench.submit(first);
    engine::Request* b = bench.submit(second);
    bench.round();
    bench.round();
    EXPECT_EQ(bench.core->planner().slot(1).state, engine::SlotState::free);
    bench.host.advance(bench.config.join_wait_us);
    bench.round();
    EXPECT_EQ(bench.core->planner().slot(1).state, engine::SlotState::prefilling);
    ASSERT_TRUE(bench.run());
    EXPECT_EQ(bench.result(b).ids, fresh_ids(second, with_cells()));
}

TEST(Prefix, No_sequence_under_one_salt_uses_a_cut_of_another) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    Ask ask = ask_for(random_ids(rng, 200));
    bench.ask(ask);
    Ask salted = ask;
    salted.desc.cache_salt = 5;
    EXPECT_EQ(bench.ask(salted).timings.cached_tokens, 0);
    EXPECT_EQ(bench.ask(salted).timings.cached_tokens, 199);
    EXPECT_EQ(bench.ask(ask).timings.cached_tokens, 199);
    // Nor does one join the pass of another.
    Ask fresh = ask_for(random_ids(rng, 200));
    Ask other = fresh;
    other.desc.cache_salt = 5;
    engine::Request* a = bench.submit(fresh);
    engine::Request* b = bench.submit(other);
    ASSERT_TRUE(bench.run());
    EXPECT_EQ(bench.result(a).timings.cached_tokens, 0);
    EXPECT_EQ(bench.result(b).timings.cached_tokens, 0);
}

TEST(Prefix, A_request_that_asks_for_no_prefix_neither_uses_nor_leaves_cuts) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    Ask ask = ask_for(random_ids(rng, 200));
    ask.desc.flags |= kNoPrefix;
    const std::vector<int32_t> ids = bench.ask(ask).ids;
    EXPECT_EQ(bench.core->planner().cache().index().count(), 0);
    Ask usual = ask;
    usual.desc.flags &= ~uint32_t{kNoPrefix};
    EXPECT_EQ(bench.ask(usual).ids, ids);
    EXPECT_EQ(bench.ask(ask).timings.cached_tokens, 0);
}

Ask with_images(std::mt19937_64& rng, std::initializer_list<std::pair<int64_t, uint8_t>> images) {
    Ask a = ask_for(random_ids(rng, 120));
    for (const auto& [position, content] : images) {
        RequestImage image;
        image.position = position;
        image.rows = 10;
        image.key[0] = content;
        image.key[31] = 1;
        a.images.push_back(image);
        std::fill_n(a.prompt.begin() + position, 10, 60);  // all placeholders are one id
    }
    return a;
}

TEST(Prefix, Pitfall_10_Images_of_equal_size_and_different_pixels_never_share_a_cut) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    Ask cat = with_images(rng, {{20, 1}});
    Ask dog = cat;
    dog.images[0].key[0] = 2;
    bench.ask(cat);
    EXPECT_EQ(bench.ask(dog).timings.cached_tokens, 0);
    EXPECT_EQ(bench.ask(cat).timings.cached_tokens, 119);
    EXPECT_EQ(bench.ask(dog).timings.cached_tokens, 119);
    // Words that look like the image's placeholders are no image.
    Ask words = cat;
    words.images.clear();
    EXPECT_EQ(bench.ask(words).timings.cached_tokens, 0);
    expect_all_free(bench);
}

TEST(Prefix, Images_of_equal_size_do_not_join_each_other_beyond_the_first_difference) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    Ask cat = with_images(rng, {{60, 1}});
    Ask dog = cat;
    dog.images[0].key[0] = 2;
    engine::Request* a = bench.submit(cat);
    engine::Request* b = bench.submit(dog);
    ASSERT_TRUE(bench.run());
    EXPECT_EQ(bench.result(a).timings.cached_tokens, 0);
    EXPECT_LE(bench.result(b).timings.cached_tokens, 60);
}

TEST(Prefix, Without_a_cache_that_keeps_states_no_cut_lies_beyond_an_image) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells(), 0, nullptr, {}, false,
                [](engine::PlannerConfig& config) { config.image_states = false; });
    Ask ask = with_images(rng, {{50, 1}});
    ask.borders.push_back({40, BorderKind::system_end, 0});
    bench.ask(ask);
    EXPECT_EQ(cut_at_or_above(bench, 51), 0);
    EXPECT_EQ(bench.ask(ask).timings.cached_tokens, 40);
}

TEST(Prefix, The_same_image_twice_in_one_prompt_works) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    Ask twice = with_images(rng, {{20, 1}, {30, 1}, {70, 1}});
    Ask other = twice;
    other.images[1].key[0] = 3;
    bench.ask(twice);
    EXPECT_EQ(bench.ask(twice).timings.cached_tokens, 119);
    EXPECT_EQ(bench.ask(other).timings.cached_tokens, 0);
    expect_all_free(bench);
    bench.core->set_memory_level(0);
    EXPECT_EQ(bench.ask(twice).timings.cached_tokens, 0);
    EXPECT_EQ(bench.ask(twice).timings.cached_tokens, 119);
}

TEST(Prefix, The_incoming_prefix_survives_although_only_one_conversation_fits) {
    std::mt19937_64 rng(test_seed());
    ScriptedOptions options = with_cells(4);
    options.slots = 1;
    options.pool_pages = 64 + 2;  // one context of 512
    Bench bench(options);
    Ask first = ask_for(random_ids(rng, 300));
    const std::vector<int32_t> reply = bench.ask(first).ids;
    std::vector<int32_t> next = first.prompt;
    next.insert(next.end(), reply.begin(), reply.end());
    const std::vector<int32_t> more = random_ids(rng, 60);
    next.insert(next.end(), more.begin(), more.end());
    for (int turn = 0; turn < 6; ++turn) {
        Ask again = ask_for(next, 20);
        const Got got = bench.ask(again);
        EXPECT_GE(got.timings.cached_tokens, turn == 0 ? 311 : 371) << turn;
        EXPECT_EQ(got.ids, fresh_ids(again, options));
    }
}

TEST(Prefix, The_least_valuable_cut_goes_first) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells(6));  // three full cuts
    Ask a = ask_for(random_ids(rng, 60));
    a.desc.keeps_reasoning = false;
    a.borders.push_back({25, BorderKind::system_end, 0});
    bench.ask(a);  // system at 25, header at 59
    Ask b = ask_for(random_ids(rng, 80));
    bench.ask(b);  // header at 79; the reply's cut takes the cells of a header, the older one
    std::vector<CutOrigin> left;
    const PrefixIndex& index = bench.core->planner().cache().index();
    for (int32_t i = 0; i < index.capacity(); ++i) {
        if (index.cut(i).live) {
            left.push_back(index.cut(i).origin);
        }
    }
    std::sort(left.begin(), left.end());
    EXPECT_EQ(left,
              (std::vector<CutOrigin>{CutOrigin::reply, CutOrigin::header, CutOrigin::system}));
    EXPECT_EQ(bench.ask(b).timings.cached_tokens, 79);
}

TEST(Prefix, Borders_serve_prompts_that_share_only_the_system_part) {
    std::mt19937_64 rng(test_seed());
    Bench bench(with_cells());
    const std::vector<int32_t> system = random_ids(rng, 90);
    for (int i = 0; i < 4; ++i) {
        std::vector<int32_t> prompt = system;
        const std::vector<int32_t> own = random_ids(rng, 40);
        prompt.insert(prompt.end(), own.begin(), own.end());
        Ask ask = ask_for(prompt);
        ask.borders.push_back({90, BorderKind::system_end, 0});
        EXPECT_EQ(bench.ask(ask).timings.cached_tokens, i == 0 ? 0 : 90);
    }
}

TEST(Prefix, A_partial_border_becomes_full_when_it_is_passed_again) {
    std::mt19937_64 rng(test_seed());
    const ScriptedOptions options = with_cells(60, 200);
    Bench bench(options);
    const std::vector<int32_t> system = random_ids(rng, 90);
    std::vector<int64_t> cached;
    for (int i = 0; i < 4; ++i) {
        std::vector<int32_t> prompt = system;
        const std::vector<int32_t> own = random_ids(rng, 130);
        prompt.insert(prompt.end(), own.begin(), own.end());
        Ask ask = ask_for(prompt);
        ask.borders.push_back({90, BorderKind::system_end, 0});
        const Got got = bench.ask(ask);
        cached.push_back(got.timings.cached_tokens);
        EXPECT_EQ(got.ids, fresh_ids(ask, options)) << i;
    }
    // The border lies within 512 of the header, so the first pass makes it full at once.
    EXPECT_EQ(cached, (std::vector<int64_t>{0, 90, 90, 90}));
}

/// Conversations that branch, retry, are cancelled and share system parts, as clients make them.
void converse(const ScriptedOptions& options, std::mt19937_64& rng, int requests,
              int32_t draft_depth) {
    Bench bench(options, draft_depth);
    struct Talk {
        std::vector<int32_t> ids;
        uint64_t salt = 0;
    };
    const std::vector<int32_t> system = random_ids(rng, 70);
    std::vector<Talk> talks;
    struct Running {
        engine::Request* request;
        Ask ask;
        size_t talk;
        bool cancelled;
    };
    std::vector<std::unique_ptr<Running>> running;
    int64_t hits = 0, compared = 0;
    for (int i = 0; i < requests; ++i) {
        if (talks.size() < 4 || rng() % 6 == 0) {
            Talk talk;
            talk.salt = rng() % 4 == 0 ? 9 : 0;
            talk.ids = rng() % 2 == 0 ? system : random_ids(rng, 20);
            talks.push_back(talk);
        }
        const size_t t = rng() % talks.size();
        std::vector<int32_t> prompt = talks[t].ids;
        const std::vector<int32_t> own = random_ids(rng, 1 + rng() % 60);
        prompt.insert(prompt.end(), own.begin(), own.end());
        if (prompt.size() > 420) {
            talks[t].ids.resize(40);
            continue;
        }
        auto next = std::make_unique<Running>();
        next->ask = random_ask(rng, 1, 25);
        next->ask.prompt = prompt;
        next->ask.desc.keeps_reasoning = rng() % 3 != 0;
        next->ask.desc.cache_salt = talks[t].salt;
        if (rng() % 8 == 0) {
            next->ask.desc.flags |= kNoPrefix;
        }
        if (prompt.size() > 71) {
            next->ask.borders.push_back({70, BorderKind::system_end, 0});
        }
        next->ask.borders.push_back(
            {static_cast<int64_t>(prompt.size() - own.size()), BorderKind::message_end, 0});
        std::sort(next->ask.borders.begin(), next->ask.borders.end(),
                  [](const Border& a, const Border& b) { return a.position < b.position; });
        next->talk = t;
        next->request = bench.submit(next->ask);
        next->cancelled = rng() % 5 == 0;
        running.push_back(std::move(next));
        for (uint64_t rounds = rng() % 30; rounds > 0; --rounds) {
            bench.round();
            ASSERT_TRUE(bench.status.ok()) << bench.status.message().view();
            check_pages(bench);
        }
        if (running.back()->cancelled) {
            running.back()->request->cancel(CancelReason::client_gone);
        }
        if (rng() % 4 == 0) {
            ASSERT_TRUE(bench.run());
            for (const auto& r : running) {
                const Got got = bench.result(r->request);
                if (r->cancelled) {
                    continue;
                }
                ASSERT_EQ(got.terminals, 1);
                ASSERT_EQ(got.ids, fresh_ids(r->ask, options))
                    << "cached " << got.timings.cached_tokens;
                ++compared;
                hits += got.timings.cached_tokens > 0 ? 1 : 0;
                talks[r->talk].ids = r->ask.prompt;
                talks[r->talk].ids.insert(talks[r->talk].ids.end(), got.ids.begin(), got.ids.end());
            }
            running.clear();
        }
    }
    ASSERT_TRUE(bench.run());
    EXPECT_GT(hits * 5, compared);
    expect_all_free(bench);
}

TEST(Prefix, Ids_from_any_cut_equal_ids_from_the_start_in_random_conversations) {
    std::mt19937_64 rng(test_seed());
    for (int round = 0; round < 8; ++round) {
        ScriptedOptions options = with_cells(round % 2 == 0 ? 64 : 12, round / 2 % 2 * 90);
        options.eos_permille = 20;
        options.draft_max = 5;
        if (round >= 4) {
            options.pool_pages = 100;  // pages run out before cells do
        }
        converse(options, rng, 60, round % 3 * 2);
    }
}

TEST(Prefix, A_turn_that_comes_while_the_reply_is_being_saved_finds_it) {
    std::mt19937_64 rng(test_seed());
    for (const int64_t distance : {0, 40}) {
        Bench bench(with_cells(40, distance));
        Ask first = ask_for(random_ids(rng, 150));
        engine::Request* request = bench.submit(first);
        Got reply;
        while (reply.terminals == 0) {
            bench.round();
            ASSERT_TRUE(bench.status.ok());
            reply = bench.result(request);
        }
        // The step that saves the reply has just been submitted.
        std::vector<int32_t> talk = first.prompt;
        talk.insert(talk.end(), reply.ids.begin(), reply.ids.end());
        const auto at = static_cast<int64_t>(talk.size()) - 1;
        for (const int32_t id : random_ids(rng, 60)) {
            talk.push_back(id);
        }
        Ask second = ask_for(talk);
        Ask other = second;
        other.desc.cache_salt = 5;

        EXPECT_EQ(bench.ask(second).timings.cached_tokens, at);
        EXPECT_EQ(bench.ask(other).timings.cached_tokens, 0);
        EXPECT_EQ(bench.ask(second).ids, fresh_ids(second, with_cells(40, distance)));
    }
}

}  // namespace
}  // namespace tenon::test
