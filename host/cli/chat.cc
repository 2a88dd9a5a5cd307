// SPDX-License-Identifier: MIT
// chat: a conversation in the terminal, against a profile in this process or a running server.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "host/checkpoint/strict_json.h"
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
        const Json& inner = json["error"];
        if (inner.contains("message") && inner["message"].is_string()) {
            return inner["message"].get<std::string>();
        }
    }
    return body;
}

/// What a stream's event adds to the message of its first choice; an empty object if nothing.
Json delta_of(const Json& event) {
    const Json choices = event.value("choices", Json::array());
    if (!choices.is_array() || choices.empty() || !choices[0].is_object()) {
        return Json::object();
    }
    const Json delta = choices[0].value("delta", Json::object());
    return delta.is_object() ? delta : Json::object();
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
        if (done) {
            break;
        }
        const Json event = Json::parse(line.substr(6), nullptr, false);
        if (!event.is_object()) {
            return error(Code::io, "the reply holds an event that is no JSON object: {}",
                         cut_text(line.substr(6), 200));
        }
        if (event.contains("error")) {
            return error(Code::internal, "{}", error_text(line.substr(6)));
        }
        const Json delta = delta_of(event);
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

/// `text` without what a terminal would obey: control characters but line feed and tab, C1's of
/// UTF-8 included, are spelled out. Models repeat what strangers wrote.
std::string harmless(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<uint8_t>(text[i]);
        const bool c1 = byte == 0xC2 && i + 1 < text.size() &&
                        static_cast<uint8_t>(text[i + 1]) >= 0x80 &&
                        static_cast<uint8_t>(text[i + 1]) < 0xA0;
        if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F || c1) {
            char spelled[8];
            std::snprintf(spelled, sizeof spelled, "\\x%02x",
                          c1 ? static_cast<uint8_t>(text[++i]) : byte);
            out += spelled;
        } else {
            out += text[i];
        }
    }
    return out;
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
        const std::string shown = terminal_ ? harmless(text) : text;
        std::fwrite(shown.data(), 1, shown.size(), stdout);
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
        if (!args.profile.set.empty()) {
            return fail(kExitUsage, format("--set {}: changes a profile; the server at {} has its "
                                           "own",
                                           args.profile.set.front(), args.profile.profile));
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
