// SPDX-License-Identifier: MIT
// The CPU device and its thread pool: memory, copies, partition rules, nesting, concurrent callers.
#include "device/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "pool/pool.h"
#include "sample/draw.h"
#include "tenon/numeric.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::cpu {
namespace {

struct Owned {
    explicit Owned(DeviceOptions options = {}) : device(new CpuDevice(nullptr, options)) {
        EXPECT_TRUE(device->create_stream({.name = "t"}, stream.out()).ok());
    }
    ~Owned() {
        stream.reset();
        device->release();
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    CpuDevice* device;
    Ref<Stream> stream;
};

TEST(CpuPool, Ranges_cover_everything_once_and_never_cross_a_grain) {
    for (int64_t threads : {1, 2, 3, 8}) {
        Pool pool(threads, nullptr);
        EXPECT_EQ(pool.workers(), threads);
        for (int64_t n : {1, 2, 7, 64, 1000}) {
            for (int64_t grain : {1, 3, 64, 5000}) {
                std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
                std::atomic<bool> good{true};
                parallel_for(&pool, n, grain, [&](int64_t begin, int64_t end, int32_t worker) {
                    good = good && begin < end && begin / grain == (end - 1) / grain &&
                           worker >= 0 && worker < threads;
                    for (int64_t i = begin; i < end; ++i) {
                        ++hits[static_cast<size_t>(i)];
                    }
                });
                EXPECT_TRUE(good);
                for (const auto& h : hits) {
                    ASSERT_EQ(h, 1);
                }
            }
        }
    }
}

TEST(CpuPool, Takes_no_more_cores_than_the_quota_of_its_cgroup_or_of_one_above_it) {
    const testing::TempDir dir;
    const std::string root = dir.path();
    const std::string self = root + "/self";
    const auto write = [](const std::string& file, const char* text) {
        std::ofstream(file) << text;
    };
    const int64_t all = usable_cores(root + "/none", root + "/none");
    EXPECT_EQ(all, std::thread::hardware_concurrency());
    std::filesystem::create_directories(root + "/a/b");
    write(self, "1:name=systemd:/x\n0::/a/b\n");

    EXPECT_EQ(usable_cores(root, self), all);
    write(root + "/a/b/cpu.max", "max 100000\n");
    EXPECT_EQ(usable_cores(root, self), all);
    write(root + "/a/b/cpu.max", "1 100000\n");
    EXPECT_EQ(usable_cores(root, self), 1);
    write(root + "/a/b/cpu.max", "100001 100000\n");
    EXPECT_EQ(usable_cores(root, self), std::min<int64_t>(2, all)) << "rounded up";
    write(root + "/a/cpu.max", "50000 100000\n");
    EXPECT_EQ(usable_cores(root, self), 1) << "of the group above";
    write(root + "/a/cpu.max", "0 100000\n");
    write(root + "/a/b/cpu.max", "nonsense\n");
    EXPECT_EQ(usable_cores(root, self), all);
    write(root + "/cpu.max", "100000 100000\n");
    EXPECT_EQ(usable_cores(root, root + "/none"), 1) << "a container's own";
}

TEST(CpuPool, A_call_inside_a_body_runs_on_its_own_thread) {
    Pool pool(3, nullptr);
    std::atomic<int64_t> sum{0};
    std::atomic<bool> same{true};
    parallel_for(&pool, 20, 1, [&](int64_t begin, int64_t, int32_t outer) {
        const auto thread = std::this_thread::get_id();
        parallel_for(&pool, 10, 1, [&](int64_t i, int64_t, int32_t inner) {
            same = same && inner == outer && std::this_thread::get_id() == thread;
            sum += begin * 10 + i;
        });
    });
    EXPECT_TRUE(same);
    EXPECT_EQ(sum, 199 * 200 / 2);
}

TEST(CpuPool, Callers_on_several_threads_do_not_disturb_each_other) {
    Pool pool(2, nullptr);
    std::vector<std::thread> callers;
    std::atomic<int64_t> total{0};
    for (int c = 0; c < 4; ++c) {
        callers.emplace_back([&] {
            for (int round = 0; round < 300; ++round) {
                std::atomic<int64_t> mine{0};
                parallel_for(&pool, 16, 1, [&](int64_t begin, int64_t end, int32_t) {
                    mine += (end - begin) * 2;
                });
                total += mine;
            }
        });
    }
    for (std::thread& t : callers) {
        t.join();
    }
    EXPECT_EQ(total, 4 * 300 * 32);
}

TEST(CpuPool, Many_short_loops_after_pauses_lose_no_work) {
    Pool pool(3, nullptr);
    int64_t sum = 0;
    for (int round = 0; round < 400; ++round) {
        std::atomic<int64_t> part{0};
        parallel_for(&pool, 9, 1, [&](int64_t begin, int64_t, int32_t) { part += begin; });
        sum += part;
        if (round % 40 == 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));  // workers fall asleep
        }
    }
    EXPECT_EQ(sum, 400 * 36);
}

TEST(CpuDevice, Offers_its_facets) {
    Owned o;
    Object* object = static_cast<Device*>(o.device);
    EXPECT_NE(facet_of<Device>(object), nullptr);
    EXPECT_NE(facet_of<OpTable>(object), nullptr);
    EXPECT_NE(facet_of<ParallelFor>(object), nullptr);
    EXPECT_EQ(object->query("compute.graphs/1"), nullptr);
    EXPECT_TRUE(o.device->info().cpu);
    EXPECT_GT(o.device->info().bytes_total, 0);
}

TEST(CpuDevice, Registers_each_op_once_with_equal_regimes) {
    for (bool reference : {true, false}) {
        Owned o({1, reference});
        std::set<std::string> names;
        for (const OpEntry& e : o.device->ops()) {
            EXPECT_TRUE(names.insert(e.id.name).second) << e.id.name;
            EXPECT_TRUE(e.traits.equal_regimes) << e.id.name;
            EXPECT_EQ(e.traits.regimes, 3u);
        }
        EXPECT_GE(names.size(), 39u);
    }
}

TEST(CpuDevice, Buffers_are_zero_aligned_and_refused_when_too_large) {
    Owned o;
    for (int64_t alignment : {1, 256, 4096, 65536}) {
        Ref<Buffer> b;
        ASSERT_TRUE(
            o.device->allocate({.bytes = 1000, .alignment = alignment, .tag = "a"}, b.out()).ok());
        EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 256, 0u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % static_cast<uintptr_t>(alignment), 0u);
        for (int64_t i = 0; i < 1000; ++i) {
            ASSERT_EQ(static_cast<char*>(b->data())[i], 0);
        }
    }
    Ref<Buffer> none;
    const Status large =
        o.device->allocate({.bytes = int64_t{1} << 50, .tag = "state.pages"}, none.out());
    EXPECT_EQ(large.code(), Code::does_not_fit);
    EXPECT_NE(large.message().str().find("state.pages"), std::string::npos);
    EXPECT_EQ(o.device->allocate({.bytes = 8, .alignment = 48, .tag = "a"}, none.out()).code(),
              Code::invalid_argument);
    EXPECT_EQ(o.device->allocate({.bytes = -1, .tag = "a"}, none.out()).code(),
              Code::invalid_argument);
    EXPECT_TRUE(o.device->allocate({.bytes = 0, .tag = "a"}, none.out()).ok());
}

TEST(CpuDevice, Copies_strided_views_and_refuses_unequal_ones) {
    Owned o;
    alignas(16) float a[4][8];
    alignas(16) float b[4][3] = {};
    for (int i = 0; i < 32; ++i) {
        (&a[0][0])[i] = static_cast<float>(i);
    }
    TensorView src = make_view(&a[0][2], DType::f32, {4, 3});
    src.stride[0] = 8;
    const TensorView dst = make_view(&b[0][0], DType::f32, {4, 3});
    ASSERT_TRUE(o.device->copy(dst, src, *o.stream).ok());
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 3; ++j) {
            EXPECT_EQ(b[i][j], static_cast<float>(i * 8 + 2 + j));
        }
    }
    ASSERT_TRUE(o.device->fill_zero(src, *o.stream).ok());
    EXPECT_EQ(a[1][1], 9.0f);
    EXPECT_EQ(a[1][2], 0.0f);
    EXPECT_EQ(a[1][5], 13.0f);
    const Status s = o.device->copy(make_view(b, DType::f32, {3, 4}), src, *o.stream);
    EXPECT_EQ(s.code(), Code::invalid_argument);
    EXPECT_NE(s.message().str().find("f32[3, 4]"), std::string::npos);
    EXPECT_TRUE(
        o.device
            ->copy(make_view(b, DType::f32, {0, 4}), make_view(b, DType::f32, {0, 4}), *o.stream)
            .ok());
}

TEST(CpuDevice, Events_are_done_at_once) {
    Owned o;
    Ref<Event> e;
    ASSERT_TRUE(o.device->create_event(e.out()).ok());
    ASSERT_TRUE(o.device->record(*e, *o.stream).ok());
    EXPECT_TRUE(e->done());
    EXPECT_TRUE(e->wait(0).ok());
    EXPECT_TRUE(o.device->wait(*o.stream, *e).ok());
    EXPECT_TRUE(o.device->synchronize(*o.stream).ok());
}

TEST(CpuSample, The_bounds_that_skip_noise_are_above_it) {
    for (int shift = 0; shift <= 32; ++shift) {
        for (uint32_t low : {0u, 1u, 0x7FFFFFFFu, ~0u}) {
            // Words with `shift` leading one bits, then anything.
            const uint32_t ones = shift == 0 ? 0 : ~0u << (32 - shift);
            const uint32_t word = ones | (shift >= 31 ? 0 : low >> (shift + 1));
            EXPECT_GE(gumbel_bound(word), gumbel_of_word(word)) << std::hex << word;
            EXPECT_GE(kGumbelLargest, gumbel_of_word(word));
        }
    }
}

}  // namespace
}  // namespace tenon::cpu
