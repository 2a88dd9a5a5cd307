// SPDX-License-Identifier: MIT
// Steps before serving: choices, what is lacking, exit codes, memory tables, signals.
#include <gtest/gtest.h>
#include <signal.h>

#include "host/checkpoint/safetensors.h"
#include "host/lifecycle/auto_choice.h"
#include "host/lifecycle/deployment.h"
#include "host/lifecycle/lacks.h"
#include "host/lifecycle/signals.h"
#include "unit/host_support.h"

namespace tenon {
namespace {

constexpr const char* kGood =
    "profile = 1\n"
    "name = \"t\"\n"
    "model = { plugin = \"dsv41\", checkpoint = \"m\" }\n"
    "quant = { plugin = \"exl3\" }\n"
    "compute = { plugin = \"cpu\", threads = 1 }\n"
    "plugins = { path = [\"" TENON_PLUGIN_DIR "\", \"" TENON_FAKES "/fake\", \"" TENON_FAKES
    "/fake_trial\", \"" TENON_FAKES "/fake_model\"] }\n";

/// A deployment of the good profile with something appended.
class Trial {
  public:
    explicit Trial(const std::string& more, const std::vector<std::string>& set = {})
        : deployment_(host_) {
        const std::string file = folder_.write("t.toml", kGood + more);
        deployment_.quiet();
        opened_ = deployment_.open(file, set);
    }
    Deployment& deployment() { return deployment_; }
    const Status& opened() const { return opened_; }
    /// Message of `create`, with the exit code in front.
    std::string create() {
        EXPECT_TRUE(opened_.ok()) << opened_.message().str();
        const Status status = deployment_.create();
        return status.ok() ? "ok" : format("{} {}", deployment_.exit_code(), status.message());
    }

  private:
    testing::TempFolder folder_;
    HostServices host_;
    Deployment deployment_;
    Status opened_;
};

TEST(Deployment, Creates_what_the_profile_names_and_says_why_each_is_usable) {
    Trial t("engram = { plugin = \"mmap\" }\noverlay = [{ plugin = \"fake_media\" }]\n");

    EXPECT_EQ(t.create(), "ok");
    const auto& chosen = t.deployment().chosen();
    ASSERT_EQ(chosen.size(), 6u);
    EXPECT_EQ(chosen[4], "overlay = fake_media 9.9.9 (works everywhere)");
}

struct Failure {
    const char* plugin;
    const char* expected;
};

TEST(Deployment, A_failing_component_ends_with_the_exit_code_of_its_error) {
    const Failure kFailures[] = {
        {"plugin = \"fake_failing\", code = 0", "2 "},  // invalid_argument
        {"plugin = \"fake_failing\", code = 1", "3 "},  // unsupported
        {"plugin = \"fake_failing\", code = 2", "4 "},  // does_not_fit
        {"plugin = \"fake_failing\", code = 3", "5 "},  // io
        {"plugin = \"fake_failing\", code = 4", "5 "},  // device
        {"plugin = \"fake_failing\", code = 5", "6 "},  // peer
        {"plugin = \"fake_failing\", code = 6", "70 "},
        {"plugin = \"fake_throwing\"", "70 "},
        {"plugin = \"fake_refused\"", "3 "},
        {"plugin = \"fake_rows\"", "3 "},
    };
    for (const Failure& f : kFailures) {
        Trial t(format("engram = { {} }\n", f.plugin));
        const std::string message = t.create();
        EXPECT_EQ(message.rfind(f.expected, 0), 0u) << f.plugin << ": " << message;
        EXPECT_NE(message.find("t.toml: [engram] (plugin 'fake_"), std::string::npos) << message;
    }
    Trial refused("engram = { plugin = \"fake_refused\" }\n");
    EXPECT_NE(refused.create().find("not usable here: this machine has no such device"),
              std::string::npos);
    Trial facet("engram = { plugin = \"fake_rows\" }\n");
    EXPECT_NE(facet.create().find("does not offer the facet storage."), std::string::npos);
}

TEST(Deployment, Overlays_need_a_hook_and_the_media_hook_takes_one) {
    Trial none("overlay = [{ plugin = \"fake_hookless\" }]\n");
    EXPECT_EQ(none.create().rfind("3 ", 0), 0u);
    Trial twice("overlay = [{ plugin = \"fake_media\" }, { plugin = \"fake_media\" }]\n");
    const std::string message = twice.create();
    EXPECT_EQ(message.rfind("2 ", 0), 0u) << message;
    EXPECT_NE(message.find("a second overlay on the media hook"), std::string::npos);
}

TEST(Deployment, Experimental_plugins_need_a_permission) {
    const std::string overlay = "overlay = [{ plugin = \"trial_media\" }]\n";
    Trial refused(overlay);
    EXPECT_NE(refused.opened().message().str().find(
                  "t.toml:7:23: plugin 'trial_media' is experimental; allow it with "
                  "allow_experimental = true"),
              std::string::npos)
        << refused.opened().message().str();
    EXPECT_EQ(refused.deployment().exit_code(), kExitUsage);
    Trial allowed(overlay + "allow_experimental = true\n");
    EXPECT_EQ(allowed.create(), "ok");
}

TEST(Deployment, Missing_plugins_end_with_3_and_are_all_named) {
    Trial t("engram = { plugin = \"fake_row\" }\nconstraint = { plugin = \"xgrammar\" }\n");
    ASSERT_TRUE(t.opened().ok());
    const Status status = t.deployment().require_plugins();

    EXPECT_EQ(t.deployment().exit_code(), kExitPlugin);
    EXPECT_NE(
        status.message().str().find("no storage plugin 'fake_row'. Did you mean 'fake_rows'?"),
        std::string::npos)
        << status.message().str();
    EXPECT_NE(status.message().str().find("no constraint plugin 'xgrammar'"), std::string::npos);
}

TEST(Deployment, Data_that_is_not_there_ends_with_5) {
    Trial t("");
    ASSERT_EQ(t.create(), "ok");
    const Status status = t.deployment().plan();

    EXPECT_EQ(t.deployment().exit_code(), kExitData);
    EXPECT_NE(status.message().str().find("model.checkpoint: "), std::string::npos);
    EXPECT_NE(status.message().str().find("/m: is not a directory"), std::string::npos);
}

/// The fake model on a checkpoint of its own: one MiB a token, one GiB a slot.
class FakeModel {
  public:
    explicit FakeModel(std::vector<std::string> set) {
        folder_.write("config.json", R"({"model_type": "fake_family"})");
        EXPECT_TRUE(write_safetensors(folder_.path() + "/model.safetensors", {}).ok());
        set.push_back("model.plugin=fake_model");
        set.push_back("model.checkpoint=" + folder_.path());
        trial_ = std::make_unique<Trial>("", set);
        EXPECT_EQ(trial_->create(), "ok");
    }
    Deployment& operator*() { return trial_->deployment(); }
    Deployment* operator->() { return &trial_->deployment(); }

  private:
    testing::TempFolder folder_;
    std::unique_ptr<Trial> trial_;
};

int64_t number_after(const std::string& text, const std::string& word) {
    const size_t at = text.find(word);
    return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + word.size());
}

TEST(MemoryPlan, What_does_not_fit_ends_with_4_and_names_the_largest_context_that_does) {
    FakeModel d({"model.slots=1"});
    ASSERT_TRUE(d->plan().ok());
    const Status status = d->check_fit();

    EXPECT_EQ(status.code(), Code::does_not_fit);
    EXPECT_EQ(d->exit_code(), kExitFit);
    const std::string message = status.message().str();
    const int64_t context = number_after(message, "model.context_tokens = ");
    ASSERT_GT(context, 0) << message;
    EXPECT_EQ(context % 256, 0);
    EXPECT_NE(message.find("state.pages"), std::string::npos) << message;
    EXPECT_NE(message.find("memory.reserve"), std::string::npos);
    // Sums move with what else runs on the machine: half of it fits for certain, twice does not.
    FakeModel half({"model.slots=1", format("model.context_tokens={}", context / 2)});
    ASSERT_TRUE(half->plan().ok());
    EXPECT_TRUE(half->check_fit().ok());
    FakeModel twice({"model.slots=1", format("model.context_tokens={}", context * 2)});
    ASSERT_TRUE(twice->plan().ok());
    EXPECT_FALSE(twice->check_fit().ok());
}

TEST(MemoryPlan, Fewer_slots_are_named_if_they_would_do) {
    FakeModel d({"model.context_tokens=256", "model.slots=48", "memory.reserve=\"100 MiB\"",
                 "memory.soft=4", "memory.hard=3", "memory.last=2"});
    ASSERT_TRUE(d->plan().ok());
    const std::string message = d->check_fit().message().str();
    if (message.empty()) {
        GTEST_SKIP() << "this machine has more than 48 GiB";
    }

    const int64_t slots = number_after(message, "a context of 256 fits model.slots = ");
    EXPECT_GT(slots, 0) << message;
    EXPECT_LT(slots, 48) << message;
}

TEST(MemoryPlan, A_reserve_beyond_the_machine_leaves_no_context) {
    FakeModel d({"model.context_tokens=256", "memory.reserve=\"800 TiB\""});
    ASSERT_TRUE(d->plan().ok());
    EXPECT_NE(d->check_fit().message().str().find("no context fits"), std::string::npos);
}

TEST(MemoryPlan, The_start_guard_ends_with_4) {
    FakeModel d({"model.context_tokens=256", "memory.min_available=\"800 TiB\""});
    ASSERT_TRUE(d->plan().ok());
    const Status status = d->load();

    EXPECT_EQ(d->exit_code(), kExitFit);
    EXPECT_NE(status.message().str().find("memory.min_available = 800 TiB, but"), std::string::npos)
        << status.message().str();
}

TEST(MemoryPlan, Limits_of_the_model_and_the_steps_are_checked_before_it) {
    FakeModel context({"model.context_tokens=1048577"});
    EXPECT_NE(context->plan().message().str().find("out of range 2…1048576"), std::string::npos);
    EXPECT_EQ(context->exit_code(), kExitUsage);
    FakeModel rows({"model.slots=20", "engine.step_rows=16"});
    EXPECT_NE(
        rows->plan().message().str().find("engine.step_rows = 16 is less than model.slots = 20"),
        std::string::npos);
    EXPECT_EQ(rows->exit_code(), kExitUsage);
}

TEST(Deployment, A_lost_device_at_load_ends_with_5) {
    FakeModel d({"model.context_tokens=256"});
    ASSERT_TRUE(d->plan().ok());
    EXPECT_EQ(d->load().message().str(), "the device fell off the bus");
    EXPECT_EQ(d->exit_code(), kExitData);
}

TEST(AutoChoice, Takes_the_best_score_and_states_the_reason) {
    Trial t("engram = { plugin = \"auto\" }\n");
    ASSERT_TRUE(t.opened().ok()) << t.opened().message().str();
    EXPECT_EQ(t.deployment().profile().find("engram")->plugin, "fake_better");
}

TEST(AutoChoice, A_model_is_chosen_by_who_claims_the_checkpoint) {
    Trial mini("", {"model.plugin=auto", "model.checkpoint=" TENON_MODELS "/tenon-mini"});
    ASSERT_TRUE(mini.opened().ok());
    EXPECT_EQ(mini.deployment().profile().find("model")->plugin, "dsv41");
    EXPECT_TRUE(mini.deployment().profile().missing.empty());

    Trial none("", {"model.plugin=auto"});
    ASSERT_TRUE(none.opened().ok());
    ASSERT_EQ(none.deployment().profile().missing.size(), 1u);
    EXPECT_NE(
        none.deployment().profile().missing[0].find("no usable model plugin for 'auto'; dsv41: "),
        std::string::npos)
        << none.deployment().profile().missing[0];
}

TEST(AutoChoice, Options_of_the_chosen_one_are_checked_as_ever) {
    Trial t("engram = { plugin = \"auto\", count = 3 }\n");  // fake_better has no options
    EXPECT_NE(
        t.opened().message().str().find("unknown key 'count' in [engram] (plugin 'fake_better')"),
        std::string::npos)
        << t.opened().message().str();
}

TEST(Lacks, Lists_plugins_devices_and_data_with_the_code_of_each) {
    Trial t(
        "engram = { plugin = \"fake_refused\", dir = \"tables\" }\n"
        "overlay = [{ plugin = \"gone\" }]\nlog = { file = \"new.log\" }\n");
    ASSERT_TRUE(t.opened().ok());
    const std::vector<Lack> lacks = find_lacks(t.deployment().profile(), t.deployment().host());

    ASSERT_EQ(lacks.size(), 4u);
    EXPECT_EQ(lacks[0].code, kExitPlugin);
    EXPECT_NE(lacks[0].text.find("no overlay plugin 'gone'"), std::string::npos);
    EXPECT_EQ(lacks[1].code, kExitData);
    EXPECT_NE(lacks[1].text.find("checkpoint in [model] (plugin 'dsv41'): "), std::string::npos);
    EXPECT_EQ(lacks[2].code, kExitPlugin);
    EXPECT_NE(lacks[2].text.find("this machine has no such device"), std::string::npos);
    EXPECT_EQ(lacks[3].code, kExitData);
    EXPECT_NE(lacks[3].text.find("/tables does not exist"), std::string::npos) << lacks[3].text;
}

TEST(MemoryReport, Sums_what_takes_memory_and_prints_the_largest_first) {
    MemoryReport r;
    r.entries = {{"small", "", PlanPlace::host, 10, 1},
                 {"big", "pages of 8", PlanPlace::device, 1 << 20, 4},
                 {"tables", "", PlanPlace::disk, int64_t{1} << 40, 1}};
    r.reserve = 100;
    r.available = (1 << 20) + 110;

    EXPECT_EQ(r.total(), (1 << 20) + 10);
    EXPECT_TRUE(r.fits());
    --r.available;
    EXPECT_FALSE(r.fits());
    const std::string table = r.table();
    EXPECT_LT(table.find("tables"), table.find("big"));
    EXPECT_LT(table.find("big"), table.find("small"));
    EXPECT_NE(table.find("4 x pages of 8"), std::string::npos) << table;
}

TEST(MemoryReport, Memory_of_a_device_is_compared_with_the_device) {
    MemoryReport r;
    r.entries = {{"weights", "", PlanPlace::device, 1000, 1},
                 {"staging", "", PlanPlace::pinned, 30, 1},
                 {"program", "", PlanPlace::host, 20, 1},
                 {"tables", "", PlanPlace::disk, 5000, 1}};
    r.reserve = 100;
    r.own_memory = true;
    r.device_reserve = 70;
    r.device_free = 1070;
    r.available = 150;
    EXPECT_TRUE(r.fits());
    r.device_free = 1069;
    EXPECT_FALSE(r.fits());
    EXPECT_EQ(r.needs().rfind("the plan needs 1000 B of the device's memory and "
                              "memory.device_reserve = 70 B, free are 1.04 KiB",
                              0),
              0U)
        << r.needs();
    EXPECT_NE(r.table().find("free on the device"), std::string::npos) << r.table();
    EXPECT_NE(r.table().find("memory.device_reserve"), std::string::npos) << r.table();
    r.device_free = 1070;
    r.available = 149;
    EXPECT_FALSE(r.fits());

    // Unified memory: one pool, with the host's reserve.
    r.own_memory = false;
    r.available = 1149;
    EXPECT_FALSE(r.fits());
    r.available = 1150;
    EXPECT_TRUE(r.fits());
}

TEST(MemoryReport, The_machine_answers) {
    EXPECT_GT(memory_available(), int64_t{1} << 20);
    EXPECT_GT(memory_resident(), int64_t{1} << 20);
    EXPECT_LT(memory_resident(), int64_t{1} << 40);
}

TEST(Signals, Are_events_once_the_server_has_taken_over) {
    SignalThread::block();
    SignalThread signals;
    signals.take_over();
    EXPECT_EQ(signals.wait(1000).ending, 0);

    ::kill(::getpid(), SIGHUP);
    EXPECT_TRUE(signals.wait(5'000'000).reopen);
    ::kill(::getpid(), SIGTERM);
    EXPECT_EQ(signals.wait(5'000'000).ending, 1);
    ::kill(::getpid(), SIGINT);
    EXPECT_EQ(signals.wait(5'000'000).ending, 2);
    signals.wake();
    const SignalThread::Event woken = signals.wait(5'000'000);
    EXPECT_TRUE(woken.woken);
    EXPECT_FALSE(woken.reopen);
}

TEST(SignalsDeathTest, End_the_process_before_that_and_at_the_third_one) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    const auto send = [](int times, bool taken_over) {
        SignalThread::block();
        SignalThread signals;
        if (taken_over) {
            signals.take_over();
        }
        for (int i = 0; i < times; ++i) {
            ::kill(::getpid(), SIGTERM);
            for (int k = 0; k < 100 && signals.wait(20'000).ending <= i; ++k) {
            }
        }
        ::usleep(5'000'000);
    };
    EXPECT_EXIT(send(1, false), ::testing::KilledBySignal(SIGTERM), "signal before ready");
    EXPECT_EXIT(send(3, true), ::testing::KilledBySignal(SIGTERM), "third signal");
}

}  // namespace
}  // namespace tenon
