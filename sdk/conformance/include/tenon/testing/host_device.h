// SPDX-License-Identifier: MIT
// A CPU device for tests of plugins that need one: host memory, a stream that runs at once, threads
// on request.
#pragma once

#include <algorithm>
#include <thread>

#include "tenon/compute.h"
#include "tenon/plugin.h"

namespace tenon::testing {

/// A stream without a queue.
class HostStream final : public Implements<HostStream, Stream> {
  public:
    void* native() noexcept override { return nullptr; }
};

/// Splits every range over fresh threads, each part cut at multiples of the grain. The last part
/// starts first, so that results which depend on order show.
class HostThreads final : public ParallelFor {
  public:
    explicit HostThreads(int32_t workers) : workers_(workers) {}
    void* query(StrView facet) noexcept override {
        return facet == StrView(ParallelFor::kFacet) ? static_cast<ParallelFor*>(this) : nullptr;
    }
    void release() noexcept override {}
    void run(int64_t n, int64_t grain, Body body, void* arg) noexcept override {
        ++runs;
        const int64_t pieces = (n + grain - 1) / grain;
        std::vector<std::thread> threads;
        for (int32_t w = workers_ - 1; w >= 0; --w) {
            const int64_t begin = pieces * w / workers_ * grain;
            const int64_t end = std::min(n, pieces * (w + 1) / workers_ * grain);
            if (begin < end) {
                threads.emplace_back([=] { body(arg, begin, end, w); });
            }
        }
        for (std::thread& t : threads) {
            t.join();
        }
    }
    int32_t workers() noexcept override { return workers_; }

    int64_t runs = 0;  ///< calls so far

  private:
    int32_t workers_;
};

/// Create with `new`, own with Ref. Events, graphs and segments are not there.
class HostDevice final : public Device {
  public:
    /// workers  0: no ParallelFor facet (users run inline)
    /// arch     "cpu-reference" asks quantisation plugins for reference arithmetic
    explicit HostDevice(int32_t workers = 0, const char* arch = "cpu-test")
        : threads_(workers), arch_(arch) {}

    void* query(StrView facet) noexcept override {
        if (facet == StrView(ParallelFor::kFacet) && threads_.workers() > 0) {
            return static_cast<ParallelFor*>(&threads_);
        }
        return facet == StrView(Device::kFacet) ? static_cast<Device*>(this) : nullptr;
    }
    void release() noexcept override { delete this; }

    DeviceInfo info() noexcept override {
        DeviceInfo i;
        i.unified_memory = true;
        i.cpu = cpu;
        i.threads = std::max(1, threads_.workers());
        set_text(i.name, "test");
        set_text(i.arch, arch_);
        return i;
    }
    Status allocate(const BufferDesc& desc, Buffer** out) noexcept override {
        return guard([&] { *out = new Memory(desc); });
    }
    Status create_stream(const StreamDesc&, Stream** out) noexcept override {
        return guard([&] { *out = new HostStream; });
    }
    Status create_event(Event**) noexcept override {
        return Status(Code::unsupported, "the test device has no events");
    }
    Status copy(const TensorView& dst, const TensorView& src, Stream&) noexcept override {
        if (!dst.dense() || !src.dense() || dst.bytes() != src.bytes()) {
            return Status(Code::invalid_argument, "copy: views are not dense or differ in size");
        }
        std::memcpy(dst.data, src.data, static_cast<size_t>(src.bytes()));
        return {};
    }
    Status fill_zero(const TensorView& dst, Stream&) noexcept override {
        if (!dst.dense()) {
            return Status(Code::invalid_argument, "fill_zero: view is not dense");
        }
        std::memset(dst.data, 0, static_cast<size_t>(dst.bytes()));
        return {};
    }
    Status record(Event&, Stream&) noexcept override { return {}; }
    Status wait(Stream&, Event&) noexcept override { return {}; }
    Status synchronize(Stream&) noexcept override { return {}; }
    uint64_t fault_count() noexcept override { return 0; }

    HostThreads& threads() { return threads_; }

    bool cpu = true;  ///< false: pretends to be something else, for tests of refusals

  private:
    class Memory final : public Implements<Memory, Buffer> {
      public:
        explicit Memory(const BufferDesc& desc)
            : bytes_(desc.bytes),
              data_(::operator new (static_cast<size_t>(desc.bytes), std::align_val_t{256})) {
            std::memset(data_, 0, static_cast<size_t>(bytes_));
        }
        ~Memory() { ::operator delete (data_, std::align_val_t{256}); }
        Memory(const Memory&) = delete;
        Memory& operator=(const Memory&) = delete;
        void* data() noexcept override { return data_; }
        int64_t bytes() noexcept override { return bytes_; }
        Place place() noexcept override { return Place::host; }

      private:
        int64_t bytes_;
        void* data_;
    };

    HostThreads threads_;
    const char* arch_;
};

}  // namespace tenon::testing
