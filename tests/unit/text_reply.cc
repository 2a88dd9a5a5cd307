// SPDX-License-Identifier: MIT
// Replies to reasoning, content and calls: every golden case, whole, in pieces and as ids; stop
// strings; repairs.
#include <algorithm>
#include <map>

#include "text/reply_reader.h"
#include "unit/text_support.h"

namespace tenon::dsv41 {
namespace {

using testing::at;
using testing::flag;
using testing::ids_of;
using testing::Random;
using testing::read_lines;
using testing::str;
using testing::strings_of;
using testing::tokenizer;

// The tools that the golden replies were made with.
constexpr const char* kTools = R"([
    {"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
        "properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
    {"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}},
    {"type":"function","function":{"name":"f","parameters":{"type":"object"}}},
    {"type":"function","function":{"name":"edit","parameters":{"type":"object","properties":{"path":{"type":"string"},
        "old":{"type":"string"},"new":{"type":"string"}},"required":["path"]}}}])";

MachineStart start_of(const std::string& name) {
    static const std::map<std::string, MachineStart> kStarts = {
        {"reasoning", MachineStart::reasoning},
        {"content", MachineStart::content},
        {"reasoning_continued", MachineStart::reasoning_continued},
        {"content_continued", MachineStart::content_continued},
        {"calls", MachineStart::calls}};
    return kStarts.at(name);
}

MachineConfig config_of(const Json& c) {
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

ReplyReader reader_of(MachineConfig config) {
    const Tokenizer& t = tokenizer("text/tokenizer");
    return ReplyReader(t, ControlTokens(t), std::move(config));
}

ReplyEnd end_of(const Json& c) {
    return str(c, "backend_finish") == "length" ? ReplyEnd::length : ReplyEnd::eos;
}

/// What a client adds up.
struct Message {
    std::string reasoning, content, finish;
    std::vector<std::pair<std::string, std::string>> calls;
    bool operator==(const Message&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Message& m) {
    out << "{reasoning: " << m.reasoning << " | content: " << m.content
        << " | finish: " << m.finish;
    for (const auto& [name, arguments] : m.calls) {
        out << " | " << name << ' ' << arguments;
    }
    return out << '}';
}

Message add_up(const std::vector<ParsedEvent>& events) {
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

Message expected(const Json& expect) {
    Message m{str(expect, "reasoning"), str(expect, "content"), str(expect, "finish_reason"), {}};
    for (const Json& call : *at(expect, "tool_calls").array()) {
        m.calls.emplace_back(str(call, "name"), str(call, "arguments"));
    }
    return m;
}

Message parse_pieces(MachineConfig config, const std::vector<std::string>& pieces, ReplyEnd end) {
    ReplyReader reader = reader_of(std::move(config));
    std::vector<ParsedEvent> events;
    for (const std::string& piece : pieces) {
        reader.feed_text(piece, events);
    }
    reader.finish(end, events);
    return add_up(events);
}

Message parse_text(MachineConfig config, const std::string& text, ReplyEnd end) {
    return parse_pieces(std::move(config), {text}, end);
}

Message parse_ids(MachineConfig config, const std::vector<int32_t>& ids, ReplyEnd end,
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
std::vector<std::string> cut(const std::string& text, Random& random, size_t longest) {
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size();) {
        const size_t size = 1 + random.below(longest);
        pieces.push_back(text.substr(i, size));
        i += size;
    }
    return pieces;
}

std::vector<Json> golden_replies() {
    std::vector<Json> all;
    for (const char* file : {"calls", "ids", "malformed", "text", "truncated"}) {
        for (Json& c : read_lines(std::string("text/replies/") + file + ".jsonl")) {
            all.push_back(std::move(c));
        }
    }
    EXPECT_EQ(all.size(), 191U);
    return all;
}

TEST(Reply, Equals_every_golden_reply_as_text_whatever_the_pieces) {
    Random random(3);
    for (const Json& c : golden_replies()) {
        const std::string text = str(c, "text");
        const bool needs_ids = flag(c, "needs_ids");
        const Json& mode = at(c, "recipe_text_mode");
        if (needs_ids && mode.object() == nullptr) {
            continue;
        }
        // Two of the cases that need ids mention a block; in text mode the reference lost their
        // answers (repair R3).
        const std::string id = str(c, "id");
        const Message whole = parse_text(config_of(c), text, end_of(c));
        if (!needs_ids) {
            EXPECT_EQ(whole, expected(at(c, "expect"))) << id;
        } else if (id != "ids-02") {
            EXPECT_EQ(whole, expected(mode)) << id;
        }
        EXPECT_EQ(parse_pieces(config_of(c), cut(text, random, 1), end_of(c)), whole) << id;
        for (int round = 0; round < 5; ++round) {
            EXPECT_EQ(parse_pieces(config_of(c), cut(text, random, 12), end_of(c)), whole) << id;
        }
    }
}

TEST(Reply, Equals_every_golden_reply_as_ids_whatever_the_pieces) {
    for (const Json& c : golden_replies()) {
        const std::vector<int32_t> ids = ids_of(at(c, "ids"));
        // Markers inside a value were spelled by the tokens of the markers here, so ids and text
        // agree.
        const Message want = expected(at(c, "expect"));
        EXPECT_EQ(parse_ids(config_of(c), ids, end_of(c), 1), want) << str(c, "id");
        EXPECT_EQ(parse_ids(config_of(c), ids, end_of(c), 3), want) << str(c, "id");
        EXPECT_EQ(parse_ids(config_of(c), ids, end_of(c), 1000), want) << str(c, "id");
    }
}

TEST(Reply, Gives_out_the_golden_events_after_each_piece) {
    const auto as_json = [](const std::vector<ParsedEvent>& events) {
        constexpr const char* kNames[] = {"reasoning", "content", "call", "arguments", "finish"};
        std::string out = "[";
        for (const ParsedEvent& e : events) {
            out += out.size() > 1 ? ", [" : "[";
            append_json_string(out, kNames[static_cast<size_t>(e.kind)]);
            if (e.kind == ReplyEventKind::call || e.kind == ReplyEventKind::arguments) {
                out += ", " + std::to_string(e.index);
            }
            out += ", ";
            append_json_string(out, e.text);
            out += ']';
        }
        return out + "]";
    };
    for (const Json& c : read_lines("text/replies/splits.jsonl")) {
        ReplyReader reader = reader_of(config_of(c));
        std::vector<ParsedEvent> all;
        const std::vector<std::string> chunks = strings_of(at(c, "chunks"));
        for (size_t i = 0; i < chunks.size(); ++i) {
            std::vector<ParsedEvent> events;
            reader.feed_text(chunks[i], events);
            EXPECT_EQ(as_json(events), to_json((*at(c, "events").array())[i]))
                << str(c, "id") << " chunk " << i;
            all.insert(all.end(), events.begin(), events.end());
        }
        std::vector<ParsedEvent> events;
        reader.finish(end_of(c), events);
        EXPECT_EQ(as_json(events), to_json(at(c, "events_at_end"))) << str(c, "id");
        all.insert(all.end(), events.begin(), events.end());
        EXPECT_EQ(add_up(all), expected(at(c, "whole"))) << str(c, "id");
    }
}

}  // namespace
}  // namespace tenon::dsv41
