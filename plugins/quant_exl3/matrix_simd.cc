// SPDX-License-Identifier: MIT
// EXL3 weights that stay packed in memory, in the order in which the SIMD kernels read them.
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "kernels/cpu/matrix/aligned.h"
#include "matrix.h"

namespace tenon::exl3 {

namespace {

int64_t packed_words(int64_t k, int64_t n, int twice_k) {
    return n / kRotation * (k / kTile) * strip_words(twice_k);
}

class SimdMatrix final : public Exl3Matrix {
  public:
    SimdMatrix(const Part& part, const Kernels& kernels)
        : Exl3Matrix(part),
          kernels_(kernels),
          twice_k_(part.tensors->twice_k),
          decode_(kernels.decoder(twice_k_, part.tensors->codebook)),
          fused_(kernels.fused(twice_k_, part.tensors->codebook)),
          words_(packed_words(part.k, part.n, twice_k_)),
          lane_scale_(part.n),
          lane_bias_(part.n) {
        TENON_CHECK(decode_ != nullptr, "2K = {}", twice_k_);
        pack(part);
        for (int64_t c = 0; c < part.n; ++c) {
            const int64_t lane =
                c / kRotation * kRotation + lane_of_column(static_cast<int>(c % kRotation));
            lane_scale_.data()[lane] = svh()[c] / 128.0f;  // both rotations' factors, exact
            lane_bias_.data()[lane] = bias() == nullptr ? 0.0f : bias()[c];
        }
    }

    int64_t staged_bytes() const override { return k() * static_cast<int64_t>(sizeof(float)); }
    int64_t work_bytes() const override {
        return kernels_.panel_floats * static_cast<int64_t>(sizeof(float));
    }

    void stage(const packed::RowsIn& x, int64_t rows, std::byte* staged) const override {
        kernels_.stage(x, rows, in(), k(), suh(), staged, staged_bytes());
    }

    void block(int64_t index, const std::byte* staged, int64_t rows, float* y,
               std::byte* work) const override {
        BlockArgs args;
        args.decode = decode_;
        args.fused = fused_;
        args.words = block_words(index);
        args.twice_k = twice_k_;
        args.k = k();
        args.scale = lane_scale_.data() + index * kRotation;
        args.bias = lane_bias_.data() + index * kRotation;
        args.staged = staged;
        args.staged_bytes = staged_bytes();
        args.rows = rows;
        args.y = y;
        args.panel = reinterpret_cast<float*>(work);
        kernels_.block(args);
    }

  protected:
    int64_t weight_bytes() const override {
        return words_.bytes() + lane_scale_.bytes() + lane_bias_.bytes();
    }
    int staging_kind() const override { return 2; }

    void inner_block(int64_t kb, int64_t nb, float* dst) const override {
        packed::AlignedArray<float> panel(kRotation * kRotation);
        decode_(block_words(nb) + kb * kRotation / kTile * strip_words(twice_k_), kRotation / kTile,
                panel.data());
        for (int64_t r = 0; r < kRotation; ++r) {
            for (int64_t c = 0; c < kRotation; ++c) {
                dst[r * kRotation + c] =
                    panel.data()[r * kRotation + lane_of_column(static_cast<int>(c))];
            }
        }
    }

  private:
    const uint16_t* block_words(int64_t index) const {
        return words_.data() + index * (k() / kTile) * strip_words(twice_k_);
    }

    void pack(const Part& part) {
        uint16_t* to = words_.data();
        uint16_t tiles[2][tile_words(16)];
        for (int64_t nt = 0; nt < part.n / kTile; nt += 2 * kPairs) {
            for (int64_t kt = 0; kt < part.k / kTile; ++kt) {
                for (int64_t pair = 0; pair < kPairs; ++pair) {
                    part.copy_tile(kt, nt + 2 * pair, tiles[0]);
                    part.copy_tile(kt, nt + 2 * pair + 1, tiles[1]);
                    for (int piece = 0; piece < twice_k_; ++piece) {
                        for (int lane = 0; lane < kLanes; ++lane) {
                            *to++ = tiles[lane / 8][stream_piece(lane % 8 * twice_k_ + piece)];
                        }
                    }
                }
            }
        }
    }

    const Kernels& kernels_;
    int twice_k_;
    DecodeFn decode_;
    const FusedSet* fused_;
    packed::AlignedArray<uint16_t> words_;
    packed::AlignedArray<float> lane_scale_;
    packed::AlignedArray<float> lane_bias_;
};

}  // namespace

std::unique_ptr<packed::Matrix> make_simd_matrix(const Part& part, const Kernels& kernels) {
    return std::make_unique<SimdMatrix>(part, kernels);
}

int64_t simd_bytes(const Part& part) {
    const int64_t floats = 2 * part.n;
    return packed_words(part.k, part.n, part.tensors->twice_k) * 2 + floats * 4 +
           Exl3Matrix::scale_bytes(part.k, part.n, part.with_bias);
}

}  // namespace tenon::exl3
