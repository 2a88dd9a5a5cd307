// SPDX-License-Identifier: MIT
// What a profile names and this machine lacks: plugins, devices, data. For `tenon check`.
#pragma once

#include <string>
#include <vector>

#include "host/lifecycle/exit_code.h"
#include "host/profile/profile.h"
#include "host/services/host_services.h"

namespace tenon {

struct Lack {
    ExitCode code = kExitPlugin;  ///< what serving would end with
    std::string text;
};

/// Probes every component, creates none, and looks for the files and folders that are read.
std::vector<Lack> find_lacks(const Profile& profile, HostServices& host);

}  // namespace tenon
