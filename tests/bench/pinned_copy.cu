// SPDX-License-Identifier: MIT
// Rate of copies from pinned memory to the device, in pieces of 8 MiB on one stream: what a load of
// weights cannot exceed. Prints one line; median of five passes over 4 GiB.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

int main() {
    constexpr size_t kPiece = size_t{8} << 20, kSlots = 8, kPieces = 512;
    char *from = nullptr, *to = nullptr;
    if (cudaMallocHost(&from, kSlots * kPiece) != cudaSuccess ||
        cudaMalloc(&to, kSlots * kPiece) != cudaSuccess) {
        std::printf("pinned copies: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    double rates[5];
    for (double& rate : rates) {
        const auto begin = std::chrono::steady_clock::now();
        for (size_t i = 0; i < kPieces; ++i) {
            const size_t at = i % kSlots * kPiece;
            cudaMemcpyAsync(to + at, from + at, kPiece, cudaMemcpyHostToDevice, nullptr);
        }
        if (cudaStreamSynchronize(nullptr) != cudaSuccess) {
            std::printf("pinned copies: %s\n", cudaGetErrorString(cudaGetLastError()));
            return 1;
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        rate = static_cast<double>(kPieces * kPiece) / took.count() / 1e9;
    }
    std::sort(rates, rates + 5);
    std::printf("pinned copies: %.1f GB/s\n", rates[2]);
    return 0;
}
