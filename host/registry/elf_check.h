// SPDX-License-Identifier: MIT
// Looks at a library before dlopen does: a truncated file would kill the process there, a foreign
// one gives a false message.
#pragma once

#include <string>

#include "tenon/base.h"

namespace tenon {

/// errors  io: cannot be read; unavailable: not an ELF library, another CPU, cut short, writable by
///         everybody, or with exports beside the plugin entry
Status check_library_file(const std::string& path);

}  // namespace tenon
