// SPDX-License-Identifier: MIT
// Plugins linked into the executable (-DTENON_STATIC_PLUGINS=ON); an empty list otherwise.
#pragma once

#include <vector>

#include "tenon/plugin.h"

namespace tenon {

std::vector<const PluginDescriptor*> static_plugins();

}  // namespace tenon
