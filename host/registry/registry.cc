// SPDX-License-Identifier: MIT
// Boost.DLL loading behind registry.h; the only file that includes it.
#include "host/registry/registry.h"

#define BOOST_DLL_USE_STD_FS
#include <dlfcn.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <filesystem>

#include "host/registry/elf_check.h"
#include "host/registry/static_plugins.h"

namespace tenon {
namespace {

namespace fs = std::filesystem;
namespace dll = boost::dll;

Result<const PluginDescriptor*> load_library(const std::string& path) {
    TENON_TRY(check_library_file(path));
    // The bit keeps the library mapped for the life of the process (architecture.md 2.2, rule 9).
    const auto mode = dll::load_mode::rtld_now | dll::load_mode::rtld_local |
                      static_cast<dll::load_mode::type>(RTLD_NODELETE);
    std::error_code ec;
    // The path is canonical: Boost.DLL would take a bare name from the current directory.
    dll::shared_library library(fs::path(path), mode, ec);
    if (ec) {
        const char* why = ::dlerror();
        return error(Code::unavailable, "{}: cannot be loaded: {}", path,
                     why != nullptr ? std::string(why) : ec.message());
    }
    if (!library.has(kPluginEntryName)) {
        return error(Code::unavailable, "{}: does not export {}, so it is not a Tenon plugin", path,
                     kPluginEntryName);
    }
    const PluginDescriptor* descriptor =
        library.get<const PluginDescriptor*() noexcept>(kPluginEntryName)();
    TENON_TRY(check_descriptor(path, descriptor));
    return descriptor;
}

// Names and functions that the host follows later; the conformance suite checks far more.
Status check_component(const std::string& path, const Component& c) {
    const auto bad = [&](const char* what) {
        return error(Code::unavailable, "{}: component '{}': {}", path,
                     c.name != nullptr ? c.name : "(no name)", what);
    };
    if (c.struct_size < sizeof(Component)) {
        return bad("its record is shorter than this host's");
    }
    if (c.name == nullptr || c.summary == nullptr ||
        static_cast<uint32_t>(c.kind) >= static_cast<uint32_t>(kPluginKinds)) {
        return bad("it lacks a name or a summary, or its kind is unknown");
    }
    if (c.probe == nullptr || c.create == nullptr) {
        return bad("it lacks probe or create");
    }
    for (const OptionSpec& o : c.options) {
        if (o.key == nullptr || o.help == nullptr || o.type > OptionType::table ||
            (o.type == OptionType::choice && o.choices == nullptr)) {
            return bad("an option lacks key, help, a known type or its choices");
        }
    }
    return {};
}

size_t distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t above = row[j];
            row[j] =
                std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
            diagonal = above;
        }
    }
    return row[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
    std::string best;
    size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
    for (const std::string& c : candidates) {
        const size_t d = distance(word, c);
        if (d < best_distance) {
            best = c;
            best_distance = d;
        }
    }
    return best;
}

std::string executable_folder() {
    std::error_code ec;
    return fs::read_symlink("/proc/self/exe", ec).parent_path().string();
}

Status check_descriptor(const std::string& path, const PluginDescriptor* d) {
    if (d == nullptr || d->magic != kPluginMagic) {
        return error(Code::unavailable, "{}: its entry gives no plugin descriptor", path);
    }
    if (d->abi_major != kAbiMajor || d->abi_minor > kAbiMinor) {
        return error(Code::unavailable, "{}: is built for plugin ABI {}.{}, this host has {}.{}",
                     path, d->abi_major, d->abi_minor, kAbiMajor, kAbiMinor);
    }
    if (d->struct_size < sizeof(PluginDescriptor)) {
        return error(Code::unavailable, "{}: its descriptor has {} bytes, expected {}", path,
                     d->struct_size, sizeof(PluginDescriptor));
    }
    const char* fingerprint = d->fingerprint != nullptr ? d->fingerprint : "unknown ones";
    if (std::string_view(fingerprint) != TENON_SDK_FINGERPRINT) {
        return error(
            Code::unavailable,
            "{}: is built from SDK headers {}, this host from {}; rebuild it against this SDK",
            path, fingerprint, TENON_SDK_FINGERPRINT);
    }
    if (d->name == nullptr || d->version == nullptr || d->summary == nullptr ||
        d->license == nullptr) {
        return error(Code::unavailable,
                     "{}: its descriptor lacks a name, version, summary or licence", path);
    }
    for (const Component& c : d->components) {
        TENON_TRY(check_component(path, c));
    }
    return {};
}

void PluginRegistry::load_folder(const std::string& folder) {
    std::error_code ec;
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder, ec)) {
        if (entry.path().extension() == ".so") {
            const std::string file = fs::canonical(entry.path(), ec).string();
            // A link that leads nowhere is named as it stands.
            files.push_back(file.empty() ? entry.path().string() : file);
        }
    }
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
        const fs::path name = fs::path(file).filename();
        const bool shadowed =
            std::any_of(libraries_.begin(), libraries_.end(), [&](const LoadedLibrary& have) {
                return have.descriptor != nullptr && fs::path(have.path).filename() == name;
            });
        if (shadowed) {
            continue;
        }
        LoadedLibrary library;
        library.path = file;
        auto loaded = load_library(file);
        if (loaded.ok()) {
            library.descriptor = *loaded;
        } else {
            library.why_not = loaded.status().message().str();
        }
        libraries_.push_back(std::move(library));
    }
}

Status PluginRegistry::load(const std::vector<std::string>& extra) {
    for (const PluginDescriptor* d : static_plugins()) {
        libraries_.push_back({"(linked in)", d, ""});
    }
    std::error_code ec;
    const auto add = [&](const std::string& folder) {
        const std::string path = fs::canonical(folder, ec).string();
        if (!path.empty() && std::find(folders_.begin(), folders_.end(), path) == folders_.end()) {
            folders_.push_back(path);
            load_folder(path);
        }
    };
    for (const std::string& folder : extra) {
        if (!fs::is_directory(folder, ec)) {
            return error(Code::not_found, "plugins.path: {} is not a folder", folder);
        }
        add(folder);
    }
    if (const char* env = std::getenv("TENON_PLUGIN_PATH")) {
        std::string_view rest = env;
        while (!rest.empty()) {
            const size_t colon = rest.find(':');
            const std::string folder(rest.substr(0, colon));
            if (!folder.empty() && folder.front() != '/') {
                return error(
                    Code::invalid_argument,
                    "TENON_PLUGIN_PATH: '{}' is not an absolute path; where it leads would "
                    "depend on where tenon is started",
                    folder);
            }
            if (!folder.empty()) {
                add(folder);
            }
            rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
        }
    }
    const std::string self = executable_folder();
    if (fs::exists(self + "/../CMakeCache.txt", ec)) {
        add(self + "/../plugins");  // a build tree
    }
    add(self + "/../lib/tenon/plugins");
    add(self + "/../" TENON_INSTALL_LIBDIR "/tenon/plugins");
    return {};
}

std::vector<FoundComponent> PluginRegistry::all(PluginKind kind) const {
    std::vector<FoundComponent> found;
    for (const LoadedLibrary& library : libraries_) {
        if (library.descriptor == nullptr) {
            continue;
        }
        for (const Component& c : library.descriptor->components) {
            const bool shadowed =
                std::any_of(found.begin(), found.end(), [&](const FoundComponent& f) {
                    return std::string_view(f.component->name) == c.name;
                });
            if (c.kind == kind && !shadowed) {
                found.push_back({&library, &c});
            }
        }
    }
    return found;
}

Result<FoundComponent> PluginRegistry::find(PluginKind kind, std::string_view name) const {
    std::vector<std::string> names;
    for (const FoundComponent& f : all(kind)) {
        if (name == f.component->name) {
            return f;
        }
        names.emplace_back(f.component->name);
    }
    std::string message = format("no {} plugin '{}'", kind_name(kind), name);
    for (const LoadedLibrary& library : libraries_) {
        if (library.descriptor == nullptr && fs::path(library.path).stem() == fs::path(name)) {
            return error(Code::unavailable, "{}: {}", message, library.why_not);
        }
    }
    std::string list;
    for (const std::string& n : names) {
        list += (list.empty() ? "" : ", ") + n;
    }
    std::string where;
    for (const std::string& f : folders_) {
        where += (where.empty() ? "" : ", ") + f;
    }
    const std::string near = nearest(name, names);
    if (!near.empty()) {
        message += format(". Did you mean '{}'?", near);
    }
    return error(Code::unavailable, "{} (installed: {}; searched: {})", message,
                 list.empty() ? "none" : list, where.empty() ? "no folder" : where);
}

}  // namespace tenon
