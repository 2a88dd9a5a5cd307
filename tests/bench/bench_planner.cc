// SPDX-License-Identifier: MIT
// Time of one planning step (outline and finish, engine.md 3.2: <= 50 us) over recorded random
// lives: submits, cancels, blocked clients, parking, drafts.
//
//   bench_planner
// Counters: median and the value that 99 % of the steps stay under, in microseconds.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "tests/unit/engine_recording.h"

namespace tenon::test {
namespace {

void outline_and_finish(benchmark::State& state) {
    std::mt19937_64 rng(test_seed());
    ScriptedOptions options;
    options.draft_max = 5;
    options.pool_pages = 90;
    Recorder recorder;
    Bench bench(options, static_cast<int>(state.range(0)), &recorder);
    live_at_random(bench, rng, 4'000);

    std::vector<double> us;
    for (auto _ : state) {
        FakeHost host(true);
        engine::Planner planner(bench.config, {}, host);
        for (const Recorder::Step& step : recorder.steps) {
            StepPlan plan;
            const auto begin = std::chrono::steady_clock::now();
            planner.outline(step.outline);
            benchmark::DoNotOptimize(planner.finish(step.finish, &plan));
            us.push_back(
                std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                    .count());
        }
    }
    std::sort(us.begin(), us.end());
    state.counters["median_us"] = us[us.size() / 2];
    state.counters["p99_us"] = us[us.size() * 99 / 100];
    state.counters["steps"] = static_cast<double>(recorder.steps.size());
}
BENCHMARK(outline_and_finish)->Arg(0)->Arg(4)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tenon::test

BENCHMARK_MAIN();
