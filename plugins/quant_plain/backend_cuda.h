// SPDX-License-Identifier: MIT
// Ordinary weights in the memory of a GPU.
#pragma once

#include <memory>

#include "tensors.h"

namespace tenon::plain {

/// True if this build has kernels for GPUs.
bool has_cuda();

/// errors  unsupported: this build has no kernels for GPUs, or `device` is no NVIDIA GPU
Status make_cuda_backend(StrView base, Device& device, std::unique_ptr<quant::Backend<Part>>* out);

}  // namespace tenon::plain
