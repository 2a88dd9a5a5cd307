// SPDX-License-Identifier: MIT
// What `plugin = "auto"` means: the best probe score, and for models the family that claims the
// checkpoint.
#pragma once

#include <string>
#include <vector>

#include "host/profile/profile.h"
#include "host/services/host_services.h"

namespace tenon {

/// Thread: main, before anything is created.
class AutoChoice {
  public:
    AutoChoice(HostServices& host, const PluginRegistry& registry)
        : host_(host), registry_(registry) {}

    /// errors  unavailable: no component of the kind is usable; names each with its reason
    Result<FoundComponent> choose(const SectionSpec& spec, const Value& section,
                                  const std::string& folder);

    /// One line a choice, for the log: kind, name, score, reason.
    const std::vector<std::string>& lines() const { return lines_; }

  private:
    Status rate(const FoundComponent& found, const Options& options, const Value& section,
                const std::string& folder, ProbeResult* out) const;

    HostServices& host_;
    const PluginRegistry& registry_;
    std::vector<std::string> lines_;
};

}  // namespace tenon
