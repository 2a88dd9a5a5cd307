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

}  // namespace
}  // namespace tenon::testing
