// SPDX-License-Identifier: MIT
// A running front end over a fake engine, on a free port of this machine.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fakes/fake_engine.h"
#include "frontend.h"
#include "protocol/raw_client.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {

using Json = nlohmann::ordered_json;

class FrontendRig {
  public:
    explicit FrontendRig(http::Settings settings = {}) {
        settings.bind = "127.0.0.1:0";
        auto made = http::make_frontend(host, engine, std::move(settings));
        EXPECT_TRUE(made.ok());
        frontend = std::move(*made);
        const Status status = frontend->start();
        EXPECT_TRUE(status.ok()) << status.message().view();
        const std::string url = frontend->url().str();
        port = std::stoi(url.substr(url.rfind(':') + 1));
    }

    RawResponse chat(const Json& body, std::string_view extra = "") const {
        return ask_once(port, post("/v1/chat/completions", body.dump(), extra));
    }
    RawResponse complete(const Json& body) const {
        return ask_once(port, post("/v1/completions", body.dump()));
    }
    /// Waits until `condition` holds, at most 5 s.
    template <class F>
    static bool eventually(F condition) {
        for (int i = 0; i < 500; ++i) {
            if (condition()) {
                return true;
            }
            ::usleep(10'000);
        }
        return false;
    }

    TestHost host;
    FakeEngine engine;
    Ref<Frontend> frontend;
    int port = 0;
};

/// {"model": "fake", "messages": [{"role": "user", "content": text}]}
inline Json chat_body(const std::string& text = "hi") {
    return {{"model", "fake"}, {"messages", Json::array({{{"role", "user"}, {"content", text}}})}};
}

/// The JSON of each "data:" line, without [DONE].
inline std::vector<Json> events_of(const std::string& body) {
    std::vector<Json> out;
    for (size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
        const size_t end = body.find("\n\n", at);
        const std::string text = body.substr(at + 6, end - at - 6);
        at = end;
        if (text != "[DONE]") {
            out.push_back(Json::parse(text));
        }
    }
    return out;
}

}  // namespace tenon::testing
