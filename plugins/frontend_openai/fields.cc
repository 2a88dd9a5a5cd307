// SPDX-License-Identifier: MIT
// Typed members with messages that name field, value and expectation.
#include "fields.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace tenon::http {

namespace {

constexpr size_t kShownBytes = 60;

std::string shown(const Json& value) {
    if (value.is_structured()) {
        return type_text(value);
    }
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > kShownBytes) {
        text.resize(kShownBytes);
        text += "...";
    }
    return text;
}

}  // namespace

const char* type_text(const Json& value) {
    switch (value.type()) {
        case Json::value_t::null:
            return "null";
        case Json::value_t::boolean:
            return "a boolean";
        case Json::value_t::string:
            return "a string";
        case Json::value_t::array:
            return "a list";
        case Json::value_t::object:
            return "an object";
        case Json::value_t::number_integer:
        case Json::value_t::number_unsigned:
            return "an integer";
        case Json::value_t::number_float:
            return "a number with a fraction or exponent";
        default:
            return "an unknown value";
    }
}

bool read_integer(const Json& value, int64_t min, int64_t max, int64_t* out) {
    if (value.is_number_unsigned()) {
        const auto v = value.get<uint64_t>();
        if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
            return false;
        }
    } else if (!value.is_number_integer()) {
        return false;
    }
    const auto v = value.get<int64_t>();
    if (v < min || v > max) {
        return false;
    }
    *out = v;
    return true;
}

Refusal read_ids(const Json& array, std::string_view path, int32_t vocab,
                 std::vector<int32_t>* out) {
    out->clear();
    out->reserve(array.size());
    for (size_t i = 0; i < array.size(); ++i) {
        int64_t id = 0;
        if (!read_integer(array[i], 0, int64_t{vocab} - 1, &id)) {
            return bad_field(format("{}[{}]", path, i),
                             format("{} is not a token id 0...{}", shown(array[i]), vocab - 1));
        }
        out->push_back(static_cast<int32_t>(id));
    }
    return {};
}

Fields::Fields(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

const Json* Fields::find(std::string_view key) const {
    const auto found = object_.find(std::string(key));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::fail(ApiError error) {
    if (!refusal_) {
        refusal_ = std::move(error);
    }
}

void Fields::fail(std::string_view key, std::string_view message) {
    fail(bad_field(path(key), message));
}

void Fields::wrong_type(std::string_view key, const Json& value, std::string_view expected) {
    fail(bad_field(path(key), format("expected {}, found {}", expected, type_text(value)),
                   "invalid_type"));
}

void Fields::number(std::string_view key, Range range, float* out) {
    const Json* value = failed() ? nullptr : find(key);
    if (value == nullptr) {
        return;
    }
    if (!value->is_number()) {
        return wrong_type(key, *value, "a number");
    }
    const auto v = value->get<double>();
    const bool inside = std::isfinite(v) && (range.min_open ? v > range.min : v >= range.min) &&
                        (range.max_open ? v < range.max : v <= range.max);
    if (!inside) {
        return fail(
            key, format("{} is out of range {}{}, {}{}", shown(*value), range.min_open ? "(" : "[",
                        range.min, range.max, range.max_open ? ")" : "]"));
    }
    const auto narrow = static_cast<float>(v);
    // A positive value below float's reach must not turn into an excluded zero.
    *out = range.min_open && narrow <= static_cast<float>(range.min)
               ? std::numeric_limits<float>::min()
               : narrow;
}

void Fields::integer(std::string_view key, int64_t min, int64_t max, int64_t* out) {
    const Json* value = failed() ? nullptr : find(key);
    if (value == nullptr) {
        return;
    }
    if (!value->is_number_integer()) {
        return wrong_type(key, *value, "an integer");
    }
    if (!read_integer(*value, min, max, out)) {
        fail(key, format("{} is out of range {}...{}", shown(*value), min, max));
    }
}

void Fields::boolean(std::string_view key, bool* out) {
    const Json* value = failed() ? nullptr : find(key);
    if (value == nullptr) {
        return;
    }
    if (!value->is_boolean()) {
        return wrong_type(key, *value, "a boolean");
    }
    *out = value->get<bool>();
}

void Fields::text(std::string_view key, std::string* out) {
    const Json* value = failed() ? nullptr : find(key);
    if (value == nullptr) {
        return;
    }
    if (!value->is_string()) {
        return wrong_type(key, *value, "a string");
    }
    *out = value->get<std::string>();
}

void Fields::integers(std::string_view key, int64_t min, int64_t max, std::vector<int32_t>* out) {
    const Json* value = failed() ? nullptr : find(key);
    if (value == nullptr) {
        return;
    }
    if (!value->is_array()) {
        return wrong_type(key, *value, "a list of integers");
    }
    for (size_t i = 0; i < value->size(); ++i) {
        int64_t v = 0;
        if (!read_integer((*value)[i], min, max, &v)) {
            return fail(format("{}[{}]", key, i),
                        format("{} is not an integer {}...{}", shown((*value)[i]), min, max));
        }
        out->push_back(static_cast<int32_t>(v));
    }
}

void Fields::refuse_if_set(std::string_view key, std::string_view why) {
    if (!failed() && find(key) != nullptr) {
        fail(unsupported_field(path(key), why));
    }
}

}  // namespace tenon::http
