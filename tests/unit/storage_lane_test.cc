// SPDX-License-Identifier: MIT
// What a row table does when reads fail, come back short, late, out of order or never: a scripted
// backend behind the real lane.
#include "plugins/storage_common/row_table.h"
#include "sdk/conformance/storage/table_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <set>

#include <sys/mman.h>
#include <unistd.h>

namespace tenon::storage {
namespace {

using namespace tenon::testing;  // the fixtures' namespace

/// What the script and the test share; outlives the backend.
struct Script {
    std::mutex mutex;  // guards all members
    std::condition_variable changed;
    int64_t allowed = INT64_MAX;  // completions that may still be delivered
    int64_t delivered = 0;
    int64_t waiting = 0;  // reads queued and not delivered
    bool shuffled = false;
    bool broken = false;
    bool woken = false;
    std::set<uint64_t> bad_blocks;     // reads that touch one fail with EIO …
    std::map<uint64_t, int> failures;  // … or, if the block is here, only that many times
    std::function<int64_t(const Read&)> shorten;  // valid bytes of a read

    void allow(int64_t count) {
        const std::lock_guard lock(mutex);
        allowed = count;
        changed.notify_all();
    }
    void until(const std::function<bool()>& condition) {
        std::unique_lock lock(mutex);
        ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), condition));
    }
};

/// Reads with pread, then lets the script decide what the lane hears, and when.
class ScriptedBackend final : public ReadBackend {
  public:
    ScriptedBackend(Script& script, int32_t depth, uint64_t max_bytes)
        : script_(script), depth_(depth), max_bytes_(max_bytes) {}

    const char* engine() const noexcept override { return "scripted"; }
    int32_t depth() const noexcept override { return depth_; }
    uint64_t max_read_bytes() const noexcept override { return max_bytes_; }
    Status start(std::span<Read> reads) noexcept override {
        memory_.resize(reads.size() * max_bytes_);
        for (size_t i = 0; i < reads.size(); ++i) {
            reads[i].buffer = memory_.data() + i * max_bytes_;
        }
        return {};
    }
    void attach(RowFile&) noexcept override {}
    void detach(RowFile&) noexcept override {}
    void queue(Read& read) noexcept override {
        const std::lock_guard lock(script_.mutex);
        queued_.push_back(&read);
        script_.waiting = static_cast<int64_t>(queued_.size());
        script_.changed.notify_all();
    }
    Status wait(std::vector<Completion>* done) noexcept override {
        std::unique_lock lock(script_.mutex);
        script_.changed.wait(lock, [&] {
            return script_.woken || script_.broken || (!queued_.empty() && script_.allowed > 0);
        });
        script_.woken = false;
        if (script_.broken) {
            return Status(Code::io, "scripted breakdown");
        }
        while (!queued_.empty() && script_.allowed > 0) {
            const size_t i = script_.shuffled ? random_() % queued_.size() : 0;
            Read* read = queued_[i];
            queued_.erase(queued_.begin() + static_cast<std::ptrdiff_t>(i));
            done->push_back({read, result_of(*read), read->buffer});
            --script_.allowed;
            ++script_.delivered;
        }
        script_.waiting = static_cast<int64_t>(queued_.size());
        script_.changed.notify_all();
        return {};
    }
    void wake() noexcept override {
        const std::lock_guard lock(script_.mutex);
        script_.woken = true;
        script_.changed.notify_all();
    }

  private:
    int64_t result_of(const Read& read) {
        for (uint64_t b = read.range.begin; b < read.range.end; b += kBlockBytes) {
            if (script_.bad_blocks.count(b) != 0) {
                const auto times = script_.failures.find(b);
                if (times == script_.failures.end() || times->second-- > 0) {
                    return -EIO;
                }
            }
        }
        const auto wanted = static_cast<int64_t>(read.range.end - read.range.begin);
        int64_t got = ::pread(read.file->fd(), read.buffer, static_cast<size_t>(wanted),
                              static_cast<off_t>(read.range.begin));
        if (script_.shorten) {
            got = std::min(got, script_.shorten(read));
        }
        std::memset(read.buffer + got, 0x5A, static_cast<size_t>(wanted - got));
        return got;
    }

    Script& script_;
    const int32_t depth_;
    const uint64_t max_bytes_;
    std::vector<std::byte> memory_;
    std::vector<Read*> queued_;
    std::mt19937_64 random_{3};
};

class RowLane : public ::testing::Test {
  protected:
    void open(const TableSpec& spec, int32_t depth = 8, uint64_t max_bytes = 64 << 10) {
        spec_ = spec;
        file_ = (dir_.path() / "table.bin").native();
        write_table(file_, spec);
        auto lane = ReadLane::start(host_, "test", "test_lane",
                                    std::make_unique<ScriptedBackend>(script_, depth, max_bytes));
        ASSERT_TRUE(lane.ok());
        auto table =
            LaneRowTable::open(host_, "test", describe_table(file_, spec), Access::buffered, *lane);
        ASSERT_TRUE(table.ok()) << table.status().message().view();
        table_ = std::move(*table);
    }
    Ticket fetch(Rows& rows) {
        Ticket ticket = 0;
        TENON_EXPECT_OK(table_->fetch(rows.batch(), &ticket));
        return ticket;
    }
    std::vector<uint64_t> wait(Ticket ticket, const Rows& rows) {
        std::vector<uint64_t> failed = rows.words();
        TENON_EXPECT_OK(table_->wait(ticket, kWaitUs, failed));
        return failed;
    }

    TempDir dir_;
    TestHost host_;
    Script script_;
    std::string file_;
    TableSpec spec_;
    Ref<RowTable> table_;
};

bool bit(const std::vector<uint64_t>& words, size_t i) {
    return ((words[i / 64] >> (i % 64)) & 1) != 0;
}

TEST_F(RowLane, A_read_that_fails_once_is_repeated) {
    open({.rows = 100, .row_bytes = 512});
    script_.bad_blocks = {4096};
    script_.failures = {{4096, 1}};
    Rows rows({9, 0, 8}, 512);

    expect_fetch(*table_, rows);

    EXPECT_EQ(table_->stats().reads, 1u + 3u) << "one merged read, then one for each id";
    EXPECT_EQ(table_->stats().retries, 3u);
    EXPECT_EQ(table_->stats().failed_rows, 0u);
    EXPECT_EQ(host_.metric_value("engram_read_retries_total"), 3);
}

TEST_F(RowLane, A_bad_block_costs_only_its_own_rows) {
    open({.rows = 100, .row_bytes = 512, .max_batch = 100});
    script_.bad_blocks = {8192};
    Rows rows(all_ids(100), 512);
    const Ticket ticket = fetch(rows);

    const auto failed = wait(ticket, rows);

    for (size_t i = 0; i < 100; ++i) {
        ASSERT_EQ(bit(failed, i), i >= 16 && i < 24) << i;
    }
    rows.expect_right(failed);
    EXPECT_EQ(table_->stats().failed_rows, 8u);
    EXPECT_TRUE(host_.logged(LogLevel::warn, "first_id=16")) << host_.log_text();
    EXPECT_TRUE(host_.logged(LogLevel::warn, "EIO")) << host_.log_text();
}

TEST_F(RowLane, A_failing_drive_fails_every_row_and_no_batch) {
    open({.rows = 2000, .row_bytes = 264, .max_batch = 2000});
    for (uint64_t b = 0; b < spec_.file_bytes(); b += kBlockBytes) {
        script_.bad_blocks.insert(b);
    }
    Rows rows(all_ids(2000), 264);
    for (int round = 0; round < 3; ++round) {
        const auto failed = wait(fetch(rows), rows);
        EXPECT_EQ(std::count(failed.begin(), failed.end(), ~uint64_t{0}), 2000 / 64);
    }
    EXPECT_EQ(table_->stats().failed_rows, 6000u);
}

TEST_F(RowLane, Short_reads_are_completed_by_the_retry) {
    open({.rows = 400, .row_bytes = 264, .max_batch = 400});
    script_.shorten = [](const Read& read) {
        return read.attempt == 0 ? int64_t{1000} : INT64_MAX;
    };
    Rows rows(all_ids(400), 264);

    expect_fetch(*table_, rows);

    EXPECT_GT(table_->stats().retries, 0u);
}

TEST_F(RowLane, Rows_of_several_reads_fail_when_one_of_them_fails) {
    open({.rows = 10, .row_bytes = 50000, .max_batch = 10}, 4, 8192);
    script_.bad_blocks = {block_floor(spec_.begin_of(3) + 20000)};
    Rows rows(all_ids(10), 50000);

    const auto failed = wait(fetch(rows), rows);

    EXPECT_EQ(failed[0], 0b1000u);
    rows.expect_right(failed);
}

TEST_F(RowLane, Random_failures_hit_exactly_the_rows_of_their_blocks) {
    std::mt19937_64 random(4);
    for (int round = 0; round < 60; ++round) {
        TableSpec spec;
        spec.rows = 500;
        spec.row_bytes = static_cast<int64_t>(1 + random() % (round % 4 == 0 ? 20000 : 600));
        spec.offset = random() % 5000;
        spec.max_batch = 700;
        table_.reset();
        script_.shuffled = true;
        script_.bad_blocks.clear();
        script_.failures.clear();
        open(spec, 1 + static_cast<int32_t>(random() % 20), kBlockBytes * (2 + random() % 10));
        for (int i = 0; i < 5; ++i) {
            script_.bad_blocks.insert(block_floor(random() % spec.file_bytes()));
        }
        std::vector<int64_t> ids = random_ids(random, 700, 500);
        for (int64_t& id : ids) {
            id = random() % 9 == 0 ? -1 : id;
        }
        Rows rows(ids, spec.row_bytes);

        const auto failed = wait(fetch(rows), rows);

        for (size_t i = 0; i < ids.size(); ++i) {
            bool bad = false;
            for (const uint64_t b : script_.bad_blocks) {
                bad = bad || (ids[i] >= 0 && b < spec.end_of(ids[i]) &&
                              b + kBlockBytes > spec.begin_of(ids[i]));
            }
            ASSERT_EQ(bit(failed, i), bad) << "round " << round << " id " << ids[i];
        }
        rows.expect_right(failed);
    }
}

TEST_F(RowLane, A_wait_ends_at_its_deadline_and_may_be_repeated) {
    open({.rows = 100});
    script_.allow(0);
    Rows rows({1, 2, 3}, 264);
    const Ticket ticket = fetch(rows);

    TENON_EXPECT_ERROR(table_->wait(ticket, 2000, {}), Code::deadline, "2000 us");
    EXPECT_FALSE(table_->done(ticket));

    script_.allow(INT64_MAX);
    wait(ticket, rows);
    rows.expect_right();
}

TEST_F(RowLane, A_cancelled_ticket_drops_the_reads_under_way) {
    open({.rows = 1000, .row_bytes = 4096, .max_tickets = 1}, 4);
    script_.allow(0);
    Rows cancelled({0, 100, 200, 300, 400, 500}, 4096);
    const Ticket ticket = fetch(cancelled);
    script_.until([&] { return script_.waiting == 4; });

    table_->cancel(ticket);

    Rows next({7, 300}, 4096);
    const Ticket second = fetch(next);  // takes the same slot while old reads are under way
    EXPECT_NE(second, ticket);
    script_.allow(INT64_MAX);
    wait(second, next);
    next.expect_right();
    cancelled.ids().assign(6, -1);
    cancelled.expect_right();
}

TEST_F(RowLane, A_released_table_waits_for_its_reads) {
    open({.rows = 1000, .row_bytes = 4096}, 4);
    script_.allow(0);
    Rows rows({0, 100, 200, 300, 400, 500}, 4096);
    fetch(rows);
    script_.until([&] { return script_.waiting == 4; });
    std::thread opener([&] {
        ::usleep(20000);
        script_.allow(INT64_MAX);
    });

    table_.reset();

    EXPECT_EQ(script_.delivered, 4) << "the kernel still wrote into buffers";
    opener.join();
    rows.ids().assign(6, -1);
    rows.expect_right();
}

TEST_F(RowLane, A_small_fetch_overtakes_a_large_one) {
    open({.rows = 2000, .row_bytes = 4096, .max_batch = 1000}, 8, 8192);
    script_.allow(0);
    std::vector<int64_t> every_other(1000);
    for (size_t i = 0; i < every_other.size(); ++i) {
        every_other[i] = static_cast<int64_t>(2 * i);
    }
    Rows large(every_other, 4096);
    Rows small({1, 301, 601, 901}, 4096);
    const Ticket first = fetch(large);
    script_.until([&] { return script_.waiting == 8; });
    const Ticket second = fetch(small);

    // Eight reads under way, at most two turns of eight for the large one, four of the small one.
    for (int delivered = 0; delivered < 40 && !table_->done(second); ++delivered) {
        script_.allow(1);
        script_.until([&] { return script_.allowed == 0 && script_.waiting == 8; });
    }

    EXPECT_TRUE(table_->done(second));
    EXPECT_FALSE(table_->done(first));
    script_.allow(INT64_MAX);
    wait(first, large);
    wait(second, small);
}

TEST_F(RowLane, A_broken_backend_fails_rows_and_hangs_nothing) {
    open({.rows = 1000, .row_bytes = 4096, .max_batch = 500}, 4);
    script_.allow(0);
    Rows under_way({0, 100, 200}, 4096);
    std::mt19937_64 random(5);
    Rows half_issued(random_ids(random, 500, 1000), 4096);
    const Ticket first = fetch(under_way);
    const Ticket second = fetch(half_issued);
    script_.until([&] { return script_.waiting == 4; });
    {
        const std::lock_guard lock(script_.mutex);
        script_.broken = true;
        script_.changed.notify_all();
    }

    EXPECT_EQ(wait(first, under_way)[0], 0b111u);
    const auto failed = wait(second, half_issued);
    EXPECT_EQ(failed[0], ~uint64_t{0});
    EXPECT_TRUE(bit(failed, 499));

    Rows later({5}, 4096);
    EXPECT_EQ(wait(fetch(later), later)[0], 1u);
    EXPECT_TRUE(host_.logged(LogLevel::error, "scripted breakdown")) << host_.log_text();
    table_.reset();
}

TEST_F(RowLane, Counts_go_to_the_host_as_metrics) {
    open({.rows = 1000});
    Rows rows({1, 1, 2, -1}, 264);
    expect_fetch(*table_, rows);
    expect_fetch(*table_, rows);

    EXPECT_EQ(host_.metric_value("engram_rows_total"), 6);
    EXPECT_EQ(host_.metric_value("engram_unique_rows_total"), 4);
    EXPECT_EQ(host_.metric_value("engram_reads_total"), 2);
    EXPECT_EQ(host_.metric_value("engram_read_bytes_total"), 8192);
    EXPECT_EQ(host_.metric_value("engram_fetch_seconds"), 2);
}

}  // namespace
}  // namespace tenon::storage
