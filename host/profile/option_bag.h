// SPDX-License-Identifier: MIT
// Validated options of one section: checks values against OptionSpecs and owns what an Options view
// points to.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "host/profile/value.h"
#include "tenon/plugin.h"

namespace tenon {

/// Owns the strings behind a tenon::Options. Movable; views stay valid.
class OptionBag {
  public:
    OptionBag() = default;

    /// Adds the value of one spec: from `value`, or its default if null.
    ///
    /// section  "[engram] (plugin 'io_uring')", for messages
    /// folder   relative paths are taken from here
    /// errors   invalid_argument: "file:line:column: …"
    Status add(const OptionSpec& spec, const Value* value, const std::string& section,
               const std::string& folder);

    Options view(StrView section) const { return {section, values_}; }
    Options view() const { return view(section_); }
    void set_section(std::string section) { section_ = std::move(section); }
    const std::string& section() const { return section_; }

    bool is_set(StrView key) const;
    bool flag(StrView key) const { return view().flag(key); }
    int64_t integer(StrView key) const { return view().integer(key); }
    double number(StrView key) const { return view().number(key); }
    std::string text(StrView key) const { return view().text(key).str(); }
    std::vector<std::string> list(StrView key) const;

    /// One line a key, for `explain` and the digest: key, value as written, where it came from,
    /// tag.
    struct Row {
        std::string key, value, origin;
        std::string meaning;  ///< equal for equal values, however they were written
        OptionTag tag = OptionTag::local;
        OptionType type = OptionType::string;
    };
    const std::vector<Row>& rows() const { return rows_; }

  private:
    StrView keep(std::string text);
    void finish(const OptionSpec& spec, const OptionValue& out, std::string shown,
                std::string origin);

    std::vector<OptionValue> values_;
    std::vector<Row> rows_;
    std::list<std::string> texts_;  // addresses stay
    std::list<std::vector<StrView>> lists_;
    std::string section_;
};

}  // namespace tenon
