// SPDX-License-Identifier: MIT
// Arguments JSON, piece by piece (docs/chat-encoding.md 6, repairs R1, R2, R4, R5).
#include "text/call_writer.h"

#include <algorithm>

#include "text/json.h"

namespace tenon::dsv41 {

namespace {

constexpr std::string_view kWrappers[] = {"arguments", "input"};

}  // namespace

Result<ToolTable> ToolTable::parse(std::string_view tools_json) {
    ToolTable table;
    if (tools_json.empty()) {
        return table;
    }
    TENON_ASSIGN(const Json tools, parse_json(tools_json));
    if (tools.array() == nullptr) {
        return error(Code::invalid_argument, "tools: expected an array, found {}", tools.kind());
    }
    table.offers_tools_ = true;
    for (const Json& tool : *tools.array()) {
        const Json* function = tool.find("function");
        const Json* name = function == nullptr ? nullptr : function->find("name");
        const Json* parameters = function == nullptr ? nullptr : function->find("parameters");
        const Json* properties = parameters == nullptr ? nullptr : parameters->find("properties");
        if (name == nullptr || name->string() == nullptr || properties == nullptr ||
            properties->object() == nullptr) {
            continue;
        }
        std::set<std::string>& names = table.properties_[*name->string()];
        for (const Json::Member& property : *properties->object()) {
            names.insert(property.first);
        }
    }
    return table;
}

const std::set<std::string>* ToolTable::properties(const std::string& tool) const {
    const auto found = properties_.find(tool);
    return found == properties_.end() || found->second.empty() ? nullptr : &found->second;
}

bool CallWriter::may_be_wrapper(std::string_view name_start) const {
    return parameters_ == 1 && properties_ != nullptr &&
           std::any_of(std::begin(kWrappers), std::end(kWrappers), [&](std::string_view wrapper) {
               return wrapper.substr(0, name_start.size()) == name_start &&
                      properties_->count(std::string(wrapper)) == 0;
           });
}

void CallWriter::begin_parameter(std::string& out) {
    release(out);
    ++parameters_;
    place_ = Place::in_key;
    name_.clear();
    value_.clear();
    is_held_ = may_be_wrapper("");
    (is_held_ ? held_ : out) += parameters_ == 1 ? "{\"" : ", \"";
}

void CallWriter::key(std::string_view piece, std::string& out) {
    if (is_held_) {
        name_ += piece;
    }
    append_json_escaped(is_held_ ? held_ : out, piece);
    if (is_held_ && !may_be_wrapper(name_)) {
        release(out);
    }
}

void CallWriter::end_key(std::string& out) {
    place_ = Place::behind_key;
    if (is_held_ &&
        std::find(std::begin(kWrappers), std::end(kWrappers), name_) == std::end(kWrappers)) {
        release(out);
    }
    (is_held_ ? held_ : out) += "\": ";
}

void CallWriter::begin_value(bool is_string, std::string& out) {
    place_ = Place::in_value;
    is_string_ = is_string;
    if (is_string) {
        (is_held_ ? held_ : out) += '"';
    }
}

void CallWriter::value(std::string_view piece, std::string& out) {
    if (is_string_) {
        append_json_escaped(is_held_ ? held_ : out, piece);
    }
    if (!is_string_ || is_held_) {
        value_ += piece;
    }
}

void CallWriter::end_value(std::string& out) {
    place_ = Place::between;
    std::string& target = is_held_ ? held_ : out;
    if (is_string_) {
        target += '"';
    } else if (is_json(value_)) {
        target += value_;
    } else {
        append_json_string(target, value_);
    }
}

void CallWriter::end_call(std::string& out) {
    if (is_held_ && unwrap(out)) {
        return;
    }
    release(out);
    out += parameters_ == 0 ? "{}" : "}";
}

void CallWriter::cut(std::string& out) {
    if (place_ == Place::in_value && !is_string_) {
        (is_held_ ? held_ : out) += value_;
    }
    release(out);
}

void CallWriter::release(std::string& out) {
    out += held_;
    held_.clear();
    is_held_ = false;
}

bool CallWriter::unwrap(std::string& out) const {
    Result<Json> inner = parse_json(value_);
    if (inner.ok() && inner->string() != nullptr) {
        inner = parse_json(std::string(*inner->string()));
    }
    if (!inner.ok() || inner->object() == nullptr) {
        return false;
    }
    for (const Json::Member& member : *inner->object()) {
        if (properties_->count(member.first) == 0) {
            return false;
        }
    }
    append_json(out, *inner);
    return true;
}

}  // namespace tenon::dsv41
