// SPDX-License-Identifier: MIT
// Plugins from the profile's own list, devices by probe, data by looking at paths.
#include "host/lifecycle/lacks.h"

#include <algorithm>
#include <filesystem>

namespace tenon {
namespace {

/// Host keys whose path is written, or need not exist.
bool is_output(const SectionSpec& spec, const std::string& key) {
    const std::string_view section = spec.name;
    return (section == "log" && key == "file") || (section == "" && key == "base") ||
           section == "plugins";
}

}  // namespace

std::vector<Lack> find_lacks(const Profile& profile, HostServices& host) {
    std::vector<Lack> lacks;
    for (const std::string& line : profile.missing) {
        lacks.push_back({kExitPlugin, line});
    }
    for (const auto& s : profile.sections) {
        const std::string title = s->bag.section();
        if (const Component* c = s->component.component) {
            const Options options = s->bag.view(title);
            ProbeResult probe;
            const Status status = c->probe(ProbeEnv{sizeof(ProbeEnv), &host, &options}, &probe);
            // A path that is not there is listed below.
            if (status.code() != Code::not_found && (!status.ok() || probe.score <= 0)) {
                lacks.push_back(
                    {status.ok() ? kExitPlugin
                                 : static_cast<ExitCode>(exit_code_of(status.code(), kExitUsage)),
                     format("{}: {}: not usable here: {}", profile.shown, title,
                            status.ok() ? StrView(probe.reason) : status.message())});
            }
        }
        for (const OptionValue& v : s->bag.view(title).values) {
            std::vector<std::string> paths;
            if (v.type == OptionType::path && v.is_set) {
                paths.push_back(v.text.str());
            } else if (v.type == OptionType::path_list) {
                paths = s->bag.list(v.key);
            }
            for (const std::string& path : paths) {
                std::error_code ec;
                if (!path.empty() && !is_output(*s->spec, v.key.str()) &&
                    !std::filesystem::exists(path, ec)) {
                    // A folder to write into is a setting, not data.
                    const bool is_setting = s->spec->name == std::string_view("kv_spill");
                    lacks.push_back({is_setting ? kExitUsage : kExitData,
                                     format("{}: {} in {}: {} does not exist", profile.shown, v.key,
                                            title, path)});
                }
            }
        }
    }
    return lacks;
}

}  // namespace tenon
