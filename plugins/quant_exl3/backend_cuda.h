// SPDX-License-Identifier: MIT
// EXL3 weights in the memory of a GPU.
#pragma once

#include <memory>

#include "plugins/quant_common/backend.h"
#include "tensors.h"

namespace tenon::exl3 {

/// True if this build has kernels for GPUs.
bool has_cuda();

/// errors  unsupported: this build has no kernels for GPUs, or `device` is no NVIDIA GPU
Status make_cuda_backend(StrView base, Device& device, std::unique_ptr<quant::Backend<Part>>* out);

}  // namespace tenon::exl3
