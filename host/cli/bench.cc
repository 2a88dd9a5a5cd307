// SPDX-License-Identifier: MIT
// bench: load time, prefill and decode speed, memory, beside the memory bandwidth measured in the
// same run.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "host/cli/bench_math.h"
#include "host/cli/local_engine.h"
#include "host/cli/verbs.h"
#include "host/profile/units.h"

namespace tenon::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Bytes a second that all threads together read from memory: sums over a buffer far larger than
/// any cache.
double read_bandwidth(HostServices& host) {
    constexpr size_t kWords = (512u << 20) / 8;
    const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
    std::vector<uint64_t> buffer(kWords, 1);
    std::vector<uint64_t> sums(threads);
    double best = 0;
    for (int run = 0; run < 3; ++run) {
        const int64_t begin = host.now_us();
        std::vector<std::thread> pool;
        for (unsigned t = 0; t < threads; ++t) {
            pool.emplace_back([&, t] {
                const uint64_t* p = buffer.data() + kWords / threads * t;
                uint64_t a = 0, b = 0, c = 0, d = 0;
                for (size_t i = 0; i + 4 <= kWords / threads; i += 4) {
                    a += p[i];
                    b += p[i + 1];
                    c += p[i + 2];
                    d += p[i + 3];
                }
                sums[t] = a + b + c + d;
            });
        }
        for (std::thread& t : pool) {
            t.join();
        }
        const double us = static_cast<double>(host.now_us() - begin);
        best = std::max(best, static_cast<double>(kWords) * 8 / us * 1e6);
    }
    return sums[0] == 0 ? 0 : best;
}

struct Run {
    double first_token_s = 0, decode_s = 0, cpu_s = 0;
    int64_t tokens = 0;
};

Status one_request(LocalEngine& local, const std::vector<int32_t>& ids, int64_t tokens, Run* out) {
    RequestDesc desc;
    desc.tokens = ids;
    desc.max_new_tokens = tokens;
    desc.sampling.temperature = 0;
    desc.flags = kIgnoreEos | kRawText | kReturnIds | kNoPrefix;
    desc.label = "bench";
    const double cpu = cpu_seconds();
    Ref<ReplySink> sink;
    TENON_TRY(local.engine().submit(desc, sink.out()));
    SinkEvent e;
    while (!sink->finished()) {
        if (!sink->next(1'000'000, &e)) {
            continue;
        }
        if (e.kind == SinkEventKind::error) {
            return Status(e.code, e.text.view());
        }
        if (e.timings != nullptr) {
            out->first_token_s = static_cast<double>(e.timings->first_token) * 1e-6;
            out->decode_s = static_cast<double>(e.timings->decode) * 1e-6;
            out->tokens = e.timings->completion_tokens;
        }
    }
    out->cpu_s = cpu_seconds() - cpu;
    return {};
}

/// Ids that exist in any tokenizer of the family, varied so that rows and experts vary.
std::vector<int32_t> prompt_ids(int64_t n, int32_t vocab) {
    std::vector<int32_t> ids(static_cast<size_t>(n));
    uint32_t state = 12345;
    for (int32_t& id : ids) {
        state = state * 1664525u + 1013904223u;
        id = 3 +
             static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(std::min(vocab, 4000) - 3));
    }
    return ids;
}

Status measure(LocalEngine& local, const BenchArgs& args, bool* loaded, Json* report) {
    HostServices& host = local.host();
    const int64_t begin = host.now_us();
    TENON_TRY(local.open(args.profile.profile, args.profile.set));
    *loaded = true;
    const double load_s = static_cast<double>(host.now_us() - begin) * 1e-6;
    Deployment& d = local.deployment();
    const int32_t known = local.engine().text().info().vocab;
    const int64_t context = local.engine().info().context_tokens;
    if (args.prompt_tokens + 1 > context || args.decode_prompt + args.decode_tokens > context) {
        return error(Code::invalid_argument,
                     "the profile's context of {} is too short for this bench", context);
    }
    Run warm;
    TENON_TRY(one_request(local, prompt_ids(args.decode_prompt, known), 8, &warm));
    std::vector<double> prefill, decode, cpu, first;
    for (int i = 0; i < args.runs; ++i) {
        Run p;
        TENON_TRY(one_request(local, prompt_ids(args.prompt_tokens, known), 1, &p));
        prefill.push_back(args.prompt_tokens / p.first_token_s);
        first.push_back(p.first_token_s);
        Run r;
        TENON_TRY(
            one_request(local, prompt_ids(args.decode_prompt, known), args.decode_tokens, &r));
        decode.push_back(static_cast<double>(r.tokens - 1) / r.decode_s);
        cpu.push_back(r.cpu_s / static_cast<double>(r.tokens));
    }
    const double bandwidth = read_bandwidth(host);
    const int64_t needed = d.memory().token_bytes;
    const double floor_rate = needed > 0 ? bandwidth / static_cast<double>(needed) : 0;
    Json& j = *report;
    j["profile"] = d.profile().name;
    j["threads"] = d.device()->info().threads;
    j["kernels"] = d.device()->info().arch;
    j["load_s"] = load_s;
    j["prompt_tokens"] = args.prompt_tokens;
    j["prefill_tokens_per_s"] = median(prefill);
    j["first_token_s"] = median(first);
    j["decode_prompt"] = args.decode_prompt;
    j["decode_tokens"] = args.decode_tokens;
    j["decode_tokens_per_s"] = median(decode);
    j["cpu_ms_per_token"] = median(cpu) * 1e3;
    j["bytes_per_token"] = needed;
    j["memory_bandwidth_bytes_per_s"] = bandwidth;
    j["floor_tokens_per_s"] = floor_rate;
    j["share_of_floor"] = floor_rate > 0 ? median(decode) / floor_rate : 0;
    j["resident_bytes"] = memory_resident();
    j["planned_bytes"] = d.memory().total();
    j["resident_over_plan"] =
        static_cast<double>(memory_resident()) / static_cast<double>(d.memory().total());
    return {};
}

}  // namespace

int bench_verb(const BenchArgs& args) {
    LocalEngine local;
    local.deployment().quiet();
    Json report = Json::object();
    bool loaded = false;
    const Status status = guard([&] { return measure(local, args, &loaded, &report); });
    if (!status.ok()) {
        return fail(loaded ? exit_code_of(status.code(), kExitUsage) : local.exit_code(),
                    status.message().str());
    }
    if (args.profile.json) {
        std::cout << report.dump() << '\n';
        return kExitOk;
    }
    std::printf("profile %s, %d threads, kernels %s, median of %d runs\n",
                report["profile"].get<std::string>().c_str(), report["threads"].get<int>(),
                report["kernels"].get<std::string>().c_str(), args.runs);
    std::printf("load to ready       %8.2f s\n", report["load_s"].get<double>());
    std::printf("prefill             %8.0f tok/s   (%d tokens, first token after %.3f s)\n",
                report["prefill_tokens_per_s"].get<double>(), args.prompt_tokens,
                report["first_token_s"].get<double>());
    std::printf("decode              %8.0f tok/s   (%d after %d, one stream, greedy)\n",
                report["decode_tokens_per_s"].get<double>(), args.decode_tokens,
                args.decode_prompt);
    std::printf("CPU a token         %8.2f ms\n", report["cpu_ms_per_token"].get<double>());
    std::printf(
        "floor               %8.0f tok/s   (%s read a token at %.1f GB/s measured): decode is at "
        "%.0f %%\n",
        report["floor_tokens_per_s"].get<double>(),
        size_text(report["bytes_per_token"].get<int64_t>()).c_str(),
        report["memory_bandwidth_bytes_per_s"].get<double>() * 1e-9,
        report["share_of_floor"].get<double>() * 100);
    std::printf("resident            %8s         (plan %s)\n",
                size_text(report["resident_bytes"].get<int64_t>()).c_str(),
                size_text(report["planned_bytes"].get<int64_t>()).c_str());
    return kExitOk;
}

}  // namespace tenon::cli
