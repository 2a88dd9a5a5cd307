// SPDX-License-Identifier: MIT
// JSON reading within limits, and printing like the reference.
#include "text/json.h"

#include "unit/text_support.h"

namespace tenon::dsv41 {
namespace {

using testing::Random;

std::string reprint(std::string_view text) {
    const Result<Json> value = parse_json(text);
    EXPECT_TRUE(value.ok()) << text << ": " << value.status().message().view();
    return value.ok() ? to_json(*value) : std::string();
}

TEST(Json, Prints_like_the_reference) {
    // python3: json.dumps(json.loads(x), ensure_ascii=False), but integers beyond 64 bits and -0 as
    // floats.
    const std::pair<const char*, const char*> cases[] = {
        {R"({"a":[1,2],"b":{}})", R"({"a": [1, 2], "b": {}})"},
        {"[]", "[]"},
        {"[null,true,false]", "[null, true, false]"},
        {R"("\u0000\u001f\b\f\n\r\t\"\\\/\u007f\u2028é\ud83d\ude00")",
         "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\x7F\xE2\x80\xA8é😀\""},
        {"1e16", "1e+16"},
        {"1e15", "1000000000000000.0"},
        {"123456789012345680.0", "1.2345678901234568e+17"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"1.50", "1.5"},
        {"100.0", "100.0"},
        {"-0.0", "-0.0"},
        {"-0", "-0.0"},
        {"0", "0"},
        {"5e-324", "5e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"9223372036854775807", "9223372036854775807"},
        {"18446744073709551615", "18446744073709551615"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"18446744073709551616", "1.8446744073709552e+19"},
        {"12345678901234567890123", "1.2345678901234568e+22"},
        {R"({"a":1,"b":2,"a":3})", R"({"a": 3, "b": 2})"},
    };
    for (const auto& [text, printed] : cases) {
        EXPECT_EQ(reprint(text), printed) << text;
    }
}

TEST(Json, Keeps_the_last_of_equal_keys_at_the_place_of_the_first_also_in_large_objects) {
    for (const int count : {3, 40}) {
        std::string text = "{", expected = "{";
        for (int i = 0; i < count; ++i) {
            const std::string key = "\"k" + std::to_string(i) + "\"";
            text += key + ":0,";
            expected += (i > 0 ? ", " : "") + key + ": " + (i % 3 == 1 ? "2" : "0");
        }
        for (int value = 1; value <= 2; ++value) {
            for (int i = 1; i < count; i += 3) {
                text += "\"k" + std::to_string(i) + "\":" + std::to_string(value) + ",";
            }
        }
        text.back() = '}';
        EXPECT_EQ(reprint(text), expected + "}");
    }
}

TEST(Json, Refuses_what_strict_json_does_not_have) {
    for (const char* text :
         {"",         " ",           "{",   "[1,]", "{\"a\":1,}", "{a:1}",    "'x'",   "NaN",
          "Infinity", "-",           "01",  "1.",   ".5",         "1e",       "tru",   "\"\x01\"",
          "\"\\x\"",  "\"\\ud800\"", "1 2", "[1]x", "1e400",      "\"\xC3\"", "//x\n1"}) {
        const Result<Json> value = parse_json(text);
        EXPECT_EQ(value.status().code(), Code::invalid_argument) << text;
        EXPECT_EQ(value.status().message().str().substr(0, 16), "not valid JSON: ") << text;
    }
}

TEST(Json, Limits_depth_and_number_of_values) {
    const std::string deep = std::string(9, '[') + std::string(9, ']');
    EXPECT_TRUE(parse_json(deep, {.depth = 9}).ok());
    EXPECT_EQ(parse_json(deep, {.depth = 8}).status().message().view(),
              "not valid JSON: nested deeper than 8 levels");
    EXPECT_TRUE(parse_json("[1,2]", {.values = 3}).ok());
    EXPECT_EQ(parse_json("[1,2,3]", {.values = 3}).status().message().view(),
              "not valid JSON: more than 3 values");
    EXPECT_FALSE(parse_json(std::string(5'000'000, '{')).ok());
    EXPECT_FALSE(parse_json(std::string(5'000'000, '[')).ok());
    EXPECT_FALSE(is_json(std::string(5'000'000, '[')));
}

TEST(Json, Messages_stay_short_and_valid_text) {
    const Result<Json> value = parse_json("{\"a\": \"" + std::string(100'000, 'x') + "\xFF\"}");
    EXPECT_LT(value.status().message().size, 400U);
    EXPECT_EQ(find_invalid_utf8(value.status().message().view()), std::string_view::npos);
}

TEST(Json, The_checker_agrees_with_the_parser) {
    static const std::vector<std::string> kFragments = {
        "{",  "}",  "[",  "]",    ",",    ":", "\"a\"", "\"", "1",     "-",       "0",
        ".5", "e3", "E+", "true", "null", " ", "\n",    "\\", "u00e9", "\"\\n\"", "x"};
    Random random(1);
    int valid = 0;
    for (int round = 0; round < 200'000; ++round) {
        std::string text;
        for (size_t i = 1 + random.below(6); i > 0; --i) {
            text += kFragments[random.below(kFragments.size())];
        }
        const bool is_valid = parse_json(text).ok();
        EXPECT_EQ(is_json(text), is_valid) << text;
        valid += is_valid;
    }
    EXPECT_GT(valid, 1000);
}

TEST(Utf8, Replaces_each_maximal_ill_formed_part_once) {
    const std::string fffd = "\xEF\xBF\xBD";
    EXPECT_EQ(to_valid_utf8("a\xC0\xAF"
                            "b"),
              "a" + fffd + fffd + "b");
    EXPECT_EQ(to_valid_utf8("\xE2\x82"
                            "b"),
              fffd + "b");
    EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98"), fffd);
    EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), fffd + fffd + fffd);  // a surrogate
    EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80"), fffd + fffd + fffd + fffd);
    EXPECT_EQ(to_valid_utf8("\xF4\x8F\xBF\xBF"), "\xF4\x8F\xBF\xBF");
    EXPECT_EQ(find_invalid_utf8("ab\xE2\x82\xAC\xE2\x82"), 5U);
    EXPECT_EQ(find_invalid_utf8("ab\xE2\x82\xAC"), std::string::npos);
}

TEST(Utf8, Assembles_the_same_text_from_any_pieces) {
    Random random(2);
    for (int round = 0; round < 3000; ++round) {
        std::string bytes;
        for (size_t i = random.below(12); i > 0; --i) {
            bytes += static_cast<char>(
                "a\xE2\x82\xAC\xF0\x9F\x98\x80\xC3\xA9\xFF\xED"[random.below(13)]);
        }
        std::string out;
        Utf8Assembler assembler;
        for (const char c : bytes) {
            assembler.feed({&c, 1}, out);
            EXPECT_EQ(find_invalid_utf8(out), std::string::npos);
        }
        assembler.flush(out);
        EXPECT_EQ(out, to_valid_utf8(bytes));
        EXPECT_EQ(find_invalid_utf8(bytes) == std::string::npos, out == bytes);
    }
}

}  // namespace
}  // namespace tenon::dsv41
