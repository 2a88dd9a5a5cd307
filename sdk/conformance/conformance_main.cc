// SPDX-License-Identifier: MIT
// Runs the conformance suites that fit the components of one plugin: `tenon-conformance --plugin
// ./rowcache.so`.
#include "tenon/testing/plugin_fixture.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

int main(int argc, char** argv) {
    std::string plugin;
    std::string component;
    std::string oracle;
    std::string checkpoint;
    std::vector<std::string> settings;
    std::vector<char*> rest{argv[0]};
    for (int i = 1; i < argc; ++i) {
        const std::string arg = argv[i];
        if ((arg == "--plugin" || arg == "--component") && i + 1 < argc) {
            (arg == "--plugin" ? plugin : component) = argv[++i];
        } else if (arg == "--checkpoint" && i + 1 < argc) {
            checkpoint = argv[++i];
        } else if (arg == "--oracle" && i + 1 < argc) {
            oracle = argv[++i];
        } else if (arg == "--set" && i + 1 < argc) {
            settings.emplace_back(argv[++i]);
        } else if (arg == "--help" || arg == "-h") {
            std::printf(
                "usage: %s --plugin FILE.so [--component NAME] [--set KEY=VALUE]... "
                "[--oracle FILE.so] [--checkpoint DIR] [GoogleTest flags]\n"
                "Checks the rules of every plugin kind and the suite of each component's kind.\n"
                "--oracle names a compute plugin with whose ops those of the first are compared.\n"
                "--checkpoint names a model directory that a model plugin claims: its text "
                "rules.\n",
                argv[0]);
            return 0;
        } else {
            rest.push_back(argv[i]);
        }
    }
    if (plugin.empty()) {
        std::fprintf(stderr, "%s: --plugin FILE.so is missing\n", argv[0]);
        return 2;
    }
    auto loaded = tenon::testing::LoadedPlugin::load(plugin);
    if (!loaded.ok()) {
        std::fprintf(stderr, "%s: %s\n", argv[0], loaded.status().message().str().c_str());
        return 3;
    }
    tenon::testing::set_plugin_under_test(std::move(*loaded), component);
    if (tenon::testing::all_components_under_test().empty()) {
        std::fprintf(stderr, "%s: %s has no component '%s'\n", argv[0], plugin.c_str(),
                     component.c_str());
        return 2;
    }
    tenon::testing::set_checkpoint_under_test(checkpoint);
    if (!oracle.empty()) {
        auto other = tenon::testing::LoadedPlugin::load(oracle);
        if (!other.ok()) {
            std::fprintf(stderr, "%s: %s\n", argv[0], other.status().message().str().c_str());
            return 3;
        }
        tenon::testing::set_oracle_plugin(std::move(*other));
    }
    for (const std::string& setting : settings) {
        const size_t equals = setting.find('=');
        const tenon::Status status =
            equals == std::string::npos
                ? tenon::error(tenon::Code::invalid_argument, "--set {} lacks '='", setting)
                : tenon::testing::override_option(setting.substr(0, equals),
                                                  setting.substr(equals + 1));
        if (!status.ok()) {
            std::fprintf(stderr, "%s: %s\n", argv[0], status.message().str().c_str());
            return 2;
        }
    }
    int count = static_cast<int>(rest.size());
    testing::InitGoogleTest(&count, rest.data());
    if (count > 1) {
        std::fprintf(stderr, "%s: unknown argument %s\n", argv[0], rest[1]);
        return 2;
    }
    const int rc = RUN_ALL_TESTS();
    const auto& unit = *testing::UnitTest::GetInstance();
    if (rc == 0 && unit.successful_test_count() == 0) {
        std::fprintf(stderr, "%s: no test ran\n", argv[0]);
        return 1;
    }
    return rc;
}
