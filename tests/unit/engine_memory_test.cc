// SPDX-License-Identifier: MIT
// The engine thread allocates nothing after ready, over thousands of requests (engine.md 9, 32).
// This program replaces malloc, so it is one of its own; sanitizers bring their own and skip it.
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/unit/engine_support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TENON_OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TENON_OWN_MALLOC 0
#endif
#endif
#ifndef TENON_OWN_MALLOC
#define TENON_OWN_MALLOC 1
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0}, frees{0};
thread_local bool is_engine_thread = false;

/// Resident bytes of this process.
int64_t resident() {
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    long pages = 0;
    if (file == nullptr || std::fscanf(file, "%*d %ld", &pages) != 1) {
        pages = 0;
    }
    if (file != nullptr) {
        std::fclose(file);
    }
    return int64_t{pages} * ::sysconf(_SC_PAGESIZE);
}

void note_thread(tenon::StrView name) {
    is_engine_thread = name == tenon::StrView("engine");
}

}  // namespace

#if TENON_OWN_MALLOC
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

static void count_allocation() {
    if (is_engine_thread && counting.load(std::memory_order_relaxed)) {
        allocations.fetch_add(1);
    }
}
void* malloc(size_t bytes) {
    count_allocation();
    return __libc_malloc(bytes);
}
void* calloc(size_t n, size_t bytes) {
    count_allocation();
    return __libc_calloc(n, bytes);
}
void* realloc(void* p, size_t bytes) {
    count_allocation();
    return __libc_realloc(p, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
    count_allocation();
    return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
    count_allocation();
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
    count_allocation();
    *out = __libc_memalign(alignment, bytes);
    return *out == nullptr ? 12 : 0;
}
void free(void* p) {
    if (p != nullptr && is_engine_thread && counting.load(std::memory_order_relaxed)) {
        frees.fetch_add(1);
    }
    __libc_free(p);
}
}
#endif

namespace tenon::test {
namespace {

/// 0: nothing is kept; else prompts repeat, so that cuts come and go all the time. Negative: to and
/// from disk.
class EngineMemory : public testing::TestWithParam<int32_t> {};

TEST_P(EngineMemory, Pitfall_05_Nothing_is_allocated_and_memory_stays_over_ten_thousand_requests) {
    if (!TENON_OWN_MALLOC) {
        GTEST_SKIP() << "a sanitizer owns malloc in this build";
    }
    ScriptedOptions options;
    options.draft_max = 5;
    options.snapshot_cells = std::abs(GetParam());
    EngineSettings settings;
    const bool spills = GetParam() < 0;
    const auto dir =
        std::filesystem::temp_directory_path() / ("tenon_memory_" + std::to_string(::getpid()));
    if (spills) {
        std::filesystem::create_directory(dir);
        options.staging = true;
        settings.spill_dir = dir.string();
        settings.spill_budget = 1 << 20;  // files are removed all the time too
    }
    settings.draft_depth = 4;
    settings.copy_drafts = true;
    LoopBench bench(options, settings);
    bench.host.on_thread(&note_thread);
    bench.host.log_from(LogLevel::warn);  // kept lines would look like growth
    ASSERT_TRUE(bench.loop->start().ok());
    std::mt19937_64 rng(test_seed());
    std::vector<std::vector<int32_t>> prompts(20);
    for (std::vector<int32_t>& prompt : prompts) {
        prompt = random_ask(rng, 60, 12).prompt;
    }
    const auto serve = [&](int requests) {
        for (int i = 0; i < requests;) {
            std::vector<Ref<ReplySink>> sinks;
            for (uint64_t n = 1 + rng() % 12; n > 0; --n, ++i) {
                Ask ask = random_ask(rng, 60, 12);
                if (GetParam() != 0 && rng() % 2 == 0) {
                    ask.prompt = prompts[rng() % prompts.size()];
                    ask.desc.keeps_reasoning = true;
                }
                ask.desc.replies = 1 + static_cast<int32_t>(rng() % 2);
                sinks.push_back(bench.submit(ask));
                if (rng() % 10 == 0) {
                    sinks.back()->cancel(CancelReason::client_gone);
                }
            }
            for (const Ref<ReplySink>& sink : sinks) {
                bench.finish(*sink);
            }
        }
    };
    allocations.store(0);
    frees.store(0);
    serve(500);
    counting.store(true);
    const int64_t resident_before = resident();
    const int64_t bytes_before = static_cast<int64_t>(mallinfo2().uordblks);
    serve(spills ? 2'000 : 10'000);
    EngineStats stats;
    bench.loop->stats(&stats);
    counting.store(false);
    const int64_t resident_after = resident();
    const int64_t cached = stats.cached_tokens_total;
    bench.loop->set_memory_level(1);  // gives up all cuts
    for (int i = 0; i < 2000 && stats.pages_free != stats.pages_total; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        bench.loop->stats(&stats);
    }
    bench.loop->stop();  // after it no thread still holds a request that has ended
    const int64_t bytes_after = static_cast<int64_t>(mallinfo2().uordblks);

    EXPECT_EQ(allocations.load(), 0);
    EXPECT_EQ(frees.load(), 0);
    EXPECT_LT(bytes_after - bytes_before, 512 * 1024)
        << "the process grew with the number of requests";
    EXPECT_LE(resident_after, resident_before + resident_before / 50 + (8 << 20));
    EXPECT_GE(stats.requests_total, spills ? 2'000 : 10'000);
    EXPECT_EQ(stats.pages_free, stats.pages_total);
    EXPECT_EQ(cached > 0, GetParam() != 0);
    EXPECT_EQ(bench.host.value("kv_spill_hits_total") > 0, spills);
    std::filesystem::remove_all(dir);
}

INSTANTIATE_TEST_SUITE_P(Cells, EngineMemory, testing::Values(0, 40, -40),
                         [](const testing::TestParamInfo<int32_t>& cells) {
                             return cells.param < 0 ? std::string("spill")
                                                    : std::to_string(cells.param);
                         });

}  // namespace
}  // namespace tenon::test
