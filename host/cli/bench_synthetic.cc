// SPDX-License-Identifier: MIT
// bench --synthetic: what a step of a model costs on this device, with weights that are made up.
// Floor = weight bytes of the step / copy bandwidth of the device, both of the same run. A folder
// with fewer layers than the release is scaled: what a layer does counts once per layer, what a
// step does once (head, sampling, taps, Engram tables, draft pass) stays.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "host/checkpoint/strict_json.h"
#include "host/checkpoint/synthetic.h"
#include "host/cli/bench_math.h"
#include "host/cli/op_families.h"
#include "host/cli/verbs.h"
#include "host/lifecycle/deployment.h"
#include "host/lifecycle/step_driver.h"
#include "host/profile/units.h"

namespace tenon::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWarm = 3;
constexpr int64_t kCopyBytes = int64_t{512} << 20;
/// Time for the rows of one window to arrive.
constexpr std::chrono::milliseconds kReadAhead{5};
/// Chunks are measured until they have taken this long.
constexpr int64_t kChunksUs = 5'000'000;
/// Calls that a step makes a fixed number of times, whatever its layers: names or beginnings.
constexpr const char* kOnce[] = {"head",   "main_proj", "sample.",  "spec.",       "rows.",
                                 "embed.", "engram.",   "mhc.mean", "rope.angles", "mhc.collapse"};

bool once_a_step(const std::string& name) {
    return std::any_of(std::begin(kOnce), std::end(kOnce),
                       [&](const char* begin) { return name.rfind(begin, 0) == 0; });
}

/// Weight bytes of steps, as whoever made the folder computed them: "window" by rows, "draft".
/// Optional: "layers" of the folder and "full": {"layers", "window", "draft"} of the release.
Result<nlohmann::json> step_bytes(const std::string& dir) {
    const std::string path = dir + "/" + kSyntheticFile;
    std::ifstream file(path);
    if (!file) {
        return error(Code::not_found,
                     "{}: cannot be opened: {}; models/synthetic/make.py writes it", path,
                     std::strerror(errno));
    }
    const std::string text(std::istreambuf_iterator<char>(file), {});
    TENON_ASSIGN(nlohmann::json json, parse_strict_json(path + ":", text, 4));
    nlohmann::json bytes = json.value("bytes", nlohmann::json::object());
    const bool right = bytes.is_object() && bytes.contains("window") &&
                       bytes["window"].is_object() && bytes.contains("draft") &&
                       bytes["draft"].is_number_unsigned();
    if (!right) {
        return error(Code::invalid_argument,
                     "{}: expected an object 'bytes' with 'window' and 'draft'", path);
    }
    return bytes;
}

/// Bytes a second that a copy on the device reads and writes.
Status copy_bandwidth(Device& device, HostServices& host, double* out) {
    Ref<Buffer> from, to;
    Ref<Stream> stream;
    TENON_TRY(device.allocate({kCopyBytes, 256, BufferKind::device, "bench"}, from.out()));
    TENON_TRY(device.allocate({kCopyBytes, 256, BufferKind::device, "bench"}, to.out()));
    TENON_TRY(device.create_stream({"bench"}, stream.out()));
    const TensorView src = make_view(from->data(), DType::u8, {kCopyBytes}, from->place());
    const TensorView dst = make_view(to->data(), DType::u8, {kCopyBytes}, to->place());
    for (int run = 0; run < 4; ++run) {  // the first one touches the pages
        const int64_t begin = host.now_us();
        for (int i = 0; i < 4; ++i) {
            TENON_TRY(device.copy(dst, src, *stream));
        }
        TENON_TRY(device.synchronize(*stream));
        const auto us = static_cast<double>(std::max<int64_t>(1, host.now_us() - begin));
        *out = std::max(run == 0 ? 0 : *out, 8.0 * kCopyBytes / us * 1e6);
    }
    return {};
}

/// Free device bytes; the device's own answer may be a tenth of a second old.
int64_t settled_free(Device& device) {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    return device.info().bytes_free;
}

class SyntheticBench {
  public:
    SyntheticBench(Deployment& d, OpFamilies& families, HostServices& host, int runs)
        : deployment_(d),
          families_(families),
          info_(d.info()),
          known_(std::min(d.info().vocab, d.model()->text().info().vocab)),
          request_(d.request()),
          host_(host),
          runs_(runs),
          driver_(*d.model(), d.request()) {}

    Status run(const nlohmann::json& bytes, double bandwidth, Json* report) {
        TENON_TRY(chunks(report));
        (*report)["context_before_windows"] = driver_.length();
        Json rounds = Json::array();
        for (const int32_t rows : {1, 2, 4, 6, 8, 12, 16}) {
            const std::string key = std::to_string(rows);
            if (rows > info_.max_window_rows || !bytes["window"].contains(key)) {
                continue;
            }
            const double window_bytes = bytes["window"][key].get<double>();
            Passes alone;
            TENON_TRY(windows(rows, false, true, &alone));
            Json line = {{"rows", rows}, {"window", timed(alone.us, window_bytes, bandwidth)}};
            line["eager_calls"] = alone.eager;
            if (info_.draft_rows > 0) {
                Passes both;
                TENON_TRY(windows(rows, true, true, &both));
                line["window_and_draft"] =
                    timed(both.us, window_bytes + bytes["draft"].get<double>(), bandwidth);
                line["draft_us"] = both.draft_us;
                line["eager_calls"] = std::max(alone.eager, both.eager);
            }
            Passes reading;
            TENON_TRY(windows(rows, false, false, &reading));
            line["unannounced"] = {{"us", reading.us}, {"wait_us", reading.engram_us}};
            rounds.push_back(line);
        }
        (*report)["rounds"] = rounds;
        TENON_TRY(kinds(bandwidth, report));
        scale(bytes, bandwidth, report);
        return {};
    }

  private:
    static Json timed(double us, double bytes, double bandwidth) {
        const double floor_us = bytes / bandwidth * 1e6;
        return {{"us", us}, {"bytes", bytes}, {"floor_us", floor_us}, {"share", floor_us / us}};
    }
    std::vector<int32_t> ids(int64_t n) {
        std::vector<int32_t> out(static_cast<size_t>(n));
        for (int32_t& id : out) {
            state_ = state_ * 1664525U + 1013904223U;
            id = 3 +
                 static_cast<int32_t>((state_ >> 8) % 100'000U % static_cast<uint32_t>(known_ - 3));
        }
        return out;
    }

    /// Whole chunks, one after the other; the first one is not counted.
    Status chunks(Json* report) {
        const int64_t rows = info_.max_chunk_rows;
        // Windows of all measurements need room behind the chunks.
        const int64_t room = 21 * (kWarm + runs_) * int64_t{info_.max_window_rows + 1};
        const int64_t count = std::min<int64_t>(1 + runs_, (request_.context_tokens - room) / rows);
        if (count < 2) {
            return error(Code::invalid_argument,
                         "model.context_tokens = {}: {} chunks of {} rows and {} rows of windows "
                         "need {}; raise it, or lower --runs or engine.chunk_rows",
                         request_.context_tokens, 2, rows, room, 2 * rows + room);
        }
        TENON_TRY(driver_.open());
        std::vector<double> us;
        const int64_t start = host_.now_us();
        for (int64_t i = 0; i < count && (i < 2 || host_.now_us() - start < kChunksUs); ++i) {
            const std::vector<int32_t> prompt = ids(rows);
            const int64_t begin = host_.now_us();
            TENON_TRY(driver_.prefill(prompt, nullptr));
            us.push_back(static_cast<double>(host_.now_us() - begin));
        }
        us.erase(us.begin());
        (*report)["chunk"] = {{"rows", rows},
                              {"us", median(us)},
                              {"tokens_per_s", static_cast<double>(rows) / median(us) * 1e6}};
        return {};
    }

    /// Time by kind of call: of a window with one row and with many, and of a chunk.
    Status kinds(double bandwidth, Json* report) {
        // Traced steps run call by call, not from graphs.
        auto* trace = facet_of<ModelTrace>(deployment_.model());
        const int32_t most = std::min(info_.max_window_rows, 6);
        const auto traced = [&](const char* step, int32_t rows, bool draft) -> Status {
            const std::vector<int32_t> tokens = ids(rows);
            StepDriver::Round round;
            trace->want(true);
            families_.start(*deployment_.device());
            Status ran = driver_.round(tokens, draft, &round);
            trace->want(false);
            return add_kinds(step, rows, std::move(ran), bandwidth, report);
        };
        if (trace != nullptr) {
            TENON_TRY(traced("window", 1, false));
        }
        if (trace != nullptr && most > 1) {
            TENON_TRY(traced("window", most, false));
        }
        if (trace != nullptr && info_.draft_rows > 0) {
            TENON_TRY(traced("window and draft", most, true));
        }
        const std::vector<int32_t> prompt = ids(info_.max_chunk_rows);
        TENON_TRY(driver_.open());
        families_.start(*deployment_.device());
        return add_kinds("chunk", info_.max_chunk_rows, driver_.prefill(prompt, nullptr), bandwidth,
                         report);
    }
    Status add_kinds(const char* step, int32_t rows, Status ran, double bandwidth, Json* report) {
        std::vector<OpFamily> list;
        Status measured = families_.finish(&list);
        if (ran.code() != Code::io) {  // the step's values are spoilt on purpose
            TENON_TRY(std::move(ran));
        }
        TENON_TRY(std::move(measured));
        Json lines = Json::array();
        double sum = 0;
        int64_t calls = 0;
        for (const OpFamily& f : list) {
            Json line = timed(f.us, f.bytes, bandwidth);
            line["name"] = f.name;
            line["calls"] = f.calls;
            lines.push_back(line);
            sum += f.us;
            calls += f.calls;
        }
        (*report)["kinds"].push_back(
            {{"step", step}, {"rows", rows}, {"calls", calls}, {"sum_us", sum}, {"list", lines}});
        return {};
    }

    struct Passes {
        double us = 0;         ///< median of a round, host to host
        double draft_us = 0;   ///< of it: the draft pass
        double engram_us = 0;  ///< of it: waiting for table rows
        int64_t eager = 0;     ///< calls of a round that no graph made
    };
    /// Rounds of one window each, all with the same ids, so that table rows are in memory from the
    /// warm-up on: a file of holes says nothing about a drive. Announced ids have been read when
    /// the round begins, as those of drafts usually have.
    Status windows(int32_t rows, bool draft, bool announced, Passes* out) {
        const std::vector<int32_t> tokens = ids(rows);
        std::vector<double> us;
        std::vector<double> drafts;
        std::vector<double> waits;
        for (int i = 0; i < kWarm + runs_; ++i) {
            StepDriver::Round round;
            if (announced) {
                TENON_TRY(driver_.announce(tokens));
                std::this_thread::sleep_for(kReadAhead);
            }
            const int64_t passed = families_.passed();
            const int64_t begin = host_.now_us();
            TENON_TRY(driver_.round(tokens, draft, &round));
            if (i >= kWarm) {
                us.push_back(static_cast<double>(host_.now_us() - begin));
                drafts.push_back(static_cast<double>(round.timing.drafts));
                waits.push_back(static_cast<double>(round.timing.engram_wait));
            }
            out->eager = families_.passed() - passed;
        }
        out->us = median(us);
        out->draft_us = median(drafts);
        out->engram_us = median(waits);
        return {};
    }

    /// Times of a model with all layers of the release, where calls by kind are known.
    void scale(const nlohmann::json& bytes, double bandwidth, Json* report) {
        if (!bytes.contains("full") || !bytes.contains("layers")) {
            return;
        }
        Json scaled = Json::array();
        const nlohmann::json& full = bytes["full"];
        const double times = full["layers"].get<double>() / bytes["layers"].get<double>();
        for (const Json& kind : (*report)["kinds"]) {
            const int32_t rows = kind["rows"].get<int32_t>();
            const std::string key = std::to_string(rows);
            if (kind["step"] != "window" || !full["window"].contains(key)) {
                continue;
            }
            double once = 0;
            for (const Json& f : kind["list"]) {
                once += once_a_step(f["name"].get<std::string>()) ? f["us"].get<double>() : 0;
            }
            for (const Json& round : (*report)["rounds"]) {
                if (round["rows"] != rows) {
                    continue;
                }
                const double us = round["window"]["us"].get<double>();
                const double window = std::min(once, us) + std::max(us - once, 0.0) * times;
                const double window_bytes = full["window"][key].get<double>();
                Json line = {{"rows", rows},
                             {"layers", full["layers"].get<int32_t>()},
                             {"once_us", once},
                             {"window", timed(window, window_bytes, bandwidth)}};
                if (round.contains("window_and_draft")) {
                    const double draft = round["draft_us"].get<double>();
                    line["draft_us"] = draft;
                    line["window_and_draft"] = timed(
                        window + draft, window_bytes + full["draft"].get<double>(), bandwidth);
                }
                scaled.push_back(line);
            }
        }
        (*report)["scaled"] = scaled;
    }

    Deployment& deployment_;
    OpFamilies& families_;
    ModelInfo info_;
    int32_t known_;  ///< ids of the tokenizer: others are no tokens to Engram
    ModelRequest request_;
    HostServices& host_;
    int runs_;
    StepDriver driver_;
    uint32_t state_ = 12345;
};

void print(const Json& report) {
    const auto num = [](const Json& j) { return j.get<double>(); };
    std::printf("%s on %s: copies of 512 MiB run at %.0f GB/s\n",
                report["synthetic"].get<std::string>().c_str(),
                report["device"].get<std::string>().c_str(),
                num(report["copy_bytes_per_s"]) * 1e-9);
    std::printf("load       %9.2f s, warm-up took %.0f MB of the device (graphs, kernel code)\n",
                num(report["load_s"]), num(report["warm_up_bytes"]) * 1e-6);
    std::printf("chunk      %9.0f us  %ld rows, %.0f tok/s\n", num(report["chunk"]["us"]),
                report["chunk"]["rows"].get<long>(), num(report["chunk"]["tokens_per_s"]));
    std::printf(
        "rows     window us   floor us  share   with drafts us   floor us  share   eager calls  "
        "not read ahead us, of it waiting\n");
    for (const Json& r : report["rounds"]) {
        const Json& w = r["window"];
        std::printf("%4d %13.1f %10.1f %5.0f %%", r["rows"].get<int>(), num(w["us"]),
                    num(w["floor_us"]), num(w["share"]) * 100);
        if (r.contains("window_and_draft")) {
            const Json& b = r["window_and_draft"];
            std::printf(" %16.1f %10.1f %5.0f %%", num(b["us"]), num(b["floor_us"]),
                        num(b["share"]) * 100);
        }
        std::printf(" %12ld %16.1f %10.1f\n", r["eager_calls"].get<long>(),
                    num(r["unannounced"]["us"]), num(r["unannounced"]["wait_us"]));
    }
    for (const Json& s : report.value("scaled", Json::array())) {
        const Json& w = s["window"];
        std::printf("%d layers, window of %d rows: %.0f us, floor %.0f us, %.0f %%",
                    s["layers"].get<int>(), s["rows"].get<int>(), num(w["us"]), num(w["floor_us"]),
                    num(w["share"]) * 100);
        if (s.contains("window_and_draft")) {
            const Json& b = s["window_and_draft"];
            std::printf("; with a draft pass of %.0f us: %.0f us, floor %.0f us, %.0f %%",
                        num(s["draft_us"]), num(b["us"]), num(b["floor_us"]),
                        num(b["share"]) * 100);
        }
        std::printf("\n");
    }
    for (const Json& k : report["kinds"]) {
        std::printf("%s of %d rows by kind of call: %.1f us in all, %ld calls\n",
                    k["step"].get<std::string>().c_str(), k["rows"].get<int>(), num(k["sum_us"]),
                    k["calls"].get<long>());
        for (const Json& f : k["list"]) {
            std::printf("  %-34s %5ld calls %11.1f us %4.1f %%",
                        f["name"].get<std::string>().c_str(), f["calls"].get<long>(), num(f["us"]),
                        num(f["us"]) / num(k["sum_us"]) * 100);
            if (num(f["bytes"]) > 0) {
                std::printf(" %10.1f us floor %4.0f %%", num(f["floor_us"]), num(f["share"]) * 100);
            }
            std::printf("\n");
        }
    }
    std::printf(
        "floor = weight bytes of the step (experts: expected number of distinct ones) / copy "
        "bandwidth; state and Engram rows are left out. Windows and draft passes run from graphs "
        "where no call is eager; calls by kind are measured one by one.\n");
}

}  // namespace

int bench_synthetic(const BenchArgs& args) {
    HostServices host;
    OpFamilies families(host, std::min(args.runs, 5));
    Deployment d(host);
    d.quiet();
    d.synthetic();
    d.set_tap(&families);
    Json report = Json::object();
    bool loaded = false;
    const auto work = [&]() -> Status {
        const std::string dir = std::filesystem::absolute(args.synthetic).string();
        TENON_ASSIGN(const nlohmann::json bytes, step_bytes(dir));
        std::vector<std::string> set = args.profile.set;
        set.push_back("model.checkpoint=\"" + dir + "\"");
        set.push_back("model.extra_tensors=[]");
        set.push_back("engram.dir=\"" + dir + "/engram\"");
        const int64_t begin = host.now_us();
        TENON_TRY(d.open(args.profile.profile, set));
        TENON_TRY(d.require_plugins());
        TENON_TRY(d.create());
        TENON_TRY(d.plan());
        TENON_TRY(d.check_fit());
        TENON_TRY(d.load());
        const int64_t free = settled_free(*d.device());
        CostTable costs;
        TENON_TRY(d.model()->warm_up({}, &costs));
        report["warm_up_bytes"] = free - settled_free(*d.device());
        loaded = true;
        report["synthetic"] = args.synthetic;
        report["device"] = std::string(d.device()->info().name);
        report["load_s"] = static_cast<double>(host.now_us() - begin) * 1e-6;
        double bandwidth = 0;
        TENON_TRY(copy_bandwidth(*d.device(), host, &bandwidth));
        report["copy_bytes_per_s"] = bandwidth;
        return SyntheticBench(d, families, host, args.runs).run(bytes, bandwidth, &report);
    };
    const Status status = guard(work);
    if (!status.ok()) {
        const bool early = !loaded && d.exit_code() != kExitOk;
        return fail(early ? d.exit_code() : exit_code_of(status.code(), kExitUsage),
                    status.message().str());
    }
    if (args.profile.json) {
        std::cout << report.dump() << '\n';
    } else {
        print(report);
    }
    return kExitOk;
}

}  // namespace tenon::cli
