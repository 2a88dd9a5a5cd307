// SPDX-License-Identifier: MIT
// A chat completion request, checked field by field and brought into the shape that the prompt is
// written from.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tenon/base.h"
#include "text/control_tokens.h"
#include "text/json.h"

namespace tenon::dsv41 {

/// What a request leaves open.
struct ChatDefaults {
    bool thinking = true;
    int32_t effort = 75;
    /// Names of efforts; "none" is chat mode and not listed.
    std::vector<std::pair<std::string, int32_t>> efforts = {
        {"minimal", 50}, {"low", 50},  {"medium", 75}, {"high", 75},
        {"xhigh", 75},   {"max", 100}, {"ultra", 100}};
};

/// errors  invalid_argument: not an object of name -> integer 1…100
Status parse_efforts(std::string_view json, ChatDefaults& defaults);

enum class Role : uint32_t { system, user, assistant, tool, reminder };

/// A stretch of message content: text, or an image where its placeholder goes.
struct ContentPart {
    bool is_image = false;
    std::string text;  ///< the text, or the image's URL
    std::string path;  ///< of an image: its place in the request, for messages
};

struct HistoryCall {
    std::string id, name;
    /// Parameters in order; a value is any JSON.
    Json::Object parameters;
    std::string arguments;  ///< as the client sent them, JSON text
};

struct ChatMessage {
    Role role = Role::user;
    std::vector<ContentPart> content;  ///< joined by two newlines
    std::string reasoning;
    std::vector<HistoryCall> calls;
    std::string tool_call_id;
    bool is_prefix = false;

    bool has_empty_content() const {
        return content.empty() ||
               (content.size() == 1 && !content[0].is_image && content[0].text.empty());
    }
};

struct ChatRequest {
    std::vector<ChatMessage> messages;
    std::vector<std::string>
        tool_lines;          ///< one JSON object each, as the prompt shows it; empty: none offered
    std::string tools_json;  ///< the offered tools as the client sent them, "" if none
    std::string response_schema;  ///< JSON under "Response Format", "" if none was asked
    bool asks_json_object =
        false;  ///< JSON without a schema; schemas are enforced by a grammar alone
    bool parallel_tool_calls = true;
    bool thinking = true;
    int32_t effort = 75;
    bool continues_last =
        false;  ///< the last message is an assistant's and the reply goes on from it
    std::optional<Control> task;
};

/// Checks and reads a request body. Unknown keys are ignored, sampling keys are the front end's.
///
/// errors  invalid_argument: names the field, like "messages[2].content: …"
Result<ChatRequest> parse_chat_request(std::string_view body, const ChatDefaults& defaults);

}  // namespace tenon::dsv41
