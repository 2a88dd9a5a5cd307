// SPDX-License-Identifier: MIT
// Number and unit, separated by at most one space.
#include "host/profile/units.h"

#include <cmath>

namespace tenon {
namespace {

struct Unit {
    const char* name;
    double factor;
};

Result<int64_t> parse(std::string_view text, Span<const Unit> units, const char* expected) {
    size_t digits = 0;
    bool dot = false;
    while (digits < text.size() &&
           ((text[digits] >= '0' && text[digits] <= '9') || (text[digits] == '.' && !dot))) {
        dot = dot || text[digits] == '.';
        ++digits;
    }
    if (digits == 0 || digits > 18 || text[0] == '.' || text[digits - 1] == '.') {
        return error(Code::invalid_argument, "'{}' is not {}", text, expected);
    }
    const double number = std::strtod(std::string(text.substr(0, digits)).c_str(), nullptr);
    std::string_view unit = text.substr(digits);
    if (!unit.empty() && unit.front() == ' ') {
        unit.remove_prefix(1);
    }
    for (const Unit& u : units) {
        if (unit == u.name) {
            const double value = number * u.factor;
            if (value > 9.0e18) {
                return error(Code::invalid_argument, "'{}' is too large", text);
            }
            return static_cast<int64_t>(std::llround(value));
        }
    }
    return error(Code::invalid_argument, "'{}' is not {}", text, expected);
}

}  // namespace

Result<int64_t> parse_size(std::string_view text) {
    static constexpr Unit kUnits[] = {
        {"B", 1},         {"KB", 1e3},         {"MB", 1e6},
        {"GB", 1e9},      {"TB", 1e12},        {"KiB", 1024},
        {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776.0}};
    return parse(text, kUnits, "a size like \"512 MiB\"");
}

Result<int64_t> parse_time(std::string_view text) {
    static constexpr Unit kUnits[] = {
        {"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"min", 60e6}, {"h", 3600e6}};
    return parse(text, kUnits, "a time like \"30 s\" or \"200 ms\"");
}

std::string size_text(int64_t bytes) {
    constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    int unit = 0;
    while (std::fabs(value) >= 1024 && unit < 4) {
        value /= 1024;
        ++unit;
    }
    char text[32];
    std::snprintf(text, sizeof text,
                  unit == 0 || value >= 100 ? "%.0f %s"
                  : value >= 10             ? "%.1f %s"
                                            : "%.2f %s",
                  value, kNames[unit]);
    return text;
}

}  // namespace tenon
