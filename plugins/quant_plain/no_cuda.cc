// SPDX-License-Identifier: MIT
// Stands in where no CUDA compiler was found.
#include "backend_cuda.h"

namespace tenon::plain {

bool has_cuda() {
    return false;
}

Status make_cuda_backend(StrView base, Device& device, std::unique_ptr<quant::Backend<Part>>*) {
    const DeviceInfo info = device.info();
    return error(
        Code::unsupported,
        "plain: '{}' cannot be loaded on device '{}' ({}): this build of the format has CPU "
        "kernels only",
        base, info.name, info.arch);
}

}  // namespace tenon::plain
