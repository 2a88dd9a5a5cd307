// SPDX-License-Identifier: MIT
// The repository's model in the official formats against its goldens. The checkpoint (18.5 MB) is
// not part of the repository: set TENON_MINI_OFFICIAL to a directory with checkpoint/ and
// golden/goldens.safetensors.
#include <gtest/gtest.h>

#include <cstdlib>

#include "model/models.h"

namespace tenon::testing {
namespace {

constexpr double kSureGap = 0.3;

class MiniOfficial : public ::testing::Test {
  protected:
    void SetUp() override {
        const char* root = std::getenv("TENON_MINI_OFFICIAL");
        if (root == nullptr) {
            GTEST_SKIP()
                << "TENON_MINI_OFFICIAL is not set (a directory with checkpoint/ and golden/)";
        }
        golden_ = std::make_unique<Safetensors>(Safetensors::open(
            (std::filesystem::path(root) / "golden" / "goldens.safetensors").string()));
        RigOptions o;
        o.checkpoint = std::filesystem::path(root) / "checkpoint";
        o.context = 4096;
        o.chunk_rows = 256;
        rig_ = make_rig(o);
    }
    std::vector<std::string> names(const std::string& kind, const std::string& tail) const {
        std::vector<std::string> out;
        for (const std::string& n : golden_->names()) {
            if (n.rfind(kind, 0) == 0 && n.size() > tail.size() &&
                n.substr(n.size() - tail.size()) == tail) {
                out.push_back(n.substr(kind.size(), n.size() - kind.size() - tail.size()));
            }
        }
        return out;
    }
    void prefill(const std::vector<int32_t>& ids) {
        std::vector<int64_t> chunks;
        for (auto left = static_cast<int64_t>(ids.size()); left > 0; left -= chunks.back()) {
            chunks.push_back(std::min<int64_t>(left, 256));
        }
        rig_->prefill(0, ids, chunks);
    }
    std::unique_ptr<Safetensors> golden_;
    std::unique_ptr<ModelRig> rig_;
};

TEST_F(MiniOfficial, Greedy_replies_are_equal_up_to_the_first_small_gap) {
    int64_t compared = 0;
    for (const std::string& name : names("greedy.", ".reply")) {
        rig_->open(0);
        auto ids = ints(golden_->tensor("greedy." + name + ".ids"));
        const auto reply = ints(golden_->tensor("greedy." + name + ".reply"));
        const TensorView gap = golden_->tensor("greedy." + name + ".gap");
        const int32_t pending = ids.back();
        ids.pop_back();
        prefill(ids);
        int64_t sure = 0;
        while (sure < static_cast<int64_t>(reply.size()) && gap.as<float>()[sure] >= kSureGap) {
            ++sure;
        }
        EXPECT_EQ(rig_->greedy(0, pending, sure),
                  std::vector<int32_t>(reply.begin(), reply.begin() + sure))
            << name;
        compared += sure;
        rig_->close(0);
    }
    EXPECT_GE(compared, 400);
    std::printf("compared %lld ids\n", static_cast<long long>(compared));
}

TEST_F(MiniOfficial, Drafts_are_equal_but_for_near_ties) {
    int64_t equal = 0;
    int64_t total = 0;
    for (const std::string& name : names("draft.", ".position")) {
        rig_->open(0);
        auto ids = ints(golden_->tensor("greedy." + name + ".ids"));
        const auto reply = ints(golden_->tensor("greedy." + name + ".reply"));
        ids.insert(ids.end(), reply.begin(), reply.end());
        ids.resize(
            static_cast<size_t>(golden_->tensor("draft." + name + ".position").as<int32_t>()[0]));
        const int32_t pending = ids.back();
        ids.pop_back();
        prefill(ids);
        plan::Window w;
        w.generation = rig_->generation(0);
        w.position = rig_->length(0);
        w.accept_max = 16;
        PlanBuilder plan = rig_->next();
        plan.window(w, {pending}).draft(0, w.generation);
        const StepOutcome step = rig_->run(plan);
        const auto expected = ints(golden_->tensor("draft." + name + ".drafts"));
        for (size_t i = 0; i < 5 && step.drafts[0].tokens[i] == expected[i]; ++i) {
            ++equal;
        }
        total += 5;
        rig_->close(0);
    }
    std::printf("%lld of %lld drafts equal\n", static_cast<long long>(equal),
                static_cast<long long>(total));
    EXPECT_GE(static_cast<double>(equal), 0.9 * static_cast<double>(total));
}

}  // namespace
}  // namespace tenon::testing
