// SPDX-License-Identifier: MIT
// chat: a conversation in the terminal, against a profile in this process or a running server.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "host/cli/http_client.h"
#include "host/cli/local_engine.h"
#include "host/cli/verbs.h"

namespace tenon::cli {
namespace {

using Json = nlohmann::ordered_json;
/// Receives pieces of a reply; `reasoning` text is shown dimmed.
using Show = std::function<void(const std::string& text, bool reasoning)>;
/// Asks one turn: the whole request body in, the visible answer out.
using Ask = std::function<Status(const Json& request, const Show& show, std::string* answer)>;

std::string dumped(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status ask_engine(LocalEngine& local, const Json& request, const Show& show, std::string* answer) {
    Ref<Prompt> prompt;
    TENON_TRY(local.engine().render(dumped(request), 0, prompt.out()));
    const EngineInfo info = local.engine().info();
    RequestDesc desc;
    desc.tokens = prompt->ids();
    desc.borders = prompt->borders();
    desc.sampling.temperature = info.temperature;
    desc.sampling.top_p = info.top_p;
    desc.sampling.min_p = info.min_p;
    desc.sampling.top_k = info.top_k;
    desc.parser.start = prompt->start();
    desc.parser.tools_json = prompt->tools_json();
    desc.thinking = prompt->thinking();
    desc.keeps_reasoning = prompt->keeps_reasoning();
    desc.label = "chat";
    Ref<ReplySink> sink;
    TENON_TRY(local.engine().submit(desc, sink.out()));
    SinkEvent event;
    while (!sink->finished()) {
        if (!sink->next(1'000'000, &event)) {
            continue;
        }
        if (event.kind == SinkEventKind::reasoning || event.kind == SinkEventKind::content) {
            show(event.text.str(), event.kind == SinkEventKind::reasoning);
            if (event.kind == SinkEventKind::content) {
                *answer += event.text.view();
            }
        } else if (event.kind == SinkEventKind::error) {
            return Status(event.code, event.text.view());
        }
    }
    return {};
}

/// Message of an error body of the API, or its text as it is.
std::string error_text(const std::string& body) {
    const Json json = Json::parse(body, nullptr, false);
    if (json.is_object() && json.contains("error") && json["error"].is_object()) {
        return json["error"].value("message", body);
    }
    return body;
}

Status ask_url(const HttpUrl& url, Json request, const Show& show, std::string* answer) {
    request["stream"] = true;
    const char* key = std::getenv("TENON_API_KEY");
    HttpPost post;
    TENON_TRY(post.send(url, "/v1/chat/completions", dumped(request), key == nullptr ? "" : key));
    if (post.status() != 200) {
        const Code code = post.status() >= 500 ? Code::unavailable : Code::invalid_argument;
        return error(code, "HTTP {}: {}{}", post.status(), error_text(post.rest(4000)),
                     post.status() == 401 ? " (the key comes from TENON_API_KEY)" : "");
    }
    bool done = false;
    std::string line;
    while (!done && post.line(&line)) {
        if (line.rfind("data: ", 0) != 0) {
            continue;
        }
        done = line == "data: [DONE]";
        const Json event = Json::parse(line.substr(6), nullptr, false);
        if (event.is_object() && event.contains("error")) {
            return error(Code::internal, "{}", error_text(line.substr(6)));
        }
        if (!event.is_object() || !event.contains("choices") || !event["choices"].is_array() ||
            event["choices"].empty()) {
            continue;
        }
        const Json delta = event["choices"][0].value("delta", Json::object());
        if (delta.contains("reasoning_content") && delta["reasoning_content"].is_string()) {
            show(delta["reasoning_content"].get<std::string>(), true);
        }
        if (delta.contains("content") && delta["content"].is_string()) {
            show(delta["content"].get<std::string>(), false);
            *answer += delta["content"].get<std::string>();
        }
    }
    return done ? Status() : error(Code::io, "the reply broke off");
}

/// Writes a reply as it comes. A terminal shows reasoning dimmed; a pipe gets the answer alone.
class Screen {
  public:
    void show(const std::string& text, bool reasoning) {
        if (!terminal_ && reasoning) {
            return;
        }
        if (terminal_ && reasoning != dim_) {
            std::fputs(reasoning ? "\033[2m" : "\033[0m\n", stdout);
            dim_ = reasoning;
        }
        std::fputs(text.c_str(), stdout);
        std::fflush(stdout);
        shown_ = true;
    }
    void end_reply() {
        if (shown_) {
            std::fputs(dim_ ? "\033[0m\n" : "\n", stdout);
            std::fflush(stdout);
        }
        dim_ = shown_ = false;
    }
    bool terminal() const { return terminal_; }

  private:
    bool terminal_ = ::isatty(STDOUT_FILENO) != 0;
    bool dim_ = false;
    bool shown_ = false;
};

int converse(const ChatArgs& args, const Ask& ask) {
    Screen screen;
    const Show show = [&](const std::string& text, bool reasoning) {
        screen.show(text, reasoning);
    };
    Json request = Json::object();
    request["messages"] = Json::array();
    if (args.thinking || args.no_thinking) {
        request["chat_template_kwargs"] = {{"enable_thinking", args.thinking}};
    }
    std::string line = args.once;
    if (!args.is_once && screen.terminal()) {
        std::fputs("Each line is a message; Ctrl-D ends.\n", stdout);
    }
    while (true) {
        if (!args.is_once) {
            std::fputs(screen.terminal() ? "> " : "", stdout);
            std::fflush(stdout);
            if (!std::getline(std::cin, line)) {
                return kExitOk;
            }
            if (line.empty()) {
                continue;
            }
        }
        request["messages"].push_back({{"role", "user"}, {"content", line}});
        std::string answer;
        const Status status = guard([&] { return ask(request, show, &answer); });
        screen.end_reply();
        if (!status.ok()) {
            const int code = fail(exit_code_of(status.code(), kExitUsage), status.message().str());
            if (args.is_once || !screen.terminal()) {
                return code;
            }
            request["messages"].erase(request["messages"].size() - 1);
            continue;
        }
        if (args.is_once) {
            return kExitOk;
        }
        request["messages"].push_back({{"role", "assistant"}, {"content", answer}});
    }
}

}  // namespace

int chat_verb(const ChatArgs& args) {
    if (args.profile.profile.find("://") != std::string::npos) {
        auto url = HttpUrl::parse(args.profile.profile);
        if (!url.ok()) {
            return fail(kExitUsage, url.status().message().str());
        }
        return converse(args, [&](const Json& request, const Show& show, std::string* answer) {
            return ask_url(*url, request, show, answer);
        });
    }
    LocalEngine local;
    local.deployment().quiet();
    const Status status = local.open(args.profile.profile, args.profile.set);
    if (!status.ok()) {
        return fail(local.exit_code(), status.message().str());
    }
    return converse(args, [&](const Json& request, const Show& show, std::string* answer) {
        return ask_engine(local, request, show, answer);
    });
}

}  // namespace tenon::cli
