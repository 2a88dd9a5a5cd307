// SPDX-License-Identifier: MIT
// Turns the ids of a batch into few reads: sorted, duplicates together, rows of one block read
// once, neighbours merged.
#pragma once

#include "plugins/storage_common/row_layout.h"

#include <span>

namespace tenon::storage {

constexpr uint64_t kBlockBytes = 4096;  // alignment that O_DIRECT accepts on every drive we know

constexpr uint64_t block_floor(uint64_t offset) {
    return offset & ~(kBlockBytes - 1);
}
constexpr uint64_t block_ceil(uint64_t offset) {
    return block_floor(offset + kBlockBytes - 1);
}

/// One wanted row: its id and its place in the batch.
struct RowRef {
    int64_t id;
    int64_t row;
};

/// Sorts by id, equal ids by row. `scratch` is as long as `refs`; ids are >= 0.
void sort_by_id(std::span<RowRef> refs, std::span<RowRef> scratch);

/// Number of different ids; `refs` is sorted.
int64_t count_unique(std::span<const RowRef> refs);

/// One read: file bytes [begin, end), block aligned, and the refs that have bytes in it.
///
/// A row that is cut by the bound on a read's size belongs to the refs of both reads.
struct ReadRange {
    uint64_t begin = 0;
    uint64_t end = 0;
    int64_t first = 0;  ///< index of the first ref
    int64_t count = 0;
};

/// Yields the reads of one batch in file order; holds no memory of its own.
class ReadPlanner {
  public:
    ReadPlanner() = default;
    /// refs      sorted; valid while the planner is used
    /// max_bytes bound of one read, a multiple of kBlockBytes
    ReadPlanner(const RowLayout& layout, std::span<const RowRef> refs, uint64_t max_bytes)
        : layout_(&layout), refs_(refs), max_bytes_(max_bytes) {}

    bool exhausted() const { return at_ == refs_.size(); }
    /// The next read. Never overlaps an earlier one; false at the end.
    bool next(ReadRange* out);

  private:
    const RowLayout* layout_ = nullptr;
    std::span<const RowRef> refs_;
    uint64_t max_bytes_ = 0;
    size_t at_ = 0;         // first ref whose bytes are not all covered
    uint64_t covered_ = 0;  // end of the last read
};

/// Splits a failed read into one read for each id, so that a bad block costs only its own rows.
///
/// Takes the first id off `rest`; false when none is left.
bool next_single(const RowLayout& layout, std::span<const RowRef> refs, ReadRange* rest,
                 ReadRange* out);

}  // namespace tenon::storage
