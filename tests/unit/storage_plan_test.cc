// SPDX-License-Identifier: MIT
// Which reads a batch of row ids becomes: sorted, merged, bounded, and covering exactly the blocks
// that hold rows.
#include "plugins/storage_common/read_backend.h"
#include "plugins/storage_common/row_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace tenon::storage {
namespace {

RowTableDesc desc_of(int64_t rows, int64_t row_bytes, int64_t rows_per_page = 0,
                     int64_t page_bytes = 0, uint64_t offset = 0) {
    RowTableDesc desc;
    desc.name = "t";
    desc.rows = rows;
    desc.row_bytes = row_bytes;
    desc.rows_per_page = rows_per_page;
    desc.page_bytes = page_bytes;
    desc.offset = offset;
    desc.max_batch = 1;
    return desc;
}

std::vector<RowRef> refs_of(std::vector<int64_t> ids) {
    std::vector<RowRef> refs;
    for (const int64_t id : ids) {
        refs.push_back({id, static_cast<int64_t>(refs.size())});
    }
    std::vector<RowRef> scratch(refs.size());
    sort_by_id(refs, scratch);
    return refs;
}

std::vector<ReadRange> reads_of(const RowLayout& layout, const std::vector<RowRef>& refs,
                                uint64_t max_bytes = 64 << 10) {
    ReadPlanner planner(layout, refs, max_bytes);
    std::vector<ReadRange> reads;
    for (ReadRange read; planner.next(&read);) {
        reads.push_back(read);
        EXPECT_LE(reads.size(), 1000000u);
    }
    EXPECT_TRUE(planner.exhausted());
    return reads;
}

TEST(RowSort, Equals_a_stable_sort_for_any_size_and_width) {
    std::mt19937_64 random(1);
    for (const size_t n : {0u, 1u, 2u, 511u, 512u, 513u, 5000u, 70000u}) {
        for (const int bits : {1, 7, 11, 12, 29, 40, 62}) {
            std::vector<RowRef> refs(n);
            for (size_t i = 0; i < n; ++i) {
                refs[i] = {static_cast<int64_t>(random() >> (64 - bits)), static_cast<int64_t>(i)};
            }
            std::vector<RowRef> expected = refs;
            std::stable_sort(expected.begin(), expected.end(),
                             [](const RowRef& a, const RowRef& b) { return a.id < b.id; });
            std::vector<RowRef> scratch(n);

            sort_by_id(refs, scratch);

            const bool same = std::equal(
                refs.begin(), refs.end(), expected.begin(),
                [](const RowRef& a, const RowRef& b) { return a.id == b.id && a.row == b.row; });
            ASSERT_TRUE(same) << n << " refs of " << bits << " bits";
        }
    }
}

TEST(RowSort, Counts_different_ids) {
    EXPECT_EQ(count_unique({}), 0);
    EXPECT_EQ(count_unique(refs_of({5})), 1);
    EXPECT_EQ(count_unique(refs_of({5, 5, 5})), 1);
    EXPECT_EQ(count_unique(refs_of({5, 4, 5, 9, 4})), 3);
}

TEST(ReadPlan, Rows_of_one_block_are_read_once) {
    const RowLayout layout = *make_layout(desc_of(1000, 512));

    const auto reads = reads_of(layout, refs_of({7, 0, 3, 7, 0}));

    ASSERT_EQ(reads.size(), 1u);
    EXPECT_EQ(reads[0].begin, 0u);
    EXPECT_EQ(reads[0].end, 4096u);
    EXPECT_EQ(reads[0].count, 5);
}

TEST(ReadPlan, Neighbouring_blocks_become_one_read) {
    const RowLayout layout = *make_layout(desc_of(1000, 4096));

    const auto reads = reads_of(layout, refs_of({12, 10, 11, 20}));

    ASSERT_EQ(reads.size(), 2u);
    EXPECT_EQ(reads[0].begin, 10u * 4096);
    EXPECT_EQ(reads[0].end, 13u * 4096);
    EXPECT_EQ(reads[1].begin, 20u * 4096);
}

TEST(ReadPlan, A_row_across_a_block_border_takes_both_blocks) {
    const RowLayout layout = *make_layout(desc_of(1000, 264));

    const auto reads = reads_of(layout, refs_of({15}));  // bytes 3960 … 4224

    ASSERT_EQ(reads.size(), 1u);
    EXPECT_EQ(reads[0].begin, 0u);
    EXPECT_EQ(reads[0].end, 8192u);
}

TEST(ReadPlan, Merging_stops_at_the_bound) {
    const RowLayout layout = *make_layout(desc_of(1000, 4096));
    std::vector<int64_t> ids(10);
    std::iota(ids.begin(), ids.end(), 0);

    const auto reads = reads_of(layout, refs_of(ids), 16384);

    ASSERT_EQ(reads.size(), 3u);
    EXPECT_EQ(reads[0].end, 16384u);
    EXPECT_EQ(reads[1].end, 32768u);
    EXPECT_EQ(reads[2].end, 40960u);
    EXPECT_EQ(reads[2].count, 2);
}

TEST(ReadPlan, A_row_above_the_bound_is_cut_into_reads_that_share_nothing) {
    const RowLayout layout = *make_layout(desc_of(10, 50000, 0, 0, 100));

    const auto reads = reads_of(layout, refs_of({1, 1}), 16384);  // bytes 50100 … 100100

    ASSERT_EQ(reads.size(), 4u);
    EXPECT_EQ(reads[0].begin, 49152u);
    EXPECT_EQ(reads[3].end, 102400u);
    for (size_t i = 0; i < reads.size(); ++i) {
        EXPECT_EQ(reads[i].first, 0);
        EXPECT_EQ(reads[i].count, 2) << "both repeats take part in every piece";
        EXPECT_EQ(reads[i].begin, i == 0 ? 49152u : reads[i - 1].end);
    }
}

// The plan of any batch: aligned, bounded, ascending reads that cover every row, read no block
// twice and none in vain, and of which two touch only where one read could not hold both.
TEST(ReadPlan, Holds_its_promises_for_random_batches) {
    std::mt19937_64 random(2);
    for (int round = 0; round < 400; ++round) {
        const auto rows = static_cast<int64_t>(1 + random() % 2000);
        const auto row_bytes = static_cast<int64_t>(1 + random() % (round % 4 == 0 ? 40000 : 700));
        int64_t per_page = 0;
        int64_t page_bytes = 0;
        if (round % 2 == 1) {
            per_page = static_cast<int64_t>(1 + random() % 17);
            page_bytes = per_page * row_bytes + static_cast<int64_t>(random() % 6000);
        }
        const RowLayout layout =
            *make_layout(desc_of(rows, row_bytes, per_page, page_bytes, random() % 9000));
        const uint64_t max_bytes = kBlockBytes * (2 + random() % 15);
        std::vector<int64_t> ids(random() % 1500);
        for (int64_t& id : ids) {
            id = static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
        }
        const std::vector<RowRef> refs = refs_of(ids);
        SCOPED_TRACE(round);

        const auto reads = reads_of(layout, refs, max_bytes);

        std::set<uint64_t> wanted;
        for (const RowRef& ref : refs) {
            for (uint64_t b = block_floor(layout.begin_of(ref.id)); b < layout.end_of(ref.id);
                 b += kBlockBytes) {
                wanted.insert(b);
            }
        }
        std::set<uint64_t> read_blocks;
        std::vector<uint64_t> bytes_got(refs.size());
        for (size_t i = 0; i < reads.size(); ++i) {
            const ReadRange& read = reads[i];
            ASSERT_EQ(read.begin % kBlockBytes, 0u);
            ASSERT_EQ(read.end % kBlockBytes, 0u);
            ASSERT_LT(read.begin, read.end);
            ASSERT_LE(read.end - read.begin, max_bytes);
            ASSERT_GE(read.count, 1);
            if (i > 0) {
                ASSERT_GE(read.begin, reads[i - 1].end);
                if (read.begin == reads[i - 1].end) {
                    const uint64_t next_end = std::min(
                        read.end,
                        block_ceil(layout.end_of(refs[static_cast<size_t>(read.first)].id)));
                    ASSERT_GT(next_end - reads[i - 1].begin, max_bytes) << "could be merged";
                }
            }
            for (uint64_t b = read.begin; b < read.end; b += kBlockBytes) {
                ASSERT_TRUE(read_blocks.insert(b).second) << "block read twice";
            }
            for (int64_t k = read.first; k < read.first + read.count; ++k) {
                const int64_t id = refs[static_cast<size_t>(k)].id;
                const uint64_t from = std::max(layout.begin_of(id), read.begin);
                const uint64_t to = std::min(layout.end_of(id), read.end);
                ASSERT_LT(from, to) << "a ref without bytes in its read";
                bytes_got[static_cast<size_t>(k)] += to - from;
            }
        }
        ASSERT_TRUE(read_blocks == wanted);
        for (const uint64_t got : bytes_got) {
            ASSERT_EQ(got, static_cast<uint64_t>(row_bytes));
        }
    }
}

TEST(ReadPlan, A_failed_read_is_split_into_one_read_for_each_id) {
    const RowLayout layout = *make_layout(desc_of(1000, 264));
    const std::vector<RowRef> refs = refs_of({14, 15, 15, 16, 40});
    ReadRange rest = reads_of(layout, refs).at(0);
    ASSERT_EQ(rest.count, 5) << "blocks 0, 1 and 2";
    std::vector<ReadRange> singles;

    for (ReadRange one; next_single(layout, refs, &rest, &one);) {
        singles.push_back(one);
    }

    ASSERT_EQ(singles.size(), 4u);
    EXPECT_EQ(singles[0].begin, 0u);
    EXPECT_EQ(singles[0].end, 4096u);
    EXPECT_EQ(singles[1].end, 8192u);
    EXPECT_EQ(singles[1].count, 2) << "repeats stay together";
    EXPECT_EQ(singles[2].begin, 4096u);
    EXPECT_EQ(singles[3].first, 4);
    EXPECT_EQ(rest.count, 0);
}

TEST(RowLayoutCheck, Names_the_field_that_is_wrong) {
    const auto message = [](const RowTableDesc& desc) {
        return make_layout(desc).status().message().str();
    };

    EXPECT_NE(message(desc_of(-1, 8)).find("rows = -1"), std::string::npos);
    EXPECT_NE(message(desc_of(1, 0)).find("row_bytes = 0"), std::string::npos);
    EXPECT_NE(message(desc_of(1, 8, 2, 15)).find("page_bytes = 15 cannot hold 2 rows"),
              std::string::npos);
    EXPECT_NE(message(desc_of(int64_t{1} << 60, 8)).find("exceed any file"), std::string::npos);
    EXPECT_TRUE(make_layout(desc_of(384006168, 264, 15, 4096, 4096)).ok());
}

TEST(ReadSizes, Depth_times_read_size_stays_small) {
    for (const int32_t depth : {1, 16, 64, 65, 512, 4096}) {
        const uint64_t bytes = read_bytes_for_depth(depth);
        EXPECT_EQ(bytes % kBlockBytes, 0u);
        EXPECT_GE(bytes, 2 * kBlockBytes);
        EXPECT_LE(bytes * static_cast<uint64_t>(depth), uint64_t{32} << 20);
    }
}

}  // namespace
}  // namespace tenon::storage
