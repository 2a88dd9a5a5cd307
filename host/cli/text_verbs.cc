// SPDX-License-Identifier: MIT
// tokenize, detokenize, render, parse: JSON Lines in, one answer line for each.
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

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
        return error(Code::invalid_argument, "not JSON: {}", std::string(e.what()).substr(0, 200));
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
        std::cout << out.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    }
    std::cout.flush();
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

Status parse_reply(TextCodec& codec, const Json& in, Json* out) {
    ReplyParserConfig config;
    const std::string start = in.value("start", "content");
    bool known = false;
    for (int i = 0; i < 5; ++i) {
        if (start == start_name(static_cast<ReplyStart>(i))) {
            config.start = static_cast<ReplyStart>(i);
            known = true;
        }
    }
    if (!known) {
        return error(Code::invalid_argument,
                     "start = '{}': expected reasoning, content, reasoning_continued, "
                     "content_continued or calls",
                     start);
    }
    std::string tools;
    if (in.contains("tools")) {
        const Json& t = in["tools"];
        if (t.is_array() && !t.empty()) {
            tools = t.dump();
        } else if (t.is_boolean()) {
            // Offered, but unknown: names and schemas matter to one repair only.
            tools = t.get<bool>() ? "[]" : "";
        }
    }
    config.tools_json = tools;
    config.parallel_tool_calls = in.value("parallel_tool_calls", true);
    config.call_id_seed = 1;
    std::vector<std::string> stops;
    if (in.contains("stop") && !in["stop"].is_null()) {
        const Json& s = in["stop"];
        for (const Json& item : s.is_array() ? s : Json::array({s})) {
            stops.push_back(item.get<std::string>());
        }
    }
    const std::vector<StrView> views(stops.begin(), stops.end());
    config.stops = views;
    Ref<ReplyParser> parser;
    TENON_TRY(codec.make_parser(config, parser.out()));
    Message message;
    const int32_t eos = codec.info().eos;
    bool ended = in.value("backend_finish", "stop") == "stop";
    if (in.contains("text") && in["text"].is_string()) {
        std::string text = in["text"].get<std::string>();
        const std::string end = eos >= 0 ? codec.token_bytes(eos).str() : "";
        if (!end.empty() && text.size() >= end.size() &&
            text.compare(text.size() - end.size(), end.size(), end) == 0) {
            text.resize(text.size() - end.size());
        }
        TENON_TRY(parser->feed_text(text, message));
    } else {
        std::vector<int32_t> ids;
        TENON_TRY(ids_of(in, &ids));
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
