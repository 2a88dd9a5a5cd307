// SPDX-License-Identifier: MIT
// Rules that hold for a plugin of any kind: its one export, its descriptor, its options, probe,
// create and release.
#include "tenon/testing/plugin_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>

namespace tenon::testing {
namespace {

bool is_snake_case(const std::string& s) {
    if (s.empty() || std::islower(static_cast<unsigned char>(s[0])) == 0 || s.back() == '_') {
        return false;
    }
    for (const char c : s) {
        const auto u = static_cast<unsigned char>(c);
        if (std::islower(u) == 0 && std::isdigit(u) == 0 && c != '_') {
            return false;
        }
    }
    return s.find("__") == std::string::npos;
}

/// major.minor.patch without leading zeros, then an optional "-pre" and "+build".
bool is_semantic_version(const std::string& s) {
    size_t at = 0;
    for (int part = 0; part < 3; ++part) {
        const size_t first = at;
        while (at < s.size() && std::isdigit(static_cast<unsigned char>(s[at])) != 0) {
            ++at;
        }
        if (at == first || (at - first > 1 && s[first] == '0')) {
            return false;
        }
        if (part < 2 && (at == s.size() || s[at++] != '.')) {
            return false;
        }
    }
    if (at == s.size()) {
        return true;
    }
    const std::string rest = s.substr(at + 1);
    return (s[at] == '-' || s[at] == '+') && !rest.empty() &&
           rest.find_first_not_of(
               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
               "0123456789-.+") == std::string::npos;
}

/// An SPDX identifier or an expression of several ("MIT OR Apache-2.0").
bool is_spdx(const std::string& s) {
    return !s.empty() && s.front() != ' ' && s.back() != ' ' &&
           s.find_first_not_of(
               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
               "0123456789-.+() ") == std::string::npos;
}

bool is_one_line(const char* text) {
    return text != nullptr && *text != '\0' && std::string(text).find('\n') == std::string::npos;
}

bool has_range(const OptionSpec& spec) {
    return spec.min != spec.max;
}

bool is_numeric(OptionType type) {
    return type == OptionType::integer || type == OptionType::floating ||
           type == OptionType::size || type == OptionType::time;
}

std::vector<std::string> split(const std::string& s, char by) {
    std::vector<std::string> out;
    std::istringstream in(s);
    for (std::string part; std::getline(in, part, by);) {
        out.push_back(part);
    }
    return out;
}

const PluginDescriptor& descriptor() {
    return plugin_under_test().descriptor();
}

TEST(Descriptor, Exports_exactly_the_entry_symbol) {
    auto symbols = exported_symbols(plugin_under_test().path());

    ASSERT_TRUE(symbols.ok()) << symbols.status().message().view();
    EXPECT_EQ(*symbols, std::vector<std::string>{kPluginEntryName})
        << "link with the version script of tenon_add_plugin";
}

TEST(Descriptor, Says_which_SDK_it_was_built_with) {
    EXPECT_EQ(descriptor().magic, kPluginMagic);
    EXPECT_GE(descriptor().struct_size, sizeof(PluginDescriptor));
    EXPECT_EQ(descriptor().abi_major, kAbiMajor);
    EXPECT_LE(descriptor().abi_minor, kAbiMinor);
    EXPECT_STREQ(descriptor().fingerprint, TENON_SDK_FINGERPRINT);
}

TEST(Descriptor, Introduces_itself) {
    EXPECT_TRUE(is_snake_case(descriptor().name)) << descriptor().name;
    EXPECT_TRUE(is_semantic_version(descriptor().version)) << descriptor().version;
    EXPECT_TRUE(is_spdx(descriptor().license)) << descriptor().license;
    EXPECT_TRUE(is_one_line(descriptor().summary));
    EXPECT_TRUE(descriptor().maturity == Maturity::experimental ||
                descriptor().maturity == Maturity::stable);
    EXPECT_FALSE(descriptor().components.empty());
}

TEST(Descriptor, Answers_the_same_descriptor_each_time) {
    auto again = LoadedPlugin::load(plugin_under_test().path());

    ASSERT_TRUE(again.ok()) << again.status().message().view();
    EXPECT_EQ(&again->descriptor(), &descriptor());
}

TEST(Descriptor, Names_no_component_twice) {
    std::set<std::pair<PluginKind, std::string>> seen;
    for (const Component& component : descriptor().components) {
        EXPECT_TRUE(seen.insert({component.kind, component.name}).second) << component.name;
    }
}

class ComponentRules : public ::testing::TestWithParam<const Component*> {
  protected:
    const Component& component() const { return *GetParam(); }
};

TEST_P(ComponentRules, Is_described) {
    EXPECT_GE(component().struct_size, sizeof(Component));
    EXPECT_LT(static_cast<int>(component().kind), kPluginKinds);
    EXPECT_TRUE(is_snake_case(component().name)) << component().name;
    EXPECT_TRUE(is_one_line(component().summary));
    EXPECT_NE(component().probe, nullptr);
    EXPECT_NE(component().create, nullptr);
}

TEST_P(ComponentRules, Declares_sane_options) {
    std::set<std::string> keys;
    const OptionSet defaults(component());

    for (const std::string& problem : defaults.problems()) {
        ADD_FAILURE() << problem;
    }
    for (const OptionSpec& spec : component().options) {
        SCOPED_TRACE(spec.key);
        EXPECT_TRUE(is_snake_case(spec.key));
        EXPECT_TRUE(keys.insert(spec.key).second) << "declared twice";
        EXPECT_TRUE(is_one_line(spec.help));
        EXPECT_FALSE(spec.required && spec.default_value != nullptr)
            << "a required option has no default";
        EXPECT_LE(spec.min, spec.max);
        if (has_range(spec)) {
            EXPECT_TRUE(is_numeric(spec.type)) << "only numbers have a range";
        }
        EXPECT_EQ(spec.type == OptionType::choice, spec.choices != nullptr);
        if (spec.default_value == nullptr) {
            continue;
        }
        const auto value = parse_default(spec.type, spec.default_value);
        if (!value.ok()) {
            continue;  // reported above
        }
        if (has_range(spec)) {
            const double number = spec.type == OptionType::floating
                                      ? value->floating
                                      : static_cast<double>(value->integer);
            EXPECT_GE(number, spec.min) << "default below its own range";
            EXPECT_LE(number, spec.max) << "default above its own range";
        }
        if (spec.choices != nullptr) {
            const auto choices = split(spec.choices, '|');
            EXPECT_EQ(std::set<std::string>(choices.begin(), choices.end()).size(), choices.size());
            EXPECT_EQ(std::count(choices.begin(), choices.end(), value->text), 1)
                << value->text << " is not one of " << spec.choices;
        }
    }
}

TEST_P(ComponentRules, Declares_versioned_needs) {
    for (const Need& need : component().needs) {
        const std::string facet = need.facet == nullptr ? "" : need.facet;
        const size_t slash = facet.rfind('/');
        ASSERT_NE(slash, std::string::npos) << facet << " lacks /version";
        EXPECT_EQ(facet.find_first_not_of("0123456789", slash + 1), std::string::npos) << facet;
        EXPECT_LT(slash + 1, facet.size()) << facet;
        EXPECT_NE(facet.find('.'), std::string::npos) << facet << " lacks a family";
    }
}

TEST_P(ComponentRules, Probes_repeatably_and_without_side_effects) {
    TestHost host;
    OptionSet options(component());
    ProbeEnv env;
    env.host = &host;
    env.options = &options.view();
    ProbeResult first;
    TENON_ASSERT_OK(component().probe(env, &first));  // the first call may warm up libraries
    const auto descriptors = open_descriptors();
    const int64_t threads = thread_count();

    ProbeResult second;
    TENON_ASSERT_OK(component().probe(env, &second));

    EXPECT_EQ(first.score, second.score);
    EXPECT_STREQ(first.reason, second.reason);
    EXPECT_TRUE(is_one_line(first.reason)) << "say why it is (not) usable";
    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_EQ(thread_count(), threads);
}

TEST_P(ComponentRules, Creates_with_defaults_or_says_why_not) {
    TestHost host;
    OptionSet options(component());

    auto object = create_component(component(), host, options);

    if (!object.ok()) {
        EXPECT_NE(object.status().code(), Code::internal) << object.status().message().view();
        GTEST_SKIP() << "not usable with defaults here: " << object.status().message().view();
    }
    EXPECT_EQ((*object)->query("no.such.facet/1"), nullptr);
    EXPECT_EQ((*object)->query(""), nullptr);
}

TEST_P(ComponentRules, Release_leaves_no_thread_descriptor_or_memory) {
    const auto cycle = [&] {
        TestHost host;
        OptionSet options(component());
        auto object = create_component(component(), host, options);
        return object.ok();
    };
    if (!cycle() || !cycle()) {
        GTEST_SKIP() << "not usable with defaults here";
    }
    const auto descriptors = open_descriptors();
    const int64_t threads = thread_count();
    // The C library keeps memory of its own for the first threads of a process (stacks, thread
    // caches); a leak grows in every round.
    int64_t grown = 0;
    for (int round = 0; round < 4; ++round) {
        const int64_t bytes = malloc_bytes();
        for (int i = 0; i < 20; ++i) {
            ASSERT_TRUE(cycle());
        }
        grown = malloc_bytes() - bytes;
        if (grown < 20 * 64) {
            break;
        }
    }

    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_EQ(thread_count(), threads);
    // Twenty leaks of even one small object exceed this; the allocator's own caches do not.
    EXPECT_LT(grown, 20 * 64);
}

TEST_P(ComponentRules, Two_instances_live_side_by_side) {
    TestHost host;
    OptionSet options(component());
    auto first = create_component(component(), host, options);
    if (!first.ok()) {
        GTEST_SKIP() << "not usable with defaults here: " << first.status().message().view();
    }

    auto second = create_component(component(), host, options);

    ASSERT_TRUE(second.ok()) << second.status().message().view();
    EXPECT_NE(first->get(), second->get());
    first->reset();
    EXPECT_EQ((*second)->query("no.such.facet/1"), nullptr);
}

TEST_P(ComponentRules, Accepts_or_refuses_the_ends_of_each_range) {
    for (const OptionSpec& spec : component().options) {
        if (!has_range(spec)) {
            continue;
        }
        for (const double end : {spec.min, spec.max}) {
            SCOPED_TRACE(format("{} = {}", spec.key, end));
            TestHost host;
            OptionSet options(component());
            if (spec.type == OptionType::floating) {
                options.set(spec.key, end);
            } else {
                options.set(spec.key, static_cast<int64_t>(end));
            }
            const auto object = create_component(component(), host, options);
            if (!object.ok()) {
                EXPECT_NE(object.status().code(), Code::internal)
                    << object.status().message().view();
            }
        }
    }
}

TEST_P(ComponentRules, Accepts_or_refuses_every_choice) {
    for (const OptionSpec& spec : component().options) {
        if (spec.type != OptionType::choice) {
            continue;
        }
        for (const std::string& choice : split(spec.choices, '|')) {
            SCOPED_TRACE(format("{} = {}", spec.key, choice));
            TestHost host;
            OptionSet options(component());
            options.set(spec.key, choice);
            const auto object = create_component(component(), host, options);
            if (!object.ok()) {
                EXPECT_NE(object.status().code(), Code::internal)
                    << object.status().message().view();
            }
        }
    }
}

TEST_P(ComponentRules, Survives_options_without_any_value) {
    TestHost host;
    OptionSet options(component());
    for (const OptionSpec& spec : component().options) {
        options.clear(spec.key);
    }

    const auto with_unset = create_component(component(), host, options);
    if (!with_unset.ok()) {
        EXPECT_FALSE(with_unset.status().message().empty());
    }
    Object* object = nullptr;
    const Status status = component().create(host, Options{}, &object);
    const Ref<Object> owner(object);
    EXPECT_EQ(status.ok(), object != nullptr);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ComponentRules);
INSTANTIATE_TEST_SUITE_P(Plugin, ComponentRules, ::testing::ValuesIn(all_components_under_test()),
                         [](const ::testing::TestParamInfo<const Component*>& param_info) {
                             return format("{}_{}", kind_name(param_info.param->kind),
                                           test_name(*param_info.param));
                         });

}  // namespace
}  // namespace tenon::testing
