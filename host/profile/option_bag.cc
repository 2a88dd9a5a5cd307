// SPDX-License-Identifier: MIT
// Type, range and choice checks of profile values.
#include "host/profile/option_bag.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "host/profile/units.h"

namespace tenon {
namespace {

namespace fs = std::filesystem;

const char* expected_text(OptionType type) {
    switch (type) {
        case OptionType::boolean:
            return "a boolean";
        case OptionType::integer:
            return "an integer";
        case OptionType::floating:
            return "a number";
        case OptionType::size:
            return "bytes as an integer or a size like \"512 MiB\"";
        case OptionType::time:
            return "a time like \"30 s\" or \"200 ms\"";
        case OptionType::string_list:
        case OptionType::path_list:
            return "a string or a list of strings";
        case OptionType::table:
            return "a table";
        case OptionType::address:
            return "an address like \"127.0.0.1:8888\"";
        default:
            return "a string";
    }
}

/// A bound as a profile would write it.
std::string bound_text(OptionType type, double v) {
    if (type == OptionType::size) {
        return '"' + size_text(static_cast<int64_t>(v)) + '"';
    }
    if (type == OptionType::time) {
        return v < 1e6 ? format("\"{} ms\"", v / 1e3) : format("\"{} s\"", v / 1e6);
    }
    return v == std::floor(v) && std::fabs(v) < 1e15 ? std::to_string(static_cast<int64_t>(v))
                                                     : format("{}", v);
}

Status check_range(const OptionSpec& spec, double v, const Value& value,
                   const std::string& section) {
    if (spec.min == spec.max || (v >= spec.min && v <= spec.max)) {
        return {};
    }
    return error(Code::invalid_argument, "{}: {} = {} is out of range {}…{} in {}",
                 value.place.text(), spec.key, value.text(), bound_text(spec.type, spec.min),
                 bound_text(spec.type, spec.max), section);
}

bool is_choice(const char* choices, std::string_view text) {
    std::string_view rest = choices;
    while (true) {
        const size_t bar = rest.find('|');
        if (rest.substr(0, bar) == text) {
            return true;
        }
        if (bar == std::string_view::npos) {
            return false;
        }
        rest = rest.substr(bar + 1);
    }
}

Status check_address(const OptionSpec& spec, const Value& value, const std::string& section) {
    const size_t colon = value.string.rfind(':');
    const std::string port = colon == std::string::npos ? "" : value.string.substr(colon + 1);
    const bool digits = !port.empty() && port.size() <= 5 &&
                        port.find_first_not_of("0123456789") == std::string::npos;
    if (colon == 0 || !digits || std::stoi(port) > 65535) {
        return error(Code::invalid_argument, "{}: {} = {} in {} must be {}", value.place.text(),
                     spec.key, value.text(), section, expected_text(OptionType::address));
    }
    return {};
}

std::string absolute(const std::string& path, const std::string& folder) {
    const fs::path p(path);
    return (p.is_absolute() || path.empty() ? p : fs::path(folder) / p).lexically_normal().string();
}

nlohmann::ordered_json to_json(const Value& v) {
    switch (v.kind) {
        case ValueKind::boolean:
            return v.boolean;
        case ValueKind::integer:
            return v.integer;
        case ValueKind::floating:
            return v.floating;
        case ValueKind::string:
            return v.string;
        case ValueKind::list: {
            auto list = nlohmann::ordered_json::array();
            for (const Value& item : v.list) {
                list.push_back(to_json(item));
            }
            return list;
        }
        case ValueKind::table: {
            auto table = nlohmann::ordered_json::object();
            for (const auto& [key, item] : v.table) {
                table[key] = to_json(item);
            }
            return table;
        }
        case ValueKind::other:
            break;
    }
    return nullptr;
}

}  // namespace

StrView OptionBag::keep(std::string text) {
    texts_.push_back(std::move(text));
    return texts_.back();
}

bool OptionBag::is_set(StrView key) const {
    const OptionValue* v = view().find(key);
    return v != nullptr && v->is_set;
}

std::vector<std::string> OptionBag::list(StrView key) const {
    std::vector<std::string> out;
    for (const StrView& s : view().list(key)) {
        out.push_back(s.str());
    }
    return out;
}

void OptionBag::finish(const OptionSpec& spec, const OptionValue& out, std::string shown,
                       std::string origin) {
    std::string meaning = "none";
    if (out.is_set) {
        switch (spec.type) {
            case OptionType::boolean:
            case OptionType::integer:
            case OptionType::size:
            case OptionType::time:
                meaning = std::to_string(out.integer);
                break;
            case OptionType::floating:
                meaning = format("{}", out.floating);
                break;
            case OptionType::string_list:
            case OptionType::path_list:
                meaning.clear();
                for (const StrView& item : out.list) {
                    // The length keeps ["a,b"] and ["a", "b"] apart.
                    meaning += format("{}:{},", item.size, item);
                }
                break;
            default:
                meaning = out.text.str();
        }
    }
    values_.push_back(out);
    rows_.push_back(
        {spec.key, std::move(shown), std::move(origin), std::move(meaning), spec.tag, spec.type});
}

Status OptionBag::add(const OptionSpec& spec, const Value* given, const std::string& section,
                      const std::string& folder) {
    OptionValue out;
    out.key = spec.key;
    out.type = spec.type;
    Value fallback;
    const Value* value = given;
    if (value == nullptr) {
        if (spec.required) {
            return error(Code::invalid_argument, "{} needs the key '{}': {}", section, spec.key,
                         spec.help);
        }
        if (spec.default_value == nullptr) {
            finish(spec, out, "(none)", "default");
            return {};
        }
        TENON_ASSIGN(fallback,
                     parse_toml_value(spec.default_value, format("default of {}", spec.key)));
        value = &fallback;
    }
    out.is_set = true;
    out.from_profile = given != nullptr;
    const auto wrong = [&]() {
        return error(Code::invalid_argument, "{}: {} in {} must be {}, found {} ({})",
                     value->place.text(), spec.key, section, expected_text(spec.type),
                     value_kind_name(value->kind), value->text());
    };
    const auto in_unit = [&](Result<int64_t> parsed) -> Status {
        if (!parsed.ok()) {
            return error(Code::invalid_argument, "{}: {} in {}: {}", value->place.text(), spec.key,
                         section, parsed.status().message());
        }
        out.integer = *parsed;
        return check_range(spec, static_cast<double>(out.integer), *value, section);
    };
    switch (spec.type) {
        case OptionType::boolean:
            if (value->kind != ValueKind::boolean) {
                return wrong();
            }
            out.integer = value->boolean ? 1 : 0;
            break;
        case OptionType::integer:
            if (value->kind != ValueKind::integer) {
                return wrong();
            }
            out.integer = value->integer;
            TENON_TRY(check_range(spec, static_cast<double>(out.integer), *value, section));
            break;
        case OptionType::floating:
            if (value->kind != ValueKind::floating && value->kind != ValueKind::integer) {
                return wrong();
            }
            out.floating = value->kind == ValueKind::integer ? static_cast<double>(value->integer)
                                                             : value->floating;
            if (!std::isfinite(out.floating)) {
                return wrong();
            }
            TENON_TRY(check_range(spec, out.floating, *value, section));
            break;
        case OptionType::size:
            if (value->kind == ValueKind::integer && value->integer >= 0) {
                out.integer = value->integer;
                TENON_TRY(check_range(spec, static_cast<double>(out.integer), *value, section));
            } else if (value->kind == ValueKind::string) {
                TENON_TRY(in_unit(parse_size(value->string)));
            } else {
                return wrong();
            }
            break;
        case OptionType::time:
            if (value->kind != ValueKind::string) {
                return wrong();
            }
            TENON_TRY(in_unit(parse_time(value->string)));
            break;
        case OptionType::string:
        case OptionType::choice:
        case OptionType::path:
        case OptionType::address:
            if (value->kind != ValueKind::string) {
                return wrong();
            }
            if (spec.type == OptionType::choice && !is_choice(spec.choices, value->string)) {
                return error(Code::invalid_argument, "{}: {} = {} in {} must be one of {}",
                             value->place.text(), spec.key, value->text(), section, spec.choices);
            }
            if (spec.type == OptionType::address) {
                TENON_TRY(check_address(spec, *value, section));
            }
            out.text = keep(spec.type == OptionType::path ? absolute(value->string, folder)
                                                          : value->string);
            break;
        case OptionType::string_list:
        case OptionType::path_list: {
            std::vector<StrView> items;
            const std::vector<Value> one = {*value};
            for (const Value& item : value->kind == ValueKind::list ? value->list : one) {
                if (item.kind != ValueKind::string) {
                    return wrong();
                }
                items.push_back(keep(spec.type == OptionType::path_list
                                         ? absolute(item.string, folder)
                                         : item.string));
            }
            lists_.push_back(std::move(items));
            out.list = lists_.back();
            break;
        }
        case OptionType::table:
            if (value->kind != ValueKind::table) {
                return wrong();
            }
            out.text = keep(to_json(*value).dump(-1, ' ', false,
                                                 nlohmann::ordered_json::error_handler_t::replace));
            break;
    }
    finish(spec, out, value->text(), given != nullptr ? value->place.text() : "default");
    return {};
}

}  // namespace tenon
