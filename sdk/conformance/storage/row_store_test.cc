// SPDX-License-Identifier: MIT
// Conformance of row stores: opening, refusing, failing and going away.
#include "storage/table_file.h"

#include <algorithm>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tenon::testing {
namespace {

namespace fs = std::filesystem;

class RowStoreContract : public ::testing::TestWithParam<const Component*> {
  protected:
    void SetUp() override {
        create();
        file_ = (dir_.path() / "table.bin").native();
    }

    void create() {
        OptionSet options(*GetParam());
        auto store = Created<RowStore>::make(*GetParam(), host_, options);
        ASSERT_TRUE(store.ok()) << store.status().message().view();
        store_ = std::move(*store);
    }

    Status open(const TableSpec& spec, Ref<RowTable>* table) {
        return store_->open(describe_table(file_, spec), table->out());
    }

    TempDir dir_;
    TestHost host_;
    Created<RowStore> store_;
    std::string file_;
};

TENON_INSTANTIATE_FOR_KIND(RowStoreContract, PluginKind::storage);

TEST_P(RowStoreContract, Offers_its_facet) {
    EXPECT_EQ(facet_of<RowStore>(store_.get()), store_.get());
    EXPECT_EQ(store_.get()->query("storage.row_store/2"), nullptr);
}

TEST_P(RowStoreContract, A_missing_file_is_an_io_error_with_path_and_reason) {
    RowTable* table = nullptr;

    const Status status = store_->open(describe_table(file_, {}), &table);

    EXPECT_EQ(status.code(), Code::io);
    EXPECT_NE(status.message().str().find(file_), std::string::npos) << status.message().view();
    EXPECT_NE(status.message().str().find("No such file"), std::string::npos)
        << status.message().view();
    EXPECT_NE(status.message().str().find("layers.1.engram.test"), std::string::npos)
        << status.message().view();
    EXPECT_EQ(table, nullptr);
}

TEST_P(RowStoreContract, Refuses_what_is_not_a_regular_file) {
    Ref<RowTable> table;
    file_ = dir_.path().native();
    EXPECT_FALSE(open({}, &table).ok());

    file_ = (dir_.path() / "pipe").native();
    ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
    EXPECT_FALSE(open({}, &table).ok());  // and returns, although nobody writes to the pipe

    file_ = "";
    EXPECT_FALSE(open({}, &table).ok());
}

TEST_P(RowStoreContract, A_file_shorter_than_its_rows_names_both_sizes) {
    const TableSpec spec{.rows = 100, .row_bytes = 264};
    write_table(file_, spec);
    fs::resize_file(file_, 26399);
    Ref<RowTable> table;

    const Status status = open(spec, &table);

    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_NE(status.message().str().find("26399"), std::string::npos) << status.message().view();
    EXPECT_NE(status.message().str().find("26400"), std::string::npos) << status.message().view();
}

TEST_P(RowStoreContract, Refuses_descriptions_that_make_no_sense) {
    const TableSpec good{.rows = 100, .row_bytes = 16};
    write_table(file_, good);
    const auto refused = [&](auto change) {
        RowTableDesc desc = describe_table(file_, good);
        change(desc);
        RowTable* table = nullptr;
        const Status status = store_->open(desc, &table);
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.message().view();
        EXPECT_EQ(table, nullptr);
    };

    refused([](RowTableDesc& d) { d.rows = -1; });
    refused([](RowTableDesc& d) { d.row_bytes = 0; });
    refused([](RowTableDesc& d) { d.row_bytes = -16; });
    refused([](RowTableDesc& d) { d.max_batch = 0; });
    refused([](RowTableDesc& d) { d.max_tickets = 0; });
    refused([](RowTableDesc& d) { d.rows_per_page = -1; });
    refused([](RowTableDesc& d) { d.rows_per_page = 10, d.page_bytes = 159; });
    refused([](RowTableDesc& d) { d.rows_per_page = 10, d.page_bytes = 0; });
    refused([](RowTableDesc& d) { d.rows = INT64_MAX; });
    refused([](RowTableDesc& d) { d.row_bytes = INT64_MAX; });
    refused([](RowTableDesc& d) { d.offset = UINT64_MAX - 8; });
    refused([](RowTableDesc& d) { d.rows_per_page = INT64_MAX, d.page_bytes = INT64_MAX; });
    refused([](RowTableDesc& d) { d.rows_per_page = 1, d.page_bytes = INT64_MAX; });
}

TEST_P(RowStoreContract, A_table_without_rows_opens_and_has_no_ids) {
    const TableSpec spec{.rows = 0};
    write_table(file_, spec);
    Ref<RowTable> table;
    TENON_ASSERT_OK(open(spec, &table));
    Rows nothing({-1}, 264);
    Rows first({0}, 264);

    expect_fetch(*table, nothing);
    expect_refusal(*table, first.batch(), Code::invalid_argument, "0");
}

TEST_P(RowStoreContract, Two_tables_may_share_a_file) {
    const TableSpec whole{.rows = 200, .row_bytes = 264};
    write_table(file_, whole);
    TableSpec tail = whole;
    tail.offset = whole.begin_of(100);
    tail.rows = 100;
    Ref<RowTable> a;
    Ref<RowTable> b;
    TENON_ASSERT_OK(open(whole, &a));
    TENON_ASSERT_OK(open(tail, &b));
    Rows rows({150}, 264);
    expect_fetch(*a, rows);

    std::vector<uint8_t> same(264);
    const std::vector<int64_t> ids{50};
    Ticket ticket = 0;
    TENON_ASSERT_OK(b->fetch({ids, make_view(same.data(), DType::u8, {1, 264})}, &ticket));
    TENON_ASSERT_OK(b->wait(ticket, kWaitUs, {}));

    EXPECT_EQ(same[0], row_byte(150, 0));
    EXPECT_EQ(same[263], row_byte(150, 263));
}

TEST_P(RowStoreContract, Keeps_reading_a_file_that_was_unlinked) {
    const TableSpec spec{.rows = 200};
    write_table(file_, spec);
    Ref<RowTable> table;
    TENON_ASSERT_OK(open(spec, &table));
    fs::remove(file_);
    Rows rows({0, 199}, 264);

    expect_fetch(*table, rows);
}

TEST_P(RowStoreContract, Rows_behind_a_cut_end_fail_alone) {
    // Larger than any read that merges neighbours, so that most rows share no read with the cut.
    const TableSpec spec{.rows = 4000, .row_bytes = 264, .max_batch = 4000};
    write_table(file_, spec);
    Ref<RowTable> table;
    TENON_ASSERT_OK(open(spec, &table));
    constexpr int64_t kKept = 1234;
    fs::resize_file(file_, spec.end_of(kKept - 1) + 100);
    std::vector<int64_t> ids = all_ids(spec.rows);
    std::shuffle(ids.begin(), ids.end(), std::mt19937_64(10));
    Rows rows(ids, 264);
    Ticket ticket = 0;

    TENON_ASSERT_OK(table->fetch(rows.batch(), &ticket));
    std::vector<uint64_t> failed = rows.words();
    TENON_ASSERT_OK(table->wait(ticket, kWaitUs, failed));

    for (size_t i = 0; i < ids.size(); ++i) {
        const bool is_failed = ((failed[i / 64] >> (i % 64)) & 1) != 0;
        ASSERT_EQ(is_failed, ids[i] >= kKept) << "id " << ids[i];
    }
    rows.expect_right(failed);
    EXPECT_EQ(table->stats().failed_rows, static_cast<uint64_t>(spec.rows - kKept));
    EXPECT_TRUE(host_.logged(LogLevel::warn, "layers.1.engram.test")) << host_.log_text();
}

TEST_P(RowStoreContract, Repeats_of_a_failed_row_all_fail) {
    const TableSpec spec{.rows = 1000};
    write_table(file_, spec);
    Ref<RowTable> table;
    TENON_ASSERT_OK(open(spec, &table));
    fs::resize_file(file_, spec.begin_of(500));
    Rows rows({999, 1, 999, -1, 2, 999}, 264);
    Ticket ticket = 0;

    TENON_ASSERT_OK(table->fetch(rows.batch(), &ticket));
    std::vector<uint64_t> failed(1, ~uint64_t{0});
    TENON_ASSERT_OK(table->wait(ticket, kWaitUs, failed));

    EXPECT_EQ(failed[0], 0b100101u);
    rows.expect_right(failed);
}

TEST_P(RowStoreContract, Serves_on_after_a_failure) {
    const TableSpec spec{.rows = 1000};
    write_table(file_, spec);
    Ref<RowTable> table;
    TENON_ASSERT_OK(open(spec, &table));
    fs::resize_file(file_, 0);
    Rows lost({1, 2, 3}, 264);
    Ticket ticket = 0;
    TENON_ASSERT_OK(table->fetch(lost.batch(), &ticket));
    std::vector<uint64_t> failed(1);
    TENON_ASSERT_OK(table->wait(ticket, kWaitUs, failed));
    EXPECT_EQ(failed[0], 0b111u);

    write_table(file_, spec);

    Rows rows({1, 2, 3}, 264);
    expect_fetch(*table, rows);
}

TEST_P(RowStoreContract, Running_out_of_descriptors_is_an_error) {
    const TableSpec spec{.rows = 10};
    write_table(file_, spec);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    std::vector<int> taken;
    for (int fd = ::dup(0); fd >= 0 && taken.size() < 64; fd = ::dup(0)) {
        taken.push_back(fd);
    }
    ASSERT_FALSE(taken.empty());
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(taken.back()) + 1;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);

    Ref<RowTable> table;
    const Status status = open(spec, &table);

    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    for (const int fd : taken) {
        ::close(fd);
    }
    EXPECT_EQ(status.code(), Code::io) << status.message().view();
    EXPECT_NE(status.message().str().find("Too many open files"), std::string::npos)
        << status.message().view();
    TENON_ASSERT_OK(open(spec, &table));  // and the store still works
    Rows rows({9}, 264);
    expect_fetch(*table, rows);
}

TEST_P(RowStoreContract, A_table_released_with_open_tickets_leaves_nothing) {
    const TableSpec spec{.rows = 3000, .max_batch = 3000};
    write_table(file_, spec);
    const auto cycle = [&] {
        Ref<RowTable> table;
        TENON_ASSERT_OK(open(spec, &table));
        Rows a(all_ids(3000), 264);
        Rows b(all_ids(3000), 264);
        Ticket ticket = 0;
        TENON_ASSERT_OK(table->fetch(a.batch(), &ticket));
        TENON_ASSERT_OK(table->fetch(b.batch(), &ticket));
        table.reset();
        std::fill(a.memory().begin(), a.memory().end(), kUntouched);
        std::fill(b.memory().begin(), b.memory().end(), kUntouched);
        a.ids().assign(3000, -1);
        a.expect_right();
    };
    cycle();
    const auto descriptors = open_descriptors();
    const int64_t threads = thread_count();

    for (int i = 0; i < 10; ++i) {
        cycle();
    }

    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_EQ(thread_count(), threads);
}

TEST_P(RowStoreContract, Store_and_tables_leave_no_thread_descriptor_or_memory) {
    const TableSpec spec{.rows = 500};
    write_table(file_, spec);
    store_.reset();
    Rows rows(all_ids(200), 264);
    const auto cycle = [&] {
        TestHost host;
        OptionSet options(*GetParam());
        auto store = Created<RowStore>::make(*GetParam(), host, options);
        ASSERT_TRUE(store.ok()) << store.status().message().view();
        Ref<RowTable> first;
        Ref<RowTable> second;
        TENON_ASSERT_OK((*store)->open(describe_table(file_, spec), first.out()));
        TENON_ASSERT_OK((*store)->open(describe_table(file_, spec), second.out()));
        expect_fetch(*first, rows);
        expect_fetch(*second, rows);
    };
    cycle();
    cycle();
    const auto descriptors = open_descriptors();
    const int64_t threads = thread_count();
    const int64_t bytes = malloc_bytes();

    for (int i = 0; i < 10; ++i) {
        cycle();
    }

    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_EQ(thread_count(), threads);
    EXPECT_LT(malloc_bytes() - bytes, 4096) << "bytes left after ten stores";
}

TEST_P(RowStoreContract, Names_its_threads) {
    const TableSpec spec{.rows = 10};
    write_table(file_, spec);
    const int64_t before = thread_count();
    Ref<RowTable> table;
    TENON_ASSERT_OK(open(spec, &table));
    Rows rows({9}, 264);
    expect_fetch(*table, rows);

    const int64_t started = thread_count() - before;
    if (started == 0) {
        GTEST_SKIP() << "this store has no threads";
    }
    // A thread registers itself when it first runs.
    for (int i = 0; i < 3000 && static_cast<int64_t>(host_.thread_names().size()) < started; ++i) {
        ::usleep(1000);
    }
    EXPECT_EQ(static_cast<int64_t>(host_.thread_names().size()), started);
}

}  // namespace
}  // namespace tenon::testing
