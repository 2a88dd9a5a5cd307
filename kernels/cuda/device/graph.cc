// SPDX-License-Identifier: MIT
// Capture and replay of a stream's work, and waits for words that the host writes.
#include <cuda.h>

#include "device/device.h"

namespace tenon::cuda {

namespace {

class CudaGraph final : public Implements<CudaGraph, GraphCapture::Graph> {
  public:
    CudaGraph(cudaGraphExec_t exec, int device) : exec_(exec), device_(device) {}
    CudaGraph(const CudaGraph&) = delete;
    CudaGraph& operator=(const CudaGraph&) = delete;
    ~CudaGraph() { static_cast<void>(cudaGraphExecDestroy(exec_)); }

    Status launch(Stream& stream) noexcept override {
        TENON_TRY(use_device(device_));
        return cuda_status(cudaGraphLaunch(exec_, native(stream)), "graph launch");
    }

  private:
    cudaGraphExec_t exec_;
    int device_;
};

using WaitValue32 = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

// The runtime is linked statically and the driver only through it, so that the plugin loads on a
// machine without driver.
Status wait_value_function(WaitValue32* out) {
    static WaitValue32 found = nullptr;
    if (found == nullptr) {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult state{};
        TENON_TRY(cuda_status(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &entry, 12000,
                                                               cudaEnableDefault, &state),
                              "cuStreamWaitValue32"));
        if (state != cudaDriverEntryPointSuccess || entry == nullptr) {
            return Status(Code::unsupported, "cuStreamWaitValue32 is missing in this driver");
        }
        found = reinterpret_cast<WaitValue32>(entry);
    }
    *out = found;
    return {};
}

}  // namespace

Status CudaDevice::begin(Stream& stream) noexcept {
    TENON_TRY(use_device(context_.device));
    return cuda_status(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
                       "capture");
}

Status CudaDevice::end(Stream& stream, Graph** out) noexcept {
    return guard([&]() -> Status {
        TENON_TRY(use_device(context_.device));
        cudaGraph_t graph = nullptr;
        const cudaError_t closed = cudaStreamEndCapture(native(stream), &graph);
        // Whatever failed inside the capture belongs to it, not to the next launch.
        const cudaError_t inside = cudaGetLastError();
        const cudaError_t failed = closed != cudaSuccess ? closed : inside;
        if (failed != cudaSuccess) {
            if (graph != nullptr) {
                static_cast<void>(cudaGraphDestroy(graph));
            }
            return error(Code::internal, "capture: {} ({})", cudaGetErrorName(failed),
                         static_cast<int>(failed));
        }
        cudaGraphExec_t exec = nullptr;
        const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
        static_cast<void>(cudaGraphDestroy(graph));
        TENON_TRY(cuda_status(made, "graph instantiation"));
        *out = new CudaGraph(exec, context_.device);
        return {};
    });
}

Status CudaDevice::wait_flag(Stream& stream, const uint32_t* word, uint32_t value) noexcept {
    return guard([&]() -> Status {
        TENON_TRY(use_device(context_.device));
        WaitValue32 enqueue = nullptr;
        TENON_TRY(wait_value_function(&enqueue));
        const CUresult result = enqueue(reinterpret_cast<CUstream>(native(stream)),
                                        static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(word)),
                                        value, CU_STREAM_WAIT_VALUE_GEQ);
        if (result != CUDA_SUCCESS) {
            return error(Code::device, "cuStreamWaitValue32: driver error {}",
                         static_cast<int>(result));
        }
        return {};
    });
}

}  // namespace tenon::cuda
