// SPDX-License-Identifier: MIT
// Zero-filled host memory with any power-of-two alignment.
#pragma once

#include "tenon/compute.h"

namespace tenon::kernels {

/// errors  invalid_argument: size or alignment; does_not_fit: names tag, wanted and free
Status allocate_buffer(const BufferDesc& desc, Buffer** out) noexcept;

/// Available memory of the machine in bytes: {free, total}.
struct Memory {
    int64_t free = 0;
    int64_t total = 0;
};
Memory machine_memory();

}  // namespace tenon::kernels
