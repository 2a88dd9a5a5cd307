// SPDX-License-Identifier: MIT
// The three real backends: equal rows, no allocation in a steady state, and the fallback where
// io_uring is refused.
#include "plugins/storage_common/mapped_backend.h"
#include "plugins/storage_common/row_table.h"
#include "plugins/storage_common/threads_backend.h"
#include "plugins/storage_io_uring/uring_backend.h"
#include "sdk/conformance/storage/table_file.h"
#include "tests/tools/seccomp_filter.h"
#include "tests/unit/allocation_counter.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace tenon::storage {
namespace {

using namespace tenon::testing;

struct Engine {
    const char* name;
    Access access;
    std::unique_ptr<ReadBackend> (*make)(Host&);
};

const Engine kEngines[] = {
    {"io_uring", Access::direct,
     [](Host&) -> std::unique_ptr<ReadBackend> { return std::make_unique<UringBackend>(64); }},
    {"io_uring_buffered", Access::buffered,
     [](Host&) -> std::unique_ptr<ReadBackend> { return std::make_unique<UringBackend>(64); }},
    {"io_uring_depth_1", Access::direct,
     [](Host&) -> std::unique_ptr<ReadBackend> { return std::make_unique<UringBackend>(1); }},
    {"io_uring_depth_4096", Access::direct,
     [](Host&) -> std::unique_ptr<ReadBackend> { return std::make_unique<UringBackend>(4096); }},
    {"threads", Access::direct,
     [](Host& host) -> std::unique_ptr<ReadBackend> {
         return std::make_unique<ThreadsBackend>(host, 4);
     }},
    {"mmap", Access::mapped,
     [](Host&) -> std::unique_ptr<ReadBackend> { return std::make_unique<MappedBackend>(64); }},
};

class RowEngine : public ::testing::TestWithParam<Engine> {
  protected:
    void SetUp() override {
        const auto refusal = io_uring_refusal();
        if (std::string(GetParam().name).find("io_uring") == 0 && !refusal->empty()) {
            GTEST_SKIP() << *refusal;
        }
        auto lane = ReadLane::start(host_, "test", "test_lane", GetParam().make(host_));
        ASSERT_TRUE(lane.ok()) << lane.status().message().view();
        lane_ = std::move(*lane);
    }
    void open(const TableSpec& spec) {
        file_ = (dir_.path() / "table.bin").native();
        write_table(file_, spec);
        auto table = LaneRowTable::open(host_, "test", describe_table(file_, spec),
                                        GetParam().access, lane_);
        ASSERT_TRUE(table.ok()) << table.status().message().view();
        table_ = std::move(*table);
    }

    TempDir dir_;
    TestHost host_;
    std::shared_ptr<ReadLane> lane_;
    std::string file_;
    Ref<RowTable> table_;
};

INSTANTIATE_TEST_SUITE_P(All, RowEngine, ::testing::ValuesIn(kEngines),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST_P(RowEngine, Random_batches_equal_what_pread_returns) {
    std::mt19937_64 random(11);
    const TableSpec spec{.rows = 20000,
                         .row_bytes = 264,
                         .rows_per_page = 15,
                         .page_bytes = 4096,
                         .offset = 4096,
                         .max_batch = 4000};
    open(spec);
    const int fd = ::open(file_.c_str(), O_RDONLY);
    ASSERT_GE(fd, 0);
    for (int round = 0; round < 20; ++round) {
        Rows rows(random_ids(random, static_cast<int64_t>(random() % 4000), spec.rows), 264);
        std::vector<uint8_t> expected(rows.ids().size() * 264);
        for (size_t i = 0; i < rows.ids().size(); ++i) {
            ASSERT_EQ(::pread(fd, expected.data() + i * 264, 264,
                              static_cast<off_t>(spec.begin_of(rows.ids()[i]))),
                      264);
        }
        Ticket ticket = 0;
        TENON_ASSERT_OK(table_->fetch(rows.batch(), &ticket));
        std::vector<uint64_t> failed = rows.words();
        TENON_ASSERT_OK(table_->wait(ticket, kWaitUs, failed));
        ASSERT_EQ(failed, rows.words());
        ASSERT_EQ(std::memcmp(rows.batch().dst.data, expected.data(), expected.size()), 0);
    }
    ::close(fd);
}

TEST_P(RowEngine, Allocates_nothing_in_a_steady_state) {
    std::mt19937_64 random(12);
    open({.rows = 20000, .row_bytes = 264, .max_batch = 2000, .max_tickets = 2});
    std::vector<Rows> batches;
    for (int i = 0; i < 6; ++i) {
        batches.emplace_back(random_ids(random, 2000, 20000), 264);
    }
    expect_fetch(*table_, batches[0]);
    std::vector<uint64_t> failed = batches[0].words();

    const AllocationCounter counter;
    bool all_ok = true;
    for (int round = 0; round < 20; ++round) {
        Ticket first = 0;
        Ticket second = 0;
        all_ok = table_->fetch(batches[static_cast<size_t>(round) % 6].batch(), &first).ok() &&
                 table_->fetch(batches[static_cast<size_t>(round + 1) % 6].batch(), &second).ok() &&
                 all_ok;
        if (round % 3 == 0) {
            table_->cancel(second);
        }
        all_ok = table_->wait(first, kWaitUs, failed).ok() && all_ok;
        if (round % 3 != 0) {
            all_ok = table_->wait(second, kWaitUs, failed).ok() && all_ok;
        }
    }
    const int64_t allocations = counter.count();

    EXPECT_TRUE(all_ok);
    EXPECT_EQ(allocations, 0);
}

TEST_P(RowEngine, Many_tables_share_a_lane) {
    // More than a ring registers, so that both kinds of descriptor are in use.
    const TableSpec spec{.rows = 100, .row_bytes = 264};
    open(spec);
    std::vector<Ref<RowTable>> tables;
    for (int i = 0; i < 70; ++i) {
        auto table = LaneRowTable::open(host_, "test", describe_table(file_, spec),
                                        GetParam().access, lane_);
        ASSERT_TRUE(table.ok());
        tables.push_back(std::move(*table));
    }
    for (auto& table : tables) {
        Rows rows({99, 0, 50}, 264);
        expect_fetch(*table, rows);
    }
    tables.resize(10);
    Rows rows({99}, 264);
    expect_fetch(*table_, rows);
}

/// Runs `body` in a child to which io_uring is refused; the child's failures fail the test.
template <class Body>
void in_child_without_io_uring(unsigned error_number, Body body) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        if (!refuse_io_uring(error_number)) {
            ::_exit(77);
        }
        body();
        ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        GTEST_SKIP() << "seccomp filters cannot be installed here";
    }
    EXPECT_EQ(WEXITSTATUS(status), 0) << "see the child's messages above";
}

const Component* io_uring_component() {
    static auto plugin = LoadedPlugin::load(TENON_PLUGIN_DIR "/io_uring.so");
    EXPECT_TRUE(plugin.ok()) << plugin.status().message().view();
    return plugin.ok() ? plugin->find(PluginKind::storage, "io_uring") : nullptr;
}

void expect_threads_read(const char* errno_name) {
    const Component* component = io_uring_component();
    ASSERT_NE(component, nullptr);
    TestHost host;
    OptionSet options(*component);
    options.set("threads", 3);
    auto store = Created<RowStore>::make(*component, host, options);
    ASSERT_TRUE(store.ok()) << store.status().message().view();
    EXPECT_TRUE(host.logged(LogLevel::warn, errno_name)) << host.log_text();
    EXPECT_TRUE(host.logged(LogLevel::warn, "reading with threads")) << host.log_text();

    const TempDir dir;
    const std::string file = (dir.path() / "table.bin").native();
    const TableSpec spec{.rows = 1000, .row_bytes = 264, .max_batch = 1000};
    write_table(file, spec);
    Ref<RowTable> table;
    TENON_ASSERT_OK((*store)->open(describe_table(file, spec), table.out()));
    EXPECT_STREQ(table->info().engine, "threads");
    Rows rows(all_ids(1000), 264);
    expect_fetch(*table, rows);
    // A thread may name itself after others have already done the reads.
    for (int i = 0; i < 3000 && host.thread_names().size() < 4; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(host.thread_names().size(), 4u) << "the lane and three readers";

    ProbeResult probed;
    const ProbeEnv env{.host = &host, .options = &options.view()};
    TENON_ASSERT_OK(component->probe(env, &probed));
    EXPECT_GT(probed.score, 0);
    EXPECT_NE(std::string(probed.reason).find(errno_name), std::string::npos) << probed.reason;
}

TEST(IoUringRefused, Threads_read_instead_and_the_log_says_why) {
    for (const auto& [number, name] :
         {std::pair{EPERM, "EPERM"}, std::pair{ENOSYS, "ENOSYS"}, std::pair{EINVAL, "EINVAL"}}) {
        const char* const reason = name;
        in_child_without_io_uring(static_cast<unsigned>(number),
                                  [reason] { expect_threads_read(reason); });
    }
}

TEST(IoUringRefused, Without_fallback_probe_and_create_refuse) {
    in_child_without_io_uring(EPERM, [] {
        const Component* component = io_uring_component();
        ASSERT_NE(component, nullptr);
        TestHost host;
        OptionSet options(*component);
        options.set("fallback", "none");
        ProbeResult probed;
        const ProbeEnv env{.host = &host, .options = &options.view()};
        TENON_ASSERT_OK(component->probe(env, &probed));
        EXPECT_LE(probed.score, 0);
        EXPECT_NE(std::string(probed.reason).find("EPERM"), std::string::npos) << probed.reason;

        const auto store = Created<RowStore>::make(*component, host, options);
        ASSERT_FALSE(store.ok());
        EXPECT_EQ(store.status().code(), Code::unavailable);
        EXPECT_NE(store.status().message().str().find("fallback"), std::string::npos)
            << store.status().message().view();
    });
}

TEST(IoUring, Options_outside_their_range_are_refused) {
    const Component* component = io_uring_component();
    ASSERT_NE(component, nullptr);
    const auto refused = [&](const char* key, int64_t value) {
        TestHost host;
        OptionSet options(*component);
        options.set(key, value);
        const auto store = Created<RowStore>::make(*component, host, options);
        ASSERT_FALSE(store.ok());
        EXPECT_EQ(store.status().code(), Code::invalid_argument);
        EXPECT_NE(store.status().message().str().find(key), std::string::npos);
    };
    refused("queue_depth", 0);
    refused("queue_depth", 4097);
    refused("threads", 0);
    refused("threads", 100000);
}

TEST(IoUring, Direct_is_used_where_the_filesystem_allows_it_and_only_if_asked) {
    const Component* component = io_uring_component();
    ASSERT_NE(component, nullptr);
    const TempDir dir;
    const std::string file = (dir.path() / "table.bin").native();
    write_table(file, {.rows = 10});
    const int fd = ::open(file.c_str(), O_RDONLY | O_DIRECT);
    const bool allowed = fd >= 0;
    ::close(fd);
    for (const bool direct : {true, false}) {
        TestHost host;
        OptionSet options(*component);
        options.set("direct", direct);
        auto store = Created<RowStore>::make(*component, host, options);
        ASSERT_TRUE(store.ok());
        Ref<RowTable> table;
        TENON_ASSERT_OK((*store)->open(describe_table(file, {.rows = 10}), table.out()));
        EXPECT_EQ(table->info().direct, direct && allowed);
        EXPECT_EQ(host.logged(LogLevel::warn, "O_DIRECT"), direct && !allowed);
        Rows rows({9, 0}, 264);
        expect_fetch(*table, rows);
    }
}

TEST(IoUring, Registers_buffers_and_files_or_works_without) {
    UringBackend backend(8);
    std::vector<Read> reads(8);
    const Status status = backend.start(reads);
    if (status.code() == Code::unavailable) {
        GTEST_SKIP() << status.message().view();
    }
    TENON_ASSERT_OK(status);
    for (const Read& read : reads) {
        EXPECT_NE(read.buffer, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(read.buffer) % kBlockBytes, 0u);
    }
    RecordProperty("registered_buffers", backend.registered_buffers());
    RecordProperty("registered_files", backend.registered_files());
}

TEST(IoUring, A_wake_before_the_wait_counts) {
    UringBackend backend(8);
    std::vector<Read> reads(8);
    const Status status = backend.start(reads);
    if (status.code() == Code::unavailable) {
        GTEST_SKIP() << status.message().view();
    }
    std::vector<Completion> done;
    for (int i = 0; i < 3; ++i) {
        backend.wake();
        TENON_ASSERT_OK(backend.wait(&done));
    }
    EXPECT_TRUE(done.empty());
}

}  // namespace
}  // namespace tenon::storage
