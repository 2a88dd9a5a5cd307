// SPDX-License-Identifier: MIT
// chat: a conversation in the terminal, against a profile in this process or a running server.
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "host/cli/local_engine.h"
#include "host/cli/verbs.h"
#include "host/log/log.h"

namespace tenon::cli {
namespace {

using Json = nlohmann::ordered_json;
/// Receives pieces of a reply; `reasoning` text is shown dimmed.
using Show = std::function<void(const std::string& text, bool reasoning)>;
/// Asks one turn: the whole request body in, the visible answer out.
using Ask = std::function<Status(const Json& request, const Show& show, std::string* answer)>;

Status ask_engine(LocalEngine& local, const Json& request, const Show& show, std::string* answer) {
    Ref<Prompt> prompt;
    TENON_TRY(local.engine().text().render(request.dump(), prompt.out()));
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

/// A minimal HTTP/1.1 client for one streamed POST; the host links no HTTP library.
class HttpPost {
  public:
    ~HttpPost() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    Status send(const std::string& url, const std::string& path, const std::string& body) {
        std::string rest = url.substr(url.find("://") + 3);
        rest = rest.substr(0, rest.find('/'));
        const size_t colon = rest.rfind(':');
        const std::string name = rest.substr(0, colon);
        const std::string port = colon == std::string::npos ? "80" : rest.substr(colon + 1);
        addrinfo hints{};
        hints.ai_socktype = SOCK_STREAM;
        addrinfo* found = nullptr;
        if (::getaddrinfo(name.c_str(), port.c_str(), &hints, &found) != 0) {
            return error(Code::not_found, "{}: no such host", url);
        }
        for (addrinfo* a = found; a != nullptr && fd_ < 0; a = a->ai_next) {
            fd_ = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
            if (fd_ >= 0 && ::connect(fd_, a->ai_addr, a->ai_addrlen) != 0) {
                ::close(fd_);
                fd_ = -1;
            }
        }
        ::freeaddrinfo(found);
        if (fd_ < 0) {
            return error(Code::unavailable, "{}: cannot connect; is `tenon serve` running?", url);
        }
        timeval limit{600, 0};
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        const std::string text = format(
                                     "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: "
                                     "application/json\r\nContent-Length: {}\r\n"
                                     "Connection: close\r\n\r\n",
                                     path, rest, body.size()) +
                                 body;
        for (size_t at = 0; at < text.size();) {
            const ssize_t n = ::send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
            if (n <= 0) {
                return error(Code::io, "{}: the connection broke while sending", url);
            }
            at += static_cast<size_t>(n);
        }
        return {};
    }
    /// Next line without its end; false at the end of the reply.
    bool line(std::string* out) {
        while (true) {
            const size_t end = buffer_.find('\n');
            if (end != std::string::npos) {
                *out = buffer_.substr(0, end);
                buffer_.erase(0, end + 1);
                if (!out->empty() && out->back() == '\r') {
                    out->pop_back();
                }
                return true;
            }
            char piece[4096];
            const ssize_t n = ::recv(fd_, piece, sizeof piece, 0);
            if (n <= 0 || buffer_.size() > (16u << 20)) {
                return false;
            }
            buffer_.append(piece, static_cast<size_t>(n));
        }
    }

  private:
    int fd_ = -1;
    std::string buffer_;
};

Status ask_url(const std::string& url, Json request, const Show& show, std::string* answer) {
    request["stream"] = true;
    HttpPost post;
    TENON_TRY(post.send(url, "/v1/chat/completions", request.dump()));
    std::string line;
    if (!post.line(&line)) {
        return error(Code::io, "{}: closed the connection without an answer", url);
    }
    const bool ok = line.find(" 200") != std::string::npos;
    const std::string status_line = line;
    std::string body;
    while (post.line(&line)) {
        // Chunk sizes and headers carry no "data: ", so the framing of the stream can be skipped.
        if (line.rfind("data: ", 0) != 0) {
            body += line;
            continue;
        }
        if (line == "data: [DONE]") {
            break;
        }
        const Json event = Json::parse(line.substr(6), nullptr, false);
        if (event.is_object() && event.contains("error")) {
            return error(Code::internal, "{}", event["error"].value("message", "error"));
        }
        if (!event.is_object() || !event.contains("choices") || event["choices"].empty()) {
            continue;
        }
        const Json& delta = event["choices"][0]["delta"];
        if (delta.contains("reasoning_content") && delta["reasoning_content"].is_string()) {
            show(delta["reasoning_content"].get<std::string>(), true);
        }
        if (delta.contains("content") && delta["content"].is_string()) {
            show(delta["content"].get<std::string>(), false);
            *answer += delta["content"].get<std::string>();
        }
    }
    return ok ? Status()
              : error(Code::invalid_argument, "{}: {}: {}", url, status_line, body.substr(0, 400));
}

int converse(const ChatArgs& args, const Ask& ask) {
    const bool terminal = ::isatty(STDOUT_FILENO) != 0;
    bool dim = false;
    const Show show = [&](const std::string& text, bool reasoning) {
        if (terminal && reasoning != dim) {
            std::fputs(reasoning ? "\033[2m" : "\033[0m\n", stdout);
            dim = reasoning;
        } else if (!terminal && reasoning) {
            return;  // a pipe gets the answer alone
        }
        std::fputs(text.c_str(), stdout);
        std::fflush(stdout);
    };
    Json request = Json::object();
    request["messages"] = Json::array();
    if (args.thinking || args.no_thinking) {
        request["chat_template_kwargs"] = {{"enable_thinking", args.thinking}};
    }
    std::string line = args.once;
    while (true) {
        if (args.once.empty()) {
            std::fputs(terminal ? "> " : "", stdout);
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
        if (dim) {
            std::fputs("\033[0m", stdout);
            dim = false;
        }
        std::fputc('\n', stdout);
        if (!status.ok()) {
            return fail(kExitInternal, status.message().str());
        }
        if (!args.once.empty()) {
            return kExitOk;
        }
        request["messages"].push_back({{"role", "assistant"}, {"content", answer}});
    }
}

}  // namespace

int chat_verb(const ChatArgs& args) {
    if (args.profile.profile.rfind("http://", 0) == 0) {
        return converse(args, [&](const Json& request, const Show& show, std::string* answer) {
            return ask_url(args.profile.profile, request, show, answer);
        });
    }
    LocalEngine local;
    std::vector<std::string> set = args.profile.set;
    set.insert(set.begin(), "log.level=warn");
    const Status status = local.open(args.profile.profile, set);
    if (!status.ok()) {
        return fail(local.deployment().exit_code(), status.message().str());
    }
    return converse(args, [&](const Json& request, const Show& show, std::string* answer) {
        return ask_engine(local, request, show, answer);
    });
}

}  // namespace tenon::cli
