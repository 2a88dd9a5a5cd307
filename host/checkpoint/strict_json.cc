// SPDX-License-Identifier: MIT
// The parser's callback sees each key before the document is built.
#include "host/checkpoint/strict_json.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace tenon {
namespace {

struct Twice : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Keys of the objects that are open, innermost last.
class OpenKeys {
  public:
    void open() { keys_.emplace_back(); }
    void add(std::string key) { keys_.back().push_back(std::move(key)); }
    void close() {
        std::vector<std::string>& keys = keys_.back();
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end()) {
            throw Twice(*twice);
        }
        keys_.pop_back();
    }

  private:
    std::vector<std::vector<std::string>> keys_;
};

/// What the library says, without its "[json.exception.parse_error.101] " in front. It may quote
/// bytes that are no UTF-8; messages end in logs and JSON.
std::string json_reason(const std::exception& e) {
    std::string text = e.what();
    const size_t tag = text.rfind("[json.exception.", 0) == 0 ? text.find("] ") : std::string::npos;
    text.erase(0, tag == std::string::npos ? 0 : tag + 2);
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= 0x80; }, '?');
    return text;
}

}  // namespace

std::string cut_text(std::string text, size_t bytes) {
    if (text.size() > bytes) {
        while (bytes > 0 && (static_cast<uint8_t>(text[bytes]) & 0xC0) == 0x80) {
            --bytes;
        }
        text.resize(bytes);
    }
    return text;
}

Result<nlohmann::json> parse_strict_json(const std::string& what, std::string_view text,
                                         int max_depth) {
    using Json = nlohmann::json;
    OpenKeys keys;
    try {
        return Json::parse(
            text.begin(), text.end(), [&](int depth, Json::parse_event_t event, Json& value) {
                switch (event) {
                    case Json::parse_event_t::object_start:
                        keys.open();
                        [[fallthrough]];
                    case Json::parse_event_t::array_start:
                        if (depth >= max_depth) {
                            throw std::runtime_error(format("nested more than {} deep", max_depth));
                        }
                        break;
                    case Json::parse_event_t::key:
                        keys.add(value.get<std::string>());
                        break;
                    case Json::parse_event_t::object_end:
                        keys.close();
                        break;
                    default:
                        break;
                }
                return true;
            });
    } catch (const Twice& e) {
        return error(Code::invalid_argument, "{} has the key '{}' twice", what,
                     cut_text(e.what(), 200));
    } catch (const std::exception& e) {
        return error(Code::invalid_argument, "{} is not valid JSON: {}", what,
                     cut_text(json_reason(e), 200));
    }
}

}  // namespace tenon
