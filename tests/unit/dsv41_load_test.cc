// SPDX-License-Identifier: MIT
// What a model's load shares between its matrices, and plain tensors on their way to a device.
#include <gtest/gtest.h>

#include <map>

#include "load_device.h"
#include "plugins/quant_common/weight_pipe.h"
#include "tenon/numeric.h"
#include "tenon/testing/host_device.h"
#include "tenon/testing/memory_source.h"
#include "weight_loader.h"

namespace tenon::testing {
namespace {

using dsv41::LoadDevice;

/// Host memory that says it is a device's or pinned; counts.
class FakeGpu final : public Implements<FakeGpu, Device> {
  public:
    DeviceInfo info() noexcept override { return {}; }
    Status allocate(const BufferDesc& desc, Buffer** out) noexcept override {
        return guard([&] {
            ++allocated[desc.tag.str()];
            *out = new Memory(*this, desc);
        });
    }
    Status create_stream(const StreamDesc&, Stream** out) noexcept override {
        ++streams;
        return guard([&] { *out = new HostStream; });
    }
    Status create_event(Event**) noexcept override { return error(Code::unsupported, "none"); }
    Status copy(const TensorView& dst, const TensorView& src, Stream&) noexcept override {
        std::memcpy(dst.data, src.data, static_cast<size_t>(src.bytes()));
        return {};
    }
    Status fill_zero(const TensorView& dst, Stream&) noexcept override {
        if (broken) {
            return error(Code::device, "broken");
        }
        std::memset(dst.data, 0, static_cast<size_t>(dst.bytes()));
        return {};
    }
    Status record(Event&, Stream&) noexcept override { return {}; }
    Status wait(Stream&, Event&) noexcept override { return {}; }
    Status synchronize(Stream&) noexcept override { return {}; }
    uint64_t fault_count() noexcept override { return 0; }

    std::map<std::string, int> allocated;
    int64_t live = 0;
    int streams = 0;
    bool broken = false;

  private:
    class Memory final : public Implements<Memory, Buffer> {
      public:
        Memory(FakeGpu& gpu, const BufferDesc& desc)
            : gpu_(gpu),
              place_(desc.kind == BufferKind::device ? Place::device : Place::pinned),
              data_(static_cast<size_t>(desc.bytes) / 8 + 513) {
            bytes_ = desc.bytes;
            gpu_.live += bytes_;
        }
        Memory(const Memory&) = delete;
        Memory& operator=(const Memory&) = delete;
        ~Memory() { gpu_.live -= bytes_; }
        void* data() noexcept override {
            return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(data_.data()) + 4095) /
                                           4096 * 4096);
        }
        int64_t bytes() noexcept override { return bytes_; }
        Place place() noexcept override { return place_; }

      private:
        FakeGpu& gpu_;
        Place place_;
        std::vector<uint64_t> data_;
        int64_t bytes_ = 0;
    };
};

Ref<Buffer> take(Device& device, int64_t bytes, const char* tag,
                 BufferKind kind = BufferKind::device) {
    Ref<Buffer> buffer;
    EXPECT_TRUE(device.allocate({.bytes = bytes, .kind = kind, .tag = tag}, buffer.out()).ok());
    EXPECT_EQ(buffer->bytes(), bytes);
    const auto* data = static_cast<const uint8_t*>(buffer->data());
    if (std::string(tag) != quant::kRingTag) {
        EXPECT_TRUE(std::all_of(data, data + bytes, [](uint8_t v) { return v == 0; }));
    }
    std::memset(buffer->data(), 0x5A, static_cast<size_t>(bytes));
    return buffer;
}

TEST(LoadDevice, What_comes_back_serves_the_next_request_of_its_kind_and_tag) {
    Ref<FakeGpu> gpu(new FakeGpu);
    LoadDevice device(*gpu);
    Ref<Buffer> weights = take(device, 5'000, "weights");
    for (const int64_t bytes : {1'000, 800, 4'000, 1, 4'000}) {
        take(device, bytes, "weight staging");
        take(device, bytes, "weight ring", BufferKind::pinned);
    }
    EXPECT_EQ(gpu->allocated["weight staging"], 2);  // the larger one replaced the first
    EXPECT_EQ(gpu->allocated["weight ring"], 2);
    EXPECT_EQ(gpu->live, 5'000 + 2 * 4'000);
    {
        const Ref<Buffer> one = take(device, 10, "weight ring", BufferKind::pinned);
        const Ref<Buffer> two = take(device, 10, "weight ring", BufferKind::pinned);
        EXPECT_NE(one->data(), two->data());
    }

    EXPECT_EQ(device.finish(), 2 * 4'000 + 10);

    EXPECT_EQ(gpu->live, 5'000);
    EXPECT_EQ(*static_cast<uint8_t*>(weights->data()), 0x5A);
    weights.reset();
    EXPECT_EQ(gpu->live, 0);
}

TEST(LoadDevice, Clears_what_it_kept_on_one_stream_and_leaves_the_ring_as_it_is) {
    Ref<FakeGpu> gpu(new FakeGpu);
    LoadDevice device(*gpu);
    for (int i = 0; i < 5; ++i) {
        take(device, 1'000, "weight staging");
        take(device, 1'000, "pinned words", BufferKind::pinned);
        Ref<Buffer> ring;
        ASSERT_TRUE(
            device
                .allocate({.bytes = 1'000, .kind = BufferKind::pinned, .tag = quant::kRingTag},
                          ring.out())
                .ok());
        auto* data = static_cast<uint8_t*>(ring->data());
        EXPECT_EQ(data[0], i);
        data[0] = static_cast<uint8_t>(i + 1);
    }
    EXPECT_EQ(gpu->streams, 1);
    device.finish();
}

TEST(LoadDevice, A_device_that_fails_to_clear_a_kept_buffer_is_an_error_and_loses_it) {
    Ref<FakeGpu> gpu(new FakeGpu);
    LoadDevice device(*gpu);
    take(device, 1'000, "weight staging");
    gpu->broken = true;
    Ref<Buffer> buffer;
    EXPECT_EQ(device.allocate({.bytes = 800, .tag = "weight staging"}, buffer.out()).code(),
              Code::device);
    EXPECT_EQ(gpu->live, 0);
    gpu->broken = false;
    take(device, 800, "weight staging");
    EXPECT_EQ(device.finish(), 800);
}

TEST(WeightLoader, Plain_tensors_reach_a_device_as_they_are_or_widened) {
    Ref<FakeGpu> gpu(new FakeGpu);
    Ref<MemorySource> source(new MemorySource);
    Ref<Stream> stream;
    ASSERT_TRUE(gpu->create_stream({}, stream.out()).ok());
    std::vector<uint16_t> values(1'200 * 1'000);  // more than a tensor that takes the pipe
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = f32_to_bf16(static_cast<float>(i % 1'021) - 500);
    }
    source->add("t", DType::bf16, {1'200, 1'000}, values);
    source->add("s", DType::bf16, {6, 10},
                std::vector<uint16_t>(values.begin(), values.begin() + 60));
    for (const auto& [name, rows, columns] :
         {std::tuple{"t", 1'200, 1'000}, std::tuple{"s", 6, 10}}) {
        for (const auto type : {dsv41::PlainType::bf16, dsv41::PlainType::f32}) {
            for (int32_t rank = 0; rank < 2; ++rank) {
                dsv41::WeightLoader loader(*source, {}, gpu.get(), stream.get(), rank, 2);
                TensorView view;
                const Status status =
                    loader.plain({name, {rows, columns}, type, /*cut_rows=*/true}, &view);
                ASSERT_TRUE(status.ok()) << status.message().str();
                ASSERT_EQ(view.shape[0], rows / 2);
                for (int64_t i = 0; i < view.elements(); ++i) {
                    const uint16_t expected =
                        values[static_cast<size_t>(rank * view.elements() + i)];
                    if (type == dsv41::PlainType::bf16) {
                        ASSERT_EQ(view.as<uint16_t>()[i], expected) << name << " " << i;
                    } else {
                        ASSERT_EQ(view.as<float>()[i], bf16_to_f32(expected)) << name << " " << i;
                    }
                }
            }
        }
    }
    EXPECT_EQ(gpu->allocated["weight ring"], 2);  // the large one, not widened, twice
}

}  // namespace
}  // namespace tenon::testing
