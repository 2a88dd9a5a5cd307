// SPDX-License-Identifier: MIT
// The choice between two kinds of pinned memory; needs no GPU.
#include "kernels/cuda/device/probe.h"

namespace tenon::cuda {

Result<Pinned> choose_pinned(const GpuFacts& facts, std::string_view wanted) {
    if (wanted != "auto" && wanted != "allocated" && wanted != "registered") {
        return error(Code::invalid_argument,
                     "pinned = '{}', expected auto, allocated or registered", wanted);
    }
    if (wanted == "registered" && !facts.maps_registered) {
        return error(Code::unavailable,
                     "pinned = registered: kernels on {} cannot use pointers of registered memory",
                     facts.name);
    }
    const bool better = facts.unified_memory && facts.maps_registered;
    return wanted == "registered" || (wanted == "auto" && better) ? Pinned::registered
                                                                  : Pinned::allocated;
}

}  // namespace tenon::cuda
