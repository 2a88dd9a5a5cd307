// SPDX-License-Identifier: MIT
// The prompt writer. Each string constant here is a wire constant that the model was trained on.
#include "text/chat_prompt.h"

#include <algorithm>

namespace tenon::dsv41 {

namespace {

/// A message as the prompt has it: tool results and neighbouring user messages are one user turn.
struct Turn {
    Role role = Role::user;
    std::vector<ChatMessage> blocks;  // user turns; others have one
};

class PromptWriter {
  public:
    explicit PromptWriter(ChatRequest request) : request_(std::move(request)) {
        offers_tools_ = !request_.tool_lines.empty();
        carries_system_ = offers_tools_ || !request_.response_schema.empty();
    }

    ChatPrompt run() {
        make_turns();
        control(Control::bos);
        for (size_t i = 0; i < turns_.size(); ++i) {
            if (i > 0) {
                cut(i);
            }
            write_turn(i);
        }
        if (!turns_.empty()) {
            cut(turns_.size());
        }
        if (!request_.continues_last) {
            write_header();
        }
        return std::move(out_);
    }

  private:
    void make_turns() {
        // An empty system message that carries nothing disappears before neighbours merge.
        auto& messages = request_.messages;
        messages.erase(std::remove_if(messages.begin(), messages.end(),
                                      [](const ChatMessage& m) {
                                          return m.role == Role::system && m.has_empty_content();
                                      }),
                       messages.end());
        if (carries_system_ && (messages.empty() || messages.front().role != Role::system)) {
            ChatMessage system;
            system.role = Role::system;
            messages.insert(messages.begin(), std::move(system));
        }
        std::vector<std::string> call_ids;  // of the last assistant message with calls
        for (ChatMessage& message : messages) {
            const bool is_user = message.role == Role::user || message.role == Role::tool;
            if (is_user && !turns_.empty() && turns_.back().role == Role::user) {
                turns_.back().blocks.push_back(std::move(message));
                continue;
            }
            finish_turn(call_ids);
            if (!message.calls.empty()) {
                call_ids.clear();
                for (const HistoryCall& call : message.calls) {
                    call_ids.push_back(call.id);
                }
            }
            Turn turn;
            turn.role = is_user ? Role::user : message.role;
            turn.blocks.push_back(std::move(message));
            turns_.push_back(std::move(turn));
        }
        finish_turn(call_ids);
    }

    /// Puts the tool results of the last turn into the order of the calls; an unknown id counts as
    /// the first.
    void finish_turn(const std::vector<std::string>& call_ids) {
        if (turns_.empty() || turns_.back().role != Role::user || call_ids.empty()) {
            return;
        }
        const auto rank = [&](const ChatMessage& result) {
            const auto found = std::find(call_ids.begin(), call_ids.end(), result.tool_call_id);
            return found == call_ids.end() ? 0 : found - call_ids.begin();
        };
        std::vector<size_t> places;
        std::vector<std::pair<std::ptrdiff_t, ChatMessage>> results;
        auto& blocks = turns_.back().blocks;
        for (size_t i = 0; i < blocks.size(); ++i) {
            if (blocks[i].role == Role::tool) {
                places.push_back(i);
                results.emplace_back(rank(blocks[i]), std::move(blocks[i]));
            }
        }
        std::stable_sort(results.begin(), results.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
        for (size_t i = 0; i < places.size(); ++i) {
            blocks[places[i]] = std::move(results[i].second);
        }
    }

    void write_turn(size_t index) {
        Turn& turn = turns_[index];
        const bool is_system = turn.role == Role::system;
        if (is_system || (index == 0 && request_.thinking)) {
            control(Control::system);
        }
        if (index == 0 && request_.thinking) {
            text("Reasoning Effort: ");
            text(std::to_string(request_.effort));
            text(" (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
            if (!is_system) {
                out_.cuts.push_back({out_.text.size(), BorderKind::system_end});
            }
        }
        switch (turn.role) {
            case Role::system:
                content(turn.blocks[0]);
                if (index == 0) {
                    write_tools();
                    write_response_format();
                }
                break;
            case Role::reminder:
                control(Control::reminder);
                content(turn.blocks[0]);
                break;
            case Role::assistant:
                write_assistant(turn.blocks[0],
                                request_.continues_last && index + 1 == turns_.size());
                break;
            default:
                write_user(turn);
        }
    }

    void write_user(Turn& turn) {
        control(Control::user);
        const char* separator = "";
        for (ChatMessage& block : turn.blocks) {
            text(std::exchange(separator, "\n\n"));
            const bool is_result = block.role == Role::tool;
            text(is_result ? "<tool_result>" : "");
            content(block);
            text(is_result ? "</tool_result>" : "");
        }
    }

    void write_assistant(ChatMessage& message, bool is_continued) {
        const size_t first_mark = out_.marks.size();
        control(Control::assistant);
        // With tools in the request the reasoning of every turn is kept, without them only that of
        // a continued one.
        const bool shows_reasoning = request_.thinking && (offers_tools_ || is_continued);
        const bool is_open =
            shows_reasoning && is_continued && message.has_empty_content() && message.calls.empty();
        if (shows_reasoning) {
            control(Control::think_open);
            text(message.reasoning);
        }
        if (!is_open) {
            control(Control::think_close);
            content(message);
            write_calls(message);
        }
        if (!is_continued) {
            control(Control::eos);
            add_reply(first_mark, shows_reasoning, message);
        } else if (!request_.thinking) {
            out_.start = ReplyStart::content;
        } else if (!is_open) {
            out_.start = ReplyStart::content_continued;
        } else {
            out_.start =
                message.reasoning.empty() ? ReplyStart::reasoning : ReplyStart::reasoning_continued;
        }
    }

    /// What finds the ids of this turn. The text is written, so the message may go.
    void add_reply(size_t mark, bool shows_reasoning, ChatMessage& message) {
        ChatPrompt::Reply reply;
        reply.mark = mark;
        reply.shows_reasoning = shows_reasoning;
        reply.reasoning = std::move(message.reasoning);
        for (size_t i = 0; i < message.content.size(); ++i) {
            reply.content += i > 0 ? "\n\n" : "";
            reply.content += message.content[i].text;
        }
        reply.calls = std::move(message.calls);
        for (HistoryCall& call : reply.calls) {
            call.parameters.clear();
        }
        out_.replies.push_back(std::move(reply));
    }

    void write_calls(const ChatMessage& message) {
        if (message.calls.empty()) {
            return;
        }
        text("\n\n");
        tag("<", " calls>\n");
        for (const HistoryCall& call : message.calls) {
            tag("<", " invoke name=\"");
            text(call.name);
            text("\">\n");
            const char* separator = "";
            for (const auto& [key, value] : call.parameters) {
                text(std::exchange(separator, "\n"));
                tag("<", " parameter name=\"");
                text(key);
                const std::string* string = value.string();
                text(string != nullptr ? "\" string=\"true\">" : "\" string=\"false\">");
                text(string != nullptr ? *string : to_json(value));
                tag("</", " parameter>");
            }
            text("\n");
            tag("</", " invoke>\n");
        }
        tag("</", " calls>");
    }

    void write_tools() {
        if (!offers_tools_) {
            return;
        }
        text(
            "\n\n## Tools\n\n"
            "You have access to a set of tools to help answer the user's question. You can invoke "
            "tools by writing a \"");
        tag("<", " calls>\" block like the following:\n\n");
        tag("<", " calls>\n");
        tag("<", " invoke name=\"$TOOL_NAME\">\n");
        tag("<", " parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE");
        tag("</", " parameter>\n...\n");
        tag("</", " invoke>\n");
        tag("<", " invoke name=\"$TOOL_NAME2\">\n...\n");
        tag("</", " invoke>\n");
        tag("</", " calls>\n\n");
        text(
            "String parameters should be specified as is and set `string=\"true\"`. For all other "
            "types (numbers, "
            "booleans, arrays, objects), pass the value in JSON format and set "
            "`string=\"false\"`.\n\n"
            "If thinking_mode is enabled (triggered by ");
        control(Control::think_open);
        text("), you MUST output your complete reasoning inside ");
        control(Control::think_open);
        text("...");
        control(Control::think_close);
        text(" BEFORE any tool calls or final response.\n\nOtherwise, output directly after ");
        control(Control::think_close);
        text(" with tool calls or final response.\n\n### Available Tool Schemas\n\n");
        const char* separator = "";
        for (const std::string& line : request_.tool_lines) {
            text(std::exchange(separator, "\n"));
            text(line);
        }
        text(
            "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to "
            "invoke tool calls.\n");
    }

    void write_response_format() {
        if (!request_.response_schema.empty()) {
            text(
                "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to "
                "reply:\n");
            text(request_.response_schema);
        }
    }

    /// The generation header, or the task token in its place.
    void write_header() {
        out_.start =
            request_.thinking && !request_.task ? ReplyStart::reasoning : ReplyStart::content;
        if (!request_.task || *request_.task == Control::action) {
            control(Control::assistant);
            control(request_.thinking ? Control::think_open : Control::think_close);
        }
        if (request_.task) {
            control(*request_.task);
        }
    }

    /// The end of turn `next` - 1. The system part ends with the last of the leading system
    /// messages.
    void cut(size_t next) {
        const bool was_leading =
            std::all_of(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(next),
                        [](const Turn& t) { return t.role == Role::system; });
        const bool goes_on = next < turns_.size() && turns_[next].role == Role::system;
        out_.cuts.push_back({out_.text.size(), was_leading && !goes_on ? BorderKind::system_end
                                                                       : BorderKind::message_end});
    }

    void content(ChatMessage& message) {
        const char* separator = "";
        for (ContentPart& part : message.content) {
            text(std::exchange(separator, "\n\n"));
            if (part.is_image) {
                control(Control::image);
                out_.images.push_back({std::move(part.text), std::move(part.path)});
            } else {
                text(part.text);
            }
        }
    }

    void text(std::string_view piece) { out_.text += piece; }
    void control(Control token) {
        out_.marks.push_back({out_.text.size(), token});
        out_.text += control_text(token);
    }
    /// A tag of the call markup: the marker between ordinary text.
    void tag(std::string_view before, std::string_view after) {
        text(before);
        control(Control::dsml);
        text(after);
    }

    ChatRequest request_;
    bool offers_tools_ = false, carries_system_ = false;
    std::vector<Turn> turns_;
    ChatPrompt out_;
};

}  // namespace

ChatPrompt write_chat_prompt(ChatRequest request) {
    return PromptWriter(std::move(request)).run();
}

namespace {

/// Ids of a turn whose header's first token is the last of `ids`; empty: not known. `told`: how
/// many of `ids` the replay has seen.
Span<const int32_t> find_reply(const ChatPrompt::Reply& reply, Span<const int32_t> ids,
                               TurnReplay& replay, size_t* told) {
    replay.add_prompt(ids.subspan(*told, ids.size - *told));
    *told = ids.size;
    std::vector<VisibleCall> calls;
    for (const HistoryCall& call : reply.calls) {
        calls.push_back({call.id, call.name, call.arguments});
    }
    return replay.find({reply.reasoning, reply.content, calls}, reply.shows_reasoning);
}

}  // namespace

Result<EncodedPrompt> encode_chat_prompt(const ChatPrompt& prompt, const Tokenizer& tokenizer,
                                         const ControlTokens& controls,
                                         Tokenizer::Specials specials, TurnReplay* replay) {
    EncodedPrompt out;
    Tokenizer::Scratch scratch = tokenizer.make_scratch();
    const int32_t image_id = controls.id(Control::image);
    const std::string_view text = prompt.text;
    auto next_cut = prompt.cuts.begin();
    auto next_reply = prompt.replies.begin();
    size_t told = 0;
    size_t at = 0;
    for (size_t i = 0; i <= prompt.marks.size(); ++i) {
        const size_t end = i < prompt.marks.size() ? prompt.marks[i].offset : text.size();
        const size_t first = out.ids.size();
        TENON_TRY(tokenizer.encode(text.substr(at, end - at), specials, scratch, out.ids));
        if (specials == Tokenizer::Specials::parsed && image_id >= 0 &&
            std::find(out.ids.begin() + static_cast<std::ptrdiff_t>(first), out.ids.end(),
                      image_id) != out.ids.end()) {
            return error(Code::invalid_argument,
                         "messages: a text holds '{}', which text_specials = true makes an image",
                         control_text(Control::image));
        }
        for (; next_cut != prompt.cuts.end() && next_cut->offset == end; ++next_cut) {
            out.borders.push_back(
                Border{.position = static_cast<int64_t>(out.ids.size()), .kind = next_cut->kind});
        }
        if (i == prompt.marks.size()) {
            break;
        }
        const Control control = prompt.marks[i].control;
        const int32_t id = controls.id(control);
        if (id < 0) {
            return error(
                Code::unsupported,
                "this request needs the token '{}', which the model's tokenizer.json lacks",
                control_text(control));
        }
        if (control == Control::image) {
            out.image_positions.push_back(static_cast<int64_t>(out.ids.size()));
        }
        out.ids.push_back(id);
        at = end + control_text(control).size();
        if (replay == nullptr || next_reply == prompt.replies.end() || next_reply->mark != i) {
            continue;
        }
        const Span<const int32_t> known = find_reply(*next_reply++, out.ids, *replay, &told);
        const int32_t marker = controls.id(prompt.marks[i + 1].control);
        if (known.empty() || marker < 0) {
            continue;
        }
        // The second token of the header, the reply as it was sampled, and on at its end token.
        out.ids.push_back(marker);
        out.ids.insert(out.ids.end(), known.begin(), known.end());
        for (++i; prompt.marks[i + 1].control != Control::eos; ++i) {
        }
        at = prompt.marks[i + 1].offset;
    }
    // The last prompt token is the first decode row, so no other border may lie at it or behind it.
    const auto last = static_cast<int64_t>(out.ids.size()) - 1;
    out.borders.erase(std::remove_if(out.borders.begin(), out.borders.end(),
                                     [&](const Border& b) { return b.position >= last; }),
                      out.borders.end());
    out.borders.push_back(Border{.position = last, .kind = BorderKind::last_header});
    return out;
}

}  // namespace tenon::dsv41
