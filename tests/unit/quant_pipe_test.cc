// SPDX-License-Identifier: MIT
// The pipe that feeds weights to a device: bytes, order, reuse of slots, and every way to fail.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "plugins/quant_common/timed_read.h"
#include "plugins/quant_common/upload.h"
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
        EXPECT_FALSE(hangs) << "would never return";
        ++synchronized;
        run(queue_.size());
        return {};
    }
    uint64_t fault_count() noexcept override { return 0; }

    bool with_events = true, refuse_memory = false;
    bool hangs = false;  ///< copies never end
    int64_t waits = 0;
    int64_t copies = 0, fail_copy = 0;
    int64_t synchronized = 0, buffers = 0, largest = 0;
    std::vector<Buffer*> live;

    /// Ends what hung, and frees what nobody owns any more.
    void recover() {
        hangs = false;
        run(queue_.size());
        while (!live.empty()) {
            live.back()->release();
        }
    }

  private:
    class Memory final : public Implements<Memory, Buffer> {
      public:
        Memory(LateDevice& device, const BufferDesc& desc)
            : device_(device),
              alignment_(std::align_val_t(static_cast<size_t>(desc.alignment))),
              bytes_(desc.bytes) {
            data_ = ::operator new(static_cast<size_t>(bytes_), alignment_);
            device_.live.push_back(this);
            ++device_.buffers;
        }
        Memory(const Memory&) = delete;
        Memory& operator=(const Memory&) = delete;
        ~Memory() {
            // Copies that run now would read freed memory.
            EXPECT_EQ(device_.done_, device_.queue_.size());
            std::erase(device_.live, this);
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
            ++device_.waits;
            if (device_.hangs) {
                return error(Code::deadline, "event: not done");
            }
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
        info.file = "noise.safetensors";
        info.offset = offset_;
        info.bytes = data.size();
        *out = info;
        return {};
    }
    Status map(StrView, TensorView*) noexcept override { return error(Code::unsupported, "map"); }
    Status read(StrView, uint64_t first, uint64_t bytes, void* dst) noexcept override {
        const int64_t mine = ++reads;
        ++running;
        if (mine == stuck_read) {
            stuck.wait(true);
        }
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
    int64_t fail_read = 0, stuck_read = 0;
    std::atomic<bool> stuck{true};

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

const PipeOptions kRings[] = {
    {}, {4, 48 << 10, 16 << 10}, {4, 16 << 10, 8 << 10}, {1, 512 << 10, 64 << 10}};
const PipeOptions kSmall{4, 192 << 10, 64 << 10};

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
                    ASSERT_TRUE(pipe.drain().ok());
                    EXPECT_EQ(b.device->synchronized, with_events ? 0 : b.device->synchronized);
                }
                for (size_t i = 0; i < jobs.size(); ++i) {
                    EXPECT_TRUE(got[i] == b.expected(jobs[i])) << "job " << i;
                }
                EXPECT_EQ(b.source->misplaced, 0);  // direct reads need no copy
                EXPECT_EQ(b.source->unaligned, 0);
                EXPECT_EQ(b.device->buffers, 0);
                EXPECT_LE(b.device->largest, ring.ring_bytes);
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
    WeightPipe pipe(*b.device, *b.stream, kSmall);
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

// Of a ring of 8 blocks the first two copies are reclaimed and the third, of 2 blocks, is not;
// behind it 3 blocks are left, so 4 in a row need the place where it lies.
TEST(WeightPipe, A_piece_that_needs_the_place_of_a_copy_waits_for_it) {
    Bench b(100'000, 0);
    std::vector<uint8_t> to(9 * 4096);
    PipeOptions options{4, 8 * 4096, 4 * 4096};
    options.timeout_us = 5'000'000;  // without the wait nothing would ever move
    WeightPipe pipe(*b.device, *b.stream, options);
    int64_t at = 0;
    for (const int64_t blocks : {1, 2, 2, 4}) {
        PipeJob j = b.job(at, 1, blocks * 4096, 0);
        j.to = to.data() + at;
        ASSERT_TRUE(pipe.add(j).ok());
        at += blocks * 4096;
    }
    ASSERT_TRUE(pipe.start().ok());
    for (int i = 0; i < 4; ++i) {
        const Status status = pipe.next();
        ASSERT_TRUE(status.ok()) << status.message().str();
    }
    ASSERT_TRUE(pipe.drain().ok());
    EXPECT_TRUE(std::equal(to.begin(), to.end(), b.source->data.begin()));
}

TEST(WeightPipe, Rows_may_lie_apart_in_the_target_and_leave_the_rest_alone) {
    for (const PipeOptions& ring : kRings) {
        Bench b;
        // Dense in the tensor, with gaps, and longer than a piece.
        for (PipeJob j : {b.job(3, 50, 1'000, 1'000), b.job(3, 50, 1'000, 1'500),
                          b.job(7, 5, 100'000, 100'000), b.job(7, 1, 500, 0)}) {
            j.to_pitch = j.row_bytes + 24;
            std::vector<uint8_t> to(static_cast<size_t>(j.rows * j.to_pitch), 0xA5);
            j.to = to.data();
            WeightPipe pipe(*b.device, *b.stream, ring);
            ASSERT_TRUE(pipe.add(j).ok());
            ASSERT_TRUE(pipe.start().ok());
            ASSERT_TRUE(pipe.next().ok());
            ASSERT_TRUE(pipe.drain().ok());
            const std::vector<uint8_t> rows = b.expected(j);
            for (int64_t r = 0; r < j.rows; ++r) {
                const auto at = to.begin() + r * j.to_pitch;
                ASSERT_TRUE(std::equal(at, at + j.row_bytes, rows.begin() + r * j.row_bytes));
                ASSERT_TRUE(std::all_of(at + j.row_bytes, at + j.to_pitch,
                                        [](uint8_t v) { return v == 0xA5; }));
            }
        }
    }
}

TEST(WeightPipe, A_check_sees_every_byte_once_and_no_element_in_two_parts) {
    for (const PipeOptions& ring : kRings) {
        Bench b;  // the tensor begins at an odd place of its file
        for (PipeJob j : {b.job(0, 1, 1'000'000, 0), b.job(16, 40, 1'600, 2'000),
                          b.job(4, 4, 160'000, 300'000), b.job(8, 100, 1'200, 1'200)}) {
            const std::vector<uint8_t> rows = b.expected(j);
            std::vector<std::atomic<int>> seen(rows.size());
            std::atomic<int> wrong{0};
            std::vector<uint8_t> to(rows.size());
            j.to = to.data();
            j.check = [&](const uint8_t* bytes, int64_t count, int64_t at) -> Status {
                wrong += count % 16 != 0 || at % 16 != 0 ||
                         std::memcmp(bytes, rows.data() + at, static_cast<size_t>(count)) != 0;
                for (int64_t i = 0; i < count; ++i) {
                    ++seen[static_cast<size_t>(at + i)];
                }
                return {};
            };
            WeightPipe pipe(*b.device, *b.stream, ring);
            ASSERT_TRUE(pipe.add(j).ok());
            ASSERT_TRUE(pipe.start().ok());
            ASSERT_TRUE(pipe.next().ok());
            ASSERT_TRUE(pipe.drain().ok());
            EXPECT_EQ(wrong, 0);
            EXPECT_TRUE(
                std::all_of(seen.begin(), seen.end(), [](const auto& n) { return n == 1; }));
            EXPECT_TRUE(to == rows);
        }
    }
}

TEST(WeightPipe, What_a_check_refuses_ends_the_load) {
    Bench b;
    std::vector<uint8_t> to(3'000'000);
    PipeJob j = b.job(0, 1, 3'000'000, 0);
    j.to = to.data();
    j.check = [](const uint8_t*, int64_t count, int64_t at) -> Status {
        return at + count > 2'000'000 ? error(Code::invalid_argument, "t: element 7 is inf")
                                      : Status();
    };
    WeightPipe pipe(*b.device, *b.stream, kSmall);
    ASSERT_TRUE(pipe.add(j).ok());
    ASSERT_TRUE(pipe.start().ok());
    const Status status = pipe.next();
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_EQ(status.message().str(), "t: element 7 is inf");
}

TEST(WeightPipe, A_read_that_does_not_end_is_an_error_that_names_it) {
    Bench b;
    b.source->stuck_read = 2;
    std::vector<uint8_t> to(3'000'000);
    PipeJob j = b.job(0, 1, 3'000'000, 0);
    j.to = to.data();
    PipeOptions options = kSmall;
    options.timeout_us = 20'000;
    options.grace_us = 30'000'000;  // the read ends before the pipe goes
    WeightPipe pipe(*b.device, *b.stream, options);
    ASSERT_TRUE(pipe.add(j).ok());
    ASSERT_TRUE(pipe.start().ok());

    const Status status = pipe.next();

    EXPECT_EQ(status.code(), Code::deadline);
    EXPECT_NE(status.message().str().find("t: "), std::string::npos);
    EXPECT_NE(status.message().str().find(" of noise.safetensors were not read within 20 ms"),
              std::string::npos)
        << status.message().str();
    b.source->stuck = false;
    b.source->stuck.notify_all();
}

/// A file on a disk that stops to answer: after the call nothing of the source is used.
class DeadDisk final : public Implements<DeadDisk, WeightSource> {
  public:
    struct State {
        std::atomic<bool> dead{true};
        std::atomic<int> begun{0}, ended{0};
    };
    explicit DeadDisk(std::shared_ptr<State> state) : state_(std::move(state)) {}
    uint64_t count() noexcept override { return 1; }
    TensorInfo at(uint64_t) noexcept override { return {}; }
    Status find(StrView, TensorInfo* out) noexcept override {
        TensorInfo info;
        info.file = "dead.safetensors";
        info.bytes = 3'000'000;
        *out = info;
        return {};
    }
    Status map(StrView, TensorView*) noexcept override { return error(Code::unsupported, "map"); }
    Status read(StrView, uint64_t, uint64_t bytes, void* dst) noexcept override {
        const std::shared_ptr<State> state = state_;
        ++state->begun;
        state->dead.wait(true);
        std::memset(dst, 1, bytes);
        ++state->ended;
        return {};
    }
    Span<const uint8_t> digest() noexcept override { return {}; }

  private:
    std::shared_ptr<State> state_;
};

/// A thread may come to its read late on a busy machine.
void await_reads(const DeadDisk::State& disk, int count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (disk.begun < count && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
    }
    EXPECT_EQ(disk.begun, count);
}

TEST(WeightPipe, A_read_that_never_ends_is_left_behind_and_finds_its_memory_when_it_does) {
    Bench b;
    const auto disk = std::make_shared<DeadDisk::State>();
    Ref<DeadDisk> source(new DeadDisk(disk));
    std::atomic<int> checks{0};
    PipeJob j = b.job(0, 1, 3'000'000, 0);
    j.source = source.get();
    j.check = [&](const uint8_t*, int64_t, int64_t) -> Status {
        ++checks;
        return {};
    };
    std::vector<uint8_t> to(3'000'000);
    j.to = to.data();
    PipeOptions options = kSmall;
    options.timeout_us = 20'000;
    options.grace_us = 20'000;
    {
        WeightPipe pipe(*b.device, *b.stream, options);
        ASSERT_TRUE(pipe.add(j).ok());
        ASSERT_TRUE(pipe.start().ok());
        await_reads(*disk, 3);  // three pieces of 64 KiB fill the ring
        EXPECT_EQ(pipe.next().code(), Code::deadline);
    }
    source = {};
    EXPECT_EQ(b.device->buffers, 1);  // the reads may still write into it

    disk->dead = false;
    disk->dead.notify_all();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while ((disk->ended < 3 || disk.use_count() > 1) &&
           std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
    }
    EXPECT_EQ(disk->ended, 3);
    EXPECT_EQ(disk.use_count(), 1);
    EXPECT_EQ(checks, 0);  // what a check looks at may be gone
    b.device->recover();
}

TEST(TimedRead, Gives_the_bytes_or_the_error_of_the_read_or_tells_that_it_does_not_end) {
    Bench b;
    const Result<std::vector<uint8_t>> got =
        quant::timed_read(*b.source, "t", 77, 1000, 30'000'000);
    ASSERT_TRUE(got.ok()) << got.status().message().str();
    EXPECT_TRUE(std::equal(got->begin(), got->end(), b.source->data.begin() + 77));
    EXPECT_EQ(got->size(), 1000U);
    b.source->fail_read = 2;
    EXPECT_EQ(quant::timed_read(*b.source, "t", 0, 9, 30'000'000).status().code(), Code::io);
    EXPECT_EQ(quant::timed_read(*b.source, "u", 0, 9, 30'000'000).status().code(), Code::not_found);

    const auto disk = std::make_shared<DeadDisk::State>();
    Ref<DeadDisk> source(new DeadDisk(disk));
    const Result<std::vector<uint8_t>> read = quant::timed_read(*source, "t", 5, 100, 20'000);
    const Status& late = read.status();
    await_reads(*disk, 1);
    source = {};

    EXPECT_EQ(late.code(), Code::deadline);
    EXPECT_NE(late.message().str().find("t: 100 bytes at byte 5 of dead.safetensors were not read "
                                        "within 20 ms"),
              std::string::npos)
        << late.message().str();
    disk->dead = false;
    disk->dead.notify_all();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (disk.use_count() > 1 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
    }
    EXPECT_EQ(disk->ended, 1);
}

TEST(WeightPipe, Pieces_that_could_not_hold_an_element_are_refused) {
    for (const PipeOptions& ring : {PipeOptions{4, 64 << 10, 4096}, PipeOptions{4, 8192, 8192},
                                    PipeOptions{4, 64 << 10, 9000}, PipeOptions{4, 20'000, 8192},
                                    PipeOptions{0, 64 << 10, 8192}}) {
        Bench b(100'000, 4090);  // its second element begins six bytes before a block ends
        WeightPipe pipe(*b.device, *b.stream, ring);
        ASSERT_TRUE(pipe.add(b.job(0, 1, 50'000, 0)).ok());
        const Status status = pipe.start();
        EXPECT_EQ(status.code(), Code::invalid_argument);
        EXPECT_NE(status.message().str().find(format("pieces of {} bytes, a ring of {};",
                                                     ring.piece_bytes, ring.ring_bytes)),
                  std::string::npos)
            << status.message().str();
    }
}

TEST(WeightPipe, A_device_that_hangs_is_waited_for_once_and_its_memory_stays) {
    Bench b;
    std::vector<uint8_t> to(3'000'000);
    PipeJob j = b.job(0, 1, 3'000'000, 0);
    j.to = to.data();
    b.device->hangs = true;
    {
        WeightPipe pipe(*b.device, *b.stream, kSmall);
        ASSERT_TRUE(pipe.add(j).ok());
        ASSERT_TRUE(pipe.start().ok());
        EXPECT_EQ(pipe.next().code(), Code::deadline);
        EXPECT_TRUE(pipe.hung());
    }
    EXPECT_EQ(b.device->waits, 1);
    EXPECT_EQ(b.device->buffers, 1);  // copies may still read it
    b.device->recover();
}

TEST(Upload, Keeps_the_weights_or_gives_all_back_or_leaves_it_to_a_device_that_hangs) {
    struct {
        bool fails, hangs;
        Code code;
        int64_t buffers;
    } const cases[] = {
        {false, false, Code::ok, 1}, {true, false, Code::io, 0}, {false, true, Code::deadline, 3}};
    for (const auto& c : cases) {
        Bench b;
        {
            quant::Upload upload;
            ASSERT_TRUE(upload.open(*b.device, "m", 100'000, 4'096).ok());
            PipeJob j = b.job(0, 1, 100'000, 0);
            j.to = upload.weights();
            ASSERT_TRUE(upload.pipe().add(j).ok());
            ASSERT_TRUE(upload.pipe().start().ok());
            ASSERT_TRUE(upload.pipe().next().ok());
            b.device->hangs = c.hangs;
            Ref<Buffer> weights;

            const Status status =
                upload.close(c.fails ? error(Code::io, "gone") : Status(), &weights);

            EXPECT_EQ(status.code(), c.code);
            EXPECT_EQ(static_cast<bool>(weights), c.code == Code::ok);
            if (weights) {
                EXPECT_EQ(std::memcmp(weights->data(), b.source->data.data(), 100'000), 0);
            } else {
                EXPECT_EQ(status.message().str().rfind("m: ", 0), 0U) << status.message().str();
            }
            EXPECT_EQ(b.device->buffers, c.buffers);
        }
        b.device->recover();
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
            WeightPipe pipe(*b.device, *b.stream, kSmall);
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
            WeightPipe pipe(*b.device, *b.stream, kSmall);
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
