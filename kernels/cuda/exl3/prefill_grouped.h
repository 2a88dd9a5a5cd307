// SPDX-License-Identifier: MIT
// The products of sorted rows with the experts' weights: one source file a rate.
#pragma once

#include "prefill_experts.h"

namespace tenon::exl3::cuda {

/// Shared memory of a block that tiles of kExpertTile rows need.
constexpr int kExpertTileShared = 128 * 1024;

/// One projection of a launch.
struct GroupedSide {
    const Weight* table = nullptr;
    const uint8_t* x = nullptr;    ///< panel of the sorted rows (prefill_grouped.cuh)
    const float* scale = nullptr;  ///< by slot
    const float* sum = nullptr;    ///< by slot: of the row in the panel
    void* y = nullptr;
    int64_t y_stride = 0;  ///< elements
};

struct GroupedCall {
    int32_t sides = 1;
    GroupedSide side[2];
    const ExpertTile* tiles = nullptr;
    const int32_t* tile_ends = nullptr;  ///< [kTileClasses]
    const int32_t* entry_of = nullptr;   ///< by slot; null: y rows are slots
    int32_t processors = 1;              ///< of the device
    int32_t k = 0, out = 0;
    uint32_t upper = 0x10000;  ///< a factor that puts a half into the upper one
    int32_t y_is_f32 = 0;      ///< else bf16
};

/// Multiplies the tiles whose weight has the rate and the code; others are left alone.
template <int kTwiceK>
cudaError_t grouped(const GroupedCall& call, Code code, cudaStream_t stream);

}  // namespace tenon::exl3::cuda
