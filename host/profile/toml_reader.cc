// SPDX-License-Identifier: MIT
// toml++ behind value.h; the only file that includes it. Header-only with its assertion emptied:
// the packaged library aborts on the input "[:".
#define TOML_HEADER_ONLY 1
#define TOML_ASSERT(expr) static_cast<void>(0)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <toml++/toml.h>
#pragma GCC diagnostic pop

#include <fstream>
#include <sstream>

#include "host/profile/value.h"

namespace tenon {
namespace {

constexpr size_t kMaxFile = 4 << 20;

SourcePlace place_of(const toml::source_region& region, const std::string& file) {
    return {file, region.begin.line, region.begin.column};
}

Value convert(const toml::node& node, const std::string& file) {
    Value v;
    v.place = place_of(node.source(), file);
    switch (node.type()) {
        case toml::node_type::boolean:
            v.kind = ValueKind::boolean;
            v.boolean = node.as_boolean()->get();
            break;
        case toml::node_type::integer:
            v.kind = ValueKind::integer;
            v.integer = node.as_integer()->get();
            break;
        case toml::node_type::floating_point:
            v.kind = ValueKind::floating;
            v.floating = node.as_floating_point()->get();
            break;
        case toml::node_type::string:
            v.kind = ValueKind::string;
            v.string = node.as_string()->get();
            break;
        case toml::node_type::array:
            v.kind = ValueKind::list;
            for (const toml::node& item : *node.as_array()) {
                v.list.push_back(convert(item, file));
            }
            break;
        case toml::node_type::table:
            v.kind = ValueKind::table;
            for (const auto& [key, item] : *node.as_table()) {
                Value child = convert(item, file);
                child.key_place = place_of(key.source(), file);
                v.table.emplace_back(std::string(key.str()), std::move(child));
            }
            break;
        default:
            v.kind = ValueKind::other;
    }
    return v;
}

}  // namespace

Result<Value> parse_toml_text(std::string_view text, const std::string& shown_as) {
    try {
        return convert(toml::parse(text, std::string_view(shown_as)), shown_as);
    } catch (const toml::parse_error& e) {
        const SourcePlace at = place_of(e.source(), shown_as);
        return error(Code::invalid_argument, "{}: {}", at.text(), std::string(e.description()));
    }
}

Result<Value> parse_toml_file(const std::string& path, const std::string& shown_as) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return error(Code::not_found, "{}: cannot be opened: {}", shown_as, std::strerror(errno));
    }
    std::ostringstream text;
    text << file.rdbuf();
    if (file.bad() || text.str().size() > kMaxFile) {
        return error(Code::invalid_argument, "{}: is not a readable profile (at most {} bytes)",
                     shown_as, kMaxFile);
    }
    return parse_toml_text(text.str(), shown_as);
}

Result<Value> parse_toml_value(const std::string& text, const std::string& shown_as) {
    if (text.find('\n') != std::string::npos) {
        return error(Code::invalid_argument, "{}: a value must be one line", shown_as);
    }
    TENON_ASSIGN(Value document, parse_toml_text("value = " + text, shown_as));
    Value* value = document.find("value");
    if (value == nullptr || document.table.size() != 1) {
        return error(Code::invalid_argument, "{}: '{}' is not one TOML value", shown_as, text);
    }
    return std::move(*value);
}

}  // namespace tenon
