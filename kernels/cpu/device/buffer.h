// SPDX-License-Identifier: MIT
// Zero-filled host memory with any power-of-two alignment.
#pragma once

#include "tenon/compute.h"

namespace tenon::cpu {

/// errors  invalid_argument: size or alignment; does_not_fit: names tag, wanted and free
Status allocate_buffer(const BufferDesc& desc, Buffer** out) noexcept;

}  // namespace tenon::cpu
