// SPDX-License-Identifier: MIT
// A SAX handler that builds the document under limits.
#include "json_in.h"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "settings.h"

namespace tenon::http {

namespace {

constexpr size_t kLinearKeys = 16;  // below it a linear search beats hashing

class Builder final : public nlohmann::json_sax<Json> {
  public:
    explicit Builder(Json* root) : root_(root) {}
    Refusal take() { return std::move(refusal_); }

    bool null() override { return add(nullptr) != nullptr; }
    bool boolean(bool value) override { return add(value) != nullptr; }
    bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
    bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
    bool number_float(number_float_t value, const string_t&) override {
        return add(value) != nullptr;
    }
    bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
    bool binary(binary_t&) override { return refuse(bad_field("", "binary values are not JSON")); }

    bool start_object(size_t) override { return open(Json::object()); }
    bool start_array(size_t) override { return open(Json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }

    bool key(string_t& name) override {
        Frame& frame = frames_.back();
        const size_t count = frame.value->size();
        if (++keys_ > kJsonKeys || static_cast<int64_t>(count) >= kJsonKeysPerObject) {
            return refuse(
                bad_field(path(), format("more than {} keys in an object or {} in the body",
                                         kJsonKeysPerObject, kJsonKeys)));
        }
        if (has_key(frame, name)) {
            return refuse(bad_field(join(path(), name), "the key occurs twice in its object",
                                    "duplicate_key"));
        }
        frame.key = std::move(name);
        return true;
    }

    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
        // "[json.exception.parse_error.101] parse error at line 1, column 9: …"
        std::string_view text = e.what();
        const size_t bracket = text.find("] ");
        if (bracket != std::string_view::npos) {
            text.remove_prefix(bracket + 2);
        }
        std::string message = "the body is not valid JSON: ";
        message.append(text.substr(0, 300));
        return refuse(bad_field("", message, "invalid_json"));
    }

  private:
    struct Frame {
        Json* value;
        std::string key;                       // of the member being read
        std::unordered_set<std::string> keys;  // filled from kLinearKeys members on
    };

    bool refuse(ApiError error) {
        refusal_ = std::move(error);
        return false;
    }

    static std::string join(const std::string& base, const std::string& key) {
        return base.empty() ? key.substr(0, 100) : base + "." + key.substr(0, 100);
    }

    std::string path() const {
        std::string out;
        for (size_t i = 0; i + 1 < frames_.size() && out.size() < 200; ++i) {
            const Frame& frame = frames_[i];
            out = frame.value->is_array() ? format("{}[{}]", out, frame.value->size() - 1)
                                          : join(out, frame.key);
        }
        return out;
    }

    static bool has_key(Frame& frame, const std::string& name) {
        const auto& members = *frame.value->get_ptr<const Json::object_t*>();
        if (members.size() < kLinearKeys) {
            for (const auto& member : members) {
                if (member.first == name) {
                    return true;
                }
            }
            return false;
        }
        if (frame.keys.empty()) {
            for (const auto& member : members) {
                frame.keys.insert(member.first);
            }
        }
        return !frame.keys.insert(name).second;
    }

    template <class T>
    Json* add(T&& value) {
        if (++values_ > kJsonValues) {
            refuse(bad_field(path(), format("more than {} JSON values", kJsonValues)));
            return nullptr;
        }
        if (frames_.empty()) {
            *root_ = Json(std::forward<T>(value));
            return root_;
        }
        Frame& frame = frames_.back();
        if (auto* items = frame.value->template get_ptr<Json::array_t*>()) {
            return &items->emplace_back(std::forward<T>(value));
        }
        // Appended behind the map's own linear search: `key` has already looked.
        auto* members = frame.value->template get_ptr<Json::object_t*>();
        auto& list = static_cast<Json::object_t::Container&>(*members);
        return &list.emplace_back(frame.key, Json(std::forward<T>(value))).second;
    }

    bool open(Json value) {
        if (static_cast<int64_t>(frames_.size()) >= kJsonDepth) {
            return refuse(bad_field("", format("JSON is nested deeper than {} levels", kJsonDepth),
                                    "json_too_deep"));
        }
        Json* added = add(std::move(value));
        if (added == nullptr) {
            return false;
        }
        frames_.push_back({added, {}, {}});
        return true;
    }

    bool close() {
        frames_.pop_back();
        return true;
    }

    Json* root_;
    std::vector<Frame> frames_;
    Refusal refusal_;
    int64_t values_ = 0, keys_ = 0;
};

}  // namespace

Refusal parse_json(std::string_view text, Json* out) {
    Builder builder(out);
    if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
        if (Refusal refusal = builder.take()) {
            return refusal;
        }
        return bad_field("", "the body is not valid JSON", "invalid_json");
    }
    return {};
}

}  // namespace tenon::http
