// SPDX-License-Identifier: MIT
// Products with packed weights on the CPU: weights per second at few rows, arithmetic rate at many.
//
//   bench_quant --benchmark_filter=Exl3Linear
// Counters: weights/s counts every weight once per call, flop/s two operations per weight and row.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>

#include "device/device.h"
#include "plugins/quant_exl3/format.h"
#include "plugins/quant_plain/format.h"
#include "tenon/testing/quant_samples.h"

namespace tenon::testing {
namespace {

void must(const Status& status) {
    if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message().str().c_str());
        std::exit(1);
    }
}

struct Rig {
    Rig(QuantFormat* tested, int64_t threads, bool reference)
        : format(tested),
          source(new MemorySource),
          device(new cpu::CpuDevice(nullptr, {.threads = threads, .reference = reference})) {
        must(device->create_stream({}, stream.out()));
    }

    WeightRequest request(StrView base) {
        WeightRequest r;
        r.base = base;
        r.source = source.get();
        r.device = device.get();
        r.stream = stream.get();
        return r;
    }
    TensorView scratch(int64_t bytes) {
        must(device->allocate({.bytes = bytes, .tag = "bench"}, memory.out()));
        return make_view(memory->data(), DType::u8, {bytes});
    }

    Ref<QuantFormat> format;
    Ref<MemorySource> source;
    Ref<cpu::CpuDevice> device;
    Ref<Stream> stream;
    Ref<Buffer> memory;
};

std::vector<uint16_t> rows_of(int64_t count) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> x(static_cast<size_t>(count));
    for (uint16_t& v : x) {
        v = f32_to_bf16(normal(rng));
    }
    return x;
}

void report(benchmark::State& state, double weights, double rows, double bytes) {
    using benchmark::Counter;
    const auto calls = static_cast<double>(state.iterations());
    state.counters["weights/s"] = Counter(calls * weights, Counter::kIsRate);
    state.counters["flop/s"] = Counter(calls * weights * rows * 2, Counter::kIsRate);
    state.counters["bytes/s"] = Counter(calls * bytes, Counter::kIsRate);
}

void run_linear(benchmark::State& state, Rig& rig, int64_t in, int64_t out, int64_t rows) {
    Ref<QuantWeight> weight;
    must(rig.format->load(rig.request("p"), weight.out()));
    const std::vector<uint16_t> x = rows_of(rows * in);
    std::vector<uint16_t> y(static_cast<size_t>(rows * out));
    LinearArgs args;
    args.x = make_view(x.data(), DType::bf16, {rows, in});
    args.y = make_view(y.data(), DType::bf16, {rows, out});
    args.scratch = rig.scratch(weight->scratch_bytes(rows, Regime::decode, DType::bf16));
    for (auto _ : state) {
        must(weight->linear(args, *rig.stream));
    }
    report(state, static_cast<double>(in * out), static_cast<double>(rows),
           static_cast<double>(weight->device_bytes()));
}

// in, out, 2 K, rows, threads
void Exl3Linear(benchmark::State& state, const char* marker, bool reference) {
    Rig rig(exl3::make_format(), state.range(4), reference);
    add_exl3(*rig.source, "p",
             {.twice_k = static_cast<int>(state.range(2)),
              .marker = marker,
              .k = state.range(0),
              .n = state.range(1)});
    run_linear(state, rig, state.range(0), state.range(1), state.range(3));
}

// in, out, rows, threads
void PlainLinear(benchmark::State& state, Fake kind) {
    Rig rig(plain::make_format(false), state.range(3), false);
    add_plain(*rig.source, "p", kind, state.range(1), state.range(0));
    run_linear(state, rig, state.range(0), state.range(1), state.range(2));
}

// hidden, width, experts, rows, threads; two experts a row and a shared one, K = 4
void Exl3Experts(benchmark::State& state) {
    const int64_t hidden = state.range(0);
    const int64_t width = state.range(1);
    const auto count = static_cast<int32_t>(state.range(2));
    const int64_t rows = state.range(3);
    Rig rig(exl3::make_format(), state.range(4), false);
    for (int32_t e = 0; e <= count; ++e) {
        const std::string prefix = e == count ? "shared" : "e." + std::to_string(e);
        const auto seed = static_cast<uint32_t>(e);
        add_exl3(*rig.source, prefix + ".w1",
                 {.twice_k = 8, .k = hidden, .n = width, .seed = seed});
        add_exl3(*rig.source, prefix + ".w3",
                 {.twice_k = 8, .k = hidden, .n = width, .seed = seed});
        add_exl3(*rig.source, prefix + ".w2",
                 {.twice_k = 8, .k = width, .n = hidden, .seed = seed});
    }
    ExpertsRequest r;
    r.prefix = "e";
    r.shared_prefix = "shared";
    r.experts = count;
    r.hidden = hidden;
    r.intermediate = width;
    r.source = rig.source.get();
    r.device = rig.device.get();
    r.stream = rig.stream.get();
    Ref<QuantExperts> experts;
    must(rig.format->load_experts(r, experts.out()));
    const std::vector<uint16_t> x = rows_of(rows * hidden);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < rows; ++t) {
        const auto first = static_cast<int32_t>(t % (count - 1));
        ids.insert(ids.end(), {first, first + 1});
    }
    const std::vector<float> weights(ids.size(), 0.5f);
    std::vector<float> out(static_cast<size_t>(rows * hidden));
    ExpertsArgs args;
    args.x = make_view(x.data(), DType::bf16, {rows, hidden});
    args.ids = make_view(ids.data(), DType::i32, {rows, 2});
    args.weights = make_view(weights.data(), DType::f32, {rows, 2});
    args.limit = 10;
    args.out = make_view(out.data(), DType::f32, {rows, hidden});
    args.scratch = rig.scratch(experts->scratch_bytes(rows, 2, Regime::decode));
    for (auto _ : state) {
        must(experts->run(args, *rig.stream));
    }
    report(state, static_cast<double>(9 * hidden * width), static_cast<double>(rows), 0);
}

#define TENON_LINEAR_TIMES ->UseRealTime()->Unit(benchmark::kMicrosecond)

BENCHMARK_CAPTURE(Exl3Linear, mul1, "mul1", false)
    ->Args({4096, 14336, 4, 1, 1})
    ->Args({4096, 14336, 6, 1, 1})
    ->Args({4096, 14336, 6, 1, 2})
    ->Args({4096, 14336, 8, 1, 1})
    ->Args({4096, 14336, 12, 1, 1})
    ->Args({4096, 14336, 6, 4, 1})
    ->Args({4096, 14336, 6, 16, 1})
    ->Args({4096, 4096, 6, 256, 1})
    ->Args({4096, 4096, 6, 256, 2})
    ->Args({256, 128, 10, 1, 1})
    ->Args({256, 128, 10, 1, 2})
    ->Args({256, 4224, 12, 1, 2})
    ->Args({256, 512, 10, 2048, 2}) TENON_LINEAR_TIMES;
BENCHMARK_CAPTURE(Exl3Linear, mcg, "mcg", false)->Args({4096, 14336, 6, 1, 1}) TENON_LINEAR_TIMES;
BENCHMARK_CAPTURE(Exl3Linear, inst3, "", false)->Args({4096, 14336, 6, 1, 1}) TENON_LINEAR_TIMES;
BENCHMARK_CAPTURE(Exl3Linear, reference, "mul1", true)
    ->Args({4096, 14336, 6, 1, 1})
    ->Args({256, 128, 10, 1, 1}) TENON_LINEAR_TIMES;
BENCHMARK_CAPTURE(PlainLinear, bf16, Fake::bf16)
    ->Args({4096, 4096, 1, 1})
    ->Args({4096, 4096, 256, 1}) TENON_LINEAR_TIMES;
BENCHMARK_CAPTURE(PlainLinear, fp8, Fake::fp8)
    ->Args({4096, 4096, 1, 1})
    ->Args({4096, 4096, 256, 1}) TENON_LINEAR_TIMES;
BENCHMARK_CAPTURE(PlainLinear, fp4, Fake::fp4)
    ->Args({4096, 4096, 1, 1})
    ->Args({4096, 4096, 256, 1}) TENON_LINEAR_TIMES;
BENCHMARK(Exl3Experts)
    ->Args({256, 128, 8, 1, 1})
    ->Args({256, 128, 8, 1, 2})
    ->Args({256, 128, 8, 6, 2})
    ->Args({256, 128, 8, 2048, 2})
    ->Args({2048, 768, 8, 1, 2}) TENON_LINEAR_TIMES;

}  // namespace
}  // namespace tenon::testing

BENCHMARK_MAIN();
