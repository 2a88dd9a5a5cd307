// SPDX-License-Identifier: MIT
// Typed reading of a JSON object's members: the first wrong one is kept as the refusal.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "json_in.h"

namespace tenon::http {

/// Bounds of a number; an open end excludes its value.
struct Range {
    double min, max;
    bool min_open = false, max_open = false;
};

/// Reads members of one object. null counts as absent. After the first failure further calls do
/// nothing, so that a reader states its fields line by line and asks once.
class Fields {
  public:
    explicit Fields(const Json& object, std::string prefix = "");

    /// The member, or null if it is absent or null.
    const Json* find(std::string_view key) const;

    void number(std::string_view key, Range range, float* out);
    void integer(std::string_view key, int64_t min, int64_t max, int64_t* out);
    void boolean(std::string_view key, bool* out);
    void text(std::string_view key, std::string* out);
    /// A list of integers.
    void integers(std::string_view key, int64_t min, int64_t max, std::vector<int32_t>* out);

    /// 400 if the member is there at all.
    void refuse_if_set(std::string_view key, std::string_view why);

    void fail(std::string_view key, std::string_view message);
    void fail(ApiError error);
    bool failed() const { return refusal_.has_value(); }
    Refusal take() { return std::move(refusal_); }
    std::string path(std::string_view key) const { return prefix_ + std::string(key); }

  private:
    void wrong_type(std::string_view key, const Json& value, std::string_view expected);

    const Json& object_;
    std::string prefix_;
    Refusal refusal_;
};

/// "a string", "an integer", … of a value, for messages.
const char* type_text(const Json& value);

/// The integer of `value`, if it is one and lies in [min, max].
bool read_integer(const Json& value, int64_t min, int64_t max, int64_t* out);

/// Ids in [0, vocab), or the refusal naming the first wrong element.
Refusal read_ids(const Json& array, std::string_view path, int32_t vocab,
                 std::vector<int32_t>* out);

}  // namespace tenon::http
