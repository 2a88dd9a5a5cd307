// SPDX-License-Identifier: MIT
// The pipe that feeds weights to a device: bytes, order, reuse of slots, and every way to fail.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>

#include "plugins/quant_common/weight_pipe.h"
#include "tenon/plugin.h"
#include "tenon/testing/host_device.h"

namespace tenon::testing {
namespace {

using quant::PipeJob;
using quant::PipeOptions;
using quant::WeightPipe;

/// A device whose copies run as late as they may: when somebody waits for them. A slot that is
/// filled again too early shows as wrong bytes.
class LateDevice final : public Implements<LateDevice, Device> {
  public:
    DeviceInfo info() noexcept override { return {}; }
    Status allocate(const BufferDesc& desc, Buffer** out) noexcept override {
        if (refuse_memory) {
            return error(Code::does_not_fit, "buffer '{}': {} bytes", desc.tag, desc.bytes);
        }
        return guard([&] {
            largest = std::max(largest, desc.bytes);
            *out = new Memory(*this, desc);
        });
    }
    Status create_stream(const StreamDesc&, Stream** out) noexcept override {
        return guard([&] { *out = new HostStream; });
    }
    Status create_event(Event** out) noexcept override {
        return with_events ? guard([&] { *out = new Mark(*this); })
                           : error(Code::unsupported, "no events");
    }
    Status copy(const TensorView& dst, const TensorView& src, Stream&) noexcept override {
        if (++copies == fail_copy) {
            return error(Code::device, "copy failed");
        }
        return guard([&] {
            queue_.push_back([dst, src] {
                for (int64_t r = 0; r < dst.shape[0]; ++r) {
                    std::memcpy(dst.as<char>() + r * dst.stride[0],
                                src.as<char>() + r * src.stride[0],
                                static_cast<size_t>(dst.shape[1]));
                }
            });
        });
    }
    Status fill_zero(const TensorView&, Stream&) noexcept override { return {}; }
    Status record(Event& event, Stream&) noexcept override {
        static_cast<Mark&>(event).at = queue_.size();
        return {};
    }
    Status wait(Stream&, Event&) noexcept override { return {}; }
    Status synchronize(Stream&) noexcept override {
        ++synchronized;
        run(queue_.size());
        return {};
    }
    uint64_t fault_count() noexcept override { return 0; }

    bool with_events = true, refuse_memory = false;
    int64_t copies = 0, fail_copy = 0;
    int64_t synchronized = 0, buffers = 0, largest = 0;

  private:
    class Memory final : public Implements<Memory, Buffer> {
      public:
        Memory(LateDevice& device, const BufferDesc& desc)
            : device_(device),
              alignment_(std::align_val_t(static_cast<size_t>(desc.alignment))),
              bytes_(desc.bytes) {
            data_ = ::operator new(static_cast<size_t>(bytes_), alignment_);
            ++device_.buffers;
        }
        Memory(const Memory&) = delete;
        Memory& operator=(const Memory&) = delete;
        ~Memory() {
            // Copies that run now would read freed memory.
            EXPECT_EQ(device_.done_, device_.queue_.size());
            ::operator delete(data_, alignment_);
            --device_.buffers;
        }
        void* data() noexcept override { return data_; }
        int64_t bytes() noexcept override { return bytes_; }
        Place place() noexcept override { return Place::pinned; }

      private:
        LateDevice& device_;
        std::align_val_t alignment_;
        int64_t bytes_;
        void* data_;
    };
    class Mark final : public Implements<Mark, Event> {
      public:
        explicit Mark(LateDevice& device) : device_(device) {}
        bool done() noexcept override { return device_.done_ >= at; }
        Status wait(int64_t) noexcept override {
            device_.run(at);
            return {};
        }
        size_t at = 0;

      private:
        LateDevice& device_;
    };
    void run(size_t until) {
        for (; done_ < until; ++done_) {
            queue_[done_]();
        }
    }
    std::vector<std::function<void()>> queue_;
    size_t done_ = 0;
};

/// One tensor "t" of noise that begins anywhere in a file.
class NoiseSource final : public Implements<NoiseSource, WeightSource> {
  public:
    NoiseSource(uint64_t bytes, uint64_t offset) : data(bytes), offset_(offset) {
        uint32_t state = 7;
        for (uint8_t& b : data) {
            state = state * 1664525u + 1013904223u;
            b = static_cast<uint8_t>(state >> 24);
        }
    }
    uint64_t count() noexcept override { return 1; }
    TensorInfo at(uint64_t) noexcept override { return {}; }
    Status find(StrView name, TensorInfo* out) noexcept override {
        if (name != StrView("t")) {
            return error(Code::not_found, "no tensor '{}'", name);
        }
        TensorInfo info;
        info.name = "t";
        info.offset = offset_;
        info.bytes = data.size();
        *out = info;
        return {};
    }
    Status map(StrView, TensorView*) noexcept override { return error(Code::unsupported, "map"); }
    Status read(StrView, uint64_t first, uint64_t bytes, void* dst) noexcept override {
        const int64_t mine = ++reads;
        ++running;
        misplaced = misplaced + ((reinterpret_cast<uintptr_t>(dst) - offset_ - first) % 4096 != 0);
        unaligned = unaligned + (first != 0 && (offset_ + first) % 4096 != 0);
        Status status;
        if (mine == fail_read) {
            status = error(Code::io, "tensor 't': disk on fire at {}", first);
        } else if (first > data.size() || bytes > data.size() - first) {
            status = error(Code::invalid_argument, "beyond the tensor");
        } else {
            std::memcpy(dst, data.data() + first, bytes);
            bytes_read += static_cast<int64_t>(bytes);
        }
        --running;
        return status;
    }
    Span<const uint8_t> digest() noexcept override { return {}; }

    std::vector<uint8_t> data;
    std::atomic<int64_t> reads{0}, running{0}, misplaced{0}, unaligned{0}, bytes_read{0};
    int64_t fail_read = 0;

  private:
    uint64_t offset_;
};

struct Bench {
    explicit Bench(uint64_t bytes = 3'000'000, uint64_t offset = 1'234'567)
        : source(new NoiseSource(bytes, offset)) {
        EXPECT_TRUE(device->create_stream({}, stream.out()).ok());
    }
    PipeJob job(int64_t offset, int64_t rows, int64_t row_bytes, int64_t pitch) {
        PipeJob j;
        j.source = source.get();
        j.tensor = "t";
        j.offset = offset;
        j.rows = rows;
        j.row_bytes = row_bytes;
        j.pitch = pitch;
        return j;
    }
    /// Dense runs, rows with small and with wide gaps, rows longer than a slot, one byte, the ends.
    std::vector<PipeJob> jobs() {
        const auto size = static_cast<int64_t>(source->data.size());
        return {job(0, 1, size, 0),          job(0, 1, 1, 0),
                job(size - 1, 1, 1, 1),      job(17, 40, 100, 100),
                job(4096, 300, 1000, 2000),  job(5, 29, 700, 100'000),
                job(11, 20, 50'000, 70'000), job(999, 7, 20'001, 300'000),
                job(size - 64, 2, 30, 34),   job(8192 - 1'234'567 % 4096, 4, 4096, 8192)};
    }
    std::vector<uint8_t> expected(const PipeJob& j) const {
        std::vector<uint8_t> out;
        for (int64_t r = 0; r < j.rows; ++r) {
            const auto from = source->data.begin() + j.offset + r * j.pitch;
            out.insert(out.end(), from, from + j.row_bytes);
        }
        return out;
    }

    Ref<LateDevice> device{new LateDevice};
    Ref<Stream> stream;
    Ref<NoiseSource> source;
};

const PipeOptions kRings[] = {{}, {4, 3, 16 << 10}, {4, 1, 8 << 10}, {1, 8, 64 << 10}};

TEST(WeightPipe, Rows_arrive_as_they_are_in_the_tensor) {
    for (const bool with_events : {true, false}) {
        for (const PipeOptions& ring : kRings) {
            for (const uint64_t offset : {0, 1'234'567}) {
                Bench b(3'000'000, offset);
                b.device->with_events = with_events;
                std::vector<PipeJob> jobs = b.jobs();
                std::vector<std::vector<uint8_t>> got;
                for (PipeJob& j : jobs) {
                    got.emplace_back(static_cast<size_t>(j.rows * j.row_bytes));
                    j.to = got.back().data();
                }
                {
                    WeightPipe pipe(*b.device, *b.stream, ring);
                    for (const PipeJob& j : jobs) {
                        ASSERT_TRUE(pipe.add(j).ok());
                    }
                    ASSERT_TRUE(pipe.start().ok());
                    for (size_t i = 0; i < jobs.size(); ++i) {
                        const Status status = pipe.next();
                        ASSERT_TRUE(status.ok()) << status.message().str();
                    }
                    if (with_events) {
                        EXPECT_EQ(b.device->synchronized, 0);
                    }
                    ASSERT_TRUE(b.device->synchronize(*b.stream).ok());
                }
                for (size_t i = 0; i < jobs.size(); ++i) {
                    EXPECT_TRUE(got[i] == b.expected(jobs[i])) << "job " << i;
                }
                EXPECT_EQ(b.source->misplaced, 0);  // direct reads need no copy
                EXPECT_EQ(b.source->unaligned, 0);
                EXPECT_EQ(b.device->buffers, 0);
                EXPECT_LE(b.device->largest, ring.slots * ring.slot_bytes);
            }
        }
    }
}

TEST(WeightPipe, Jobs_may_share_their_target_since_the_stream_orders_them) {
    Bench b;
    std::vector<uint8_t> staging(200'000);
    std::vector<PipeJob> jobs;
    std::vector<std::vector<uint8_t>> got;
    for (int64_t i = 0; i < 50; ++i) {
        jobs.push_back(b.job(i * 40'000, i % 2 == 0 ? 1 : 20, i % 2 == 0 ? 100'000 : 5'000, 9'000));
        jobs.back().to = staging.data();
        got.emplace_back(100'000);
    }
    WeightPipe pipe(*b.device, *b.stream, {4, 3, 64 << 10});
    for (const PipeJob& j : jobs) {
        ASSERT_TRUE(pipe.add(j).ok());
    }
    ASSERT_TRUE(pipe.start().ok());
    for (auto& to : got) {
        ASSERT_TRUE(pipe.next().ok());
        ASSERT_TRUE(b.device
                        ->copy(make_view(to.data(), DType::u8, {1, 100'000}),
                               make_view(staging.data(), DType::u8, {1, 100'000}), *b.stream)
                        .ok());
    }
    ASSERT_TRUE(b.device->synchronize(*b.stream).ok());
    for (size_t i = 0; i < jobs.size(); ++i) {
        PipeJob& j = jobs[i];
        j.pitch = std::max(j.pitch, j.row_bytes);
        EXPECT_TRUE(got[i] == b.expected(j)) << "job " << i;
    }
}

TEST(WeightPipe, Small_gaps_are_read_over_and_wide_ones_are_not) {
    for (const int64_t pitch : {2'000, 200'000}) {
        Bench b;
        std::vector<uint8_t> to(10'000);
        PipeJob j = b.job(0, 10, 1'000, pitch);
        j.to = to.data();
        WeightPipe pipe(*b.device, *b.stream);
        ASSERT_TRUE(pipe.add(j).ok());
        ASSERT_TRUE(pipe.start().ok());
        ASSERT_TRUE(pipe.next().ok());
        EXPECT_EQ(b.source->reads, pitch == 2'000 ? 1 : 10);
        EXPECT_LE(b.source->bytes_read, 10 * 8192);
    }
}

TEST(WeightPipe, A_failed_read_ends_the_load_with_its_message) {
    for (const int64_t fail : {1, 2, 7, 30}) {
        Bench b;
        b.source->fail_read = fail;
        std::vector<uint8_t> to(3'000'000);
        PipeJob j = b.job(0, 1, 3'000'000, 0);
        j.to = to.data();
        {
            WeightPipe pipe(*b.device, *b.stream, {4, 3, 64 << 10});
            ASSERT_TRUE(pipe.add(j).ok());
            ASSERT_TRUE(pipe.start().ok());
            Status status = pipe.next();
            EXPECT_EQ(status.code(), Code::io);
            EXPECT_NE(status.message().str().find("tensor 't': disk on fire"), std::string::npos);
            EXPECT_FALSE(pipe.next().ok());
        }
        EXPECT_EQ(b.source->running, 0);
        EXPECT_EQ(b.device->buffers, 0);
    }
}

TEST(WeightPipe, A_failed_copy_and_a_dropped_load_leave_nothing_behind) {
    for (const int64_t fail : {0, 1, 5}) {
        Bench b;
        b.device->fail_copy = fail;
        std::vector<uint8_t> to(3'000'000);
        PipeJob j = b.job(0, 1, 3'000'000, 0);
        j.to = to.data();
        {
            WeightPipe pipe(*b.device, *b.stream, {4, 3, 64 << 10});
            ASSERT_TRUE(pipe.add(j).ok());
            ASSERT_TRUE(pipe.start().ok());
            if (fail != 0) {
                EXPECT_EQ(pipe.next().code(), Code::device);
            }
        }
        EXPECT_EQ(b.source->running, 0);
        EXPECT_EQ(b.device->buffers, 0);
    }
}

TEST(WeightPipe, What_cannot_be_done_is_refused) {
    Bench b;
    WeightPipe pipe(*b.device, *b.stream);
    EXPECT_EQ(pipe.add(b.job(0, 1, 3'000'001, 0)).code(), Code::invalid_argument);
    EXPECT_EQ(pipe.add(b.job(-1, 1, 1, 0)).code(), Code::invalid_argument);
    EXPECT_EQ(pipe.add(b.job(0, 2, 10, 9)).code(), Code::invalid_argument);
    EXPECT_EQ(pipe.add(b.job(0, 0, 10, 10)).code(), Code::invalid_argument);
    PipeJob gone = b.job(0, 1, 1, 0);
    gone.tensor = "gone";
    EXPECT_EQ(pipe.add(gone).code(), Code::not_found);
    ASSERT_TRUE(pipe.add(b.job(0, 1, 10, 0)).ok());
    b.device->refuse_memory = true;
    EXPECT_EQ(pipe.start().code(), Code::does_not_fit);

    WeightPipe empty(*b.device, *b.stream);
    EXPECT_TRUE(empty.start().ok());
}

}  // namespace
}  // namespace tenon::testing
