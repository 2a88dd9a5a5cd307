// SPDX-License-Identifier: MIT
// Turns the parameters of one tool call, as the model spells them, into a stream of JSON arguments.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "tenon/base.h"

namespace tenon::dsv41 {

/// Names of the parameters of each offered tool.
class ToolTable {
  public:
    /// "" offers none; an empty array offers tools whose parameters are not known.
    /// errors  invalid_argument: not a JSON array
    static Result<ToolTable> parse(std::string_view tools_json);
    bool offers_tools() const { return offers_tools_; }
    /// Null if the tool is unknown or its schema names no properties.
    const std::set<std::string>* properties(const std::string& tool) const;

  private:
    std::map<std::string, std::set<std::string>> properties_;
    bool offers_tools_ = false;
};

/// Arguments of one call. Text goes out as soon as its meaning is certain; `out` collects it.
///
/// A call whose only parameter is `arguments` or `input`, unknown to the tool, is unwrapped: its
/// object becomes the arguments. So such a parameter is held until the call ends or a second one
/// begins.
class CallWriter {
  public:
    CallWriter(const ToolTable& tools, const std::string& tool)
        : properties_(tools.properties(tool)) {}

    void begin_parameter(std::string& out);
    void key(std::string_view piece, std::string& out);
    void end_key(std::string& out);
    /// is_string  the attribute string="true"
    void begin_value(bool is_string, std::string& out);
    void value(std::string_view piece, std::string& out);
    void end_value(std::string& out);
    void end_call(std::string& out);
    /// The reply ends inside the call: what is held goes out as it stands, nothing is closed.
    void cut(std::string& out);

  private:
    enum class Place { between, in_key, behind_key, in_value };

    bool may_be_wrapper(std::string_view name_start) const;
    bool unwrap(std::string& out) const;
    void release(std::string& out);

    const std::set<std::string>* properties_;
    Place place_ = Place::between;
    int parameters_ = 0;
    std::string held_;      // JSON text of a possible wrapper
    bool is_held_ = false;  // all output goes to held_
    std::string name_;      // key so far, while it may become a wrapper's
    std::string value_;     // raw value: of a wrapper, or not a string
    bool is_string_ = false;
};

}  // namespace tenon::dsv41
