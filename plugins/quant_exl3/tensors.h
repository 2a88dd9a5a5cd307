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
    WeightSource* source = nullptr;
    int twice_k = 0;
    Codebook codebook = Codebook::inst3;
    int64_t k = 0;                              ///< stored input channels, a multiple of 128
    int64_t n = 0;                              ///< stored output channels, a multiple of 128
    int64_t bytes = 0;                          ///< of all its tensors in the checkpoint
    bool suh_signs = false, svh_signs = false;  ///< stored as legacy signs, not as halves
    bool has_bias = false;
    // Empty if only shapes were asked for.
    const uint8_t* trellis = nullptr;  ///< any alignment
    std::vector<float> suh, svh;       ///< [k], [n]; legacy signs are expanded
    std::vector<float> bias;           ///< [n], if there is one
};

/// The part of a stored matrix that is loaded: channels [k0, k0 + k) and [n0, n0 + n), all
/// multiples of 128, of which the first `in` and `out` exist in the model.
struct Part {
    const Tensors* tensors = nullptr;
    int64_t k0 = 0, k = 0, n0 = 0, n = 0;
    int64_t in = 0, out = 0;
    int64_t stored = 0;  ///< weights of the object, all groups, before a rank's cut
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

/// Halves [first, first + count) of the tensor `name`, checked. errors  invalid_argument: one is no
/// finite number (names it)
Status check_halves(const std::string& name, const uint8_t* bytes, int64_t first, int64_t count);

/// The matrices stored under a name: one, or one per group as `base.slice.g`.
/// errors  as read_tensors; invalid_argument if slices differ in shape
Status read_groups(WeightSource& source, const std::string& base, Want want,
                   std::vector<Tensors>* out);

}  // namespace tenon::exl3
