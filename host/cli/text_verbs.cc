// SPDX-License-Identifier: MIT
// tokenize, detokenize, render, parse: JSON Lines in, one answer line for each.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "host/checkpoint/strict_json.h"
#include "host/cli/text_source.h"

namespace tenon::cli {
namespace {

using Json = nlohmann::ordered_json;

/// The answer to one line; a Status becomes {"error": {"status", "message"}}.
using Answer = std::function<Status(TextCodec&, const Json&, Json*)>;

int http_status(Code code) {
    switch (code) {
        case Code::invalid_argument:
        case Code::unsupported:
        case Code::does_not_fit:
            return 400;
        case Code::not_found:
            return 404;
        default:
            return 500;
    }
}

Result<Json> parse_line(const std::string& line) {
    try {
        return Json::parse(line, [](int depth, Json::parse_event_t, Json&) {
            if (depth > 128) {
                throw std::runtime_error("nested more than 128 deep");
            }
            return true;
        });
    } catch (const std::exception& e) {
        // "[json.exception.parse_error.101] parse error at …": what follows the library's tag.
        std::string_view what = e.what();
        const size_t tag = what.find("] ");
        what.remove_prefix(what.rfind("[json.exception.", 0) == 0 ? tag + 2 : 0);
        return error(Code::invalid_argument, "not JSON: {}", cut_text(std::string(what), 200));
    }
}

int run_lines(const TextArgs& args, const Answer& answer) {
    TextSource source;
    const Status opened = source.open(args);
    if (!opened.ok()) {
        return fail(source.exit_code(), opened.message().str());
    }
    std::string line;
    while (std::getline(std::cin, line)) {
        Json out = Json::object();
        Status status;
        auto in = parse_line(line);
        if (!in.ok()) {
            status = in.take_status();
        } else if (!in->is_object()) {
            status = error(Code::invalid_argument, "a line must be a JSON object");
        } else {
            status = guard([&] { return answer(source.codec(), *in, &out); });
        }
        if (!status.ok()) {
            out = {{"error",
                    {{"status", http_status(status.code())}, {"message", status.message().str()}}}};
        }
        // Flushed by line: scripts hold a conversation over pipes.
        std::cout << out.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
    }
    if (std::ferror(stdin) != 0) {  // std::cin, tied to stdin, takes a failed read for the end
        return fail(kExitData, format("standard input cannot be read: {}", std::strerror(errno)));
    }
    return std::cout ? kExitOk : fail(kExitData, "standard output could not be written");
}

Status text_of(const Json& in, std::string* out) {
    if (!in.contains("text") || !in["text"].is_string()) {
        return error(Code::invalid_argument, "the line needs a string 'text'");
    }
    *out = in["text"].get<std::string>();
    return {};
}

Status ids_of(const Json& in, std::vector<int32_t>* out) {
    if (!in.contains("ids") || !in["ids"].is_array()) {
        return error(Code::invalid_argument, "the line needs a list 'ids'");
    }
    for (const Json& id : in["ids"]) {
        if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
            return error(Code::invalid_argument, "ids[{}] is not a token id", out->size());
        }
        out->push_back(id.get<int32_t>());
    }
    return {};
}

/// The value of an optional key, which must have the type of `fallback` if it is there.
Status flag_of(const Json& in, const char* key, bool fallback, bool* out) {
    *out = fallback;
    if (!in.contains(key) || in[key].is_null()) {
        return {};
    }
    if (!in[key].is_boolean()) {
        return error(Code::invalid_argument, "{} must be true or false", key);
    }
    *out = in[key].get<bool>();
    return {};
}

Status word_of(const Json& in, const char* key, const char* fallback, std::string* out) {
    *out = fallback;
    if (!in.contains(key) || in[key].is_null()) {
        return {};
    }
    if (!in[key].is_string()) {
        return error(Code::invalid_argument, "{} must be a string", key);
    }
    *out = in[key].get<std::string>();
    return {};
}

/// `stop`: a string or a list of strings.
Status stops_of(const Json& in, std::vector<std::string>* out) {
    if (!in.contains("stop") || in["stop"].is_null()) {
        return {};
    }
    const Json& stop = in["stop"];
    for (const Json& item : stop.is_array() ? stop : Json::array({stop})) {
        if (!item.is_string()) {
            return error(Code::invalid_argument, "stop must be a string or a list of strings");
        }
        out->push_back(item.get<std::string>());
    }
    return {};
}

/// What `"tools": true` offers, as in the reply goldens (tests/fixtures/golden/text/README.md).
constexpr const char* kExampleTools =
    R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",)"
    R"("properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},)"
    R"({"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}},)"
    R"({"type":"function","function":{"name":"f","parameters":{"type":"object"}}},)"
    R"({"type":"function","function":{"name":"edit","parameters":{"type":"object","properties":)"
    R"({"path":{"type":"string"},"old":{"type":"string"},"new":{"type":"string"}},)"
    R"("required":["path"]}}}])";

/// How a reply opens its calls; with start "calls" the prompt has written this already.
constexpr const char* kCallsOpening = "<｜DSML｜ calls>\n";

/// `tools`: the offered tools, true for the example tools, false or absent for none.
Status tools_of(const Json& in, std::string* out) {
    if (!in.contains("tools") || in["tools"].is_null()) {
        return {};
    }
    const Json& tools = in["tools"];
    if (tools.is_boolean()) {
        *out = tools.get<bool>() ? kExampleTools : "";
    } else if (tools.is_array()) {
        *out = tools.empty() ? "" : tools.dump(-1, ' ', false, Json::error_handler_t::replace);
    } else {
        return error(Code::invalid_argument, "tools must be a list of tools, or true or false");
    }
    return {};
}

Json list_of(Span<const int32_t> ids) {
    return std::vector<int32_t>(ids.begin(), ids.end());
}

const char* start_name(ReplyStart start) {
    constexpr const char* kNames[] = {"reasoning", "content", "reasoning_continued",
                                      "content_continued", "calls"};
    return kNames[static_cast<int>(start)];
}

/// Collects a reply's events into a message.
class Message final : public ReplyEvents {
  public:
    void on_event(const ReplyEvent& e) noexcept override {
        const Status ignored = guard([&] {
            switch (e.kind) {
                case ReplyEventKind::reasoning:
                    reasoning += e.text.view();
                    break;
                case ReplyEventKind::content:
                    content += e.text.view();
                    break;
                case ReplyEventKind::call:
                    calls.push_back({{"name", e.text.str()}, {"arguments", ""}});
                    break;
                case ReplyEventKind::arguments: {
                    auto& text =
                        calls[static_cast<size_t>(e.index)]["arguments"].get_ref<std::string&>();
                    text += e.text.view();
                    break;
                }
                case ReplyEventKind::finish:
                    finish = e.text.str();
                    break;
            }
        });
    }
    std::string reasoning, content, finish;
    Json calls = Json::array();
};

Result<ReplyStart> start_of(const std::string& start) {
    for (int i = 0; i < 5; ++i) {
        if (start == start_name(static_cast<ReplyStart>(i))) {
            return static_cast<ReplyStart>(i);
        }
    }
    return error(Code::invalid_argument,
                 "start = '{}': expected reasoning, content, reasoning_continued, "
                 "content_continued or calls",
                 start);
}

Status parse_reply(TextCodec& codec, const Json& in, Json* out) {
    ReplyParserConfig config;
    std::string start;
    TENON_TRY(word_of(in, "start", "content", &start));
    const bool in_calls = start == "calls";
    TENON_ASSIGN(config.start, start_of(in_calls ? "content" : start));
    std::string tools;
    TENON_TRY(tools_of(in, &tools));
    tools = in_calls && tools.empty() ? "[]" : tools;
    config.tools_json = tools;
    TENON_TRY(flag_of(in, "parallel_tool_calls", true, &config.parallel_tool_calls));
    config.call_id_seed = 1;
    std::vector<std::string> stops;
    TENON_TRY(stops_of(in, &stops));
    const std::vector<StrView> views(stops.begin(), stops.end());
    config.stops = views;
    std::string finish;
    TENON_TRY(word_of(in, "backend_finish", "stop", &finish));
    bool ended = finish == "stop";
    Ref<ReplyParser> parser;
    TENON_TRY(codec.make_parser(config, parser.out()));
    Message message;
    const int32_t eos = codec.info().eos;
    if (in.contains("text") && in["text"].is_string()) {
        std::string text = in["text"].get<std::string>();
        const std::string end = eos >= 0 ? codec.token_bytes(eos).str() : "";
        if (!end.empty() && text.size() >= end.size() &&
            text.compare(text.size() - end.size(), end.size(), end) == 0) {
            text.resize(text.size() - end.size());
        }
        TENON_TRY(parser->feed_text((in_calls ? kCallsOpening : "") + text, message));
    } else {
        std::vector<int32_t> ids;
        if (!in.contains("ids")) {
            return error(Code::invalid_argument, "the line needs a string 'text' or a list 'ids'");
        }
        TENON_TRY(ids_of(in, &ids));
        if (in_calls) {
            Ref<TokenList> opening;
            TENON_TRY(codec.encode(kCallsOpening, kParseSpecials, opening.out()));
            ids.insert(ids.begin(), opening->ids().begin(), opening->ids().end());
        }
        if (!ids.empty() && ids.back() == eos) {
            ids.pop_back();
            ended = true;
        }
        TENON_TRY(parser->feed(ids, message));
    }
    TENON_TRY(parser->finish(parser->stopped() ? ReplyEnd::stop_string
                             : ended           ? ReplyEnd::eos
                                               : ReplyEnd::length,
                             message));
    (*out)["reasoning"] = message.reasoning;
    (*out)["content"] = message.content;
    (*out)["tool_calls"] = message.calls;
    (*out)["finish_reason"] = message.finish;
    return {};
}

}  // namespace

int tokenize_verb(const TextArgs& args) {
    return run_lines(args, [&](TextCodec& codec, const Json& in, Json* out) -> Status {
        std::string text;
        TENON_TRY(text_of(in, &text));
        Ref<TokenList> list;
        TENON_TRY(codec.encode(text, 0, list.out()));
        (*out)["ids"] = list_of(list->ids());
        if (args.parse_specials) {
            TENON_TRY(codec.encode(text, kParseSpecials, list.out()));
            (*out)["ids_with_specials_parsed"] = list_of(list->ids());
        }
        return {};
    });
}

int detokenize_verb(const TextArgs& args) {
    return run_lines(args, [&](TextCodec& codec, const Json& in, Json* out) -> Status {
        std::vector<int32_t> ids;
        TENON_TRY(ids_of(in, &ids));
        Ref<Blob> text;
        TENON_TRY(codec.decode(ids, args.skip_specials ? uint32_t{kSkipSpecials} : 0u, text.out()));
        (*out)["text"] = text->view().str();
        return {};
    });
}

int render_verb(const TextArgs& args) {
    return run_lines(args, [&](TextCodec& codec, const Json& in, Json* out) -> Status {
        const Json& request = in.contains("request") ? in["request"] : in;
        Ref<Prompt> prompt;
        TENON_TRY(codec.render(request.dump(-1, ' ', false, Json::error_handler_t::replace),
                               prompt.out()));
        (*out)["prompt"] = prompt->text().str();
        (*out)["ids"] = list_of(prompt->ids());
        (*out)["thinking"] = prompt->thinking();
        Json images = Json::array();
        for (const PromptImage& image : prompt->images()) {
            images.push_back(image.url.str());
        }
        (*out)["images"] = images;
        (*out)["parse"] = {{"start", start_name(prompt->start())},
                           {"tools", !prompt->tools_json().empty()},
                           {"json", prompt->json_reply()}};
        return {};
    });
}

int parse_verb(const TextArgs& args) {
    return run_lines(args, parse_reply);
}

}  // namespace tenon::cli
