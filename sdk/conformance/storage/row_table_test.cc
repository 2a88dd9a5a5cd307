// SPDX-License-Identifier: MIT
// Conformance of row stores: every point of tenon/storage.h about an open table and its tickets.
#include "storage/table_file.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tenon::testing {
namespace {

class RowTableContract : public ::testing::TestWithParam<const Component*> {
  protected:
    void SetUp() override {
        OptionSet options(*GetParam());
        auto store = Created<RowStore>::make(*GetParam(), host_, options);
        ASSERT_TRUE(store.ok()) << store.status().message().view();
        store_ = std::move(*store);
    }

    void open(const TableSpec& spec) {
        file_ = (dir_.path() / "table.bin").native();
        write_table(file_, spec);
        TENON_ASSERT_OK(store_->open(describe_table(file_, spec), table_.out()));
    }

    TempDir dir_;
    TestHost host_;
    Created<RowStore> store_;
    std::string file_;
    Ref<RowTable> table_;
};

TENON_INSTANTIATE_FOR_KIND(RowTableContract, PluginKind::storage);

TEST_P(RowTableContract, Describes_itself) {
    open({.rows = 77, .row_bytes = 40, .max_tickets = 3});

    const RowTableInfo info = table_->info();

    EXPECT_EQ(info.rows, 77);
    EXPECT_EQ(info.row_bytes, 40);
    EXPECT_EQ(info.max_tickets, 3);
    EXPECT_STRNE(info.engine, "");
    EXPECT_EQ(facet_of<RowTable>(table_.get()), table_.get());
    EXPECT_EQ(table_->query("storage.row_store/1"), nullptr);
}

TEST_P(RowTableContract, Reads_every_row_of_every_layout) {
    const TableSpec layouts[] = {
        {.rows = 300, .row_bytes = 264},
        {.rows = 300, .row_bytes = 264, .rows_per_page = 15, .page_bytes = 4096, .offset = 4096},
        {.rows = 300, .row_bytes = 264, .rows_per_page = 15, .page_bytes = 4096},
        {.rows = 300, .row_bytes = 8, .offset = 123},
        {.rows = 64, .row_bytes = 512, .offset = 1},
        {.rows = 33, .row_bytes = 4096, .offset = 4096},
        {.rows = 33, .row_bytes = 5000, .offset = 4095},
        {.rows = 50, .row_bytes = 1, .rows_per_page = 7, .page_bytes = 7},
        {.rows = 50, .row_bytes = 100, .rows_per_page = 3, .page_bytes = 301, .offset = 17},
        {.rows = 50, .row_bytes = 100, .rows_per_page = 1, .page_bytes = 9000, .offset = 17},
        {.rows = 5, .row_bytes = 300'000, .offset = 8},
        {.rows = 1, .row_bytes = 32},
    };
    for (const TableSpec& spec : layouts) {
        SCOPED_TRACE(format("{} x {} B, {} a page of {}, offset {}", spec.rows, spec.row_bytes,
                            spec.rows_per_page, spec.page_bytes, spec.offset));
        TableSpec opened = spec;
        opened.max_batch = spec.rows;
        open(opened);
        Rows ascending(all_ids(spec.rows), spec.row_bytes);
        expect_fetch(*table_, ascending);
        std::vector<int64_t> shuffled = all_ids(spec.rows);
        std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(7));
        Rows scattered(shuffled, spec.row_bytes);
        expect_fetch(*table_, scattered);
    }
}

TEST_P(RowTableContract, Returns_rows_in_the_order_asked) {
    open({.rows = 1000});
    Rows rows({999, 0, 500, 1, 998}, 264);

    expect_fetch(*table_, rows);
}

TEST_P(RowTableContract, Repeated_ids_return_the_same_row_each_time) {
    open({.rows = 1000});
    Rows rows({7, 7, 999, 7, 999, 7}, 264);

    expect_fetch(*table_, rows);

    EXPECT_EQ(table_->stats().rows, 6u);
    EXPECT_GE(table_->stats().unique_rows,
              2u);  // fewer reads for repeats are welcome, not required
    EXPECT_LE(table_->stats().unique_rows, 6u);
}

TEST_P(RowTableContract, Leaves_rows_of_minus_one_alone) {
    open({.rows = 1000});
    Rows rows({-1, 3, -1, -1, 4, -1}, 264);

    expect_fetch(*table_, rows);

    EXPECT_EQ(table_->stats().rows, 2u);
}

TEST_P(RowTableContract, A_batch_of_minus_ones_completes) {
    open({.rows = 1000});
    Rows rows({-1, -1, -1}, 264);

    expect_fetch(*table_, rows);
}

TEST_P(RowTableContract, An_empty_batch_completes) {
    open({.rows = 1000});
    Ticket ticket = 0;

    TENON_ASSERT_OK(table_->fetch(RowBatch{}, &ticket));

    EXPECT_TRUE(table_->done(ticket));
    TENON_EXPECT_OK(table_->wait(ticket, 0, {}));
}

TEST_P(RowTableContract, Strided_rows_touch_nothing_between_them) {
    open({.rows = 1000});
    Rows rows({5, 6, 7, 900, -1, 5}, 264, 100);

    expect_fetch(*table_, rows);
}

TEST_P(RowTableContract, Takes_a_batch_of_the_largest_size_and_no_larger) {
    open({.rows = 1000, .max_batch = 500});
    std::mt19937_64 random(1);
    Rows largest(random_ids(random, 500, 1000), 264);
    Rows too_large(random_ids(random, 501, 1000), 264);

    expect_fetch(*table_, largest);

    expect_refusal(*table_, too_large.batch(), Code::invalid_argument, "500");
    too_large.ids().assign(501, -1);
    too_large.expect_right();
}

TEST_P(RowTableContract, Refuses_ids_out_of_range_and_names_the_first) {
    open({.rows = 1000, .max_tickets = 1});
    for (const int64_t bad : {int64_t{1000}, int64_t{-2}, INT64_MAX, INT64_MIN}) {
        Rows rows({1, 2, bad, -77}, 264);
        expect_refusal(*table_, rows.batch(), Code::invalid_argument, std::to_string(bad));
        rows.ids().assign(4, -1);
        rows.expect_right();
    }

    Rows good({1, 2}, 264);
    expect_fetch(*table_, good);  // the only ticket is still free
}

TEST_P(RowTableContract, Refuses_a_destination_that_does_not_fit) {
    open({.rows = 1000});
    Rows rows({1, 2}, 264);
    const auto refused = [&](auto change) {
        RowBatch batch = rows.batch();
        change(batch.dst);
        expect_refusal(*table_, batch, Code::invalid_argument, "dst");
    };

    refused([](TensorView& v) { v.shape[0] = 3; });
    refused([](TensorView& v) { v.shape[1] = 263; });
    refused([](TensorView& v) { v.dtype = DType::f32; });
    refused([](TensorView& v) { v.rank = 1; });
    refused([](TensorView& v) { v.data = nullptr; });
    refused([](TensorView& v) { v.place = Place::device; });
    refused([](TensorView& v) { v.stride[0] = 100; });
    refused([](TensorView& v) { v.stride[1] = 2; });
}

TEST_P(RowTableContract, Copies_the_ids) {
    open({.rows = 1000});
    Rows rows({1, 2, 3}, 264);
    std::vector<int64_t> ids = rows.ids();
    RowBatch batch = rows.batch();
    batch.ids = ids;
    Ticket ticket = 0;

    TENON_ASSERT_OK(table_->fetch(batch, &ticket));
    std::fill(ids.begin(), ids.end(), INT64_MAX);

    TENON_ASSERT_OK(table_->wait(ticket, kWaitUs, {}));
    rows.expect_right();
}

TEST_P(RowTableContract, Serves_several_tickets_in_any_order_of_waiting) {
    open({.rows = 1000, .max_tickets = 4});
    std::mt19937_64 random(2);
    std::vector<Rows> batches;
    std::vector<Ticket> tickets(4);
    for (int i = 0; i < 4; ++i) {
        batches.emplace_back(random_ids(random, 200 - i * 60, 1000), 264);
    }

    for (size_t i = 0; i < 4; ++i) {
        TENON_ASSERT_OK(table_->fetch(batches[i].batch(), &tickets[i]));
    }

    std::vector<Ticket> distinct = tickets;
    std::sort(distinct.begin(), distinct.end());
    EXPECT_EQ(std::unique(distinct.begin(), distinct.end()), distinct.end());
    for (size_t i = 4; i-- > 0;) {
        TENON_ASSERT_OK(table_->wait(tickets[i], kWaitUs, {}));
        batches[i].expect_right();
    }
}

TEST_P(RowTableContract, Refuses_a_fetch_while_all_tickets_are_open) {
    open({.rows = 1000, .max_tickets = 2});
    Rows rows({1}, 264);
    Ticket first = 0;
    Ticket second = 0;
    Ticket third = 0;
    TENON_ASSERT_OK(table_->fetch(rows.batch(), &first));
    TENON_ASSERT_OK(table_->fetch(RowBatch{}, &second));

    expect_refusal(*table_, rows.batch(), Code::unavailable, "");

    TENON_ASSERT_OK(table_->wait(second, kWaitUs, {}));
    TENON_ASSERT_OK(table_->fetch(rows.batch(), &third));
    TENON_ASSERT_OK(table_->wait(first, kWaitUs, {}));
    TENON_ASSERT_OK(table_->wait(third, kWaitUs, {}));
}

TEST_P(RowTableContract, Waiting_ends_a_ticket) {
    open({.rows = 1000});
    Rows rows({1}, 264);
    Ticket ticket = 0;
    TENON_ASSERT_OK(table_->fetch(rows.batch(), &ticket));
    TENON_ASSERT_OK(table_->wait(ticket, kWaitUs, {}));

    TENON_EXPECT_ERROR(table_->wait(ticket, 0, {}), Code::not_found, "");
    EXPECT_FALSE(table_->done(ticket));
    table_->cancel(ticket);  // harmless
    expect_fetch(*table_, rows);
}

TEST_P(RowTableContract, Knows_no_ticket_that_it_did_not_give) {
    open({.rows = 1000});
    for (const Ticket ticket : {Ticket{0}, Ticket{1}, ~Ticket{0}, Ticket{1} << 40}) {
        TENON_EXPECT_ERROR(table_->wait(ticket, 0, {}), Code::not_found, "");
        EXPECT_FALSE(table_->done(ticket));
        table_->cancel(ticket);
    }
}

TEST_P(RowTableContract, A_wait_that_times_out_leaves_the_ticket_open) {
    open({.rows = 1000});
    std::mt19937_64 random(3);
    int late = 0;
    for (int round = 0; round < 50; ++round) {
        Rows rows(random_ids(random, 256, 1000), 264);
        Ticket ticket = 0;
        TENON_ASSERT_OK(table_->fetch(rows.batch(), &ticket));
        const Status at_once = table_->wait(ticket, 0, {});
        if (at_once.ok()) {
            rows.expect_right();
            continue;
        }
        ++late;
        EXPECT_EQ(at_once.code(), Code::deadline);
        TENON_ASSERT_OK(table_->wait(ticket, kWaitUs, {}));
        rows.expect_right();
    }
    RecordProperty("late", late);
}

TEST_P(RowTableContract, Done_turns_true_and_then_waiting_takes_no_time) {
    open({.rows = 1000});
    std::mt19937_64 random(4);
    Rows rows(random_ids(random, 256, 1000), 264);
    Ticket ticket = 0;
    TENON_ASSERT_OK(table_->fetch(rows.batch(), &ticket));

    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!table_->done(ticket)) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline);
        std::this_thread::yield();
    }

    rows.expect_right();  // done means that the rows are there
    TENON_EXPECT_OK(table_->wait(ticket, 0, {}));
}

TEST_P(RowTableContract, Writes_nothing_after_a_cancel) {
    open({.rows = 1000, .max_tickets = 2});
    std::mt19937_64 random(5);
    for (int round = 0; round < 100; ++round) {
        Rows rows(random_ids(random, 256, 1000), 264);
        Ticket ticket = 0;
        TENON_ASSERT_OK(table_->fetch(rows.batch(), &ticket));
        if (round % 2 == 1) {
            std::this_thread::yield();
        }

        table_->cancel(ticket);

        std::fill(rows.memory().begin(), rows.memory().end(), kUntouched);
        EXPECT_FALSE(table_->done(ticket));
        TENON_EXPECT_ERROR(table_->wait(ticket, 0, {}), Code::not_found, "");
        Rows next(random_ids(random, 32, 1000), 264);
        expect_fetch(*table_, next);  // behind the cancelled one, on the same slot or not
        rows.ids().assign(rows.ids().size(), -1);
        rows.expect_right();
    }
}

TEST_P(RowTableContract, Cancelled_tickets_can_be_taken_again_at_once) {
    open({.rows = 1000, .max_tickets = 1});
    std::mt19937_64 random(6);
    Rows rows(random_ids(random, 256, 1000), 264);
    for (int round = 0; round < 200; ++round) {
        Ticket ticket = 0;
        TENON_ASSERT_OK(table_->fetch(rows.batch(), &ticket));
        table_->cancel(ticket);
    }

    expect_fetch(*table_, rows);
}

TEST_P(RowTableContract, Failed_words_must_cover_the_batch) {
    open({.rows = 1000});
    std::mt19937_64 random(7);
    Rows rows(random_ids(random, 65, 1000), 264);
    Ticket ticket = 0;
    TENON_ASSERT_OK(table_->fetch(rows.batch(), &ticket));
    std::vector<uint64_t> one_word(1, ~uint64_t{0});
    std::vector<uint64_t> three_words(3, ~uint64_t{0});

    const Status short_status = table_->wait(ticket, kWaitUs, one_word);
    EXPECT_EQ(short_status.code(), Code::invalid_argument);

    TENON_ASSERT_OK(table_->wait(ticket, kWaitUs, three_words));
    EXPECT_EQ(three_words[0], 0u);
    EXPECT_EQ(three_words[1], 0u);
    rows.expect_right();
}

TEST_P(RowTableContract, Random_batches_equal_the_file) {
    std::mt19937_64 random(8);
    for (int round = 0; round < 30; ++round) {
        TableSpec spec;
        spec.rows = 1 + static_cast<int64_t>(random() % 3000);
        spec.row_bytes = 1 + static_cast<int64_t>(random() % (round % 5 == 0 ? 9000 : 600));
        spec.offset = random() % 10000;
        if (round % 2 == 1) {
            spec.rows_per_page = 1 + static_cast<int64_t>(random() % 20);
            spec.page_bytes =
                spec.rows_per_page * spec.row_bytes + static_cast<int64_t>(random() % 5000);
        }
        spec.max_batch = 2000;
        SCOPED_TRACE(format("round {}: {} x {} B, {} a page of {}, offset {}", round, spec.rows,
                            spec.row_bytes, spec.rows_per_page, spec.page_bytes, spec.offset));
        open(spec);
        std::vector<int64_t> ids =
            random_ids(random, static_cast<int64_t>(random() % 2000), spec.rows);
        for (int64_t& id : ids) {
            id = random() % 8 == 0 ? -1 : id;
        }
        Rows rows(ids, spec.row_bytes, static_cast<int64_t>(random() % 3) * 8);
        expect_fetch(*table_, rows);
        if (HasFatalFailure()) {
            return;
        }
    }
}

TEST_P(RowTableContract, Tables_are_used_from_several_threads) {
    const TableSpec spec{.rows = 2000, .max_batch = 512, .max_tickets = 2};
    open(spec);
    std::vector<Ref<RowTable>> tables(4);
    for (size_t i = 0; i < tables.size(); ++i) {
        TableSpec mine = spec;
        mine.lane = static_cast<int32_t>(i);
        TENON_ASSERT_OK(store_->open(describe_table(file_, mine), tables[i].out()));
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < tables.size(); ++i) {
        threads.emplace_back([&, i] {
            std::mt19937_64 random(i);
            for (int round = 0; round < 40; ++round) {
                Rows rows(random_ids(random, 1 + static_cast<int64_t>(random() % 512), 2000), 264);
                expect_fetch(*tables[i], rows);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

TEST_P(RowTableContract, Counts_what_it_read) {
    open({.rows = 1000});
    std::mt19937_64 random(9);
    uint64_t asked = 0;
    for (int round = 0; round < 5; ++round) {
        Rows rows(random_ids(random, 100, 1000), 264);
        expect_fetch(*table_, rows);
        asked += 100;
    }

    const RowTableStats stats = table_->stats();

    EXPECT_EQ(stats.rows, asked);
    EXPECT_LE(stats.unique_rows, asked);
    EXPECT_GT(stats.unique_rows, 0u);
    EXPECT_GT(stats.reads, 0u);
    EXPECT_GE(stats.read_bytes, stats.reads);
    EXPECT_EQ(stats.failed_rows, 0u);
    EXPECT_EQ(stats.retries, 0u);
}

}  // namespace
}  // namespace tenon::testing
