// SPDX-License-Identifier: MIT
// Pieces of the front end that need no server: JSON text, keys, routes, options.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "auth.h"
#include "json_in.h"
#include "json_text.h"
#include "router.h"
#include "settings.h"
#include "tenon/plugin.h"
#include "tenon/testing/plugin_fixture.h"

extern "C" const tenon::PluginDescriptor* tenon_plugin_v1() noexcept;

namespace tenon::testing {

namespace {

using http::Json;

std::string escaped(std::string_view text) {
    std::string out;
    http::append_json_string(out, text);
    return out;
}

TEST(JsonText, Agrees_with_the_library_on_random_bytes) {
    std::mt19937 random(20261130);
    for (int round = 0; round < 20'000; ++round) {
        std::string text(random() % 12, '\0');
        for (char& c : text) {
            // Mostly bytes that form or break UTF-8 sequences.
            static constexpr unsigned char kBytes[] = {
                0x00, 0x1F, 0x22, 0x5C, 0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xA0,
                0xED, 0x9F, 0xEF, 0xF0, 0x90, 0xF4, 0x8F, 0xF5, 0xFF, 0xE2, 0x82, 0xAC};
            c = static_cast<char>(kBytes[random() % sizeof kBytes]);
        }
        const std::string ours = escaped(text);
        // The result must be valid JSON, and for valid input the same text.
        const Json back = Json::parse(ours, nullptr, false);
        ASSERT_FALSE(back.is_discarded()) << ours;
        bool is_valid = true;
        for (size_t i = 0; i < text.size();) {
            const size_t n = http::utf8_length(std::string_view(text).substr(i));
            is_valid &= n > 0;
            i += n > 0 ? n : 1;
        }
        if (is_valid) {
            ASSERT_EQ(back.get<std::string>(), text);
        }
        // The library agrees on what is valid: its strict dump throws exactly otherwise.
        bool library_accepts = true;
        try {
            static_cast<void>(Json(text).dump());
        } catch (const nlohmann::json::type_error&) {
            library_accepts = false;
        }
        ASSERT_EQ(library_accepts, is_valid);
    }
}

TEST(JsonIn, Keeps_order_and_values) {
    Json out;
    const auto refusal = http::parse_json(
        R"({"z":1,"a":[true,null,-2,1.5,18446744073709551615],"m":{"k":"\u00e9"}})", &out);
    ASSERT_FALSE(refusal.has_value());
    EXPECT_EQ(out.dump(), R"({"z":1,"a":[true,null,-2,1.5,18446744073709551615],"m":{"k":"é"}})");
}

TEST(JsonIn, Agrees_with_the_library_on_what_is_json) {
    for (const char* text :
         {"1", "[]", "{}", "\"\"", "[1,]", "{\"a\"}", "nul", "01", "-", "1.", ".5", "[1 2]",
          "\xEF\xBB\xBF{}", "{\"a\":1}}", "\"\\x\"", "[\"a\", \"\\u12\"]"}) {
        Json out;
        const bool ours = !http::parse_json(text, &out).has_value();
        EXPECT_EQ(ours, Json::accept(std::string(text))) << text;
    }
}

TEST(JsonIn, Depth_at_the_limit_is_taken) {
    const auto text = [](int64_t depth) {
        return std::string(static_cast<size_t>(depth), '[') +
               std::string(static_cast<size_t>(depth), ']');
    };
    Json out;
    EXPECT_FALSE(http::parse_json(text(http::kJsonDepth), &out).has_value());
    EXPECT_TRUE(http::parse_json(text(http::kJsonDepth + 1), &out).has_value());
}

TEST(JsonIn, Many_values_are_refused_before_they_fill_memory) {
    std::string text = "[";
    for (int64_t i = 0; i < http::kJsonValues; ++i) {
        text += "0,";
    }
    text += "0]";
    Json out;
    const auto refusal = http::parse_json(text, &out);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_NE(refusal->message.find("JSON values"), std::string::npos);
}

TEST(KeyCompare, Is_exact) {
    EXPECT_TRUE(http::equal_in_constant_time("abc", "abc"));
    for (const char* other : {"", "ab", "abcd", "abd", "abcabc"}) {
        EXPECT_FALSE(http::equal_in_constant_time(other, "abc")) << other;
        EXPECT_FALSE(http::equal_in_constant_time("abc", other)) << other;
    }
}

TEST(Router, Finds_exact_and_prefix_routes) {
    http::Router router;
    router.add({"GET", "/a", "a", http::Access::key, false, {}});
    router.add({"POST", "/a", "a-post", http::Access::key, false, {}});
    router.add({"GET", "/m/*", "m", http::Access::key, false, {}});

    EXPECT_EQ(router.find("GET", "/a").route->name, "a");
    EXPECT_EQ(router.find("HEAD", "/a/").route->name, "a");
    EXPECT_EQ(router.find("POST", "/a").route->name, "a-post");
    EXPECT_EQ(router.find("PUT", "/a").allow, "GET, HEAD, POST, OPTIONS");
    EXPECT_EQ(router.find("GET", "/m/org/name").rest, "org/name");
    EXPECT_EQ(router.find("GET", "/m/").route, nullptr);
    EXPECT_EQ(router.find("GET", "/b").allow, "");
}

TEST(Options, Defaults_are_well_formed_and_tls_needs_both_files) {
    const PluginDescriptor* descriptor = tenon_plugin_v1();
    ASSERT_EQ(descriptor->components.size, 1U);
    OptionSet options(descriptor->components[0]);
    EXPECT_TRUE(options.problems().empty());
    const auto settings = http::read_settings(options.view());
    ASSERT_TRUE(settings.ok());
    EXPECT_EQ(settings->max_connections, 1024);
    EXPECT_EQ(settings->max_body, 64 << 20);
    EXPECT_EQ(settings->keepalive_us, 15'000'000);

    options.set("tls_cert", "/x/cert.pem");
    TENON_EXPECT_ERROR(http::read_settings(options.view()).take_status(), Code::invalid_argument,
                       "tls_cert is set without tls_key");
}

TEST(Plugin, Needs_an_engine) {
    TestHost host;
    OptionSet options(tenon_plugin_v1()->components[0]);
    auto made = create_component(tenon_plugin_v1()->components[0], host, options);
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.status().message().str().find("engine.engine/1"), std::string::npos);
}

}  // namespace

}  // namespace tenon::testing
