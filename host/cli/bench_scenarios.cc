// SPDX-License-Identifier: MIT
// bench --scenario: what drafts, several streams and interleaving bring, against the same run with
// the switch off.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "host/cli/bench_math.h"
#include "host/cli/local_engine.h"
#include "host/cli/verbs.h"

namespace tenon::cli {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

// Everyday requests, as a chat client sends them; short enough for any context.
constexpr const char* kChats[] = {
    "What is 17 plus 25?",
    "Count from 1 to 20.",
    "What is the capital of France?",
    "Tell me a short story about a cat.",
    "Who are you?",
    "Spell the word banana.",
    "Sort these words: pear, apple, melon, fig.",
    "Say the days of the week.",
    "What is 8 times 7?",
    "Write a JSON object with the name Ann and the age 30.",
    "What can you do?",
    "Repeat after me: the small boat sails over the calm sea.",
};
constexpr int64_t kChatTokens = 160;
constexpr uint32_t kDrafting[] = {0, kDraftsAllowed};  // off, on

/// What one or several replies took together.
struct Took {
    double wall_s = 0, cpu_s = 0, decode_s = 0;
    int64_t tokens = 0, decoded = 0, rounds = 0, drafted = 0, accepted = 0;
    std::string sha;  ///< of all replies' ids, in order

    void add(const ReplyTimings& t) {
        decode_s += static_cast<double>(t.decode) * 1e-6;
        tokens += t.completion_tokens;
        decoded += std::max<int64_t>(t.completion_tokens - 1, 0);  // the first one ends the prompt
        rounds += t.rounds;
        drafted += t.drafted;
        accepted += t.accepted;
        sha.append(reinterpret_cast<const char*>(t.token_sha), sizeof t.token_sha);
    }
    double rate() const { return decode_s > 0 ? static_cast<double>(decoded) / decode_s : 0; }
    double total_rate() const { return wall_s > 0 ? static_cast<double>(tokens) / wall_s : 0; }
    double cpu_ms() const { return tokens > 0 ? cpu_s * 1e3 / static_cast<double>(tokens) : 0; }
    double per_round(int64_t n) const {
        return rounds > 0 ? static_cast<double>(n) / static_cast<double>(rounds) : 0;
    }
};

class Scenario {
  public:
    Scenario(LocalEngine& local, const BenchArgs& args) : local_(local), args_(args) {}

    Status prepare() {
        for (const char* text : kChats) {
            const Json request = {
                {"messages", Json::array({{{"role", "user"}, {"content", text}}})}};
            Ref<Prompt> prompt;
            TENON_TRY(local_.engine().render(request.dump(), 0, prompt.out()));
            const Span<const int32_t> ids = prompt->ids();
            chats_.emplace_back(ids.begin(), ids.end());
            Ids& random = random_prompts_.emplace_back(ids.size);
            const auto known = static_cast<uint32_t>(
                std::min(local_.engine().text().info().vocab, local_.engine().info().vocab));
            for (int32_t& id : random) {
                state_ = state_ * 1664525U + 1013904223U;
                id = 3 + static_cast<int32_t>((state_ >> 8) % (known - 3));
            }
        }
        return {};
    }
    Status run(Json* report) {
        if (args_.scenario == "solo") {
            return solo(report);
        }
        if (args_.scenario == "turns") {
            return turns(report);
        }
        if (args_.scenario == "spill") {
            return spill(report);
        }
        return args_.scenario == "streams" ? streams(report) : interleave(report);
    }
    bool ids_differ() const { return ids_differ_; }

  private:
    struct Stream {
        Ref<ReplySink> sink;
        ReplyTimings timings;
        Status status;
        std::vector<int64_t> at_us;  ///< arrival of each token
        Ids ids;
    };

    RequestDesc describe(const Ids& ids, int64_t tokens, uint32_t flags) const {
        RequestDesc desc;
        desc.tokens = ids;
        desc.max_new_tokens = tokens;
        desc.sampling.temperature = 0;
        desc.flags = kRawText | kReturnIds | kNoPrefix | flags;
        desc.label = "bench";
        return desc;
    }
    Status start(const RequestDesc& desc, Stream* out) {
        return local_.engine().submit(desc, out->sink.out());
    }
    void drain(Stream* s) {
        SinkEvent e;
        while (!s->sink->finished()) {
            if (!s->sink->next(1'000'000, &e)) {
                continue;
            }
            s->at_us.insert(s->at_us.end(), e.ids.size, local_.host().now_us());
            s->ids.insert(s->ids.end(), e.ids.begin(), e.ids.end());
            if (e.kind == SinkEventKind::error) {
                s->status = Status(e.code, e.text.view());
            }
            if (e.timings != nullptr) {
                s->timings = *e.timings;
            }
        }
    }
    /// All chats, `at_once` of them at any time.
    Status chat(size_t at_once, uint32_t flags, Took* out) {
        const double cpu = cpu_seconds();
        const int64_t begin = local_.host().now_us();
        std::vector<Stream> all(chats_.size());
        std::atomic<size_t> next{0};
        std::vector<std::thread> clients;
        for (size_t c = 0; c < at_once; ++c) {
            clients.emplace_back([&] {
                for (size_t i = next.fetch_add(1); i < all.size(); i = next.fetch_add(1)) {
                    Stream& s = all[i];
                    s.status = start(describe(chats_[i], kChatTokens, flags), &s);
                    if (s.status.ok()) {
                        drain(&s);
                    }
                }
            });
        }
        for (std::thread& client : clients) {
            client.join();
        }
        *out = Took{};
        out->wall_s = static_cast<double>(local_.host().now_us() - begin) * 1e-6;
        out->cpu_s = cpu_seconds() - cpu;
        for (Stream& s : all) {
            TENON_TRY(std::move(s.status));
            out->add(s.timings);
        }
        return {};
    }
    void compare(const std::string& sha) {
        ids_differ_ = ids_differ_ || (!sha_.empty() && sha != sha_);
        sha_ = sha;
    }

    Status solo(Json* report) {
        std::vector<double> rates[2], cpus[2];
        Took last[2];
        Took warm;
        TENON_TRY(chat(1, kDraftsAllowed, &warm));
        for (int run = 0; run < args_.runs; ++run) {
            for (const int on : {0, 1}) {  // taken in turn: what else the machine does hits both
                TENON_TRY(chat(1, kDrafting[on], &last[on]));
                rates[on].push_back(last[on].rate());
                cpus[on].push_back(last[on].cpu_ms());
                compare(last[on].sha);
            }
        }
        for (const int on : {0, 1}) {
            const Took& t = last[on];
            Json& j = (*report)[on != 0 ? "drafts_on" : "drafts_off"];
            j["tokens_per_s"] = median(rates[on]);
            j["cpu_ms_per_token"] = median(cpus[on]);
            j["tokens_per_round"] = t.per_round(t.tokens);
            j["rows_per_round"] = 1 + t.per_round(t.drafted);
            j["drafted_per_round"] = t.per_round(t.drafted);
            j["accepted_per_round"] = t.per_round(t.accepted);
            j["rounds"] = t.rounds;
        }
        // Ids without sense draft badly; both figures are published (serving.md 10, 22).
        std::vector<double> random[2];
        std::swap(chats_, random_prompts_);
        for (int run = 0; run < args_.runs; ++run) {
            for (const int on : {0, 1}) {
                Took t;
                TENON_TRY(chat(1, kDrafting[on], &t));
                random[on].push_back(t.rate());
            }
        }
        std::swap(chats_, random_prompts_);
        (*report)["random_ids_speedup"] = median(random[1]) / median(random[0]);
        (*report)["speedup"] = median(rates[1]) / median(rates[0]);
        (*report)["cpu_saving"] = median(cpus[0]) / median(cpus[1]);
        return {};
    }

    Status streams(Json* report) {
        const auto many = static_cast<size_t>(
            std::min<int64_t>(local_.engine().info().slots, static_cast<int64_t>(chats_.size())));
        Took warm;
        TENON_TRY(chat(1, kDraftsAllowed, &warm));
        for (const int on : {1, 0}) {
            std::vector<double> one, all, one_cpu, all_cpu;
            Took t;
            for (int run = 0; run < args_.runs; ++run) {
                TENON_TRY(chat(1, kDrafting[on], &t));
                one.push_back(t.total_rate());
                one_cpu.push_back(t.cpu_ms());
                compare(t.sha);
                TENON_TRY(chat(many, kDrafting[on], &t));
                all.push_back(t.total_rate());
                all_cpu.push_back(t.cpu_ms());
                compare(t.sha);
            }
            Json& j = (*report)[on != 0 ? "drafts_on" : "drafts_off"];
            j["streams"] = many;
            j["one_tokens_per_s"] = median(one);
            j["all_tokens_per_s"] = median(all);
            j["speedup"] = median(all) / median(one);
            j["one_cpu_ms_per_token"] = median(one_cpu);
            j["all_cpu_ms_per_token"] = median(all_cpu);
        }
        return {};
    }

    /// Two turns of one conversation: the second repeats the first with its reply and adds a
    /// question. Beside it the same second turn without kept prefixes, whose ids must be equal.
    Status turns(Json* report) {
        constexpr int64_t kReply = 32;
        constexpr int kLeastPrompt = 256;
        if (args_.prompt_tokens < kLeastPrompt) {
            return error(Code::invalid_argument, "--prompt-tokens {}: turns need at least {}",
                         args_.prompt_tokens, kLeastPrompt);
        }
        std::vector<double> first, second, fresh;
        int64_t cached = 0, length = 0;
        for (int run = 0; run < args_.runs; ++run) {
            Ids ids = long_prompt();
            ids.resize(ids.size() - static_cast<size_t>(kReply) - chats_[0].size() - 1);
            Stream one;
            RequestDesc desc = describe(ids, kReply, kIgnoreEos);
            desc.flags &= ~uint32_t{kNoPrefix};
            TENON_TRY(start(desc, &one));
            drain(&one);
            TENON_TRY(std::move(one.status));
            first.push_back(static_cast<double>(one.timings.first_token) * 1e-3);
            ids.insert(ids.end(), one.ids.begin(), one.ids.end());
            ids.insert(ids.end(), chats_[0].begin(), chats_[0].end());
            length = static_cast<int64_t>(ids.size());
            sha_.clear();
            for (const bool kept : {true, false}) {
                Stream two;
                desc = describe(ids, kReply, kIgnoreEos);
                desc.flags &= kept ? ~uint32_t{kNoPrefix} : ~uint32_t{0};
                TENON_TRY(start(desc, &two));
                drain(&two);
                TENON_TRY(std::move(two.status));
                (kept ? second : fresh)
                    .push_back(static_cast<double>(two.timings.first_token) * 1e-3);
                cached = kept ? two.timings.cached_tokens : cached;
                compare({reinterpret_cast<const char*>(two.timings.token_sha),
                         sizeof two.timings.token_sha});
            }
        }
        (*report)["first_turn_ttft_ms"] = median(first);
        (*report)["second_turn_ttft_ms"] = median(second);
        (*report)["second_turn_fresh_ttft_ms"] = median(fresh);
        (*report)["second_to_first"] = median(second) / median(first);
        (*report)["prompt_tokens"] = length;
        (*report)["cached_tokens"] = cached;
        return {};
    }

    /// Waits until the kept cuts are on disk, then gives up those in memory.
    Status spill_all() {
        EngineLoop& engine = local_.engine();
        const int64_t limit = local_.host().now_us() + 60'000'000;
        const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
        // The engine looks at what it keeps at least each quarter of a second.
        std::this_thread::sleep_for(std::chrono::milliseconds(600));
        while (!engine.flush_spill() && local_.host().now_us() < limit) {
            nap();
        }
        engine.set_memory_level(1);
        EngineStats stats;
        do {
            nap();
            engine.stats(&stats);
        } while (stats.pages_free < stats.pages_total && local_.host().now_us() < limit);
        engine.set_memory_level(0);
        return local_.host().now_us() < limit
                   ? Status()
                   : error(Code::deadline, "the kept state was not on disk after 60 s");
    }

    /// A prompt, and the same one again with its state on disk only.
    Status spill(Json* report) {
        std::vector<double> prefill, restore;
        local_.engine().flush_spill();
        for (int run = 0; run < args_.runs; ++run) {
            const Ids ids = long_prompt();
            sha_.clear();
            for (const bool spilled : {false, true}) {
                Stream s;
                RequestDesc desc = describe(ids, 8, kIgnoreEos);
                desc.flags &= ~uint32_t{kNoPrefix};
                TENON_TRY(start(desc, &s));
                drain(&s);
                TENON_TRY(std::move(s.status));
                const auto kept = static_cast<int64_t>(ids.size()) - 1;
                if (s.timings.cached_tokens != (spilled ? kept : 0)) {
                    return error(Code::internal, "{} of {} tokens were kept, expected {}",
                                 s.timings.cached_tokens, kept, spilled ? kept : 0);
                }
                (spilled ? restore : prefill)
                    .push_back(static_cast<double>(s.timings.first_token) * 1e-3);
                compare({reinterpret_cast<const char*>(s.timings.token_sha),
                         sizeof s.timings.token_sha});
                TENON_TRY(spill_all());
            }
        }
        (*report)["prompt_tokens"] = args_.prompt_tokens;
        (*report)["prefill_ttft_ms"] = median(prefill);
        (*report)["restored_ttft_ms"] = median(restore);
        (*report)["restored_to_prefill"] = median(restore) / median(prefill);
        return {};
    }

    /// Prompt first, whatever the profile's overlays say: the peer of `interleave`.
    class PromptFirst final : public Implements<PromptFirst, ScheduleOverlay> {
      public:
        Status outline(const SchedulerView& view, Outliner& inner,
                       StepOutline* out) noexcept override {
            TENON_TRY(inner.outline(view, out));
            out->decode_count = out->slice_slot >= 0 ? 0 : out->decode_count;
            return {};
        }
        void release() noexcept override {}
    };

    Ids long_prompt() const {
        Ids ids;
        while (static_cast<int64_t>(ids.size()) < args_.prompt_tokens) {
            for (const Ids& chat : chats_) {
                ids.insert(ids.end(), chat.begin(), chat.end());
            }
        }
        ids.resize(static_cast<size_t>(args_.prompt_tokens));
        // A prompt of its own in every run, so that nothing of it is kept.
        ids[0] = 3 + static_cast<int32_t>(prompts_++ % 1000);
        return ids;
    }
    Status prefill(double* tokens_per_s) {
        Stream s;
        const Ids ids = long_prompt();
        TENON_TRY(start(describe(ids, 1, kIgnoreEos), &s));
        drain(&s);
        *tokens_per_s = static_cast<double>(args_.prompt_tokens) /
                        (static_cast<double>(s.timings.first_token) * 1e-6);
        return std::move(s.status);
    }
    struct Beside {
        double decode_rate = 0, prefill_rate = 0, longest_gap_ms = 0;
        int64_t tokens = 0;
    };
    static constexpr int64_t kBefore = 16;  ///< tokens that the stream has when the prompt comes

    RequestDesc stream(int64_t tokens) const {
        return describe(chats_[3], tokens, kIgnoreEos | kDraftsAllowed);
    }
    /// A stream that decodes beside a long prompt, which comes when it has kBefore tokens.
    Status decode_beside(Beside* out) {
        Stream s;
        TENON_TRY(start(
            stream(local_.engine().info().context_tokens - static_cast<int64_t>(chats_[3].size())),
            &s));
        std::atomic<int64_t> got{0};
        std::thread reader([&] {
            SinkEvent e;
            while (!s.sink->finished()) {
                if (s.sink->next(100'000, &e)) {
                    s.at_us.insert(s.at_us.end(), e.ids.size, local_.host().now_us());
                    got.store(static_cast<int64_t>(s.at_us.size()));
                }
            }
        });
        while (got.load() < kBefore) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        const int64_t begin = local_.host().now_us();
        const Status status = prefill(&out->prefill_rate);
        const int64_t end = local_.host().now_us();
        s.sink->cancel(CancelReason::client_gone);
        reader.join();
        int64_t before = begin, gap = 0;
        out->tokens = 0;
        for (const int64_t at : s.at_us) {
            if (at >= begin && at <= end) {
                gap = std::max(gap, at - before);
                before = at;
                ++out->tokens;
            }
        }
        gap = std::max(gap, end - before);
        out->decode_rate =
            static_cast<double>(out->tokens) / (static_cast<double>(end - begin) * 1e-6);
        out->longest_gap_ms = static_cast<double>(gap) * 1e-3;
        return status.copy();
    }
    /// The same tokens of the same stream with nothing beside it: texts differ along their way in
    /// how well they are drafted.
    Status decode_alone(int64_t tokens, double* rate) {
        Stream s;
        TENON_TRY(start(stream(kBefore + tokens), &s));
        drain(&s);
        const auto last = static_cast<size_t>(kBefore + tokens) - 1;
        if (s.at_us.size() > last && tokens > 0) {
            const int64_t us = s.at_us[last] - s.at_us[static_cast<size_t>(kBefore) - 1];
            *rate = static_cast<double>(tokens) / (static_cast<double>(us) * 1e-6);
        }
        return std::move(s.status);
    }
    struct Part {
        std::vector<double> decode, prefill, gap, kept;
    };
    Status one_beside(const char* name, std::vector<double>* alone, Part* part) {
        Beside b;
        TENON_TRY_CTX(decode_beside(&b), "{}", name);
        part->decode.push_back(b.decode_rate);
        part->prefill.push_back(b.prefill_rate);
        part->gap.push_back(b.longest_gap_ms);
        double rate = 0;
        TENON_TRY(decode_alone(std::max<int64_t>(b.tokens, kBefore), &rate));
        part->kept.push_back(rate > 0 ? b.decode_rate / rate : 0);
        if (alone != nullptr) {
            alone->push_back(rate);
        }
        return {};
    }

    Status interleave(Json* report) {
        Deployment& d = local_.deployment();
        static PromptFirst first;  // the engine may outlive this scenario
        ScheduleOverlay* const peer[] = {&first};
        double rows = 0;
        TENON_TRY(prefill(&rows));
        std::vector<double> alone, whole;
        Part mixed, prompt_first;
        for (int run = 0; run < args_.runs; ++run) {
            TENON_TRY(prefill(&rows));
            whole.push_back(rows);
            TENON_TRY(one_beside("interleaved", &alone, &mixed));
        }
        TENON_TRY(local_.restart(d.engine_settings(), peer));
        for (int run = 0; run < args_.runs; ++run) {
            TENON_TRY(one_beside("prompt first", nullptr, &prompt_first));
        }
        Json& j = *report;
        j["prompt_tokens"] = args_.prompt_tokens;
        j["decode_alone_tokens_per_s"] = median(alone);
        j["prefill_alone_tokens_per_s"] = median(whole);
        const auto part = [&](const char* name, const Part& from) {
            Json& p = j[name];
            p["decode_tokens_per_s"] = median(from.decode);
            p["decode_kept"] = median(from.kept);
            p["prefill_tokens_per_s"] = median(from.prefill);
            p["prefill_kept"] = median(from.prefill) / median(whole);
            p["longest_gap_ms"] = median(from.gap);
        };
        part("interleaved", mixed);
        part("prompt_first", prompt_first);
        return {};
    }

    LocalEngine& local_;
    const BenchArgs& args_;
    std::vector<Ids> chats_, random_prompts_;
    uint32_t state_ = 12345;
    std::string sha_;
    bool ids_differ_ = false;
    mutable int64_t prompts_ = 0;
};

double number(const Json& j, const char* key) {
    return j.at(key).get<double>();
}

void print_table(const std::string& scenario, const Json& report) {
    if (scenario == "solo") {
        std::printf("%-12s %10s %14s %14s %12s %18s\n", "", "tokens/s", "CPU ms/token",
                    "tokens/round", "rows/round", "accepted/round");
        for (const char* name : {"drafts_off", "drafts_on"}) {
            const Json& j = report.at(name);
            std::printf("%-12s %10.1f %14.2f %14.2f %12.2f %11.2f of %.2f\n", name,
                        number(j, "tokens_per_s"), number(j, "cpu_ms_per_token"),
                        number(j, "tokens_per_round"), number(j, "rows_per_round"),
                        number(j, "accepted_per_round"), number(j, "drafted_per_round"));
        }
        std::printf("speedup      %9.2fx   CPU time %.2fx   random ids %.2fx\n",
                    number(report, "speedup"), number(report, "cpu_saving"),
                    number(report, "random_ids_speedup"));
    } else if (scenario == "streams") {
        std::printf("%-12s %8s %14s %14s %9s %20s\n", "", "streams", "one: tokens/s",
                    "all: tokens/s", "speedup", "CPU ms/token one, all");
        for (const char* name : {"drafts_on", "drafts_off"}) {
            const Json& j = report.at(name);
            std::printf("%-12s %8d %14.1f %14.1f %8.2fx %12.2f, %.2f\n", name,
                        j.at("streams").get<int>(), number(j, "one_tokens_per_s"),
                        number(j, "all_tokens_per_s"), number(j, "speedup"),
                        number(j, "one_cpu_ms_per_token"), number(j, "all_cpu_ms_per_token"));
        }
    } else if (scenario == "spill") {
        std::printf(
            "prompt computed              %10.1f ms to the first token, %d tokens\n"
            "state read back from disk    %10.1f ms (%.1f %%)\n",
            number(report, "prefill_ttft_ms"), report.at("prompt_tokens").get<int>(),
            number(report, "restored_ttft_ms"), number(report, "restored_to_prefill") * 100);
    } else if (scenario == "turns") {
        std::printf(
            "first turn                   %10.1f ms to the first token\n"
            "second turn                  %10.1f ms (%.1f %%), %d of %d tokens kept\n"
            "second turn, nothing kept    %10.1f ms\n",
            number(report, "first_turn_ttft_ms"), number(report, "second_turn_ttft_ms"),
            number(report, "second_to_first") * 100, report.at("cached_tokens").get<int>(),
            report.at("prompt_tokens").get<int>(), number(report, "second_turn_fresh_ttft_ms"));
    } else {
        std::printf("%-14s %16s %7s %17s %7s %12s\n", "", "decode tokens/s", "kept",
                    "prefill tokens/s", "kept", "longest gap");
        std::printf("%-14s %16.1f %7s %17.0f\n", "alone",
                    number(report, "decode_alone_tokens_per_s"), "",
                    number(report, "prefill_alone_tokens_per_s"));
        for (const char* name : {"interleaved", "prompt_first"}) {
            const Json& j = report.at(name);
            std::printf("%-14s %16.1f %6.0f%% %17.0f %6.0f%% %9.0f ms\n", name,
                        number(j, "decode_tokens_per_s"), number(j, "decode_kept") * 100,
                        number(j, "prefill_tokens_per_s"), number(j, "prefill_kept") * 100,
                        number(j, "longest_gap_ms"));
        }
    }
}

/// A folder of temporary files that goes with this object.
class TempFolder {
  public:
    ~TempFolder() {
        if (!path_.empty()) {
            std::error_code ec;
            std::filesystem::remove_all(path_, ec);
        }
    }
    Status make() {
        std::error_code ec;
        std::string name =
            (std::filesystem::temp_directory_path(ec) / "tenon-bench-XXXXXX").string();
        if (ec || ::mkdtemp(name.data()) == nullptr) {
            return error(Code::io, "{}: no temporary folder can be made there: {}; set TMPDIR",
                         name, std::strerror(errno));
        }
        path_ = name;
        return {};
    }
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

}  // namespace

int bench_scenario(const BenchArgs& args) {
    TempFolder folder;  // outlives the engine
    LocalEngine local;
    local.deployment().quiet();
    Json report = Json::object();
    bool loaded = false, differ = false;
    const Status status = guard([&]() -> Status {
        std::vector<std::string> set = args.profile.set;
        if (args.scenario == "spill") {
            // Not the profile's folder, which a server may be using; --set may name another.
            TENON_TRY(folder.make());
            set.insert(set.begin(), format("kv_spill.dir=\"{}\"", folder.path()));
        }
        TENON_TRY(local.open(args.profile.profile, set));
        loaded = true;
        if (args.prompt_tokens + 1 > local.engine().info().context_tokens) {
            return error(Code::invalid_argument, "--prompt-tokens {}: the profile's context is {}",
                         args.prompt_tokens, local.engine().info().context_tokens);
        }
        Scenario scenario(local, args);
        TENON_TRY(scenario.prepare());
        report["profile"] = local.deployment().profile().name;
        report["scenario"] = args.scenario;
        report["runs"] = args.runs;
        TENON_TRY(scenario.run(&report));
        differ = scenario.ids_differ();
        report["ids_equal"] = !differ;
        return {};
    });
    if (!status.ok()) {
        return fail(loaded ? exit_code_of(status.code(), kExitUsage) : local.exit_code(),
                    status.message().str());
    }
    if (args.profile.json) {
        std::cout << report.dump() << '\n';
    } else {
        std::printf("profile %s, scenario %s, median of %d runs\n",
                    report["profile"].get<std::string>().c_str(), args.scenario.c_str(), args.runs);
        print_table(args.scenario, report);
    }
    return differ ? fail(kExitChecks, "token ids differ between the parts of the table") : kExitOk;
}

}  // namespace tenon::cli
