// SPDX-License-Identifier: MIT
// Speed of row stores: planning alone, a decode window's fetch, and 64k random rows of a packed
// table, through the real plugins.
//
//   bench_storage --make-table FILE --gib 4        writes a packed table (15 records of 264 B a
//   page), without holes bench_storage [--table FILE] [Google Benchmark flags]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugins/storage_common/row_plan.h"
#include "tenon/storage.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::bench {
namespace {

constexpr int64_t kRecordBytes = 264;
constexpr int64_t kRecordsPerPage = 15;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kLargeBatch = 65536;
constexpr int64_t kSmallTablePages = 16384;  // 64 MiB, where no --table is given

std::string table_file;

int make_table(const std::string& file, int64_t pages) {
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        std::perror(file.c_str());
        return 1;
    }
    // Random bytes: neither holes nor a compressing disk may make reads cheaper.
    std::mt19937_64 random(1);
    std::vector<uint64_t> chunk(1 << 17);
    int64_t left = pages * kPageBytes;
    while (left > 0) {
        for (uint64_t& word : chunk) {
            word = random();
        }
        const auto bytes = static_cast<size_t>(
            std::min<int64_t>(left, static_cast<int64_t>(chunk.size() * sizeof(uint64_t))));
        if (::write(fd, chunk.data(), bytes) != static_cast<ssize_t>(bytes)) {
            std::perror(file.c_str());
            ::close(fd);
            return 1;
        }
        left -= static_cast<int64_t>(bytes);
    }
    const int rc = ::fsync(fd);
    ::close(fd);
    return rc == 0 ? 0 : 1;
}

/// A store of one plugin with the table opened on it; kept for the whole run.
class Bench {
  public:
    static Bench& of(const std::string& plugin) {
        static std::map<std::string, std::unique_ptr<Bench>> all;
        auto& bench = all[plugin];
        if (bench == nullptr) {
            bench.reset(new Bench(plugin));
        }
        return *bench;
    }

    RowTable& table() { return *table_; }
    int64_t rows() { return table_->info().rows; }

  private:
    explicit Bench(const std::string& plugin) {
        auto loaded =
            testing::LoadedPlugin::load(std::string(TENON_PLUGIN_DIR) + "/" + plugin + ".so");
        TENON_CHECK(loaded.ok(), "{}", loaded.status().message());
        const Component* component = loaded->find(PluginKind::storage);
        testing::OptionSet options(*component);
        auto store = testing::Created<RowStore>::make(*component, host_, options);
        TENON_CHECK(store.ok(), "{}", store.status().message());
        store_ = std::move(*store);
        struct stat info {};
        TENON_CHECK(::stat(table_file.c_str(), &info) == 0, "{} is missing", table_file);
        RowTableDesc desc;
        desc.name = "bench";
        desc.path = table_file;
        desc.rows = info.st_size / kPageBytes * kRecordsPerPage;
        desc.row_bytes = kRecordBytes;
        desc.rows_per_page = kRecordsPerPage;
        desc.page_bytes = kPageBytes;
        desc.max_batch = kLargeBatch;
        const Status status = store_->open(desc, table_.out());
        TENON_CHECK(status.ok(), "{}", status.message());
    }

    testing::TestHost host_;
    testing::Created<RowStore> store_;
    Ref<RowTable> table_;
};

/// Rows at random, other ones each time: what was read before may lie in some cache of the drive.
void fetch_random_rows(benchmark::State& state, const std::string& plugin) {
    Bench& bench = Bench::of(plugin);
    const int64_t count = state.range(0);
    std::random_device seed;
    std::mt19937_64 random(seed());
    std::vector<int64_t> ids(static_cast<size_t>(count));
    std::vector<uint8_t> dst(static_cast<size_t>(count * kRecordBytes));
    std::vector<uint64_t> failed(static_cast<size_t>((count + 63) / 64));
    const RowTableStats before = bench.table().stats();
    double seconds = 0;
    for (auto _ : state) {
        for (int64_t& id : ids) {
            id = static_cast<int64_t>(random() % static_cast<uint64_t>(bench.rows()));
        }
        const auto start = std::chrono::steady_clock::now();
        Ticket ticket = 0;
        Status status = bench.table().fetch(
            {ids, make_view(dst.data(), DType::u8, {count, kRecordBytes}, Place::pinned)}, &ticket);
        if (status.ok()) {
            status = bench.table().wait(ticket, 60'000'000, failed);
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (!status.ok()) {
            state.SkipWithError(status.message().str().c_str());
            break;
        }
        state.SetIterationTime(took.count());
        seconds += took.count();
    }
    const RowTableStats after = bench.table().stats();
    state.counters["rows/s"] = static_cast<double>(after.rows - before.rows) / seconds;
    state.counters["reads/s"] = static_cast<double>(after.reads - before.reads) / seconds;
    state.counters["blocks/s"] =
        static_cast<double>(after.read_bytes - before.read_bytes) / 4096 / seconds;
    state.counters["failed"] = static_cast<double>(after.failed_rows - before.failed_rows);
    state.SetLabel(
        format("engine={} direct={}", bench.table().info().engine, bench.table().info().direct));
}

/// Sorting and merging alone: what the lane's thread spends before the first read of a batch.
void plan_batch(benchmark::State& state) {
    const auto count = static_cast<size_t>(state.range(0));
    RowTableDesc desc;
    desc.rows = 384'006'168;
    desc.row_bytes = kRecordBytes;
    desc.rows_per_page = kRecordsPerPage;
    desc.page_bytes = kPageBytes;
    desc.max_batch = kLargeBatch;
    const storage::RowLayout layout = *storage::make_layout(desc);
    std::mt19937_64 random(2);
    std::vector<storage::RowRef> ids(count);
    for (size_t i = 0; i < count; ++i) {
        ids[i] = {static_cast<int64_t>(random() % static_cast<uint64_t>(desc.rows)),
                  static_cast<int64_t>(i)};
    }
    std::vector<storage::RowRef> refs(count);
    std::vector<storage::RowRef> scratch(count);
    for (auto _ : state) {
        refs = ids;
        storage::sort_by_id(refs, scratch);
        storage::ReadPlanner planner(layout, refs, 64 << 10);
        int64_t reads = 0;
        for (storage::ReadRange read; planner.next(&read);) {
            ++reads;
        }
        benchmark::DoNotOptimize(reads);
    }
    state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(plan_batch)->Arg(48)->Arg(2048)->Arg(kLargeBatch)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(fetch_random_rows, io_uring, std::string("io_uring"))
    ->Arg(24)
    ->Arg(144)
    ->Arg(kLargeBatch)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(fetch_random_rows, mmap, std::string("mmap"))
    ->Arg(24)
    ->Arg(144)
    ->Arg(kLargeBatch)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tenon::bench

int main(int argc, char** argv) {
    std::string made;
    double gib = 4;
    std::vector<char*> rest{argv[0]};
    for (int i = 1; i < argc; ++i) {
        const std::string arg = argv[i];
        if (arg == "--make-table" && i + 1 < argc) {
            made = argv[++i];
        } else if (arg == "--gib" && i + 1 < argc) {
            gib = std::stod(argv[++i]);
        } else if (arg == "--table" && i + 1 < argc) {
            tenon::bench::table_file = argv[++i];
        } else {
            rest.push_back(argv[i]);
        }
    }
    if (!made.empty()) {
        return tenon::bench::make_table(made, static_cast<int64_t>(gib * 262144));
    }
    const tenon::testing::TempDir dir;
    if (tenon::bench::table_file.empty()) {
        tenon::bench::table_file = (dir.path() / "table.bin").native();
        if (tenon::bench::make_table(tenon::bench::table_file, tenon::bench::kSmallTablePages) !=
            0) {
            return 1;
        }
    }
    int count = static_cast<int>(rest.size());
    benchmark::Initialize(&count, rest.data());
    if (benchmark::ReportUnrecognizedArguments(count, rest.data())) {
        return 2;
    }
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
