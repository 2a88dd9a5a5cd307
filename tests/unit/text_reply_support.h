// SPDX-License-Identifier: MIT
// Shared by the reply tests: feeding a reader in pieces, and adding its events up to a message.
#pragma once

#include <algorithm>
#include <map>
#include <ostream>
#include <utility>

#include "text/reply_reader.h"
#include "unit/text_support.h"

namespace tenon::dsv41::testing {

// The tools that the golden replies were made with.
inline constexpr const char* kTools = R"([
    {"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
        "properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
    {"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}},
    {"type":"function","function":{"name":"f","parameters":{"type":"object"}}},
    {"type":"function","function":{"name":"edit","parameters":{"type":"object","properties":{"path":{"type":"string"},
        "old":{"type":"string"},"new":{"type":"string"}},"required":["path"]}}}])";

inline MachineStart start_of(const std::string& name) {
    static const std::map<std::string, MachineStart> kStarts = {
        {"reasoning", MachineStart::reasoning},
        {"content", MachineStart::content},
        {"reasoning_continued", MachineStart::reasoning_continued},
        {"content_continued", MachineStart::content_continued},
        {"calls", MachineStart::calls}};
    return kStarts.at(name);
}

inline MachineConfig config_of(const Json& c) {
    MachineConfig config;
    config.start = start_of(str(c, "start"));
    config.stops = strings_of(at(c, "stop"));
    config.parallel_tool_calls = flag(c, "parallel_tool_calls", true);
    config.call_id_seed = 5;
    if (flag(c, "tools")) {
        config.tools = *ToolTable::parse(kTools);
    }
    return config;
}

inline ReplyReader reader_of(MachineConfig config) {
    const Tokenizer& t = tokenizer("text/tokenizer");
    return ReplyReader(t, ControlTokens(t), std::move(config));
}

inline ReplyEnd end_of(const Json& c) {
    return str(c, "backend_finish") == "length" ? ReplyEnd::length : ReplyEnd::eos;
}

/// What a client adds up.
struct Message {
    std::string reasoning, content, finish;
    std::vector<std::pair<std::string, std::string>> calls;
    bool operator==(const Message&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Message& m) {
    out << "{reasoning: " << m.reasoning << " | content: " << m.content
        << " | finish: " << m.finish;
    for (const auto& [name, arguments] : m.calls) {
        out << " | " << name << ' ' << arguments;
    }
    return out << '}';
}

inline Message add_up(const std::vector<ParsedEvent>& events) {
    Message m;
    for (const ParsedEvent& e : events) {
        EXPECT_EQ(find_invalid_utf8(e.text), std::string::npos);
        switch (e.kind) {
            case ReplyEventKind::reasoning:
                m.reasoning += e.text;
                break;
            case ReplyEventKind::content:
                m.content += e.text;
                break;
            case ReplyEventKind::call:
                EXPECT_EQ(static_cast<size_t>(e.index), m.calls.size());
                m.calls.emplace_back(e.text, "");
                break;
            case ReplyEventKind::arguments:
                EXPECT_EQ(static_cast<size_t>(e.index) + 1, m.calls.size());
                m.calls.back().second += e.text;
                break;
            case ReplyEventKind::finish:
                EXPECT_EQ(m.finish, "");
                m.finish = e.text;
        }
    }
    return m;
}

inline Message expected(const Json& expect) {
    Message m{str(expect, "reasoning"), str(expect, "content"), str(expect, "finish_reason"), {}};
    for (const Json& call : *at(expect, "tool_calls").array()) {
        m.calls.emplace_back(str(call, "name"), str(call, "arguments"));
    }
    return m;
}

inline Message parse_pieces(MachineConfig config, const std::vector<std::string>& pieces,
                            ReplyEnd end) {
    ReplyReader reader = reader_of(std::move(config));
    std::vector<ParsedEvent> events;
    for (const std::string& piece : pieces) {
        reader.feed_text(piece, events);
    }
    reader.finish(end, events);
    return add_up(events);
}

inline Message parse_text(MachineConfig config, const std::string& text, ReplyEnd end) {
    return parse_pieces(std::move(config), {text}, end);
}

inline Message parse_ids(MachineConfig config, const std::vector<int32_t>& ids, ReplyEnd end,
                         size_t step) {
    ReplyReader reader = reader_of(std::move(config));
    std::vector<ParsedEvent> events;
    for (size_t i = 0; i < ids.size(); i += step) {
        reader.feed(std::span<const int32_t>(ids).subspan(i, std::min(step, ids.size() - i)),
                    events);
    }
    reader.finish(end, events);
    return add_up(events);
}

/// Pieces of `text`, cut at random bytes (not only at characters).
inline std::vector<std::string> cut(const std::string& text, Random& random, size_t longest) {
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size();) {
        const size_t size = 1 + random.below(longest);
        pieces.push_back(text.substr(i, size));
        i += size;
    }
    return pieces;
}

}  // namespace tenon::dsv41::testing
