// SPDX-License-Identifier: MIT
// Engram tables around a whole model: both layouts give equal bits, every store too, wrong tables
// are not served.
#include <gtest/gtest.h>

#include <filesystem>

#include "model/models.h"

namespace tenon::testing {
namespace {

std::vector<float> logits_of(const RigOptions& options) {
    auto rig = make_rig(options);
    rig->open(0);
    return rig->prefill(0, ints(tiny_prompts().tensor("p97.ids")), {40, 57}, true);
}

TEST(EngramTables, Packed_and_official_layouts_give_equal_bits) {
    const TempDir dir;
    {
        auto rig = make_rig(tiny_model());
        PackRequest request;
        const std::string out = dir.path().string();
        request.source = &rig->checkpoint();
        request.out_dir = out;
        auto* packer = facet_of<RowPacker>(&rig->family());
        ASSERT_NE(packer, nullptr);
        TENON_ASSERT_OK(packer->pack(rig->checkpoint(), request));
    }
    RigOptions packed = tiny_model();
    packed.tables = dir.path();
    EXPECT_EQ(logits_of(packed), logits_of(tiny_model()));
    packed.layout = "official";
    auto rig = ModelRig::make(packed);
    ASSERT_FALSE(rig.ok());
    EXPECT_NE(rig.status().message().str().find("holds neither"), std::string::npos)
        << rig.status().message().view();
}

TEST(EngramTables, A_store_that_returns_other_bytes_is_not_served) {
    FakeStore store;
    store.damage(1);
    RigOptions o = tiny_model();
    o.store = &store;
    auto rig = ModelRig::make(o);
    ASSERT_FALSE(rig.ok());
    EXPECT_EQ(rig.status().code(), Code::io);
    EXPECT_NE(rig.status().message().str().find("self-test"), std::string::npos)
        << rig.status().message().view();
}

TEST(EngramTables, A_damaged_packed_row_fails_the_self_test) {
    const TempDir dir;
    {
        auto rig = make_rig(tiny_model());
        PackRequest request;
        const std::string out = dir.path().string();
        request.source = &rig->checkpoint();
        request.out_dir = out;
        TENON_ASSERT_OK(facet_of<RowPacker>(&rig->family())->pack(rig->checkpoint(), request));
    }
    // Row 0 is the first of a column's range, so it is among the tested ones.
    std::FILE* f = std::fopen((dir.path() / "engram-l1-r0of1.bin").c_str(), "r+b");
    std::fseek(f, 4096 + 3, SEEK_SET);
    std::fputc(0x55, f);
    std::fclose(f);
    RigOptions o = tiny_model();
    o.tables = dir.path();
    auto rig = ModelRig::make(o);
    ASSERT_FALSE(rig.ok());
    EXPECT_EQ(rig.status().code(), Code::io);
    EXPECT_NE(rig.status().message().str().find("row 0 does not have the checksum"),
              std::string::npos)
        << rig.status().message().view();
}

TEST(EngramTables, A_shipped_token_map_must_agree_with_the_tokenizer) {
    const TempDir dir;
    std::filesystem::copy(golden_path("tiny"), dir.path());
    std::FILE* f = std::fopen((dir.path() / "engram_token_map.safetensors").c_str(), "r+b");
    std::fseek(f, -4, SEEK_END);
    std::fputc(1, f);
    std::fclose(f);
    RigOptions o = tiny_model();
    o.checkpoint = dir.path();
    auto rig = ModelRig::make(o);
    ASSERT_FALSE(rig.ok());
    EXPECT_EQ(rig.status().code(), Code::io);
    EXPECT_NE(rig.status().message().str().find("do not belong together"), std::string::npos)
        << rig.status().message().view();
}

class Stores : public ::testing::TestWithParam<const char*> {};

TEST_P(Stores, Give_the_bits_of_plain_reads) {
    if (!std::filesystem::exists(std::filesystem::path(TENON_PLUGIN_DIR) /
                                 (std::string(GetParam()) + ".so"))) {
        GTEST_SKIP() << "plugin '" << GetParam() << "' was not built";
    }
    RigOptions o = tiny_model();
    o.store_plugin = GetParam();
    EXPECT_EQ(logits_of(o), logits_of(tiny_model()));
    auto rig = make_rig(o);
    rig->open(0);
    rig->prefill(0, some_ids(40, 1));
    auto plain = make_rig(tiny_model());
    plain->open(0);
    plain->prefill(0, some_ids(40, 1));
    EXPECT_EQ(rig->greedy(0, 9, 30), plain->greedy(0, 9, 30));
}

INSTANTIATE_TEST_SUITE_P(Plugins, Stores, ::testing::Values("mmap", "io_uring"));

/// Two chunks of a prompt; beside the first, `guess` is named as the tokens of the second.
struct Guessed {
    std::vector<float> logits;
    std::vector<RowStatus> status;
    int64_t rows_read = 0;  ///< of the second chunk's step
};

class ChunkPrefetch : public ::testing::Test {
  protected:
    ChunkPrefetch() : rig_(make_rig(tiny_model())) {}

    Guessed run(const std::vector<int32_t>& guess, bool fails = false) {
        const std::vector<int32_t> ids = ints(tiny_prompts().tensor("p97.ids"));
        rig_->open(0);
        Guessed out;
        PlanBuilder first = rig_->next();
        chunk(first, ids, 0, kBorder);
        if (!guess.empty()) {
            first.prefetch(0, rig_->generation(0), kBorder, guess);
        }
        if (fails) {
            // The first fetch is that of the chunk itself.
            rig_->fake_store().fail_after("layers.1.engram.embed.weight", 1);
        }
        out.status.push_back(rig_->run(first).chunks.at(0));
        const int64_t before = rig_->fake_store().rows_read();
        PlanBuilder second = rig_->next();
        chunk(second, ids, kBorder, static_cast<int64_t>(ids.size()));
        out.status.push_back(rig_->run(second).chunks.at(0));
        out.rows_read = rig_->fake_store().rows_read() - before;
        rig_->want_logits(true);
        rig_->window(0, {7}, 1);
        out.logits = rig_->logits();
        rig_->want_logits(false);
        rig_->close(0);
        return out;
    }
    void chunk(PlanBuilder& plan, const std::vector<int32_t>& ids, int64_t begin, int64_t end) {
        plan.chunk(0, rig_->generation(0), begin, {ids.begin() + begin, ids.begin() + end});
    }
    static std::vector<int32_t> rest() {
        const std::vector<int32_t> ids = ints(tiny_prompts().tensor("p97.ids"));
        return {ids.begin() + kBorder, ids.end()};
    }
    void expect_same(const Guessed& a, const Guessed& b) {
        EXPECT_EQ(a.logits, b.logits);
        EXPECT_EQ(a.status, (std::vector<RowStatus>{RowStatus::ok, RowStatus::ok}));
    }

    static constexpr int64_t kBorder = 40;
    std::unique_ptr<ModelRig> rig_;
};

TEST_F(ChunkPrefetch, Rows_that_were_guessed_right_are_not_read_again) {
    const Guessed plain = run({});
    EXPECT_GT(plain.rows_read, 0);
    const Guessed all = run(rest());
    expect_same(all, plain);
    EXPECT_EQ(all.rows_read, 0);

    // A shorter guess leaves the rest to read, a longer one has it all.
    std::vector<int32_t> part = rest();
    part.resize(20);
    const Guessed some = run(part);
    expect_same(some, plain);
    EXPECT_GT(some.rows_read, 0);
    EXPECT_LT(some.rows_read, plain.rows_read);
    std::vector<int32_t> more = rest();
    more.insert(more.end(), {5, 6, 7});
    const Guessed longer = run(more);
    expect_same(longer, plain);
    EXPECT_EQ(longer.rows_read, 0);
}

TEST_F(ChunkPrefetch, A_wrong_guess_costs_a_read_and_no_result) {
    const Guessed plain = run({});
    for (const size_t wrong : {size_t{0}, size_t{11}, rest().size() - 1}) {
        std::vector<int32_t> guess = rest();
        guess[wrong] = guess[wrong] == 5 ? 6 : 5;
        const Guessed got = run(guess);
        expect_same(got, plain);
        EXPECT_EQ(got.rows_read, plain.rows_read) << wrong;
    }
}

TEST_F(ChunkPrefetch, A_read_ahead_that_fails_is_done_again) {
    const Guessed plain = run({});
    const Guessed failed = run(rest(), true);
    expect_same(failed, plain);
    EXPECT_GT(failed.rows_read, 0);
}

}  // namespace
}  // namespace tenon::testing
