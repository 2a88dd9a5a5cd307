// SPDX-License-Identifier: MIT
// Validation of chat requests (docs/chat-encoding.md 3 and 5): refuses what the reference refuses,
// except for the histories that local agents cut.
#include "text/chat_request.h"

#include <algorithm>
#include <set>

namespace tenon::dsv41 {

namespace {

template <class... Args>
Status bad(std::string_view field, std::string_view text, const Args&... args) {
    return error(Code::invalid_argument, "{}: {}", field, format(text, args...));
}

bool is_absent(const Json* value) {
    return value == nullptr || value->is_null();
}

/// Client text for a message: short, and cut on a character border.
std::string brief(std::string_view text) {
    constexpr size_t kLongest = 80;
    if (text.size() <= kLongest) {
        return std::string(text);
    }
    size_t end = kLongest;
    while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
        --end;
    }
    return std::string(text.substr(0, end)) + "…";
}

/// Reads an optional boolean; null counts as absent.
Status read_flag(const Json& object, const char* key, std::string_view field, bool& out) {
    const Json* value = object.find(key);
    if (is_absent(value)) {
        return {};
    }
    if (value->boolean() == nullptr) {
        return bad(field, "expected a boolean, found {}", value->kind());
    }
    out = *value->boolean();
    return {};
}

class RequestParser {
  public:
    RequestParser(Json& body, const ChatDefaults& defaults) : body_(body), defaults_(defaults) {}

    Result<ChatRequest> run() {
        if (body_.object() == nullptr) {
            return bad("request", "expected an object, found {}", body_.kind());
        }
        TENON_TRY(read_messages());
        TENON_TRY(read_continuation());
        TENON_TRY(read_tools());
        TENON_TRY(read_tool_choice());
        TENON_TRY(read_response_format());
        TENON_TRY(read_flag(body_, "parallel_tool_calls", "parallel_tool_calls",
                            request_.parallel_tool_calls));
        TENON_TRY(read_thinking());
        TENON_TRY(read_task());
        return std::move(request_);
    }

  private:
    Status read_messages() {
        Json* messages = body_.find("messages");
        if (messages == nullptr || messages->array() == nullptr) {
            return bad("messages", "expected an array, found {}",
                       messages == nullptr ? "nothing" : messages->kind());
        }
        if (messages->array()->empty()) {
            return bad("messages", "the list is empty; at least one message is needed");
        }
        for (size_t i = 0; i < messages->array()->size(); ++i) {
            TENON_TRY(read_message((*messages->array())[i], format("messages[{}]", i)));
        }
        return {};
    }

    Status read_message(Json& json, const std::string& field) {
        if (json.object() == nullptr) {
            return bad(field, "expected an object, found {}", json.kind());
        }
        ChatMessage message;
        const Json* role = json.find("role");
        if (role == nullptr || role->string() == nullptr) {
            return bad(field + ".role", "missing or not a string");
        }
        static constexpr std::pair<std::string_view, Role> kRoles[] = {
            {"system", Role::system}, {"developer", Role::system},
            {"user", Role::user},     {"assistant", Role::assistant},
            {"tool", Role::tool},     {"latest_reminder", Role::reminder}};
        const auto* known =
            std::find_if(std::begin(kRoles), std::end(kRoles),
                         [&](const auto& entry) { return entry.first == *role->string(); });
        if (known == std::end(kRoles)) {
            return bad(field + ".role",
                       "unknown role '{}'; expected system, developer, user, assistant, tool or "
                       "latest_reminder",
                       brief(*role->string()));
        }
        message.role = known->second;
        TENON_TRY(read_content(json.find("content"), field + ".content", message));
        TENON_TRY(read_flag(json, "prefix", field + ".prefix", message.is_prefix));
        if (message.role == Role::assistant) {
            TENON_TRY(read_reasoning(json, field, message));
            TENON_TRY(read_calls(json.find("tool_calls"), field + ".tool_calls", message));
        }
        if (message.role == Role::tool) {
            Json* id = json.find("tool_call_id");
            if (!is_absent(id)) {
                TENON_TRY(take_string(id, field + ".tool_call_id", message.tool_call_id));
            }
        }
        request_.messages.push_back(std::move(message));
        return {};
    }

    static Status take_string(Json* value, const std::string& field, std::string& out) {
        if (value == nullptr || value->string() == nullptr) {
            return bad(field, "expected a string, found {}",
                       value == nullptr ? "nothing" : value->kind());
        }
        out = std::move(*value->string());
        return {};
    }

    static Status read_content(Json* content, const std::string& field, ChatMessage& message) {
        const bool is_assistant = message.role == Role::assistant;
        if (is_absent(content)) {
            return is_assistant ? Status()
                                : bad(field, "missing; expected a string or a list of parts");
        }
        if (content->string() != nullptr) {
            message.content.emplace_back();
            message.content.back().text = std::move(*content->string());
            return {};
        }
        if (content->array() == nullptr || message.role == Role::reminder) {
            return bad(field, "expected a string{}, found {}",
                       message.role == Role::reminder ? "" : " or a list of parts",
                       content->kind());
        }
        for (size_t i = 0; i < content->array()->size(); ++i) {
            Json& part = (*content->array())[i];
            const std::string part_field = format("{}[{}]", field, i);
            const Json* type = part.find("type");
            if (type == nullptr || type->string() == nullptr) {
                return bad(part_field, "expected an object with a type");
            }
            ContentPart read;
            if (*type->string() == "text") {
                TENON_TRY(take_string(part.find("text"), part_field + ".text", read.text));
            } else if (*type->string() == "image_url" && !is_assistant) {
                Json* url = part.find("image_url");
                TENON_TRY(take_string(url == nullptr ? nullptr : url->find("url"),
                                      part_field + ".image_url.url", read.text));
                const auto has_scheme = [&](std::string_view scheme) {
                    return read.text.compare(0, scheme.size(), scheme) == 0;
                };
                if (!has_scheme("data:") && !has_scheme("http://") && !has_scheme("https://")) {
                    return bad(part_field + ".image_url.url",
                               "expected a data:, http: or https: URL");
                }
                read.is_image = true;
                read.path = part_field;
            } else if (*type->string() == "image_url") {
                return bad(part_field, "an assistant message cannot hold an image");
            } else {
                return bad(part_field + ".type",
                           "'{}' is not supported; expected text or image_url",
                           brief(*type->string()));
            }
            message.content.push_back(std::move(read));
        }
        return {};
    }

    static Status read_reasoning(Json& json, const std::string& field, ChatMessage& message) {
        for (const char* key : {"reasoning_content", "reasoning"}) {
            Json* value = json.find(key);
            if (!is_absent(value)) {
                return take_string(value, field + "." + key, message.reasoning);
            }
        }
        return {};
    }

    static Status read_calls(Json* calls, const std::string& field, ChatMessage& message) {
        if (is_absent(calls)) {
            return {};
        }
        if (calls->array() == nullptr) {
            return bad(field, "expected an array, found {}", calls->kind());
        }
        for (size_t i = 0; i < calls->array()->size(); ++i) {
            Json& json = (*calls->array())[i];
            const std::string call_field = format("{}[{}]", field, i);
            TENON_TRY(check_function_type(json, call_field));
            Json& function = *json.find("function");
            HistoryCall call;
            TENON_TRY(take_string(function.find("name"), call_field + ".function.name", call.name));
            if (Json* id = json.find("id"); !is_absent(id)) {
                TENON_TRY(take_string(id, call_field + ".id", call.id));
            }
            TENON_TRY(read_arguments(function.find("arguments"), call_field + ".function.arguments",
                                     call));
            message.calls.push_back(std::move(call));
        }
        return {};
    }

    /// Arguments that are no JSON object are kept whole, as one string parameter.
    static Status read_arguments(Json* arguments, const std::string& field, HistoryCall& call) {
        if (arguments != nullptr && arguments->object() != nullptr) {
            call.arguments = to_json(*arguments);
            call.parameters = std::move(*arguments->object());
            return {};
        }
        std::string text;
        TENON_TRY(take_string(arguments, field, text));
        call.arguments = text;
        Result<Json> parsed = parse_json(text);
        if (parsed.ok() && parsed->object() != nullptr) {
            call.parameters = std::move(*parsed->object());
        } else {
            call.parameters.emplace_back("arguments", Json(Json::Value(std::move(text))));
        }
        return {};
    }

    /// `{"type": "function", "function": {…}}`
    static Status check_function_type(const Json& json, const std::string& field) {
        if (json.object() == nullptr) {
            return bad(field, "expected an object, found {}", json.kind());
        }
        const Json* type = json.find("type");
        if (type == nullptr || type->string() == nullptr || *type->string() != "function") {
            return bad(field + ".type", "expected \"function\", found {}",
                       type == nullptr ? "nothing" : brief(to_json(*type)));
        }
        const Json* function = json.find("function");
        if (function == nullptr || function->object() == nullptr) {
            return bad(field + ".function", "expected an object, found {}",
                       function == nullptr ? "nothing" : function->kind());
        }
        return {};
    }

    Status read_continuation() {
        bool continue_final = false;
        TENON_TRY(
            read_flag(body_, "continue_final_message", "continue_final_message", continue_final));
        for (size_t i = 0; i < request_.messages.size(); ++i) {
            const ChatMessage& message = request_.messages[i];
            const bool can_continue =
                i + 1 == request_.messages.size() && message.role == Role::assistant;
            if (message.is_prefix && !can_continue) {
                return bad(format("messages[{}].prefix", i),
                           "only the last message, from the assistant, can be a prefix");
            }
            request_.continues_last = can_continue && (message.is_prefix || continue_final);
        }
        return {};
    }

    Status read_tools() {
        const Json* tools = body_.find("tools");
        if (is_absent(tools)) {
            return {};
        }
        if (tools->array() == nullptr) {
            return bad("tools", "expected an array, found {}", tools->kind());
        }
        for (size_t i = 0; i < tools->array()->size(); ++i) {
            const Json& tool = (*tools->array())[i];
            const std::string field = format("tools[{}]", i);
            TENON_TRY(check_function_type(tool, field));
            TENON_TRY(read_tool(*tool.find("function"), field + ".function"));
        }
        if (!tools->array()->empty()) {
            request_.tools_json = to_json(*tools);
        }
        return {};
    }

    Status read_tool(const Json& function, const std::string& field) {
        const Json* name = function.find("name");
        if (name == nullptr || name->string() == nullptr) {
            return bad(field + ".name", "missing or not a string");
        }
        if (!is_usable_name(*name->string())) {
            return bad(field + ".name",
                       "'{}' is empty or has a quote, an angle bracket or a control character",
                       brief(*name->string()));
        }
        if (!names_.insert(*name->string()).second) {
            return bad(field + ".name", "'{}' is the name of another tool; names must differ",
                       brief(*name->string()));
        }
        const Json* description = function.find("description");
        if (!is_absent(description) && description->string() == nullptr) {
            return bad(field + ".description", "expected a string, found {}", description->kind());
        }
        const Json* parameters = function.find("parameters");
        if (!is_absent(parameters) && parameters->object() == nullptr) {
            return bad(field + ".parameters", "expected an object, found {}", parameters->kind());
        }
        std::string line = "{\"name\": ";
        append_json_string(line, *name->string());
        line += ", \"description\": ";
        append_json_string(line, is_absent(description) ? std::string_view()
                                                        : std::string_view(*description->string()));
        line += ", \"parameters\": ";
        line += is_absent(parameters) ? "{}" : to_json(*parameters);
        line += '}';
        request_.tool_lines.push_back(std::move(line));
        return {};
    }

    /// The name stands between quotes in a tag of the prompt, without escaping.
    static bool is_usable_name(std::string_view name) {
        for (size_t i = 0; i < name.size(); ++i) {
            const auto byte = static_cast<unsigned char>(name[i]);
            const bool is_c1 = byte == 0xC2 && static_cast<unsigned char>(name[i + 1]) < 0xA0;
            if (byte < 0x20 || byte == 0x7F || is_c1 || byte == '"' || byte == '<' || byte == '>') {
                return false;
            }
        }
        return !name.empty();
    }

    Status read_tool_choice() {
        const Json* choice = body_.find("tool_choice");
        if (is_absent(choice)) {
            return {};
        }
        if (const std::string* word = choice->string()) {
            if (*word == "none") {
                request_.tool_lines.clear();
                request_.tools_json.clear();
            } else if (*word != "auto" && *word != "required") {
                return bad("tool_choice",
                           "'{}' is unknown; expected none, auto, required or a function",
                           brief(*word));
            }
            return {};
        }
        TENON_TRY(check_function_type(*choice, "tool_choice"));
        const Json* name = choice->find("function")->find("name");
        if (name == nullptr || name->string() == nullptr) {
            return bad("tool_choice.function.name", "missing or not a string");
        }
        // Without any tools the choice has no meaning, as in the reference.
        if (!names_.empty() && names_.count(*name->string()) == 0) {
            return bad("tool_choice.function.name", "no tool is named '{}'",
                       brief(*name->string()));
        }
        return {};
    }

    Status read_response_format() {
        const Json* response = body_.find("response_format");
        if (is_absent(response)) {
            return {};
        }
        const Json* type = response->find("type");
        if (type == nullptr || type->string() == nullptr) {
            return bad("response_format.type",
                       "missing; expected text, json_object or json_schema");
        }
        if (*type->string() == "json_object") {
            request_.response_schema = "{\"type\": \"json_object\"}";
            request_.asks_json_object = true;
        } else if (*type->string() == "json_schema") {
            const Json* wrapper = response->find("json_schema");
            const Json* schema = wrapper == nullptr ? nullptr : wrapper->find("schema");
            if (schema == nullptr ||
                (schema->object() == nullptr && schema->boolean() == nullptr)) {
                return bad("response_format.json_schema.schema", "expected a schema, found {}",
                           schema == nullptr ? "nothing" : schema->kind());
            }
            request_.response_schema = to_json(*schema);
        } else if (*type->string() != "text") {
            return bad("response_format.type",
                       "'{}' is unknown; expected text, json_object or json_schema",
                       brief(*type->string()));
        }
        return {};
    }

    Status read_thinking() {
        const Json* extra = body_.find("chat_template_kwargs");
        static const Json kNothing;
        if (is_absent(extra)) {
            extra = &kNothing;
        } else if (extra->object() == nullptr) {
            return bad("chat_template_kwargs", "expected an object, found {}", extra->kind());
        }

        const Json* effort = body_.find("reasoning_effort");
        std::string field = "reasoning_effort";
        if (is_absent(effort)) {
            effort = extra->find("reasoning_effort");
            field = "chat_template_kwargs.reasoning_effort";
        }
        bool is_none = false;
        request_.effort = defaults_.effort;
        request_.thinking = defaults_.thinking;
        if (!is_absent(effort)) {
            TENON_TRY(read_effort(*effort, field, is_none));
            request_.thinking = !is_none;
        }
        // The weakest switch first, so that a stronger one overwrites it.
        TENON_TRY(read_switch(body_.find("thinking"), "thinking"));
        TENON_TRY(read_switch(extra->find("thinking"), "chat_template_kwargs.thinking"));
        return read_flag(*extra, "enable_thinking", "chat_template_kwargs.enable_thinking",
                         request_.thinking);
    }

    Status read_effort(const Json& effort, const std::string& field, bool& is_none) {
        int64_t number = 0;
        if (effort.integer(number) && number >= 1 && number <= 100) {
            request_.effort = static_cast<int32_t>(number);
            return {};
        }
        if (const std::string* name = effort.string()) {
            if (*name == "none") {
                is_none = true;
                return {};
            }
            for (const auto& [known, value] : defaults_.efforts) {
                if (known == *name) {
                    request_.effort = value;
                    return {};
                }
            }
        }
        std::string names = "none";
        for (const auto& entry : defaults_.efforts) {
            names += ", " + entry.first;
        }
        return bad(field, "{} is no effort; expected an integer 1 to 100 or one of {}",
                   brief(to_json(effort)), names);
    }

    Status read_switch(const Json* value, const std::string& field) {
        if (is_absent(value)) {
            return {};
        }
        if (value->boolean() != nullptr) {
            request_.thinking = *value->boolean();
            return {};
        }
        const Json* type = value->find("type");
        const std::string_view word =
            type != nullptr && type->string() != nullptr ? *type->string() : std::string_view();
        if (word != "enabled" && word != "adaptive" && word != "disabled") {
            return bad(field,
                       "expected a boolean or {\"type\": \"enabled\", \"adaptive\" or "
                       "\"disabled\"}, found {}",
                       brief(to_json(*value)));
        }
        request_.thinking = word != "disabled";
        return {};
    }

    Status read_task() {
        const Json* task = body_.find("task");
        if (is_absent(task)) {
            return {};
        }
        static constexpr std::pair<std::string_view, Control> kTasks[] = {
            {"action", Control::action},       {"query", Control::query},
            {"authority", Control::authority}, {"domain", Control::domain},
            {"title", Control::title},         {"read_url", Control::read_url}};
        for (const auto& [name, control] : kTasks) {
            if (task->string() != nullptr && *task->string() == name) {
                request_.task = control;
            }
        }
        if (!request_.task) {
            return bad(
                "task",
                "{} is unknown; expected action, query, authority, domain, title or read_url",
                brief(to_json(*task)));
        }
        if (request_.continues_last) {
            return bad("task", "a task cannot go with the continuation of a message");
        }
        return {};
    }

    Json& body_;
    const ChatDefaults& defaults_;
    ChatRequest request_;
    std::set<std::string> names_;  // of the tools
};

}  // namespace

Status parse_efforts(std::string_view json, ChatDefaults& defaults) {
    TENON_ASSIGN(const Json table, parse_json(json));
    if (table.object() == nullptr) {
        return bad("efforts", "expected a table of names and integers, found {}", table.kind());
    }
    defaults.efforts.clear();
    for (const auto& [name, value] : *table.object()) {
        int64_t number = 0;
        if (!value.integer(number) || number < 1 || number > 100) {
            return bad("efforts." + name, "expected an integer 1 to 100, found {}",
                       brief(to_json(value)));
        }
        if (name == "none") {
            return bad("efforts.none", "the name is reserved: it turns thinking off");
        }
        defaults.efforts.emplace_back(name, static_cast<int32_t>(number));
    }
    return {};
}

Result<ChatRequest> parse_chat_request(std::string_view body, const ChatDefaults& defaults) {
    Result<Json> parsed = parse_json(body);
    if (!parsed.ok()) {
        return parsed.status().with_context("request");
    }
    return RequestParser(*parsed, defaults).run();
}

}  // namespace tenon::dsv41
