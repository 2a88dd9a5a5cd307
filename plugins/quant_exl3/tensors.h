// SPDX-License-Identifier: MIT
// Reads and checks the tensors of one EXL3 matrix (docs/exl3.md 1.1) and cuts a rank's part out of
// them.
#pragma once

#include <cstring>
#include <vector>

#include "codec.h"
#include "plugins/quant_common/backend.h"

namespace tenon::exl3 {

/// One stored matrix, checked. Views live as long as the weight source.
struct Tensors {
    std::string base;
    WeightSource* source = nullptr;  ///< of `base`.trellis
    int twice_k = 0;
    Codebook codebook = Codebook::inst3;
    int64_t k = 0;                     ///< stored input channels, a multiple of 128
    int64_t n = 0;                     ///< stored output channels, a multiple of 128
    int64_t bytes = 0;                 ///< of all its tensors in the checkpoint
    const uint8_t* trellis = nullptr;  ///< null if only shapes were asked for; any alignment
    std::vector<float> suh, svh;       ///< [k], [n]; legacy signs are expanded
    bool has_bias = false;
    std::vector<float> bias;  ///< [n] or empty
};

/// The part of a stored matrix that is loaded: channels [k0, k0 + k) and [n0, n0 + n), all
/// multiples of 128, of which the first `in` and `out` exist in the model.
struct Part {
    const Tensors* tensors = nullptr;
    int64_t k0 = 0, k = 0, n0 = 0, n = 0;
    int64_t in = 0, out = 0;
    bool with_bias = false;

    /// Copies tile (tile_k, tile_n) of the part; `to` has room for tile_words(16).
    void copy_tile(int64_t tile_k, int64_t tile_n, uint16_t* to) const {
        const int64_t words = tile_words(tensors->twice_k);
        const int64_t row = k0 / kTile + tile_k;
        const int64_t index = row * (tensors->n / kTile) + n0 / kTile + tile_n;
        std::memcpy(to, tensors->trellis + 2 * index * words, static_cast<size_t>(2 * words));
    }
};

using quant::Want;

/// errors  not_found: `base` has no EXL3 tensors; invalid_argument: it has, but they are malformed
Status read_tensors(WeightSource& source, const std::string& base, Want want, Tensors* out);

/// The matrices stored under a name: one, or one per group as `base.slice.g`.
/// errors  as read_tensors; invalid_argument if slices differ in shape
Status read_groups(WeightSource& source, const std::string& base, Want want,
                   std::vector<Tensors>* out);

}  // namespace tenon::exl3
