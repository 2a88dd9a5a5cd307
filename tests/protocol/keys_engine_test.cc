// SPDX-License-Identifier: MIT
// The front end over the real engine and a scripted model: whose kept prefixes a caller gets.
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "frontend.h"
#include "protocol/raw_client.h"
#include "tenon/testing/plugin_fixture.h"
#include "unit/engine_support.h"

namespace tenon::test {
namespace {

using Json = nlohmann::ordered_json;
using testing::ask_once;
using testing::post;

class KeysEngine : public ::testing::TestWithParam<bool> {
  protected:
    KeysEngine() : bench_(options(), settings(GetParam())) {
        const auto file = dir_.path() / "keys";
        std::ofstream(file) << "alice: secret-one\nbob: secret-two\n";
        ::chmod(file.c_str(), 0600);
        http::Settings http_settings;
        http_settings.bind = "127.0.0.1:0";
        http_settings.api_key_file = file;
        EXPECT_TRUE(bench_.loop->start().ok());
        auto made = http::make_frontend(bench_.host, *bench_.loop, std::move(http_settings));
        EXPECT_TRUE(made.ok());
        frontend_ = std::move(*made);
        const Status status = frontend_->start();
        EXPECT_TRUE(status.ok()) << status.message().view();
        const std::string url = frontend_->url().str();
        port_ = std::stoi(url.substr(url.rfind(':') + 1));
    }
    static ScriptedOptions options() {
        ScriptedOptions o;
        o.snapshot_cells = 40;
        return o;
    }
    static EngineSettings settings(bool by_key) {
        EngineSettings s;
        s.salt_by_key = by_key;
        return s;
    }
    /// The reply's timings.
    Json ask(const char* key, const char* salt = "") {
        Json body = {{"prompt", std::string(100, 'x') + "and what then?"}, {"max_tokens", 4}};
        if (*salt != '\0') {
            body["cache_salt"] = salt;
        }
        const testing::RawResponse got =
            ask_once(port_, post("/v1/completions", body.dump(), format("X-Api-Key: {}\r\n", key)));
        EXPECT_EQ(got.status, 200) << got.body;
        const Json reply = Json::parse(got.body);
        return reply.contains("timings") ? reply["timings"] : reply["choices"][0]["timings"];
    }
    int64_t cached(const char* key, const char* salt = "") {
        return ask(key, salt)["cached_tokens"].get<int64_t>();
    }

    testing::TempDir dir_;
    LoopBench bench_;
    Ref<Frontend> frontend_;
    int port_ = 0;
};

TEST_P(KeysEngine, Share_prefixes_only_if_the_profile_says_so) {
    const int64_t all = 113;  // all prompt tokens but the last
    EXPECT_EQ(cached("secret-one"), 0);
    EXPECT_EQ(cached("secret-one"), all);
    EXPECT_EQ(cached("secret-two"), GetParam() ? 0 : all);
    EXPECT_EQ(cached("secret-two"), all);
    EXPECT_EQ(cached("secret-one", "tenant 1"), 0);
    EXPECT_EQ(cached("secret-one", "tenant 1"), all);
    EXPECT_EQ(cached("secret-two", "tenant 1"), GetParam() ? 0 : all);
    EXPECT_EQ(cached("secret-one", "tenant 2"), 0);
}

TEST_P(KeysEngine, Timings_say_what_a_reply_cost) {
    const Json timings = ask("secret-one");

    for (const char* name :
         {"queue_ms", "prefill_ms", "first_token_ms", "decode_ms", "cached_tokens",
          "prefill_tokens_per_s", "decode_tokens_per_s", "rounds", "drafted", "accepted", "seed"}) {
        EXPECT_TRUE(timings.contains(name) && timings[name].is_number()) << name;
    }
    EXPECT_EQ(timings["token_sha"].get<std::string>().size(), 12U);
    EXPECT_GT(timings["rounds"], 0);
    EXPECT_EQ(ask("secret-one")["token_sha"], timings["token_sha"]);
}

INSTANTIATE_TEST_SUITE_P(Scope, KeysEngine, ::testing::Bool());

}  // namespace
}  // namespace tenon::test
