// SPDX-License-Identifier: MIT
// Finds plugin libraries, loads and checks them, and looks components up by kind and name.
#pragma once

#include <string>
#include <vector>

#include "tenon/plugin.h"

namespace tenon {

/// One library that was looked at.
struct LoadedLibrary {
    std::string path;                              ///< canonical; "(linked in)" for static plugins
    const PluginDescriptor* descriptor = nullptr;  ///< null: refused, see `why_not`
    std::string why_not;
};

/// A component and the plugin it belongs to; constant data that lives as long as the process.
struct FoundComponent {
    const LoadedLibrary* library = nullptr;
    const Component* component = nullptr;
};

/// All plugins of the process. Libraries are loaded once, on the main thread, before any other
/// thread exists, and never unloaded. The current directory is never searched.
class PluginRegistry {
  public:
    /// Loads every *.so of the folders, in this order: `extra` (profile), TENON_PLUGIN_PATH, the
    /// folder installed beside the executable. A file name that an earlier folder has loaded wins.
    ///
    /// errors  not_found: a folder of `extra` does not exist
    ///         invalid_argument: TENON_PLUGIN_PATH holds a relative path
    Status load(const std::vector<std::string>& extra);

    /// errors  unavailable: no such component; the message names the nearest one, the folders
    ///         searched, and the reason if a library of that name was refused
    Result<FoundComponent> find(PluginKind kind, std::string_view name) const;
    /// All components of a kind, search order.
    std::vector<FoundComponent> all(PluginKind kind) const;
    const std::vector<LoadedLibrary>& libraries() const { return libraries_; }
    const std::vector<std::string>& folders() const { return folders_; }

  private:
    void load_folder(const std::string& folder);

    std::vector<std::string> folders_;
    std::vector<LoadedLibrary> libraries_;
};

/// Magic, sizes, ABI, fingerprint, and that nothing needed is null. errors  unavailable: both sides
/// of what differs
Status check_descriptor(const std::string& path, const PluginDescriptor* descriptor);

/// Folder of the running executable.
std::string executable_folder();

/// The candidate nearest to `word` by edit distance, or "" if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tenon
