// SPDX-License-Identifier: MIT
// The version that `tenon --version` and /v1/models report; set by CMake.
#pragma once

namespace tenon {
constexpr const char* kVersion = TENON_VERSION;
}
