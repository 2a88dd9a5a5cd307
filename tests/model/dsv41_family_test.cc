// SPDX-License-Identifier: MIT
// What the family says before there is a model: claims, facts, memory plan, refusals; and warm-up
// after.
#include <gtest/gtest.h>

#include "model/models.h"

namespace tenon::testing {
namespace {

TEST(Family, Claims_its_checkpoints_and_no_others) {
    auto rig = make_rig(tiny_model());
    ModelInfo info;
    TENON_ASSERT_OK(rig->family().inspect(rig->checkpoint(), &info));
    EXPECT_EQ(info.vocab, 512);
    EXPECT_EQ(info.page_tokens, 256);
    EXPECT_EQ(info.context_limit, 1048576);
    EXPECT_EQ(info.draft_rows, 5);
    EXPECT_TRUE(info.has_tables);
    EXPECT_EQ(std::string(info.family), "dsv41");
    rig->checkpoint().set_config(R"({"model_type": "llama"})");
    EXPECT_EQ(rig->family().inspect(rig->checkpoint(), &info).code(), Code::not_found);
    rig->checkpoint().set_config(R"({"model_type": "deepseek_v41"})");
    EXPECT_EQ(rig->family().inspect(rig->checkpoint(), &info).code(), Code::invalid_argument);
}

TEST(Family, Options_that_are_not_implemented_are_refused) {
    auto plugin = LoadedPlugin::load(std::filesystem::path(TENON_PLUGIN_DIR) / "dsv41.so");
    ASSERT_TRUE(plugin.ok());
    const Component* component = plugin->find(PluginKind::model, "dsv41");
    ASSERT_NE(component, nullptr);
    TestHost host;
    const auto create = [&](const std::function<void(OptionSet&)>& set) {
        OptionSet options(*component);
        set(options);
        auto object = create_component(*component, host, options);
        return object.ok() ? std::string("ok") : object.status().message().str();
    };
    EXPECT_EQ(create([](OptionSet&) {}), "ok");
    EXPECT_NE(create([](OptionSet& o) { o.set("vision", "on"); }).find("vision"),
              std::string::npos);
    EXPECT_NE(create([](OptionSet& o) { o.set("idx_split", true); }).find("idx_split"),
              std::string::npos);
    EXPECT_NE(create([](OptionSet& o) { o.set("candidates_only", true); }).find("candidates_only"),
              std::string::npos);
}

class Plan : public ::testing::TestWithParam<RigOptions (*)()> {};

TEST_P(Plan, Holds_what_the_model_allocates) {
    RigOptions o = GetParam()();
    o.slots = 3;
    o.chunk_rows = 256;
    auto rig = make_rig(o);
    MemoryPlan plan;
    TENON_ASSERT_OK(rig->plan(&plan));
    std::map<std::string, int64_t> planned;
    for (const MemoryEntry& e : plan.entries) {
        if (e.place != PlanPlace::disk) {
            planned[e.tag.str()] += e.bytes;
        }
    }
    // Weights that formats load do not pass through the device's tags; the rest must not exceed its
    // entry.
    const bool on_gpu = !rig->device().info().cpu;
    int64_t total_planned = 0;
    int64_t total_allocated = 0;
    for (const auto& [tag, bytes] : rig->allocated()) {
        total_allocated += bytes;
        if (tag == "state.pages") {
            EXPECT_LE(bytes, planned["state.pages"] + planned["state.tables"]);
            continue;
        }
        if (tag == "decode.scratch" || (tag == "weights" && on_gpu)) {
            continue;  // estimated; of a format on a GPU: see the total
        }
        EXPECT_LE(bytes, planned[tag]) << tag;
    }
    for (const auto& [tag, bytes] : planned) {
        total_planned += bytes;
    }
    EXPECT_LE(total_allocated, total_planned);
    for (const char* tag :
         {"weights.embed", "weights.attention", "weights.experts", "weights.head", "weights.engram",
          "weights.draft", "state.pages", "state.windows", "sampler", "prefill.scratch",
          "decode.scratch", "exchange", "engram.staging", "plan", "logprobs", "masks"}) {
        EXPECT_GT(planned[tag], 0) << tag;
    }
    EXPECT_GT(plan.bytes_per_context_token, 0);
    EXPECT_GT(plan.bytes_per_slot, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, Plan, ::testing::Values(&tiny_model, &mini_model),
                         [](const auto& param) { return param.index == 0 ? "tiny" : "mini"; });

TEST(Plan, A_request_beyond_the_model_is_refused_by_key) {
    RigOptions o = mini_model();
    o.context = 100000;
    auto rig = ModelRig::make(o);
    ASSERT_FALSE(rig.ok());
    EXPECT_NE(rig.status().message().str().find("model.context_tokens = 100000"), std::string::npos)
        << rig.status().message().view();
}

TEST(WarmUp, Measures_and_leaves_the_model_as_it_was) {
    RigOptions o = mini_model();
    o.slots = 2;
    o.step_rows = 32;
    auto cold = make_rig(o);
    auto warm = make_rig(o);
    CostTable costs;
    TENON_ASSERT_OK(warm->model().warm_up({}, &costs));
    ASSERT_EQ(costs.window_us.size, 33U);
    for (uint64_t i = 1; i < costs.window_us.size; ++i) {
        EXPECT_GT(costs.window_us[i], 0) << i;
    }
    ASSERT_EQ(costs.draft_us.size, 3U);
    EXPECT_GT(costs.draft_us[1], 0);
    EXPECT_GT(costs.stage_us[0], 0);
    for (ModelRig* rig : {cold.get(), warm.get()}) {
        rig->open(0);
        rig->prefill(0, some_ids(150, 1));
    }
    EXPECT_EQ(state_of(*cold, 0, {2, 5}, 9, 3) == state_of(*warm, 0, {2, 5}, 9, 3), true);
}

}  // namespace
}  // namespace tenon::testing
