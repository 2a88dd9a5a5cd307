// SPDX-License-Identifier: MIT
// The automaton that cuts a reply into reasoning, content and tool calls (docs/chat-encoding.md 6).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tenon/text.h"
#include "text/call_writer.h"
#include "text/stop_strings.h"

namespace tenon::dsv41 {

struct ParsedEvent {
    ReplyEventKind kind = ReplyEventKind::content;
    int32_t index = 0;
    std::string text, id;
};

/// Where a reply can start; `calls` is inside a call block that the prompt opened.
enum class MachineStart : uint32_t {
    reasoning,
    content,
    reasoning_continued,
    content_continued,
    calls
};

struct MachineConfig {
    MachineStart start = MachineStart::content;
    ToolTable tools;
    std::vector<std::string> stops;
    bool parallel_tool_calls = true;
    uint64_t call_id_seed = 0;
};

/// Takes text and markers in order. Adjacent events of one kind are merged within the list that a
/// caller passes.
///
/// Text that may still belong to a marker is held back together with the piece that it began in.
class ReplyMachine {
  public:
    explicit ReplyMachine(MachineConfig config);

    bool offers_tools() const {
        return config_.tools.offers_tools() || config_.start == MachineStart::calls;
    }
    bool has_stopped() const { return has_stopped_; }
    /// In reasoning, or in a block opened there that may turn out to be no call.
    bool in_reasoning() const;

    /// One piece of well-formed text without markers.
    void text(std::string_view piece, std::vector<ParsedEvent>& out);
    void think_close(std::vector<ParsedEvent>& out);
    void dsml(std::vector<ParsedEvent>& out);
    void finish(ReplyEnd end, std::vector<ParsedEvent>& out);

  private:
    enum class State { reasoning, content, block, name, between, key, attributes, value, finished };

    void prose(std::string_view piece, std::vector<ParsedEvent>& out);
    void give_out(size_t size, std::vector<ParsedEvent>& out);
    size_t marker_start() const;
    void open_block(std::vector<ParsedEvent>& out);
    void release_block(std::vector<ParsedEvent>& out);
    size_t block(std::string_view piece, std::vector<ParsedEvent>& out);
    size_t name(std::string_view piece, std::vector<ParsedEvent>& out);
    size_t between(std::string_view piece);
    size_t key(std::string_view piece, std::vector<ParsedEvent>& out);
    size_t attributes(std::string_view piece, std::vector<ParsedEvent>& out);
    void value(std::string_view piece, std::vector<ParsedEvent>& out);
    size_t search(std::string_view piece, std::string_view pattern);
    bool is_closing() const;
    std::string call_id() const;

    template <class Write>
    void arguments(std::vector<ParsedEvent>& out, Write&& write);

    MachineConfig config_;
    StopStrings stops_;
    State state_;
    State prose_state_;   // reasoning or content: where a released block goes on
    bool trims_ = false;  // newlines are dropped until another character comes
    bool has_stopped_ = false;

    std::string pending_;     // prose not given out
    size_t piece_begin_ = 0;  // in pending_: the piece in which a possible marker began
    std::string block_;       // text of a block that has no call yet, from its marker on
    bool saw_call_ = false;   // `invoke name="` in the block
    std::string window_;      // end of the text since the last marker, for searches and "</"
    std::string close_;       // text behind "</｜DSML｜" while it may name the block
    bool may_close_ = false;

    int32_t calls_ = 0;
    std::string name_, attributes_;
    bool begins_key_ = false;  // the parameter was announced, its key has no text yet
    std::string value_end_;    // "<" or "</" at the end of a value
    std::unique_ptr<CallWriter> writer_;
};

}  // namespace tenon::dsv41
