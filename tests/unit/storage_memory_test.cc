// SPDX-License-Identifier: MIT
// Tables that are answered from memory: which ones, and that the file no longer matters. The
// conformance suite runs over them as well (conformance.io_uring.in_memory).
#include "plugins/storage_common/memory_table.h"
#include "plugins/storage_common/threads_backend.h"
#include "sdk/conformance/storage/table_file.h"

namespace tenon::storage {
namespace {

using namespace tenon::testing;

struct StoreOf {
    explicit StoreOf(Host& host, uint64_t memory_bytes)
        : store(
              host, "test", Access::buffered, 1,
              [this, &host](int32_t) {
                  ++lanes;
                  return ReadLane::start(host, "test", "test_lane",
                                         std::make_unique<ThreadsBackend>(host, 1));
              },
              memory_bytes) {}
    int lanes = 0;
    LaneRowStore store;
};

std::string write_at(const TempDir& dir, const TableSpec& spec) {
    const std::string file = (dir.path() / "table.bin").native();
    write_table(file, spec);
    return file;
}

TEST(MemoryTable, Tables_up_to_the_limit_are_kept_and_start_no_lane) {
    const TempDir dir;
    TestHost host;
    const TableSpec spec{.rows = 100, .row_bytes = 33, .offset = 77};
    const std::string file = write_at(dir, spec);
    StoreOf kept(host, 3300);
    StoreOf read(host, 3299);
    Ref<RowTable> a;
    Ref<RowTable> b;

    ASSERT_TRUE(kept.store.open(describe_table(file, spec), a.out()).ok());
    ASSERT_TRUE(read.store.open(describe_table(file, spec), b.out()).ok());

    EXPECT_EQ(a->info().engine, std::string_view("memory"));
    EXPECT_EQ(kept.lanes, 0);
    EXPECT_NE(b->info().engine, std::string_view("memory"));
    EXPECT_EQ(read.lanes, 1);
}

TEST(MemoryTable, Rows_stay_what_they_were_when_the_file_is_cut) {
    const TempDir dir;
    TestHost host;
    const TableSpec spec{.rows = 100, .row_bytes = 64, .rows_per_page = 3, .page_bytes = 256};
    const std::string file = write_at(dir, spec);
    auto table = MemoryRowTable::open(host, "test", describe_table(file, spec));
    ASSERT_TRUE(table.ok()) << table.status().message().view();
    std::filesystem::resize_file(file, 0);
    Rows rows({7, 99, -1, 7, 0}, spec.row_bytes, 5);
    Ticket ticket = 0;

    ASSERT_TRUE((*table)->fetch(rows.batch(), &ticket).ok());

    EXPECT_TRUE((*table)->done(ticket));
    std::vector<uint64_t> failed = rows.words();
    ASSERT_TRUE((*table)->wait(ticket, 0, failed).ok());
    EXPECT_EQ(failed[0], 0u);
    rows.expect_right();
    EXPECT_EQ((*table)->stats().rows, 4u);
    EXPECT_EQ((*table)->stats().unique_rows, 3u);
    EXPECT_EQ((*table)->stats().reads, 0u);
}

TEST(MemoryTable, Short_file_is_refused) {
    const TempDir dir;
    TestHost host;
    const TableSpec spec{.rows = 100, .row_bytes = 64};
    const std::string file = write_at(dir, spec);
    std::filesystem::resize_file(file, spec.file_bytes() - 1);

    const auto table = MemoryRowTable::open(host, "test", describe_table(file, spec));

    ASSERT_FALSE(table.ok());
    EXPECT_NE(table.status().message().str().find("shorter than its 100 rows of 64 bytes"),
              std::string::npos);
}

}  // namespace
}  // namespace tenon::storage
