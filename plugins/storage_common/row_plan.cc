// SPDX-License-Identifier: MIT
// Sorting and merging of row reads.
#include "plugins/storage_common/row_plan.h"

#include <algorithm>
#include <array>
#include <bit>

namespace tenon::storage {
namespace {

constexpr int kDigitBits = 11;  // 2^11 counters fit the L1 cache; 29-bit ids take three passes
constexpr size_t kBuckets = size_t{1} << kDigitBits;
constexpr size_t kSmallBatch = 512;  // below, comparisons beat clearing the counters

}  // namespace

void sort_by_id(std::span<RowRef> refs, std::span<RowRef> scratch) {
    if (refs.size() <= kSmallBatch) {
        std::sort(refs.begin(), refs.end(), [](const RowRef& a, const RowRef& b) {
            return a.id != b.id ? a.id < b.id : a.row < b.row;
        });
        return;
    }
    int64_t all_bits = 0;
    for (const RowRef& ref : refs) {
        all_bits |= ref.id;
    }
    const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(all_bits)));
    RowRef* from = refs.data();
    RowRef* to = scratch.data();
    // Stable by digit, so rows of equal ids keep the order of the batch, which is ascending.
    for (int shift = 0; shift < bits; shift += kDigitBits) {
        const auto digit = [shift](const RowRef& ref) {
            return static_cast<size_t>(static_cast<uint64_t>(ref.id) >> shift) & (kBuckets - 1);
        };
        std::array<size_t, kBuckets> place{};
        for (size_t i = 0; i < refs.size(); ++i) {
            ++place[digit(from[i])];
        }
        size_t sum = 0;
        for (size_t& p : place) {
            sum += std::exchange(p, sum);
        }
        for (size_t i = 0; i < refs.size(); ++i) {
            to[place[digit(from[i])]++] = from[i];
        }
        std::swap(from, to);
    }
    if (from != refs.data()) {
        std::copy(from, from + refs.size(), refs.data());
    }
}

int64_t count_unique(std::span<const RowRef> refs) {
    int64_t count = refs.empty() ? 0 : 1;
    for (size_t i = 1; i < refs.size(); ++i) {
        count += refs[i].id != refs[i - 1].id ? 1 : 0;
    }
    return count;
}

bool ReadPlanner::next(ReadRange* out) {
    if (exhausted()) {
        return false;
    }
    const size_t first = at_;
    const uint64_t begin = std::max(block_floor(layout_->begin_of(refs_[first].id)), covered_);
    uint64_t end = begin;
    size_t i = first;
    size_t last = 0;  // set when a row is cut: one past its repeats
    for (; i < refs_.size(); ++i) {
        const uint64_t row_begin = layout_->begin_of(refs_[i].id);
        if (i > first && block_floor(row_begin) > end) {
            break;  // a gap: nothing of this read would serve the row
        }
        const uint64_t row_end = block_ceil(row_begin + layout_->row_bytes);
        if (row_end <= end) {
            continue;
        }
        if (row_end - begin <= max_bytes_) {
            end = row_end;
            continue;
        }
        if (i > first && row_begin >= end) {
            break;  // a neighbour that fits no more: the next read takes it whole
        }
        end = begin + max_bytes_;
        last = i + 1;
        while (last < refs_.size() && refs_[last].id == refs_[i].id) {
            ++last;
        }
        break;
    }
    at_ = i;
    covered_ = end;
    *out = {begin, end, static_cast<int64_t>(first),
            static_cast<int64_t>((last == 0 ? i : last) - first)};
    return true;
}

bool next_single(const RowLayout& layout, std::span<const RowRef> refs, ReadRange* rest,
                 ReadRange* out) {
    if (rest->count == 0) {
        return false;
    }
    const auto first = static_cast<size_t>(rest->first);
    const int64_t id = refs[first].id;
    int64_t count = 1;
    while (count < rest->count && refs[first + static_cast<size_t>(count)].id == id) {
        ++count;
    }
    const uint64_t row_begin = layout.begin_of(id);
    *out = {std::max(block_floor(row_begin), rest->begin),
            std::min(block_ceil(row_begin + layout.row_bytes), rest->end), rest->first, count};
    rest->first += count;
    rest->count -= count;
    return true;
}

}  // namespace tenon::storage
