// SPDX-License-Identifier: MIT
// plugins (what is installed) and plugin new (a copy of a template).
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "host/cli/verbs.h"
#include "host/lifecycle/deployment.h"

namespace tenon::cli {
namespace {

namespace fs = std::filesystem;

const char* type_name(OptionType type) {
    constexpr const char* kNames[] = {"bool", "int",  "float",     "string",  "choice", "size",
                                      "time", "path", "host:port", "strings", "paths",  "table"};
    return kNames[static_cast<int>(type)];
}

bool snake_case(const std::string& name) {
    if (name.empty() || name[0] < 'a' || name[0] > 'z') {
        return false;
    }
    return name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos;
         at = text.find(from, at + to.size())) {
        text.replace(at, from.size(), to);
    }
    return text;
}

std::string camel_case(const std::string& name) {
    std::string out;
    bool up = true;
    for (const char c : name) {
        if (c == '_') {
            up = true;
            continue;
        }
        out += up && c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
        up = false;
    }
    return out;
}

std::string upper_case(std::string name) {
    for (char& c : name) {
        c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    }
    return name;
}

}  // namespace

int plugins_verb(const PluginsArgs& args) {
    PluginRegistry registry;
    const Status status = registry.load(args.path);
    if (!status.ok()) {
        return fail(kExitUsage, status.message().str());
    }
    std::printf("%-11s %-14s %-9s %-13s %s\n", "kind", "name", "version", "maturity", "summary");
    for (int k = 0; k < kPluginKinds; ++k) {
        for (const FoundComponent& f : registry.all(static_cast<PluginKind>(k))) {
            const PluginDescriptor& d = *f.library->descriptor;
            std::printf("%-11s %-14s %-9s %-13s %s\n", kind_name(f.component->kind),
                        f.component->name, d.version,
                        d.maturity == Maturity::stable ? "stable" : "experimental",
                        f.component->summary);
            for (const OptionSpec& o : f.component->options) {
                std::printf("            %-22s %-9s %-16s %s%s%s\n", o.key, type_name(o.type),
                            o.default_value != nullptr ? o.default_value
                            : o.required               ? "(required)"
                                                       : "(none)",
                            o.help, o.choices != nullptr ? ": " : "",
                            o.choices != nullptr ? o.choices : "");
            }
        }
    }
    std::string searched;
    for (const std::string& folder : registry.folders()) {
        searched += (searched.empty() ? "" : ", ") + folder;
    }
    std::printf("searched: %s\n", searched.empty() ? "no folder" : searched.c_str());
    for (const LoadedLibrary& library : registry.libraries()) {
        if (library.descriptor == nullptr) {
            std::printf("refused     %s\n", library.why_not.c_str());
        }
    }
    return kExitOk;
}

int plugin_new_verb(const PluginNewArgs& args) {
    if (!snake_case(args.name)) {
        return fail(
            kExitUsage,
            format("'{}' is no plugin name: lower case letters, digits and _, a letter first",
                   args.name));
    }
    std::error_code ec;
    const fs::path templates = fs::path(executable_folder()) / "../share/tenon/templates";
    std::vector<std::string> kinds;
    for (const auto& entry : fs::directory_iterator(templates, ec)) {
        if (entry.is_directory()) {
            kinds.push_back(entry.path().filename().string());
        }
    }
    std::sort(kinds.begin(), kinds.end());
    if (std::find(kinds.begin(), kinds.end(), args.kind) == kinds.end()) {
        std::string list;
        for (const std::string& kind : kinds) {
            list += (list.empty() ? "" : ", ") + kind;
        }
        return fail(kExitUsage, format("no template for '{}'; there are: {} (in {})", args.kind,
                                       list.empty() ? "none; install the SDK" : list,
                                       templates.lexically_normal()));
    }
    if (fs::exists(args.folder, ec)) {
        return fail(kExitUsage, format("{}: exists already", args.folder));
    }
    // A template's own name is my_<kind>, in each spelling that code needs.
    const std::string own = "my_" + args.kind;
    const auto renamed = [&](std::string text) {
        text = replace_all(std::move(text), own, args.name);
        text = replace_all(std::move(text), camel_case(own), camel_case(args.name));
        return replace_all(std::move(text), upper_case(own), upper_case(args.name));
    };
    const fs::path source = templates / args.kind;
    for (const auto& entry : fs::recursive_directory_iterator(source, ec)) {
        if (entry.is_directory()) {
            continue;
        }
        const fs::path target =
            fs::path(args.folder) / renamed(fs::relative(entry.path(), source, ec).string());
        fs::create_directories(target.parent_path(), ec);
        std::ifstream in(entry.path(), std::ios::binary);
        std::ostringstream text;
        text << in.rdbuf();
        std::ofstream out(target, std::ios::binary);
        out << renamed(text.str());
        if (!in || !out.flush()) {
            return fail(kExitData, format("{}: could not be written: {}", target.string(),
                                          std::strerror(errno)));
        }
        fs::permissions(target, entry.status().permissions(), ec);
    }
    const fs::path root = fs::weakly_canonical(fs::path(executable_folder()) / "..", ec);
    const bool installed = !fs::exists(root / "CMakeCache.txt", ec);
    std::printf(
        "%s: new %s plugin '%s'; next%s:\n"
        "  cd %s\n"
        "  cmake --preset dev -DCMAKE_PREFIX_PATH=%s\n"
        "  cmake --build --preset dev && ctest --preset dev\n",
        args.folder.c_str(), args.kind.c_str(), args.name.c_str(),
        installed ? "" : " (PREFIX: where `cmake --install` put Tenon)", args.folder.c_str(),
        installed ? root.c_str() : "PREFIX");
    return kExitOk;
}

}  // namespace tenon::cli
