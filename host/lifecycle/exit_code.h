// SPDX-License-Identifier: MIT
// Exit codes of the process (architecture.md 13) and the error classes that lead to them.
#pragma once

#include "tenon/base.h"

namespace tenon {

enum ExitCode : int {
    kExitOk = 0,
    kExitChecks = 1,
    kExitUsage = 2,
    kExitPlugin = 3,
    kExitFit = 4,
    kExitData = 5,
    kExitPeer = 6,
    kExitInternal = 70,
};

/// Exit code of an error whose class says enough. `invalid` is the code of invalid_argument and
/// not_found, which depend on what was being read: the profile or a data file.
constexpr int exit_code_of(Code code, ExitCode invalid) {
    switch (code) {
        case Code::ok:
            return kExitOk;
        case Code::invalid_argument:
        case Code::not_found:
            return invalid;
        case Code::unsupported:
        case Code::unavailable:
            return kExitPlugin;
        case Code::does_not_fit:
            return kExitFit;
        case Code::io:
        case Code::device:
            return kExitData;
        case Code::peer:
            return kExitPeer;
        case Code::cancelled:
        case Code::deadline:
        case Code::internal:
            break;
    }
    return kExitInternal;
}

}  // namespace tenon
