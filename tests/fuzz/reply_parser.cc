// SPDX-License-Identifier: MIT
// Fuzz target: any reply parses to the same message whole and in pieces, and every event is valid
// text.
//
// First byte: start, tools, parallel calls, end, stops. Second byte: sizes of the pieces.
#include <cstdlib>

#include "fuzz/byte_tokenizer.h"
#include "text/reply_reader.h"

namespace {

using namespace tenon;
using namespace tenon::dsv41;

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{},"city":{}}}}}])";

std::string message_of(const std::vector<ParsedEvent>& events) {
    std::string reasoning, content, calls;
    for (const ParsedEvent& e : events) {
        if (find_invalid_utf8(e.text) != std::string::npos) {
            std::abort();
        }
        std::string& target = e.kind == ReplyEventKind::reasoning ? reasoning
                              : e.kind == ReplyEventKind::content ? content
                                                                  : calls;
        target += e.kind == ReplyEventKind::call ? "\n" + e.id + e.text + ":" : e.text;
    }
    return reasoning + '\0' + content + '\0' + calls;
}

template <class Feed>
std::string run(const MachineConfig& config, ReplyEnd end, Feed&& feed) {
    ReplyReader reader(byte_tokenizer(), ControlTokens(byte_tokenizer()), config);
    std::vector<ParsedEvent> events;
    feed(reader, events);
    reader.finish(end, events);
    if (events.empty() || events.back().kind != ReplyEventKind::finish) {
        std::abort();
    }
    return message_of(events);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2) {
        return 0;
    }
    MachineConfig config;
    config.start = static_cast<MachineStart>(data[0] % 5);
    if ((data[0] & 8) == 0) {
        config.tools = *ToolTable::parse(kTools);
    }
    config.parallel_tool_calls = (data[0] & 16) == 0;
    const ReplyEnd end = (data[0] & 32) == 0 ? ReplyEnd::eos : ReplyEnd::length;
    if ((data[0] & 64) != 0) {
        config.stops = {"STOP", "\n\n", "aab"};
    }
    config.call_id_seed = 1;
    const size_t step = 1 + data[1] % 17;
    const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);

    const std::string whole =
        run(config, end, [&](ReplyReader& r, auto& events) { r.feed_text(text, events); });
    const std::string pieces = run(config, end, [&](ReplyReader& r, auto& events) {
        for (size_t i = 0; i < text.size(); i += step) {
            r.feed_text(text.substr(i, step), events);
        }
    });
    if (whole != pieces) {
        std::abort();
    }
    if (find_invalid_utf8(text) != std::string_view::npos) {
        return 0;
    }
    Tokenizer::Scratch scratch = byte_tokenizer().make_scratch();
    std::vector<int32_t> ids;
    if (!byte_tokenizer().encode(text, Tokenizer::Specials::parsed, scratch, ids).ok()) {
        std::abort();
    }
    const std::string tokens = run(config, end, [&](ReplyReader& r, auto& events) {
        for (size_t i = 0; i < ids.size(); i += step) {
            r.feed(std::span<const int32_t>(ids).subspan(i, std::min(step, ids.size() - i)),
                   events);
        }
    });
    if (whole != tokens) {
        std::abort();
    }
    return 0;
}
