// SPDX-License-Identifier: MIT
// CPU devices for op tests, made from the static library.
#pragma once

#include "device/device.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {

inline OpProvider cpu_provider(std::string name, int64_t threads, bool reference) {
    return {std::move(name), [=](Object** out) -> Status {
                *out = static_cast<Device*>(new cpu::CpuDevice(nullptr, {threads, reference}));
                return {};
            }};
}

}  // namespace tenon::testing
