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
    if (std::string_view(d->fingerprint) != TENON_SDK_FINGERPRINT) {
        return error(
            Code::unavailable,
            "{}: is built from SDK headers {}, this host from {}; rebuild it against this SDK",
            path, d->fingerprint, TENON_SDK_FINGERPRINT);
    }
    return {};
}

void PluginRegistry::load_folder(const std::string& folder) {
    std::error_code ec;
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder, ec)) {
        if (entry.path().extension() == ".so") {
            files.push_back(fs::canonical(entry.path(), ec).string());
        }
    }
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
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
            const std::string_view folder = rest.substr(0, colon);
            // Relative folders would depend on where the process was started.
            if (!folder.empty() && folder.front() == '/') {
                add(std::string(folder));
            }
            rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
        }
    }
    const std::string self = executable_folder();
    add(self + "/../plugins");
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
            if (c.kind == kind) {
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
