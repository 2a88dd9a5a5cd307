// SPDX-License-Identifier: MIT
// Streams and events.
#include <algorithm>
#include <chrono>
#include <thread>

#include "device/device.h"

namespace tenon::cuda {

namespace {

using Clock = std::chrono::steady_clock;

// Below this a wake-up costs more than the wait; beyond it the core is given to others.
constexpr auto kSpin = std::chrono::microseconds(200);

class CudaStream final : public Implements<CudaStream, Stream> {
  public:
    CudaStream(cudaStream_t stream, int device) : stream_(stream), device_(device) {}
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;
    ~CudaStream() { static_cast<void>(cudaStreamDestroy(stream_)); }

    // Every op asks for the handle before it launches, on whatever thread, and a launch needs the
    // stream's GPU to be the thread's.
    void* native() noexcept override {
        static_cast<void>(use_device(device_));
        return stream_;
    }

  private:
    cudaStream_t stream_;
    int device_;
};

class CudaEvent final : public Implements<CudaEvent, Event> {
  public:
    explicit CudaEvent(cudaEvent_t event) : event_(event) {}
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;
    ~CudaEvent() { static_cast<void>(cudaEventDestroy(event_)); }

    // A failed device counts as done: the following `wait` reports it.
    bool done() noexcept override { return query_now() != cudaErrorNotReady; }

    Status wait(int64_t timeout_us) noexcept override {
        const Clock::time_point began = Clock::now();
        const Clock::time_point deadline = began + std::chrono::microseconds(timeout_us);
        for (;;) {
            const cudaError_t result = query_now();
            if (result != cudaErrorNotReady) {
                return cuda_status(result, "event");
            }
            const Clock::time_point now = Clock::now();
            if (now >= deadline) {
                return guard([&] {
                    return error(Code::deadline, "event: the device was not done within {} us",
                                 timeout_us);
                });
            }
            if (now - began > kSpin) {
                std::this_thread::yield();
            }
        }
    }
    cudaEvent_t handle() const { return event_; }

  private:
    /// "Not ready" is an answer, which the next launch must not take for its error.
    cudaError_t query_now() const {
        const cudaError_t result = cudaEventQuery(event_);
        if (result == cudaErrorNotReady) {
            static_cast<void>(cudaGetLastError());
        }
        return result;
    }
    cudaEvent_t event_;
};

}  // namespace

Status make_stream(const StreamDesc& desc, Stream** out) {
    int least = 0;
    int greatest = 0;  // the more urgent, the smaller CUDA's number
    TENON_TRY(cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream"));
    cudaStream_t stream = nullptr;
    TENON_TRY_CTX(cuda_status(cudaStreamCreateWithPriority(
                                  &stream, cudaStreamNonBlocking,
                                  std::clamp(-static_cast<int>(desc.priority), greatest, least)),
                              "cudaStreamCreate"),
                  "stream '{}'", desc.name);
    int device = 0;
    TENON_TRY(cuda_status(cudaGetDevice(&device), "stream"));
    *out = new CudaStream(stream, device);
    return {};
}

Status make_event(Event** out) {
    cudaEvent_t event = nullptr;
    TENON_TRY(cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event"));
    *out = new CudaEvent(event);
    return {};
}

cudaEvent_t native(Event& event) {
    return static_cast<CudaEvent&>(event).handle();
}

}  // namespace tenon::cuda
