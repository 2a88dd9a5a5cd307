// SPDX-License-Identifier: MIT
// EXL3 products on a GPU: microseconds a call inside a graph, weights rotated through more memory
// than the L2 cache holds, beside the floor (bytes over the copy bandwidth of the same run).
//
//   bench_cuda_quant            every shape
//   bench_cuda_quant k n 2K m   one; from 64 rows on also as a prefill
//   bench_cuda_quant prefill    products of 2,048 rows, as TFLOP/s of the product
//   bench_cuda_quant experts    layers of experts in the decode regime
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/exl3/api.h"
#include "kernels/cuda/exl3/experts_exact.h"
#include "kernels/cuda/exl3/prefill.h"
#include "kernels/cuda/exl3/prefill_experts.h"
#include "kernels/cuda/exl3/smem.h"
#include "kernels/cuda/plain/prefill.h"

namespace {

using namespace tenon::exl3::cuda;

void must(cudaError_t status) {
    if (status != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
        std::exit(1);
    }
}

template <class T>
T* device_array(int64_t count, const std::vector<T>* pattern = nullptr) {
    void* p = nullptr;
    must(cudaMalloc(&p, static_cast<size_t>(count) * sizeof(T)));
    must(cudaMemset(p, 0, static_cast<size_t>(count) * sizeof(T)));
    int64_t done = 0;
    while (pattern != nullptr && done < count) {  // the pattern, then copies of what is there
        const int64_t part =
            std::min(count - done, done == 0 ? static_cast<int64_t>(pattern->size()) : done);
        must(cudaMemcpy(static_cast<T*>(p) + done,
                        done == 0 ? static_cast<const void*>(pattern->data()) : p,
                        static_cast<size_t>(part) * sizeof(T), cudaMemcpyDefault));
        done += part;
    }
    return static_cast<T*>(p);
}

std::vector<uint32_t> random_words() {
    std::mt19937 rng(1);
    std::vector<uint32_t> words(1 << 20);
    for (uint32_t& w : words) {
        w = static_cast<uint32_t>(rng());
    }
    return words;
}

/// Best mean microseconds of a call over replays of a graph of `calls` calls.
double time_graph(int calls, const std::function<void(int, cudaStream_t)>& call) {
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    call(0, stream);
    must(cudaStreamSynchronize(stream));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) {
        call(i, stream);
    }
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin = nullptr, end = nullptr;
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    double best = 1e30;
    for (int repeat = 0; repeat < 12; ++repeat) {
        must(cudaEventRecord(begin, stream));
        must(cudaGraphLaunch(exec, stream));
        must(cudaEventRecord(end, stream));
        must(cudaEventSynchronize(end));
        float ms = 0;
        must(cudaEventElapsedTime(&ms, begin, end));
        best = std::min(best, 1000.0 * static_cast<double>(ms) / calls);
    }
    must(cudaGraphExecDestroy(exec));
    must(cudaGraphDestroy(graph));
    must(cudaEventDestroy(begin));
    must(cudaEventDestroy(end));
    must(cudaStreamDestroy(stream));
    return best;
}

__global__ void copy_kernel(const uint4* from, uint4* to, int64_t count) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        to[i] = from[i];
    }
}

double copy_bandwidth() {
    constexpr int64_t kBytes = int64_t{2} << 30;
    auto* a = device_array<uint4>(kBytes / 16);
    auto* b = device_array<uint4>(kBytes / 16);
    const double us = time_graph(4, [&](int, cudaStream_t stream) {
        copy_kernel<<<16 * 132, 512, 0, stream>>>(a, b, kBytes / 16);
        must(cudaGetLastError());
    });
    must(cudaFree(a));
    must(cudaFree(b));
    return 2.0 * kBytes / (us * 1e-6);
}

struct Shape {
    const char* name;
    int k, n, groups, twice_k;
};

void linear_line(const Shape& s, int rows, Code code, double bandwidth,
                 const std::vector<uint32_t>& words) {
    const int64_t each = packed_words(s.k, s.n, s.twice_k) * s.groups;
    const int64_t copies = std::clamp<int64_t>((int64_t{320} << 20) / (4 * each), 2, 256);
    auto* packed = device_array<uint32_t>(each * copies, &words);
    const std::vector<uint16_t> scale(1 << 16, 0x2C00);  // 1/16
    auto* scales = device_array<uint16_t>(s.k + s.n, &scale);
    std::mt19937 rng(2);
    std::vector<uint16_t> values(static_cast<size_t>(rows * s.k * s.groups));
    for (uint16_t& v : values) {
        v = static_cast<uint16_t>(0x3F00 | (rng() & 0x80FF));
    }
    auto* x = device_array<uint16_t>(static_cast<int64_t>(values.size()), &values);
    auto* y = device_array<uint16_t>(int64_t{rows} * s.n * s.groups);
    auto* scratch = device_array<uint8_t>(exact_scratch_bytes(
        std::min(rows, kMostStagedRows), s.k, s.groups, int64_t{s.groups} * s.n / kBlock));
    const int64_t sums_each = shared_sums_of(s.n / kBlock) * fused_rows(s.k) * kBlock;
    auto* sums = device_array<uint64_t>(sums_each * s.groups);
    const double us = time_graph(
        static_cast<int>(std::max<int64_t>(copies, 32)), [&](int i, cudaStream_t stream) {
            LinearCall call;
            call.rows = rows;
            call.k = call.in = s.k;
            call.twice_k = s.twice_k;
            call.code = code;
            call.slices = slices_of(s.k);
            call.job_count = s.groups;
            call.scratch = scratch;
            call.sliced = int64_t{s.k} * s.n * s.groups <= kSlicedMost;
            for (int g = 0; g < s.groups; ++g) {
                Job& job = call.jobs[g];
                job.words = packed + (i % copies) * each + g * (each / s.groups);
                job.suh = scales;
                job.svh = scales + s.k;
                job.sums = sums + g * sums_each;
                job.x = x + g * s.k;
                job.x_stride = int64_t{s.k} * s.groups;
                job.y = y + g * s.n;
                job.y_stride = int64_t{s.n} * s.groups;
                job.out = s.n;
                job.blocks = s.n / kBlock;
                job.block_end = (g + 1) * job.blocks;
            }
            must(linear(call, stream));
        });
    const double bytes = 4.0 * static_cast<double>(each);
    const double floor_us = bytes / bandwidth * 1e6;
    std::printf(
        "linear %-10s %6d x %6d x%d K=%.1f code=%d m=%2d  %8.2f us  floor %6.2f us  %3.0f %%  "
        "%5.0f GB/s\n",
        s.name, s.k, s.n, s.groups, s.twice_k / 2.0, static_cast<int>(code), rows, us, floor_us,
        100 * floor_us / us, bytes / us * 1e-3);
    std::fflush(stdout);
    for (void* p : {static_cast<void*>(packed), static_cast<void*>(scales), static_cast<void*>(x),
                    static_cast<void*>(y), static_cast<void*>(scratch), static_cast<void*>(sums)}) {
        must(cudaFree(p));
    }
}

/// `distinct` tokens choose `k` experts each at random; the shared expert has rate
/// `shared_twice_k`.
void experts_line(int count, int k, int rows, int twice_k, int shared_twice_k, double bandwidth,
                  const std::vector<uint32_t>& words) {
    constexpr int kHidden = 5120, kWidth = 2304, kDraws = 16;
    const std::vector<uint16_t> scale(1 << 16, 0x2C00);
    auto* scales = device_array<uint16_t>(2 * kHidden, &scale);
    std::vector<Weight> table;
    std::vector<uint32_t*> owned;
    for (int projection = 0; projection < 3; ++projection) {
        const int in = projection == 2 ? kWidth : kHidden;
        const int out = projection == 2 ? kHidden : kWidth;
        const int64_t each = packed_words(in, out, twice_k);
        owned.push_back(device_array<uint32_t>(each * count, &words));
        owned.push_back(device_array<uint32_t>(packed_words(in, out, shared_twice_k), &words));
        for (int e = 0; e <= count; ++e) {
            Weight w;
            w.words = e == count ? owned.back() : owned[owned.size() - 2] + e * each;
            w.suh = w.svh = scales;
            w.k = w.in = in;
            w.n = w.out = out;
            w.twice_k = e == count ? shared_twice_k : twice_k;
            table.push_back(w);
        }
    }
    auto* tables = device_array<Weight>(static_cast<int64_t>(table.size()), &table);
    std::mt19937 rng(3);
    std::vector<int32_t> ids;
    double distinct = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
        std::vector<int32_t> seen;
        for (int row = 0; row < rows; ++row) {
            std::vector<int32_t> chosen;
            while (static_cast<int>(chosen.size()) < k) {
                const auto id = static_cast<int32_t>(rng() % static_cast<unsigned int>(count));
                if (std::find(chosen.begin(), chosen.end(), id) == chosen.end()) {
                    chosen.push_back(id);
                }
            }
            std::sort(chosen.begin(), chosen.end());
            ids.insert(ids.end(), chosen.begin(), chosen.end());
            seen.insert(seen.end(), chosen.begin(), chosen.end());
        }
        std::sort(seen.begin(), seen.end());
        distinct +=
            static_cast<double>(std::unique(seen.begin(), seen.end()) - seen.begin()) / kDraws;
    }
    auto* device_ids = device_array<int32_t>(static_cast<int64_t>(ids.size()), &ids);
    const std::vector<float> ones(1024, 0.25f);
    auto* weights = device_array<float>(1024, &ones);
    const std::vector<uint16_t> values(1 << 16, 0x3F80);
    auto* x = device_array<uint16_t>(int64_t{rows} * kHidden, &values);
    auto* out = device_array<float>(int64_t{rows} * kHidden);
    const int64_t entries = int64_t{kExpertTokens} * (k + 1);
    ExpertScratch scratch;
    scratch.groups = device_array<int32_t>(1);
    scratch.items = device_array<ExpertItem>(3 * most_groups(kExpertTokens, k));
    scratch.digits_up = device_array<uint8_t>(entries * 4 * kHidden);
    scratch.digits_down = device_array<uint8_t>(entries * 2 * kWidth);
    scratch.most_up = device_array<float>(entries * 2);
    scratch.total_up = device_array<int32_t>(entries * 2);
    scratch.most_down = device_array<float>(entries);
    scratch.total_down = device_array<int32_t>(entries);
    scratch.sums_up = device_array<int64_t>(entries * 2 * kWidth);
    scratch.sums_down = device_array<int64_t>(entries * kHidden);
    const double us = time_graph(32, [&](int i, cudaStream_t stream) {
        for (int row = 0; row < rows; row += kExpertTokens) {
            ExpertStep c;
            c.rows = std::min(kExpertTokens, rows - row);
            c.k = k;
            c.experts = count;
            c.hidden = c.k_up = kHidden;
            c.width = c.k_down = kWidth;
            c.twice_k_up = c.twice_k_down = std::max(twice_k, shared_twice_k);
            c.blocks_down = kHidden / kBlock;
            c.gate = tables;
            c.up = tables + count + 1;
            c.down = tables + 2 * (count + 1);
            c.ids = device_ids + (i % kDraws * rows + row) * k;
            c.weights = weights;
            c.limit = 10;
            c.x = x + row * kHidden;
            c.x_stride = kHidden;
            c.scratch = scratch;
            c.out = out + row * kHidden;
            c.out_stride = kHidden;
            must(run_experts(c, stream));
        }
    });
    const double bytes = (distinct * twice_k + shared_twice_k) / 2.0 * 3 * kHidden * kWidth / 8;
    std::printf(
        "experts %d top %d K=%.1f shared K=%.1f m=%2d distinct %.1f %8.2f us floor %6.2f us %3.0f "
        "%%\n",
        count, k, twice_k / 2.0, shared_twice_k / 2.0, rows, distinct, us, bytes / bandwidth * 1e6,
        bytes / bandwidth * 1e8 / us);
    std::fflush(stdout);
    for (uint32_t* p : owned) {
        must(cudaFree(p));
    }
    for (void* p :
         {static_cast<void*>(scales), static_cast<void*>(tables), static_cast<void*>(device_ids),
          static_cast<void*>(weights), static_cast<void*>(x), static_cast<void*>(out),
          static_cast<void*>(scratch.groups), static_cast<void*>(scratch.items),
          static_cast<void*>(scratch.digits_up), static_cast<void*>(scratch.digits_down),
          static_cast<void*>(scratch.most_up), static_cast<void*>(scratch.total_up),
          static_cast<void*>(scratch.most_down), static_cast<void*>(scratch.total_down),
          static_cast<void*>(scratch.sums_up), static_cast<void*>(scratch.sums_down)}) {
        must(cudaFree(p));
    }
}

void prefill_line(const Shape& s, int rows, const std::vector<uint32_t>& words) {
    const int64_t each = packed_words(s.k, s.n, s.twice_k);
    auto* packed = device_array<uint32_t>(each * s.groups, &words);
    const std::vector<uint16_t> scale(1 << 16, 0x2C00);
    auto* scales = device_array<uint16_t>(s.k + s.n, &scale);
    std::mt19937 rng(2);
    std::vector<uint16_t> values(1 << 20);
    for (uint16_t& v : values) {
        v = static_cast<uint16_t>(0x3F00 | (rng() & 0x80FF));
    }
    auto* x = device_array<uint16_t>(int64_t{rows} * s.k * s.groups, &values);
    auto* y = device_array<uint16_t>(int64_t{rows} * s.n * s.groups);
    const int64_t w_bytes = std::min(kPanelBytes, prefill_w_bytes(s.n, s.k) * s.groups);
    auto* scratch = device_array<uint8_t>(prefill_x_bytes(rows, s.k) * s.groups + w_bytes);
    const double us = time_graph(8, [&](int, cudaStream_t stream) {
        LinearCall call;
        call.rows = rows;
        call.k = call.in = s.k;
        call.twice_k = s.twice_k;
        call.job_count = s.groups;
        call.scratch = scratch;
        for (int g = 0; g < s.groups; ++g) {
            Job& job = call.jobs[g];
            job.words = packed + g * each;
            job.suh = scales;
            job.svh = scales + s.k;
            job.x = x + g * s.k;
            job.x_stride = int64_t{s.k} * s.groups;
            job.y = y + g * s.n;
            job.y_stride = int64_t{s.n} * s.groups;
            job.out = s.n;
        }
        must(prefill(call, w_bytes, stream));
    });
    std::printf("prefill %-10s %6d x %6d x%d K=%.1f m=%4d  %9.1f us  %4.0f TFLOP/s\n", s.name, s.k,
                s.n, s.groups, s.twice_k / 2.0, rows, us,
                2e-6 * rows * s.k * static_cast<double>(s.n) * s.groups / us);
    std::fflush(stdout);
    for (void* p : {static_cast<void*>(packed), static_cast<void*>(scales), static_cast<void*>(x),
                    static_cast<void*>(y), static_cast<void*>(scratch)}) {
        must(cudaFree(p));
    }
}

/// Rows choose experts at random.
void prefill_experts_line(int count, int k, int rows, int twice_k, int shared_twice_k,
                          const std::vector<uint32_t>& words) {
    constexpr int kHidden = 5120, kWidth = 2304;
    const std::vector<uint16_t> scale(1 << 16, 0x2C00);
    auto* scales = device_array<uint16_t>(2 * kHidden, &scale);
    std::vector<Weight> table;
    std::vector<uint32_t*> owned;
    for (int projection = 0; projection < 3; ++projection) {
        const int in = projection == 2 ? kWidth : kHidden;
        const int out = projection == 2 ? kHidden : kWidth;
        const int64_t each = packed_words(in, out, twice_k);
        owned.push_back(device_array<uint32_t>(each * count, &words));
        owned.push_back(device_array<uint32_t>(packed_words(in, out, shared_twice_k), &words));
        for (int e = 0; e <= count; ++e) {
            Weight w;
            w.words = e == count ? owned.back() : owned[owned.size() - 2] + e * each;
            w.suh = w.svh = scales;
            w.k = w.in = in;
            w.n = w.out = out;
            w.twice_k = e == count ? shared_twice_k : twice_k;
            table.push_back(w);
        }
    }
    auto* tables = device_array<Weight>(static_cast<int64_t>(table.size()), &table);
    std::mt19937 rng(3);
    std::vector<int32_t> ids;
    for (int row = 0; row < rows; ++row) {
        std::vector<int32_t> all(static_cast<size_t>(count));
        std::iota(all.begin(), all.end(), 0);
        for (int slot = 0; slot < k; ++slot) {
            std::swap(all[static_cast<size_t>(slot)],
                      all[static_cast<size_t>(slot) + rng() % static_cast<size_t>(count - slot)]);
        }
        ids.insert(ids.end(), all.begin(), all.begin() + k);
    }
    auto* device_ids = device_array<int32_t>(static_cast<int64_t>(ids.size()), &ids);
    const std::vector<float> ones(1024, 0.25f);
    auto* weights = device_array<float>(static_cast<int64_t>(ids.size()), &ones);
    const std::vector<uint16_t> values(1 << 16, 0x3F80);
    auto* x = device_array<uint16_t>(int64_t{rows} * kHidden, &values);
    auto* out = device_array<float>(int64_t{rows} * kHidden);
    ExpertPrefill c;
    c.rows = rows;
    c.k = k;
    c.experts = count;
    c.has_shared = true;
    c.hidden = c.k_up = kHidden;
    c.width = c.k_down = kWidth;
    c.gate = tables;
    c.up = tables + count + 1;
    c.down = tables + 2 * (count + 1);
    for (int i = 0; i < 3; ++i) {
        c.shared[i] = table[static_cast<size_t>(i * (count + 1) + count)];
    }
    c.up_kinds = c.down_kinds = 1;
    c.up_kind[0] = c.down_kind[0] = {twice_k, Code::mul1};
    c.ids = device_ids;
    c.weights = weights;
    c.limit = 10;
    c.x = x;
    c.x_stride = c.out_stride = kHidden;
    c.out = out;
    auto* scratch = device_array<uint8_t>(expert_prefill_bytes(c));
    c.scratch = scratch;
    const double us =
        time_graph(2, [&](int, cudaStream_t stream) { must(expert_prefill(c, stream)); });
    std::printf(
        "prefill experts %d top %d K=%.1f shared K=%.1f m=%4d  %9.1f us  %4.0f TFLOP/s  scratch "
        "%.0f MB\n",
        count, k, twice_k / 2.0, shared_twice_k / 2.0, rows, us,
        6e-6 * rows * (k + 1) * kHidden * kWidth / us,
        static_cast<double>(expert_prefill_bytes(c)) * 1e-6);
    std::fflush(stdout);
    for (uint32_t* p : owned) {
        must(cudaFree(p));
    }
    for (void* p : {static_cast<void*>(scales), static_cast<void*>(tables),
                    static_cast<void*>(device_ids), static_cast<void*>(weights),
                    static_cast<void*>(x), static_cast<void*>(out), static_cast<void*>(scratch)}) {
        must(cudaFree(p));
    }
}

void plain_prefill_line(const char* name, tenon::plain::cuda::Stored stored, int in, int out,
                        int rows, const std::vector<uint32_t>& words) {
    namespace plain = tenon::plain::cuda;
    plain::PrefillCall call;
    plain::Weight& w = call.jobs[0].weight;
    w.stored = stored;
    w.in = in;
    w.out = out;
    w.row_bytes = plain::padded(in) *
                  (stored == plain::Stored::bf16  ? 4
                   : stored == plain::Stored::fp8 ? 2
                                                  : 1) /
                  2;
    // Numbers of moderate size in every format.
    const std::vector<uint32_t> codes(1 << 20, 0x3C3C3C3C);
    auto* stored_codes = device_array<uint32_t>(w.row_bytes * out / 4, &codes);
    auto* scales = device_array<uint8_t>(plain::padded(in) / 32 * out);
    must(cudaMemset(scales, 120, static_cast<size_t>(plain::padded(in) / 32 * out)));
    std::vector<uint16_t> values(1 << 20);
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<uint16_t>(0x3F00 | (words[i] & 0x80FF));
    }
    auto* x = device_array<uint16_t>(int64_t{rows} * in, &values);
    auto* y = device_array<uint16_t>(int64_t{rows} * out);
    w.codes = reinterpret_cast<const uint8_t*>(stored_codes);
    w.scales = scales;
    call.rows = rows;
    call.job_count = 1;
    call.w_bytes = std::min(plain::kPanelBytes, plain::prefill_w_bytes(out, in));
    auto* scratch = device_array<uint8_t>(plain::prefill_x_bytes(rows, in) + call.w_bytes);
    call.scratch = scratch;
    call.jobs[0].x = x;
    call.jobs[0].x_stride = in;
    call.jobs[0].y = y;
    call.jobs[0].y_stride = out;
    const double us =
        time_graph(8, [&](int, cudaStream_t stream) { must(plain::prefill(call, stream)); });
    std::printf("prefill plain %-5s %6d x %6d m=%4d  %9.1f us  %4.0f TFLOP/s\n", name, in, out,
                rows, us, 2e-6 * rows * in * static_cast<double>(out) / us);
    std::fflush(stdout);
    for (void* p : {static_cast<void*>(stored_codes), static_cast<void*>(scales),
                    static_cast<void*>(x), static_cast<void*>(y), static_cast<void*>(scratch)}) {
        must(cudaFree(p));
    }
}

void prefill_lines(const std::vector<uint32_t>& words) {
    for (const int rows : {64, 512, 2048, 4096}) {
        prefill_line({"mlp", 4096, 14336, 1, 6}, rows, words);
    }
    for (const Shape& s : {Shape{"mlp", 4096, 14336, 1, 4}, Shape{"mlp", 4096, 14336, 1, 10},
                           Shape{"wq_a", 5120, 1280, 1, 10}, Shape{"wq_b", 1280, 32768, 1, 8},
                           Shape{"wkv", 5120, 512, 1, 10}, Shape{"wo_a", 4096, 1024, 8, 10},
                           Shape{"wo_b", 8192, 5120, 1, 10}}) {
        prefill_line(s, 2048, words);
    }
    using tenon::plain::cuda::Stored;
    plain_prefill_line("bf16", Stored::bf16, 4096, 14336, 2048, words);
    plain_prefill_line("fp8", Stored::fp8, 4096, 14336, 2048, words);
    plain_prefill_line("fp4", Stored::fp4, 4096, 14336, 2048, words);
    for (const int rows : {512, 1024, 2048, 4096}) {
        prefill_experts_line(384, 6, rows, 6, 10, words);
    }
}

void decode_experts_lines(double bandwidth, const std::vector<uint32_t>& words) {
    for (const int rows : {1, 2, 4, 6, 8, 16}) {
        experts_line(384, 6, rows, 6, 10, bandwidth, words);
    }
    experts_line(384, 6, 1, 6, 6, bandwidth, words);
    for (const int rows : {1, 4, 5, 16}) {
        experts_line(128, 3, rows, 6, 8, bandwidth, words);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const double bandwidth = copy_bandwidth();
    std::printf("copy bandwidth %.0f GB/s (read and written)\n", bandwidth * 1e-9);
    const std::vector<uint32_t> words = random_words();
    if (argc == 5) {
        linear_line({"given", std::atoi(argv[1]), std::atoi(argv[2]), 1, std::atoi(argv[3])},
                    std::atoi(argv[4]), Code::mul1, bandwidth, words);
        if (std::atoi(argv[4]) >= 64) {
            prefill_line({"given", std::atoi(argv[1]), std::atoi(argv[2]), 1, std::atoi(argv[3])},
                         std::atoi(argv[4]), words);
        }
        return 0;
    }
    if (argc == 2 && std::strcmp(argv[1], "prefill") == 0) {
        prefill_lines(words);
        return 0;
    }
    if (argc == 2 && std::strcmp(argv[1], "experts") == 0) {
        decode_experts_lines(bandwidth, words);
        return 0;
    }
    const Shape wide = {"mlp", 4096, 14336, 1, 6};
    for (const int twice_k : {4, 5, 6, 8, 10, 12}) {
        Shape s = wide;
        s.twice_k = twice_k;
        for (const int rows : {1, 4, 6, 16}) {
            linear_line(s, rows, Code::mul1, bandwidth, words);
        }
    }
    linear_line(wide, 1, Code::mcg, bandwidth, words);
    linear_line(wide, 1, Code::inst3, bandwidth, words);
    for (const Shape& s : {Shape{"wq_a", 5120, 1280, 1, 10}, Shape{"wq_b", 1280, 32768, 1, 8},
                           Shape{"wkv", 5120, 512, 1, 10}, Shape{"wo_a", 4096, 1024, 8, 10},
                           Shape{"wo_b", 8192, 5120, 1, 10}, Shape{"w1", 5120, 2304, 1, 6},
                           Shape{"head", 5120, 129280, 1, 12}, Shape{"square", 4096, 4096, 1, 6},
                           Shape{"small", 2048, 768, 1, 8}}) {
        for (const int rows : {1, 4, 6, 16}) {
            linear_line(s, rows, Code::mul1, bandwidth, words);
        }
    }
    decode_experts_lines(bandwidth, words);
    prefill_lines(words);
    return 0;
}
