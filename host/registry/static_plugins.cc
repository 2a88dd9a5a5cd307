// SPDX-License-Identifier: MIT
// The list that CMake generates from the plugins linked in.
#include "host/registry/static_plugins.h"

#include "static_list.inc"

namespace tenon {

std::vector<const PluginDescriptor*> static_plugins() {
    std::vector<const PluginDescriptor*> list;
    add_static_plugins(list);
    return list;
}

}  // namespace tenon
