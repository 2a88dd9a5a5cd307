// SPDX-License-Identifier: MIT
// Communicators of ranks that are threads of one process: every collective is a barrier around
// copies.
#pragma once

#include <condition_variable>
#include <mutex>

#include "tenon/transport.h"

namespace tenon::testing {

class FakeGroup {
  public:
    explicit FakeGroup(int32_t world) : sources_(static_cast<size_t>(world)) {
        for (int32_t r = 0; r < world; ++r) {
            ranks_.push_back(std::make_unique<Rank>(*this, r));
        }
    }
    Communicator* rank(int32_t r) { return ranks_[static_cast<size_t>(r)].get(); }

  private:
    int32_t world() const { return static_cast<int32_t>(sources_.size()); }
    /// Everybody shows its view; `body` runs while all views are valid.
    template <class Body>
    void meet(int32_t rank, const TensorView& mine, Body&& body) {
        wait([&] { sources_[static_cast<size_t>(rank)] = mine; });
        body();
        wait([] {});
    }
    template <class First>
    void wait(First&& first) {
        std::unique_lock lock(mutex_);
        first();
        const int64_t round = round_;
        if (++arrived_ == world()) {
            arrived_ = 0;
            ++round_;
            all_.notify_all();
            return;
        }
        all_.wait(lock, [&] { return round_ != round; });
    }

    class Rank final : public Communicator {
      public:
        Rank(FakeGroup& group, int32_t rank) : group_(group), rank_(rank) {}
        void* query(StrView facet) noexcept override {
            return facet == StrView(Communicator::kFacet) ? static_cast<Communicator*>(this)
                                                          : nullptr;
        }
        void release() noexcept override {}
        CommunicatorInfo info() noexcept override {
            CommunicatorInfo i;
            i.rank = rank_;
            i.world = group_.world();
            return i;
        }
        Status allocate_exchange(int64_t bytes, Buffer** out) noexcept override {
            *out = new Memory(bytes);
            return {};
        }
        Status all_gather(const TensorView& dst, const TensorView& src, Stream&) noexcept override {
            group_.meet(rank_, src, [&] { copy_all(dst); });
            return {};
        }
        Status all_reduce_sum(const TensorView& inout, Stream&) noexcept override {
            std::vector<float> sum(static_cast<size_t>(inout.elements()));
            group_.meet(rank_, inout, [&] {
                for (const TensorView& v : group_.sources_) {
                    for (size_t i = 0; i < sum.size(); ++i) {
                        sum[i] += v.as<float>()[i];
                    }
                }
            });
            std::copy(sum.begin(), sum.end(), inout.as<float>());
            return {};
        }
        Status gather(const TensorView& dst, const TensorView& src, int32_t root,
                      Stream&) noexcept override {
            group_.meet(rank_, src, [&] {
                if (rank_ == root) {
                    copy_all(dst);
                }
            });
            return {};
        }
        Status broadcast(const TensorView& buffer, int32_t root, Stream&) noexcept override {
            group_.meet(rank_, buffer, [&] {
                if (rank_ != root) {
                    std::memcpy(buffer.data, group_.sources_[static_cast<size_t>(root)].data,
                                static_cast<size_t>(buffer.bytes()));
                }
            });
            return {};
        }
        Status health() noexcept override { return {}; }
        void abort() noexcept override {}

      private:
        class Memory final : public Implements<Memory, Buffer> {
          public:
            explicit Memory(int64_t bytes) : bytes_(bytes) {
                data_ = ::operator new (static_cast<size_t>(bytes), std::align_val_t{256});
                std::memset(data_, 0, static_cast<size_t>(bytes));
            }
            ~Memory() { ::operator delete (data_, std::align_val_t{256}); }
            void* data() noexcept override { return data_; }
            int64_t bytes() noexcept override { return bytes_; }
            Place place() noexcept override { return Place::host; }

          private:
            void* data_;
            int64_t bytes_;
        };
        void copy_all(const TensorView& dst) {
            auto* at = dst.as<uint8_t>();
            for (const TensorView& v : group_.sources_) {
                std::memcpy(at, v.data, static_cast<size_t>(v.bytes()));
                at += v.bytes();
            }
        }
        FakeGroup& group_;
        int32_t rank_;
    };

    std::vector<std::unique_ptr<Rank>> ranks_;
    std::mutex mutex_;  // guards everything below
    std::condition_variable all_;
    std::vector<TensorView> sources_;
    int32_t arrived_ = 0;
    int64_t round_ = 0;
};

}  // namespace tenon::testing
