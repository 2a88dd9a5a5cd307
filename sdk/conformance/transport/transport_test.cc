// SPDX-License-Identifier: MIT
// Rules of transports: collectives in a world of 1 and, where the transport takes it, of 2 and 3
// ranks, each rank a thread with a host device.
#include "tenon/transport.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <latch>
#include <thread>

#include "tenon/testing/host_device.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {
namespace {

/// Blobs of all ranks of one process; `all_gather` waits until every rank has given its own.
class Meeting {
  public:
    explicit Meeting(int32_t world) : world_(world) {}

    Status all_gather(int32_t rank, const std::string& key, Span<const uint8_t> mine,
                      Span<uint8_t> all, int64_t timeout_us) {
        std::unique_lock lock(mutex_);
        std::map<int32_t, std::vector<uint8_t>>& blobs = rounds_[key];
        blobs[rank].assign(mine.begin(), mine.end());
        changed_.notify_all();
        const auto complete = [&] { return static_cast<int32_t>(blobs.size()) == world_; };
        if (!changed_.wait_for(lock, std::chrono::microseconds(timeout_us), complete)) {
            return error(Code::deadline, "rendezvous '{}': {} of {} ranks came", key, blobs.size(),
                         world_);
        }
        size_t at = 0;
        for (const auto& [owner, blob] : blobs) {
            if (at + blob.size() > all.size) {
                return error(Code::invalid_argument, "rendezvous '{}': rank {} sent {} bytes", key,
                             owner, blob.size());
            }
            std::copy(blob.begin(), blob.end(), all.begin() + at);
            at += blob.size();
        }
        return {};
    }
    int32_t world() const { return world_; }

  private:
    const int32_t world_;
    std::mutex mutex_;  // guards rounds_
    std::condition_variable changed_;
    std::map<std::string, std::map<int32_t, std::vector<uint8_t>>> rounds_;
};

class RankRendezvous final : public Implements<RankRendezvous, Rendezvous> {
  public:
    RankRendezvous(Meeting& meeting, int32_t rank) : meeting_(meeting), rank_(rank) {}
    int32_t rank() noexcept override { return rank_; }
    int32_t world() noexcept override { return meeting_.world(); }
    Status all_gather(StrView key, Span<const uint8_t> mine, Span<uint8_t> all,
                      int64_t timeout_us) noexcept override {
        return guard([&] { return meeting_.all_gather(rank_, key.str(), mine, all, timeout_us); });
    }

  private:
    Meeting& meeting_;
    const int32_t rank_;
};

/// What one rank works with.
struct Rank {
    int32_t rank = 0;
    Communicator& communicator;
    Device& device;
    Stream& stream;

    /// Exchange memory as f32 [parts, count] (one part: [count]); lives as long as `keep`.
    TensorView floats(int64_t count, std::vector<Ref<Buffer>>& keep, int64_t parts = 1) {
        Buffer* raw = nullptr;
        const Status status =
            communicator.allocate_exchange(std::max<int64_t>(parts * count, 1) * 4, &raw);
        EXPECT_TRUE(status.ok()) << status.message().view();
        if (raw == nullptr) {
            return {};
        }
        keep.emplace_back(raw);
        return parts == 1 ? make_view(raw->data(), DType::f32, {count}, raw->place())
                          : make_view(raw->data(), DType::f32, {parts, count}, raw->place());
    }
};

class TransportRules : public ::testing::TestWithParam<std::tuple<const Component*, int32_t>> {
  protected:
    int32_t world() const { return std::get<1>(GetParam()); }

    /// Runs `body` on every rank at once; skips if the transport does not take this world. A world
    /// of 1 is taken by every transport that this machine can run.
    template <class Body>
    void on_ranks(Body&& body) {
        const Component& component = *std::get<0>(GetParam());
        Meeting meeting(world());
        std::vector<Status> connected(static_cast<size_t>(world()));
        std::vector<std::thread> threads;
        for (int32_t r = 0; r < world(); ++r) {
            threads.emplace_back([&, r] {
                OptionSet options(component);
                auto transport = Created<Transport>::make(component, host_, options);
                if (!transport.ok()) {
                    connected[static_cast<size_t>(r)] = transport.take_status();
                    return;
                }
                Ref<RankRendezvous> rendezvous(new RankRendezvous(meeting, r));
                Ref<HostDevice> device(new HostDevice);
                Stream* raw_stream = nullptr;
                Communicator* raw = nullptr;
                Status status = device->create_stream({.name = "main"}, &raw_stream);
                Ref<Stream> stream(raw_stream);
                if (status.ok()) {
                    status = (*transport)->connect(*rendezvous, *device, &raw);
                }
                Ref<Communicator> communicator(raw);
                if (status.ok()) {
                    Rank rank{r, *communicator, *device, *stream};
                    body(rank);
                }
                connected[static_cast<size_t>(r)] = std::move(status);
            });
        }
        for (std::thread& t : threads) {
            t.join();
        }
        for (int32_t r = 0; r < world(); ++r) {
            Status& status = connected[static_cast<size_t>(r)];
            if ((status.code() == Code::unsupported && world() > 1) ||
                status.code() == Code::unavailable) {
                EXPECT_FALSE(status.message().str().empty());
                GTEST_SKIP() << "rank " << r << ": " << status.message().view();
            }
            TENON_EXPECT_OK(status);
        }
    }

    TestHost host_;
};

std::vector<std::tuple<const Component*, int32_t>> components_and_worlds() {
    std::vector<std::tuple<const Component*, int32_t>> all;
    for (const Component* c : components_under_test(PluginKind::transport)) {
        for (int32_t world : {1, 2, 3}) {
            all.emplace_back(c, world);
        }
    }
    return all;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportRules);
INSTANTIATE_TEST_SUITE_P(Plugin, TransportRules, ::testing::ValuesIn(components_and_worlds()),
                         [](const auto& param_info) {
                             return test_name(*std::get<0>(param_info.param)) + "_world_" +
                                    std::to_string(std::get<1>(param_info.param));
                         });

TEST_P(TransportRules, States_its_place_in_the_world) {
    on_ranks([&](Rank& r) {
        const CommunicatorInfo info = r.communicator.info();
        EXPECT_EQ(info.rank, r.rank);
        EXPECT_EQ(info.world, world());
        EXPECT_GT(info.deadline_us, 0);
        EXPECT_GE(info.graph_safe_bytes, 0);
        TENON_EXPECT_OK(r.communicator.health());
    });
}

TEST_P(TransportRules, Exchange_memory_is_aligned_and_zero) {
    on_ranks([&](Rank& r) {
        std::vector<Ref<Buffer>> keep;
        const TensorView v = r.floats(1000, keep);
        ASSERT_NE(v.data, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(v.data) % 256, 0u);
        EXPECT_GE(keep[0]->bytes(), 4000);
        const auto* f = static_cast<const float*>(v.data);
        EXPECT_EQ(std::count(f, f + 1000, 0.0F), 1000);
    });
}

/// 0 elements, one, odd, and more than any eager path would take.
constexpr int64_t kSizes[] = {0, 1, 257, 300'000};

float value_of(int32_t rank, int64_t i) {
    return static_cast<float>((i * 31 + rank * 1009) % 977) * 0.37F - 100.0F;
}

TEST_P(TransportRules, All_gather_puts_parts_in_rank_order) {
    on_ranks([&](Rank& r) {
        for (const int64_t n : kSizes) {
            std::vector<Ref<Buffer>> keep;
            const TensorView src = r.floats(n, keep);
            const TensorView dst = r.floats(n, keep, world());
            for (int64_t i = 0; i < n; ++i) {
                static_cast<float*>(src.data)[i] = value_of(r.rank, i);
            }
            TENON_ASSERT_OK(r.communicator.all_gather(dst, src, r.stream));
            TENON_ASSERT_OK(r.device.synchronize(r.stream));
            for (int32_t from = 0; from < world(); ++from) {
                for (int64_t i = 0; i < n; ++i) {
                    ASSERT_EQ(static_cast<float*>(dst.data)[from * n + i], value_of(from, i))
                        << "rank " << r.rank << ", part " << from << ", element " << i;
                }
            }
        }
    });
}

TEST_P(TransportRules, Gathers_in_place_where_it_says_so) {
    on_ranks([&](Rank& r) {
        if (!r.communicator.info().in_place_gather) {
            return;
        }
        const int64_t n = 257;
        std::vector<Ref<Buffer>> keep;
        const TensorView dst = r.floats(n, keep, world());
        auto* all = static_cast<float*>(dst.data);
        for (int64_t i = 0; i < n; ++i) {
            all[r.rank * n + i] = value_of(r.rank, i);
        }
        const TensorView own = make_view(all + r.rank * n, DType::f32, {n}, dst.place);
        TENON_ASSERT_OK(r.communicator.all_gather(dst, own, r.stream));
        TENON_ASSERT_OK(r.device.synchronize(r.stream));
        for (int64_t i = 0; i < world() * n; ++i) {
            ASSERT_EQ(all[i], value_of(static_cast<int32_t>(i / n), i % n))
                << "rank " << r.rank << ", element " << i;
        }
    });
}

TEST_P(TransportRules, Sums_are_added_in_rank_order_on_every_rank) {
    on_ranks([&](Rank& r) {
        for (const int64_t n : kSizes) {
            std::vector<Ref<Buffer>> keep;
            const TensorView v = r.floats(n, keep);
            for (int64_t i = 0; i < n; ++i) {
                static_cast<float*>(v.data)[i] = value_of(r.rank, i);
            }
            TENON_ASSERT_OK(r.communicator.all_reduce_sum(v, r.stream));
            TENON_ASSERT_OK(r.device.synchronize(r.stream));
            for (int64_t i = 0; i < n; ++i) {
                float sum = value_of(0, i);
                for (int32_t from = 1; from < world(); ++from) {
                    sum += value_of(from, i);
                }
                ASSERT_EQ(static_cast<float*>(v.data)[i], sum) << "rank " << r.rank << ", " << i;
            }
        }
    });
}

TEST_P(TransportRules, Gather_reaches_the_root_alone_and_broadcast_everyone) {
    on_ranks([&](Rank& r) {
        const int64_t n = 129;
        for (int32_t root = 0; root < world(); ++root) {
            std::vector<Ref<Buffer>> keep;
            const TensorView src = r.floats(n, keep);
            const TensorView dst = r.floats(n, keep, world());
            for (int64_t i = 0; i < n; ++i) {
                static_cast<float*>(src.data)[i] = value_of(r.rank, i);
            }
            TENON_ASSERT_OK(r.communicator.gather(dst, src, root, r.stream));
            TENON_ASSERT_OK(r.device.synchronize(r.stream));
            for (int64_t i = 0; i < world() * n; ++i) {
                const float expected =
                    r.rank == root ? value_of(static_cast<int32_t>(i / n), i % n) : 0.0F;
                ASSERT_EQ(static_cast<float*>(dst.data)[i], expected)
                    << "rank " << r.rank << ", root " << root << ", element " << i;
            }
            TENON_ASSERT_OK(r.communicator.broadcast(src, root, r.stream));
            TENON_ASSERT_OK(r.device.synchronize(r.stream));
            for (int64_t i = 0; i < n; ++i) {
                ASSERT_EQ(static_cast<float*>(src.data)[i], value_of(root, i));
            }
        }
    });
}

TEST_P(TransportRules, Wrong_arguments_are_refused_before_anything_is_sent) {
    on_ranks([&](Rank& r) {
        std::vector<Ref<Buffer>> keep;
        const TensorView four = r.floats(4, keep);
        const TensorView short_dst = r.floats(3, keep, world());
        TensorView halves = four;
        halves.dtype = DType::bf16;
        TENON_EXPECT_ERROR(r.communicator.all_gather(short_dst, four, r.stream),
                           Code::invalid_argument, "");
        TENON_EXPECT_ERROR(r.communicator.all_reduce_sum(halves, r.stream), Code::invalid_argument,
                           "f32");
        TENON_EXPECT_ERROR(r.communicator.broadcast(four, world(), r.stream),
                           Code::invalid_argument, "root");
        TENON_EXPECT_ERROR(r.communicator.broadcast(four, -1, r.stream), Code::invalid_argument,
                           "root");
        TENON_EXPECT_ERROR(
            r.communicator.gather(r.floats(4, keep, world()), four, world(), r.stream),
            Code::invalid_argument, "root");
        TENON_EXPECT_OK(r.communicator.health());
    });
}

/// The error of an operation: what it returned, else what `health` says until five deadlines
/// passed.
Status outcome_of(Status returned, Communicator& communicator) {
    const auto begin = std::chrono::steady_clock::now();
    const auto limit = std::chrono::microseconds(5 * communicator.info().deadline_us);
    while (returned.ok() && std::chrono::steady_clock::now() - begin < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        returned = communicator.health();
    }
    return returned;
}

TEST_P(TransportRules, A_rank_that_does_not_come_is_noticed_and_ends_the_group) {
    if (world() == 1) {
        GTEST_SKIP() << "needs a second rank";
    }
    std::latch noticed(world());
    on_ranks([&](Rank& r) {
        std::vector<Ref<Buffer>> keep;
        const TensorView v = r.floats(64, keep);
        if (r.rank + 1 < world()) {
            const Status status =
                outcome_of(r.communicator.all_reduce_sum(v, r.stream), r.communicator);
            EXPECT_TRUE(status.code() == Code::peer || status.code() == Code::deadline)
                << code_name(status.code()) << ": " << status.message().view();
            TENON_EXPECT_ERROR(r.communicator.health(), Code::peer, "");
            EXPECT_FALSE(r.communicator.all_reduce_sum(v, r.stream).ok());
        }
        noticed.count_down();  // the absent rank still has its communicator
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!noticed.try_wait()) {
            ASSERT_LT(std::chrono::steady_clock::now(), until) << "a rank does not end";
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    });
}

TEST_P(TransportRules, After_an_abort_nothing_is_sent) {
    on_ranks([&](Rank& r) {
        std::vector<Ref<Buffer>> keep;
        const TensorView v = r.floats(64, keep);
        r.communicator.abort();
        r.communicator.abort();
        TENON_EXPECT_ERROR(r.communicator.health(), Code::peer, "");
        EXPECT_FALSE(r.communicator.all_reduce_sum(v, r.stream).ok());
        EXPECT_FALSE(r.communicator.broadcast(v, 0, r.stream).ok());
    });
}

TEST_P(TransportRules, Leaves_no_threads_and_no_descriptors) {
    const auto run_once = [&] {
        on_ranks([&](Rank& r) {
            std::vector<Ref<Buffer>> keep;
            TENON_EXPECT_OK(r.communicator.all_reduce_sum(r.floats(64, keep), r.stream));
        });
    };
    run_once();  // what a first run keeps for good is not a leak
    const int64_t threads = thread_count();
    const size_t descriptors = open_descriptors().size();
    run_once();
    run_once();
    EXPECT_EQ(thread_count(), threads);
    EXPECT_EQ(open_descriptors().size(), descriptors)
        << ::testing::PrintToString(open_descriptors());
}

}  // namespace
}  // namespace tenon::testing
