// SPDX-License-Identifier: MIT
// Drawing a token from one row: the steps that the reference and the fast version of sample.draw
// share.
#pragma once

#include <bit>
#include <limits>

#include "common/check.h"
#include "common/rows.h"
#include "kernels/shared/token_checks.h"
#include "tenon/numeric.h"

namespace tenon::cpu {

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();
constexpr int32_t kNoToken = -1;
constexpr int32_t kBadLogits = -2;

/// Scratch of one worker: adjusted logits and an order of ids.
struct DrawScratch {
    float* logits;
    int32_t* order;
};
int64_t sample_draw_worker_bytes(int64_t V);
int64_t sample_draw_scratch(void* self, const SampleDraw& p) noexcept;
DrawScratch draw_scratch(const SampleDraw& p, int32_t worker);

/// Writes bias, penalties, mask and forbidden ids of row m over a copy of its logits (excluded ids
/// become -inf).
void adjust_logits(Context& c, const SampleDraw& p, int64_t m, float* logits);

/// An upper bound of gumbel_of_word: u <= 1 - 2^-(k+1) with k leading one bits, so -log(-log u) <=
/// (k + 1) log 2. Lets most ids be skipped without a logarithm.
inline double gumbel_bound(uint32_t word) {
    return 0.6931471805599454 * (std::countl_one(word) + 1);
}
/// Above every value of gumbel_of_word.
constexpr double kGumbelLargest = 22.9;

/// noise_word with the last Philox block kept: neighbouring ids share one.
class NoiseSource {
  public:
    NoiseSource(uint64_t seed, int32_t pos) : seed_(seed), pos_(static_cast<uint32_t>(pos)) {}
    uint32_t word(int32_t id) {
        const auto u = static_cast<uint32_t>(id);
        if (!filled_ || u >> 2 != block_) {
            block_ = u >> 2;
            filled_ = true;
            words_ = philox4x32_10(static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32),
                                   block_, pos_, 0, 0);
        }
        return words_.word[u & 3];
    }

  private:
    uint64_t seed_;
    uint32_t pos_;
    uint32_t block_ = 0;
    bool filled_ = false;
    Philox4 words_{};
};

/// The row passes of the fast version; both are exact in what they promise, sums in a fixed order.
struct SampleKernels {
    /// Largest element; `bad` is set if any is NaN or +inf.
    float (*row_max)(const float* x, int64_t n, bool* bad);
    /// Sum of exp(x / temperature - top) in f64; -inf adds nothing.
    double (*sum_exp)(const float* x, int64_t n, double temperature, double top);
};
/// For this CPU, or null pointers.
SampleKernels sample_kernels_simd();

/// The fast version for this CPU, or null.
OpCall<SampleDraw> sample_draw_fast();

}  // namespace tenon::cpu
