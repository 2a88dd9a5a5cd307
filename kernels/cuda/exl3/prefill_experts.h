// SPDX-License-Identifier: MIT
// Routed experts and the shared one for many rows: rows are sorted by expert, each expert's weights
// are decoded once for up to 96 rows, straight into operands of the tensor core. The shared expert,
// which all rows take, goes the way of a linear (prefill.h). Class I.
#pragma once

#include "api.h"

namespace tenon::exl3::cuda {

/// Rows of an expert that share a decoded weight, where a block may have the shared memory for it.
constexpr int kExpertTile = 96;
constexpr int kExpertTileLess = 64;  ///< elsewhere
constexpr int kExpertPad = 8;        ///< rows of an expert lie in groups of this many
constexpr int kExpertRows = 4096;    ///< rows of one pass

/// Tiles lie by class: those of more than 64 rows, of more than 32, the others.
constexpr int kTileClasses = 3;
constexpr int tile_class(int rows) {
    return rows > 64 ? 0 : (rows > 32 ? 1 : 2);
}

/// Some rows of one expert. Slots slot0 .. slot0 + rows of the sorted order.
struct ExpertTile {
    int32_t expert, slot0, rows, padded;  ///< padded: rows up to a multiple of kExpertPad
};

/// Instances of a projection: the rates and codes that occur.
struct ExpertKind {
    int32_t twice_k = 0;
    Code code = Code::mul1;
};
constexpr int kMostKinds = 27;

/// Tables have experts + 1 entries, the last is the shared expert; `words` is null where this rank
/// holds none.
struct ExpertPrefill {
    int32_t rows = 0;
    int32_t k = 0;  ///< slots of a row
    int32_t experts = 0;
    bool has_shared = false;
    int32_t hidden = 0, width = 0;
    int32_t k_up = 0, k_down = 0;  ///< padded inputs of up and of down
    const Weight* gate = nullptr;
    const Weight* up = nullptr;
    const Weight* down = nullptr;
    Weight shared[3];                      ///< gate, up, down on the host, if has_shared
    int32_t up_kinds = 0, down_kinds = 0;  ///< of routed gate and up together, of down
    ExpertKind up_kind[kMostKinds], down_kind[kMostKinds];
    const int32_t* ids = nullptr;    ///< [rows, k]
    const float* weights = nullptr;  ///< [rows, k]
    float limit = 0;
    bool round = true;        ///< products to bf16
    const void* x = nullptr;  ///< bf16
    int64_t x_stride = 0;
    void* scratch = nullptr;  ///< expert_prefill_bytes
    float* out = nullptr;
    int64_t out_stride = 0;
};

/// Scratch for calls of up to `rows` rows; data pointers are not read.
int64_t expert_prefill_bytes(const ExpertPrefill& call);

/// Any number of rows.
cudaError_t expert_prefill(const ExpertPrefill& call, cudaStream_t stream);

}  // namespace tenon::exl3::cuda
