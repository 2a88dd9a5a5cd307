// SPDX-License-Identifier: MIT
// plugins (what is installed) and plugin new (a copy of a template).
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
    fs::path source;
    for (const char* folder : {"/../share/tenon/templates", TENON_SOURCE_TEMPLATES}) {
        const fs::path candidate =
            folder[1] == '.' ? fs::path(executable_folder() + folder) : fs::path(folder);
        if (fs::is_directory(candidate, ec)) {
            source = fs::canonical(candidate, ec);
            break;
        }
    }
    std::string kinds;
    for (const auto& entry : fs::directory_iterator(source, ec)) {
        kinds += (kinds.empty() ? "" : ", ") + entry.path().filename().string();
    }
    if (source.empty() || !fs::is_directory(source / args.kind, ec)) {
        return fail(kExitUsage, format("no template for '{}'; there are: {}", args.kind,
                                       kinds.empty() ? "none" : kinds));
    }
    if (fs::exists(args.folder, ec)) {
        return fail(kExitUsage, format("{}: exists already", args.folder));
    }
    const std::string old_name = "my_" + args.kind;
    for (const auto& entry : fs::recursive_directory_iterator(source / args.kind, ec)) {
        const std::string relative = replace_all(
            fs::relative(entry.path(), source / args.kind, ec).string(), old_name, args.name);
        const fs::path target = fs::path(args.folder) / relative;
        if (entry.is_directory()) {
            continue;
        }
        fs::create_directories(target.parent_path(), ec);
        std::ifstream in(entry.path(), std::ios::binary);
        std::ostringstream text;
        text << in.rdbuf();
        std::ofstream out(target, std::ios::binary);
        out << replace_all(text.str(), old_name, args.name);
        if (!in || !out.flush()) {
            return fail(kExitData, format("{}: could not be written", target.string()));
        }
    }
    std::printf("%s: a %s plugin; see its README.md\n", args.folder.c_str(), args.kind.c_str());
    return kExitOk;
}

}  // namespace tenon::cli
