// SPDX-License-Identifier: MIT
// Fuzz target: any profile is refused with its place, or resolves to the same digest each time.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "host/profile/profile.h"

namespace {

constexpr const char* kName = "fuzz.toml";

/// Messages go to terminals, logs and JSON: they name the file and are UTF-8 (dump throws if not).
void check_message(const tenon::Status& status) {
    const std::string text = status.message().str();
    if (text.find(kName) == std::string::npos || nlohmann::json(text).dump().empty()) {
        std::abort();
    }
}

/// Every value lies somewhere in the text and can be shown.
void check_places(const tenon::Value& value) {
    if (value.place.line == 0 || value.text().empty()) {
        std::abort();
    }
    for (const tenon::Value& item : value.list) {
        check_places(item);
    }
    for (const auto& [key, item] : value.table) {
        if (value.find(key) != &item || item.key_place.line == 0) {
            std::abort();
        }
        check_places(item);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tenon;
    static const PluginRegistry kNoPlugins;
    ProfileSource source;
    source.path = "/nowhere/fuzz.toml";
    source.shown = kName;
    source.folders = {{kName, "/nowhere"}};
    auto root = parse_toml_text({reinterpret_cast<const char*>(data), size}, kName);
    if (!root.ok()) {
        check_message(root.status());
        return 0;
    }
    source.root = std::move(*root);
    check_places(source.root);
    const auto profile = resolve_profile(source, kNoPlugins);
    if (!profile.ok()) {
        check_message(profile.status());
        return 0;
    }
    const auto again = resolve_profile(source, kNoPlugins);
    if (!again.ok() || profile->digest.size() != 64 || again->digest != profile->digest ||
        profile->missing.empty()) {  // there are no plugins, and a profile names three
        std::abort();
    }
    return 0;
}
