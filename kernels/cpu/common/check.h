// SPDX-License-Identifier: MIT
// The argument checks that all compute plugins share, under this plugin's namespace.
#pragma once

#include "common/context.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cpu {
using namespace kernels;
}  // namespace tenon::cpu
