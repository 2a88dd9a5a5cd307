// SPDX-License-Identifier: MIT
// The conformance program notices broken rules: plugins that break one are run through it.
#include "tenon/testing/plugin_fixture.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include <sys/wait.h>

namespace tenon::testing {
namespace {

struct Outcome {
    int code = -1;
    std::string text;

    bool failed(const std::string& test) const {
        const size_t at = text.find("[  FAILED  ]");
        return at != std::string::npos && text.find(test, at) != std::string::npos;
    }
};

Outcome run(const std::string& plugin, const std::string& arguments = "") {
    const std::string command =
        format("'{}' --plugin '{}' {} 2>&1", TENON_CONFORMANCE, plugin, arguments);
    Outcome outcome;
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) {
        return outcome;
    }
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) {
        outcome.text.append(buffer, n);
    }
    const int status = ::pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
}

struct Fault {
    const char* name;
    const char* noticed_by;
};

void expect_noticed(const std::string& plugin, const Fault& fault) {
    const Outcome outcome =
        run(plugin, format("--set fault={} --gtest_filter=*{}*", fault.name, fault.noticed_by));

    EXPECT_EQ(outcome.code, 1) << outcome.text;
    EXPECT_TRUE(outcome.failed(fault.noticed_by)) << outcome.text;
}

class StorageSuite : public ::testing::TestWithParam<Fault> {};

TEST_P(StorageSuite, Notices) {
    expect_noticed(FAULTY_STORE, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Fault, StorageSuite,
    ::testing::Values(Fault{"swaps_rows", "Returns_rows_in_the_order_asked"},
                      Fault{"clears_minus_one", "Leaves_rows_of_minus_one_alone"},
                      Fault{"touches_gap", "Strided_rows_touch_nothing_between_them"},
                      Fault{"loses_failures", "Rows_behind_a_cut_end_fail_alone"},
                      Fault{"keeps_ticket", "Waiting_ends_a_ticket"},
                      Fault{"writes_late", "Writes_nothing_after_a_cancel"},
                      Fault{"accepts_any_id", "Refuses_ids_out_of_range_and_names_the_first"},
                      Fault{"wrong_offset", "Reads_every_row_of_every_layout"},
                      Fault{"leaks_descriptor", "Store_and_tables_leave_no_thread"},
                      Fault{"leaks_memory", "Store_and_tables_leave_no_thread"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

class TransportSuite : public ::testing::TestWithParam<Fault> {};

TEST_P(TransportSuite, Notices) {
    expect_noticed(FAULTY_TRANSPORT, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Fault, TransportSuite,
    ::testing::Values(Fault{"wrong_rank", "States_its_place_in_the_world"},
                      Fault{"dirty_exchange", "Exchange_memory_is_aligned_and_zero"},
                      Fault{"reverses_parts", "All_gather_puts_parts_in_rank_order"},
                      Fault{"loses_tail", "All_gather_puts_parts_in_rank_order"},
                      Fault{"clears_in_place", "Gathers_in_place_where_it_says_so"},
                      Fault{"sums_own_first", "Sums_are_added_in_rank_order_on_every_rank"},
                      Fault{"sums_anything", "Wrong_arguments_are_refused"},
                      Fault{"gathers_everywhere", "Gather_reaches_the_root_alone"},
                      Fault{"broadcasts_first", "Gather_reaches_the_root_alone"},
                      Fault{"takes_any_root", "Wrong_arguments_are_refused"},
                      Fault{"hides_loss", "A_rank_that_does_not_come_is_noticed"},
                      Fault{"stays_healthy", "A_rank_that_does_not_come_is_noticed"},
                      Fault{"ignores_abort", "After_an_abort_nothing_is_sent"},
                      Fault{"refuses_one", "States_its_place_in_the_world"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

class ConstraintSuite : public ::testing::TestWithParam<Fault> {};

TEST_P(ConstraintSuite, Notices) {
    expect_noticed(FAULTY_CONSTRAINT, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Fault, ConstraintSuite,
    ::testing::Values(Fault{"walk_moves", "Walking_and_filling_change_nothing"},
                      Fault{"writes_anyway", "Fill_refuses_what_does_not_fit"},
                      Fault{"sets_padding", "Masks_say_what_walking_says"},
                      Fault{"first_row_only", "Masks_of_a_window_are_those_of_single_steps"},
                      Fault{"half_accepts", "An_illegal_token_is_named_and_changes_nothing"},
                      Fault{"never_complete", "Is_complete_when_only_an_end_may_follow"},
                      Fault{"goes_on", "Is_complete_when_only_an_end_may_follow"},
                      Fault{"ends_anywhere", "Refuses_what_the_grammar_does_not_describe"},
                      Fault{"any_end", "A_vocabulary_with_ends_outside_it_is_refused"},
                      Fault{"takes_anything", "Unknown_kinds_and_malformed_sources"},
                      Fault{"swaps_words", "Takes_what_the_grammar_describes_in_any_tokens"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(Conformance, Plugins_without_fault_pass) {
    for (const char* plugin : {FAULTY_STORE, FAULTY_TRANSPORT, FAULTY_CONSTRAINT}) {
        const Outcome outcome = run(plugin);

        EXPECT_EQ(outcome.code, 0) << outcome.text;
    }
}

TEST(Conformance, Broken_descriptors_are_noticed) {
    const Outcome outcome = run(FAULTY_DESCRIPTOR);

    EXPECT_EQ(outcome.code, 1);
    for (const char* test :
         {"Exports_exactly_the_entry_symbol", "Introduces_itself", "Is_described",
          "Declares_sane_options", "Declares_versioned_needs", "Probes_repeatably"}) {
        EXPECT_TRUE(outcome.failed(test)) << test << "\n" << outcome.text;
    }
    for (const char* text : {"a_second_symbol", "Depth", "default above its own range",
                             "slow is not one of fast|faster", "pause: default"}) {
        EXPECT_NE(outcome.text.find(text), std::string::npos) << text << "\n" << outcome.text;
    }
}

TEST(Conformance, Says_what_is_wrong_with_its_command_line) {
    EXPECT_EQ(run("/no/such/plugin.so").code, 3);
    EXPECT_NE(run("/no/such/plugin.so").text.find("/no/such/plugin.so"), std::string::npos);
    EXPECT_EQ(run(TENON_CONFORMANCE_SOURCE).code, 3);
    EXPECT_NE(run(TENON_CONFORMANCE_SOURCE).text.find("not a 64-bit ELF library"),
              std::string::npos);
    EXPECT_EQ(run(FAULTY_STORE, "--component other").code, 2);
    EXPECT_EQ(run(FAULTY_STORE, "--set fault=unheard_of").code, 2);
    EXPECT_EQ(run(FAULTY_STORE, "--set depth=1").code, 2);
    EXPECT_EQ(run(FAULTY_STORE, "--set depth").code, 2);
    EXPECT_EQ(run(FAULTY_STORE, "--unknown").code, 2);
    EXPECT_EQ(run(FAULTY_STORE, "--gtest_filter=Nothing.at_all").code, 1) << "no test ran";
}

TEST(OptionDefaults, Are_read_as_TOML_values) {
    EXPECT_EQ(parse_default(OptionType::boolean, "true")->integer, 1);
    EXPECT_EQ(parse_default(OptionType::integer, "65_536")->integer, 65536);
    EXPECT_EQ(parse_default(OptionType::floating, "0.95")->floating, 0.95);
    EXPECT_EQ(parse_default(OptionType::size, "\"512 MiB\"")->integer, int64_t{512} << 20);
    EXPECT_EQ(parse_default(OptionType::size, "4096")->integer, 4096);
    EXPECT_EQ(parse_default(OptionType::time, "\"200 ms\"")->integer, 200'000);
    EXPECT_EQ(parse_default(OptionType::choice, "\"threads\"")->text, "threads");
    EXPECT_EQ(parse_default(OptionType::string_list, "[\"a\", \"b\"]")->list,
              (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(parse_default(OptionType::string_list, "[]")->list.empty());
}

TEST(OptionDefaults, Of_another_type_are_refused) {
    for (const auto& [type, text] : std::vector<std::pair<OptionType, const char*>>{
             {OptionType::boolean, "1"},
             {OptionType::integer, "1.5"},
             {OptionType::integer, "\"1\""},
             {OptionType::floating, "nan"},
             {OptionType::size, "\"512\""},
             {OptionType::size, "\"512 MB\""},
             {OptionType::time, "30"},
             {OptionType::string, "bare"},
             {OptionType::string_list, "[1]"},
             {OptionType::string_list, "[\"a\" \"b\"]"}}) {
        EXPECT_EQ(parse_default(type, text).status().code(), Code::invalid_argument) << text;
    }
}

}  // namespace
}  // namespace tenon::testing
