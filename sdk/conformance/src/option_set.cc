// SPDX-License-Identifier: MIT
// Builds the option values that a component gets from its own OptionSpecs, as the host would from a
// profile without them.
#include "tenon/testing/plugin_fixture.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace tenon::testing {
namespace {

std::string trimmed(const std::string& s) {
    const size_t first = s.find_first_not_of(" \t");
    return first == std::string::npos ? "" : s.substr(first, s.find_last_not_of(" \t") - first + 1);
}

Result<std::string> unquoted(const std::string& s) {
    if (s.size() < 2 || s.front() != '"' || s.back() != '"' || s.find('"', 1) != s.size() - 1 ||
        s.find('\\') != std::string::npos) {
        return error(Code::invalid_argument, "{} is not a plain quoted string", s);
    }
    return s.substr(1, s.size() - 2);
}

Result<double> number(const std::string& s) {
    std::string digits;
    for (const char c : s) {
        if (c != '_') {
            digits += c;
        }
    }
    char* end = nullptr;
    errno = 0;
    const double value = std::strtod(digits.c_str(), &end);
    if (digits.empty() || *end != '\0' || errno != 0 || !std::isfinite(value)) {
        return error(Code::invalid_argument, "{} is not a number", s);
    }
    return value;
}

Result<int64_t> integer(const std::string& s) {
    TENON_ASSIGN(const double value, number(s));
    if (value != std::floor(value) || std::abs(value) > 9e15) {
        return error(Code::invalid_argument, "{} is not an integer", s);
    }
    return static_cast<int64_t>(value);
}

struct Unit {
    const char* name;
    double factor;
};
constexpr Unit kSizes[] = {{"B", 1},
                           {"KiB", 1024.0},
                           {"MiB", 1024.0 * 1024},
                           {"GiB", 1024.0 * 1024 * 1024},
                           {"TiB", 1024.0 * 1024 * 1024 * 1024}};
constexpr Unit kTimes[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"min", 60e6}, {"h", 3600e6}};

template <size_t N>
Result<int64_t> with_unit(const std::string& quoted, const Unit (&units)[N]) {
    TENON_ASSIGN(const std::string text, unquoted(quoted));
    const size_t blank = text.find(' ');
    const std::string unit = blank == std::string::npos ? "" : trimmed(text.substr(blank));
    for (const Unit& u : units) {
        if (unit == u.name) {
            TENON_ASSIGN(const double value, number(text.substr(0, blank)));
            return static_cast<int64_t>(std::llround(value * u.factor));
        }
    }
    return error(Code::invalid_argument, "{} lacks a known unit after one blank", quoted);
}

Result<std::vector<std::string>> list_of(const std::string& s) {
    if (s.size() < 2 || s.front() != '[' || s.back() != ']') {
        return error(Code::invalid_argument, "{} is not a list", s);
    }
    std::vector<std::string> out;
    std::string rest = trimmed(s.substr(1, s.size() - 2));
    while (!rest.empty()) {
        const size_t close = rest.find('"', 1);
        if (rest.front() != '"' || close == std::string::npos) {
            return error(Code::invalid_argument, "{} is not a list of strings", s);
        }
        out.push_back(rest.substr(1, close - 1));
        rest = trimmed(rest.substr(close + 1));
        if (!rest.empty()) {
            if (rest.front() != ',') {
                return error(Code::invalid_argument, "{} lacks a comma", s);
            }
            rest = trimmed(rest.substr(1));
        }
    }
    return out;
}

}  // namespace

Result<ParsedDefault> parse_default(OptionType type, const std::string& toml_text) {
    const std::string text = trimmed(toml_text);
    ParsedDefault out;
    switch (type) {
        case OptionType::boolean:
            if (text != "true" && text != "false") {
                return error(Code::invalid_argument, "{} is not true or false", text);
            }
            out.integer = text == "true" ? 1 : 0;
            break;
        case OptionType::integer: {
            TENON_ASSIGN(out.integer, integer(text));
            break;
        }
        case OptionType::floating: {
            TENON_ASSIGN(out.floating, number(text));
            break;
        }
        case OptionType::size: {
            if (!text.empty() && text.front() == '"') {
                TENON_ASSIGN(out.integer, with_unit(text, kSizes));
            } else {
                TENON_ASSIGN(out.integer, integer(text));
            }
            break;
        }
        case OptionType::time: {
            TENON_ASSIGN(out.integer, with_unit(text, kTimes));
            break;
        }
        case OptionType::string:
        case OptionType::choice:
        case OptionType::path:
        case OptionType::address: {
            TENON_ASSIGN(out.text, unquoted(text));
            break;
        }
        case OptionType::string_list:
        case OptionType::path_list: {
            TENON_ASSIGN(out.list, list_of(text));
            break;
        }
        case OptionType::table:
            out.text = text;
            break;
    }
    return Result<ParsedDefault>(std::move(out));
}

namespace {
// `--set` of the command line; main fills it before any test runs.
std::map<std::string, std::string> overrides_;

Result<ParsedDefault> parse_override(const OptionSpec& spec, const std::string& value) {
    auto parsed = parse_default(spec.type, value);
    // A shell eats quotes, so bare text is fine where TOML wants a string.
    return parsed.ok() ? std::move(parsed) : parse_default(spec.type, "\"" + value + "\"");
}
/// What the host checks before a value crosses.
Status check_bounds(const OptionSpec& spec, const ParsedDefault& value) {
    if (spec.choices != nullptr) {
        const std::string choices = "|" + std::string(spec.choices) + "|";
        if (choices.find("|" + value.text + "|") == std::string::npos) {
            return error(Code::invalid_argument, "'{}' is not one of {}", value.text, spec.choices);
        }
    }
    const double number =
        spec.type == OptionType::floating ? value.floating : static_cast<double>(value.integer);
    if (spec.min != spec.max && (number < spec.min || number > spec.max)) {
        return error(Code::invalid_argument, "{} is out of range {} … {}", number, spec.min,
                     spec.max);
    }
    return {};
}

}  // namespace

Status override_option(const std::string& key, const std::string& value) {
    for (const Component* component : all_components_under_test()) {
        for (const OptionSpec& spec : component->options) {
            if (key == spec.key) {
                auto parsed = parse_override(spec, value);
                TENON_TRY_CTX(parsed.ok() ? check_bounds(spec, *parsed) : parsed.take_status(),
                              "option '{}'", key);
                overrides_[key] = value;
                return {};
            }
        }
    }
    return error(Code::invalid_argument, "no component declares an option '{}'", key);
}

void OptionSet::Value::take(ParsedDefault parsed) {
    is_set = true;
    integer = parsed.integer;
    floating = parsed.floating;
    text = std::move(parsed.text);
    list = std::move(parsed.list);
}

OptionSet::OptionSet(const Component& component)
    : section_(format("[{}] (plugin '{}')", kind_name(component.kind), component.name)) {
    for (const OptionSpec& spec : component.options) {
        Value value;
        value.spec = &spec;
        if (spec.default_value != nullptr) {
            auto parsed = parse_default(spec.type, spec.default_value);
            if (parsed.ok()) {
                value.take(std::move(*parsed));
            } else {
                problems_.push_back(format("{}: default {}", spec.key, parsed.status().message()));
            }
        }
        if (const auto found = overrides_.find(spec.key); found != overrides_.end()) {
            value.take(*parse_override(spec, found->second));
            value.from_profile = true;
        }
        values_.push_back(std::move(value));
    }
}

OptionSet::Value& OptionSet::value_of(const std::string& key,
                                      std::initializer_list<OptionType> types) {
    for (Value& value : values_) {
        if (key == value.spec->key) {
            bool fits = types.size() == 0;
            for (const OptionType type : types) {
                fits = fits || type == value.spec->type;
            }
            TENON_CHECK(fits, "option '{}' has another type", key);
            value.is_set = true;
            value.from_profile = true;
            return value;
        }
    }
    TENON_CHECK(false, "{} declares no option '{}'", section_, key);
    std::abort();
}

OptionSet& OptionSet::set(const std::string& key, bool value) {
    value_of(key, {OptionType::boolean}).integer = value ? 1 : 0;
    return *this;
}
OptionSet& OptionSet::set(const std::string& key, int64_t value) {
    value_of(key, {OptionType::integer, OptionType::size, OptionType::time}).integer = value;
    return *this;
}
OptionSet& OptionSet::set(const std::string& key, double value) {
    value_of(key, {OptionType::floating}).floating = value;
    return *this;
}
OptionSet& OptionSet::set(const std::string& key, const std::string& value) {
    value_of(key, {OptionType::string, OptionType::choice, OptionType::path, OptionType::address,
                   OptionType::table})
        .text = value;
    return *this;
}
OptionSet& OptionSet::set(const std::string& key, const std::vector<std::string>& value) {
    value_of(key, {OptionType::string_list, OptionType::path_list}).list = value;
    return *this;
}
OptionSet& OptionSet::clear(const std::string& key) {
    Value& value = value_of(key, {});
    value.is_set = value.from_profile = false;
    return *this;
}

const Options& OptionSet::view() {
    crossing_.clear();
    for (Value& value : values_) {
        value.views.assign(value.list.begin(), value.list.end());
        OptionValue out;
        out.key = value.spec->key;
        out.type = value.spec->type;
        out.is_set = value.is_set;
        out.from_profile = value.from_profile;
        out.integer = value.integer;
        out.floating = value.floating;
        out.text = value.text;
        out.list = value.views;
        crossing_.push_back(out);
    }
    options_.section = section_;
    options_.values = crossing_;
    return options_;
}

}  // namespace tenon::testing
