// SPDX-License-Identifier: MIT
// Choices that follow from the facts of a device: the kind of pinned memory, the size of clusters;
// needs no GPU.
#include <algorithm>

#include "kernels/cuda/device/clusters.h"
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

Result<int> choose_cluster(const GpuFacts& facts, int found, int wanted) {
    if (found < kLeastCluster) {
        return error(Code::unavailable,
                     "{} runs clusters of at most {} blocks, its kernels need {}: give the process "
                     "a whole GPU or a larger slice of it",
                     facts.name, found, kLeastCluster);
    }
    return std::clamp(wanted, kLeastCluster, found);
}

}  // namespace tenon::cuda
