// SPDX-License-Identifier: MIT
// Rendering, parsing and stop matching of the byte-level codec.
#include "tests/fakes/scripted_codec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tenon::fakes {
namespace {

using Json = nlohmann::json;

constexpr int32_t kForbidden[] = {kImage, 267, 268, 269, 270, 271};

const char* const kNames[] = {"<bos>",   "<eos>",  "<think>",     "</think>", "<call>", "<args>",
                              "</call>", "<user>", "<assistant>", "<system>", "<image>"};

struct OwnedBlob final : Implements<OwnedBlob, Blob> {
    std::string text;
    StrView view() noexcept override { return text; }
};

struct OwnedIds final : Implements<OwnedIds, TokenList> {
    std::vector<int32_t> list;
    Span<const int32_t> ids() noexcept override { return list; }
};

struct OwnedPrompt final : Implements<OwnedPrompt, Prompt> {
    std::vector<int32_t> list;
    std::string string, tools;
    std::vector<Border> marks;
    bool thinks = false;
    Span<const int32_t> ids() noexcept override { return list; }
    StrView text() noexcept override { return string; }
    Span<const Border> borders() noexcept override { return marks; }
    Span<const PromptImage> images() noexcept override { return {}; }
    ReplyStart start() noexcept override {
        return thinks ? ReplyStart::reasoning : ReplyStart::content;
    }
    bool thinking() noexcept override { return thinks; }
    bool keeps_reasoning() noexcept override { return !tools.empty(); }
    StrView tools_json() noexcept override { return tools; }
    bool parallel_tool_calls() noexcept override { return true; }
    bool json_reply() noexcept override { return false; }
};

std::string spell(int32_t id, bool specials) {
    if (id >= 0 && id < 256) {
        return std::string(1, static_cast<char>(id));
    }
    return specials && id >= kBos && id <= kImage ? kNames[id - kBos] : "";
}

/// Longest prefix that ends on a UTF-8 border; the rest of an unfinished character is kept.
std::string take_whole(std::string* held) {
    size_t end = held->size();
    for (size_t back = 1; back <= 3 && back <= held->size(); ++back) {
        const auto c = static_cast<unsigned char>((*held)[held->size() - back]);
        if (c < 0x80) {
            break;
        }
        if (c >= 0xC0) {
            const size_t need = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
            end = need > back ? held->size() - back : held->size();
            break;
        }
    }
    std::string out = held->substr(0, end);
    held->erase(0, end);
    return out;
}

struct Decoder final : Implements<Decoder, StreamDecoder> {
    bool specials = true;
    std::string held, out;
    StrView feed(Span<const int32_t> ids) noexcept override {
        for (const int32_t id : ids) {
            held += spell(id, specials);
        }
        out = take_whole(&held);
        return out;
    }
    StrView flush() noexcept override {
        out = std::exchange(held, {});
        return out;
    }
};

struct Stops final : Implements<Stops, StopMatcher> {
    std::vector<std::string> stops;
    bool reasoning = false;
    std::string tail;
    bool feed(int32_t token) noexcept override {
        if (token == kThinkClose) {
            reasoning = false;
            return false;
        }
        if (reasoning || token < 0 || token > 255) {
            return false;
        }
        tail.push_back(static_cast<char>(token));
        const auto ends = [this](const std::string& s) {
            return tail.size() >= s.size() &&
                   tail.compare(tail.size() - s.size(), s.size(), s) == 0;
        };
        const bool hit = std::any_of(stops.begin(), stops.end(), ends);
        if (tail.size() > 64) {
            tail.erase(0, tail.size() - 32);
        }
        return hit;
    }
};

struct Parser final : Implements<Parser, ReplyParser> {
    enum class Part { reasoning, content, name, arguments, after };
    Part part = Part::content;
    std::vector<std::string> stops;
    std::string held, name;
    int32_t calls = 0;
    int64_t reasoned = 0;
    bool has_stopped = false;

    void give(ReplyEventKind kind, const std::string& text, ReplyEvents& events) {
        if (!text.empty()) {
            ReplyEvent e;
            e.kind = kind;
            e.index = std::max(calls - 1, 0);
            e.text = text;
            events.on_event(e);
        }
    }
    void content(ReplyEvents& events, bool last) {
        size_t end = held.size();
        for (const std::string& s : stops) {
            const size_t at = held.find(s);
            if (at != std::string::npos) {
                has_stopped = true;
                end = std::min(end, at);
            }
        }
        std::string out;
        if (has_stopped || last) {
            out = held.substr(0, end);
            held.clear();
        } else {
            size_t keep = 0;
            for (const std::string& s : stops) {
                for (size_t n = std::min(s.size() - 1, held.size()); n > keep; --n) {
                    if (held.compare(held.size() - n, n, s, 0, n) == 0) {
                        keep = n;
                        break;
                    }
                }
            }
            std::string rest = held.substr(held.size() - keep);
            held.erase(held.size() - keep);
            out = take_whole(&held);
            held += rest;
        }
        give(ReplyEventKind::content, out, events);
    }
    void byte(int32_t id, ReplyEvents& events) {
        switch (part) {
            case Part::reasoning:
                ++reasoned;
                held.push_back(static_cast<char>(id));
                give(ReplyEventKind::reasoning, take_whole(&held), events);
                return;
            case Part::content:
                held.push_back(static_cast<char>(id));
                content(events, false);
                return;
            case Part::name:
                name.push_back(static_cast<char>(id));
                return;
            case Part::arguments:
                held.push_back(static_cast<char>(id));
                give(ReplyEventKind::arguments, take_whole(&held), events);
                return;
            case Part::after:
                return;
        }
    }
    Status feed(Span<const int32_t> ids, ReplyEvents& events) noexcept override {
        for (const int32_t id : ids) {
            if (has_stopped) {
                return {};
            }
            if (id >= 0 && id < 256) {
                byte(id, events);
            } else if (id == kThinkClose && part == Part::reasoning) {
                ++reasoned;
                held.clear();
                part = Part::content;
            } else if (id == kCallOpen) {
                content(events, true);
                name.clear();
                part = Part::name;
            } else if (id == kCallArgs && part == Part::name) {
                ReplyEvent e;
                e.kind = ReplyEventKind::call;
                e.index = calls++;
                const std::string call_id = format("call_{}", calls);
                e.text = name;
                e.id = call_id;
                events.on_event(e);
                part = Part::arguments;
            } else if (id == kCallClose) {
                part = Part::after;
            }
        }
        return {};
    }
    Status feed_text(StrView text, ReplyEvents& events) noexcept override {
        const std::vector<int32_t> ids = ids_of(text);
        return feed(ids, events);
    }
    Status finish(ReplyEnd end, ReplyEvents& events) noexcept override {
        if (part == Part::content && !has_stopped) {
            content(events, true);
        } else if (part == Part::reasoning) {
            give(ReplyEventKind::reasoning, held, events);
        }
        ReplyEvent e;
        e.kind = ReplyEventKind::finish;
        e.text = end == ReplyEnd::length ? "length" : calls > 0 ? "tool_calls" : "stop";
        events.on_event(e);
        return {};
    }
    bool stopped() noexcept override { return has_stopped; }
    int64_t reasoning_tokens() noexcept override { return reasoned; }
};

std::vector<std::string> copy(Span<const StrView> texts) {
    std::vector<std::string> out;
    for (const StrView& t : texts) {
        out.push_back(t.str());
    }
    return out;
}

bool starts_reasoning(const ReplyParserConfig& config) {
    return config.start == ReplyStart::reasoning || config.start == ReplyStart::reasoning_continued;
}

Status read_content(const Json& message, size_t index, std::string* out) {
    if (!message.contains("content") || message["content"].is_null()) {
        return {};
    }
    const Json& content = message["content"];
    if (content.is_string()) {
        *out = content.get<std::string>();
        return {};
    }
    if (!content.is_array()) {
        return error(Code::invalid_argument, "messages[{}].content: neither text nor parts", index);
    }
    for (const Json& part : content) {
        if (!part.is_object() || part.value("type", "") != "text" || !part.contains("text") ||
            !part["text"].is_string()) {
            return error(Code::invalid_argument, "messages[{}].content: only text parts are known",
                         index);
        }
        *out += part["text"].get<std::string>();
    }
    return {};
}

Status render_json(StrView request_json, OwnedPrompt* p) {
    const Json request = Json::parse(request_json.view(), nullptr, false);
    if (!request.is_object() || !request.contains("messages") || !request["messages"].is_array() ||
        request["messages"].empty()) {
        return Status(Code::invalid_argument, "messages: a non-empty array is needed");
    }
    p->list.push_back(kBos);
    size_t index = 0;
    for (const Json& message : request["messages"]) {
        const std::string role = message.is_object() ? message.value("role", "") : "";
        if (role != "system" && role != "developer" && role != "user" && role != "assistant" &&
            role != "tool") {
            return error(Code::invalid_argument, "messages[{}].role: '{}' is unknown", index, role);
        }
        std::string text;
        TENON_TRY(read_content(message, index, &text));
        const bool system = role == "system" || role == "developer";
        p->list.push_back(system ? kSystem : role == "assistant" ? kAssistant : kUser);
        const std::vector<int32_t> ids = ids_of(text);
        p->list.insert(p->list.end(), ids.begin(), ids.end());
        p->marks.push_back({static_cast<int64_t>(p->list.size()),
                            system ? BorderKind::system_end : BorderKind::message_end});
        ++index;
    }
    p->list.push_back(kAssistant);
    p->thinks = request.contains("thinking") && request["thinking"].is_boolean() &&
                request["thinking"].get<bool>();
    if (p->thinks) {
        p->list.push_back(kThinkOpen);
    }
    if (request.contains("tools") && request["tools"].is_array() && !request["tools"].empty()) {
        p->tools = request["tools"].dump();
    }
    for (const int32_t id : p->list) {
        p->string += spell(id, true);
    }
    return {};
}

}  // namespace

std::vector<int32_t> ids_of(std::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) {
        ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
}

TextInfo ScriptedCodec::info() noexcept {
    TextInfo info;
    info.vocab = kTextVocab;
    info.bos = kBos;
    info.eos = kEos;
    info.think_open = kThinkOpen;
    info.think_close = kThinkClose;
    info.image = kImage;
    info.forbidden = kForbidden;
    return info;
}

Status ScriptedCodec::render(StrView request_json, Prompt** out) noexcept {
    return guard([&]() -> Status {
        Ref<OwnedPrompt> prompt(new OwnedPrompt);
        TENON_TRY(render_json(request_json, prompt.get()));
        *out = prompt.detach();
        return {};
    });
}

Status ScriptedCodec::encode(StrView text, uint32_t, TokenList** out) noexcept {
    return guard([&] {
        Ref<OwnedIds> list(new OwnedIds);
        list->list = ids_of(text);
        *out = list.detach();
    });
}

Status ScriptedCodec::decode(Span<const int32_t> ids, uint32_t flags, Blob** out) noexcept {
    return guard([&]() -> Status {
        Ref<OwnedBlob> blob(new OwnedBlob);
        for (uint64_t i = 0; i < ids.size; ++i) {
            if (ids[i] < 0 || ids[i] >= kTextVocab) {
                return error(Code::invalid_argument, "ids[{}]: {} is not an id below {}", i, ids[i],
                             kTextVocab);
            }
            blob->text += spell(ids[i], (flags & kSkipSpecials) == 0);
        }
        *out = blob.detach();
        return {};
    });
}

Status ScriptedCodec::make_parser(const ReplyParserConfig& config, ReplyParser** out) noexcept {
    return guard([&] {
        Ref<Parser> parser(new Parser);
        parser->part = starts_reasoning(config) ? Parser::Part::reasoning : Parser::Part::content;
        parser->stops = copy(config.stops);
        *out = parser.detach();
    });
}

Status ScriptedCodec::make_stop(const ReplyParserConfig& config, StopMatcher** out) noexcept {
    return guard([&] {
        Ref<Stops> stops(new Stops);
        stops->stops = copy(config.stops);
        stops->reasoning = starts_reasoning(config);
        stops->tail.reserve(128);  // feed allocates nothing on the engine thread
        *out = stops.detach();
    });
}

Status ScriptedCodec::make_decoder(uint32_t flags, StreamDecoder** out) noexcept {
    return guard([&] {
        Ref<Decoder> decoder(new Decoder);
        decoder->specials = (flags & kSkipSpecials) == 0;
        *out = decoder.detach();
    });
}

StrView ScriptedCodec::token_bytes(int32_t id) noexcept {
    static const std::string kBytes = [] {
        std::string all;
        for (int i = 0; i < 256; ++i) {
            all.push_back(static_cast<char>(i));
        }
        return all;
    }();
    if (id >= 0 && id < 256) {
        return {kBytes.data() + id, 1};
    }
    return id >= kBos && id <= kImage ? StrView(kNames[id - kBos]) : StrView();
}

}  // namespace tenon::fakes
