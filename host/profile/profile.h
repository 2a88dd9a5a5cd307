// SPDX-License-Identifier: MIT
// A deployment profile: read, merged with its base and overrides, then validated against schema and
// plugins.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/profile/option_bag.h"
#include "host/profile/schema.h"
#include "host/registry/registry.h"

namespace tenon {

/// A profile before plugins are known: merged values with variables filled in.
struct ProfileSource {
    std::string path;   ///< absolute
    std::string shown;  ///< as the user wrote it, for messages
    Value root;
    /// Folder that relative paths of a value belong to (base and profile may lie apart).
    std::string folder_of(const Value& value) const;
    std::vector<std::pair<std::string, std::string>> folders;  ///< shown file -> folder
};

/// Reads the profile, its base, `${VAR}` and `--set key=value` overrides.
/// errors  not_found, invalid_argument: "file:line:column: …"
Result<ProfileSource> read_profile(const std::string& path,
                                   const std::vector<std::string>& overrides);

/// One section with its component, if it names one.
struct ProfileSection {
    const SectionSpec* spec = nullptr;
    bool present = false;      ///< written in the profile
    std::string plugin;        ///< "" = none chosen
    FoundComponent component;  ///< component null: missing, see Profile::missing
    OptionBag bag;             ///< host keys and the component's
};

struct Profile {
    std::string path, shown, name;
    std::string digest;  ///< hex SHA-256 over the keys that all ranks must share
    std::vector<std::unique_ptr<ProfileSection>> sections;
    /// Plugins and features that the profile names and this installation lacks, one line each.
    std::vector<std::string> missing;
    /// Keys that the profile sets although this version does nothing with them, one line each.
    std::vector<std::string> ineffective;

    /// The section (first of a repeated one); always there for known names, except overlay and
    /// frontend.
    const ProfileSection* find(std::string_view name) const;
    const OptionBag& bag(std::string_view name) const;
    std::vector<const ProfileSection*> all(std::string_view name) const;
};

/// Chooses the component of a section whose plugin is "auto". `section` is the written table,
/// `folder` where its relative paths belong. errors  unavailable: none is usable, with each reason
using AutoChooser = std::function<Result<FoundComponent>(
    const SectionSpec& spec, const Value& section, const std::string& folder)>;

/// Validates every key against host schema and component options.
///
/// A missing plugin is no error here: it is listed in `missing` and its keys go unchecked. Without
/// `choose_auto` the plugin name "auto" counts as missing.
/// errors  invalid_argument: "file:line:column: …" with the nearest known key
Result<Profile> resolve_profile(const ProfileSource& source, const PluginRegistry& registry,
                                const AutoChooser& choose_auto = {});

}  // namespace tenon
