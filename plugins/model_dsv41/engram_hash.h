// SPDX-License-Identifier: MIT
// From the classes of the last tokens to rows of the Engram tables (docs/dsv41.md 4.2, 4.3).
// Integers only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tenon/base.h"

namespace tenon::dsv41 {

struct EngramShape {
    std::vector<int64_t> layers;  ///< engram_layer_ids, in order
    int64_t bucket_floor = 0;     ///< engram_vocab_size: the first bucket count tried
    int64_t max_ngram = 0;        ///< engram_max_ngram_size
    int64_t heads = 0;            ///< engram_n_heads
    int64_t classes = 0;          ///< engram_compressed_vocab_size
};

/// Bucket counts, offsets and multipliers of all tables. Immutable.
class EngramHash {
  public:
    static constexpr int64_t kMostNgram = 16;
    /// A position that carries no text (image span) in the lists of classes below.
    static constexpr int32_t kDead = -1;

    /// errors  invalid_argument: a number out of range (names it)
    static Result<EngramHash> make(const EngramShape& shape);

    int64_t tables() const { return static_cast<int64_t>(tables_.size()); }
    int64_t columns() const { return (shape_.max_ngram - 1) * shape_.heads; }
    /// Tokens before a position that its rows depend on.
    int64_t history() const { return shape_.max_ngram - 1; }
    /// Rows of one table (`engram_num_embeddings`).
    int64_t rows(int64_t table) const { return tables_[static_cast<size_t>(table)].rows; }
    std::span<const int64_t> primes(int64_t table) const {
        return tables_[static_cast<size_t>(table)].primes;
    }
    std::span<const int64_t> offsets(int64_t table) const {
        return tables_[static_cast<size_t>(table)].offsets;
    }
    std::span<const int64_t> multipliers(int64_t table) const {
        return tables_[static_cast<size_t>(table)].multipliers;
    }

    /// Rows of one position.
    ///
    /// look  int32[max_ngram]: classes of this token, the one before, …; the pad class where a
    /// token is missing or dead out   int64[columns()]
    void look_up(int64_t table, std::span<const int32_t> look, std::span<int64_t> out) const;

    /// Rows of `count` positions in one table.
    ///
    /// classes  int32[history() + count]: classes of the preceding tokens, oldest first, then of
    /// the positions; kDead
    ///          where there is no token (before the start, image span): such a token and all before
    ///          it read as `pad`
    /// pad      map[engram_pad_token_id], not the id
    /// out      int64[count, columns()]; all columns of a dead position are -1 (not fetched)
    void row_ids(int64_t table, std::span<const int32_t> classes, int32_t pad,
                 std::span<int64_t> out) const;

  private:
    struct Table {
        std::vector<int64_t> primes, offsets, multipliers;
        int64_t rows = 0;
    };
    explicit EngramHash(EngramShape shape) : shape_(std::move(shape)) {}

    EngramShape shape_;
    std::vector<Table> tables_;
};

/// The first `count` values of numpy's default_rng(seed).integers(0, bound, dtype=int64); 2^32 <
/// bound < 2^63.
std::vector<int64_t> draw_like_numpy(uint64_t seed, int64_t bound, int64_t count);

}  // namespace tenon::dsv41
