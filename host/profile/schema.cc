// SPDX-License-Identifier: MIT
// One table a section; `explain`, the checks and completion are generated from these.
#include "host/profile/schema.h"

namespace tenon {
namespace {

using T = OptionType;
constexpr OptionTag A = OptionTag::agree;
constexpr OptionTag L = OptionTag::local;
constexpr OptionTag I = OptionTag::info;
constexpr double kTokens = 1 << 24;
constexpr double kBytes = 1e15;
constexpr double kHour = 3600e6;

constexpr OptionSpec kTop[] = {
    {"profile", T::integer, nullptr, "schema version", 0, 0, nullptr, A, true},
    {"name", T::string, nullptr, "name in logs and metrics", 0, 0, nullptr, I, true},
    {"base", T::path, nullptr, "parent profile; its keys hold where this one is silent"},
    {"allow_experimental", T::boolean, "false", "permit plugins of that maturity", 0, 0, nullptr,
     L},
};
constexpr OptionSpec kPlugins[] = {
    {"path", T::path_list, "[]", "folders searched for plugins first"},
};
constexpr OptionSpec kLog[] = {
    {"level", T::choice, "\"info\"", "least level that is written", 0, 0, "debug|info|warn|error"},
    {"format", T::choice, "\"auto\"", "text on a terminal, JSON lines elsewhere", 0, 0,
     "auto|text|json"},
    {"file", T::path, nullptr, "log file; standard error if absent"},
    {"prompts", T::boolean, "false", "write prompts to the log"},
};
constexpr OptionSpec kCluster[] = {
    {"world", T::integer, "1", "ranks; the rank comes from --rank or TENON_RANK", 1, 8, nullptr, A},
    {"rendezvous", T::address, nullptr, "where rank 0 listens"},
    {"secret_file", T::path, nullptr, "shared secret of the ranks"},
    {"start_wait", T::time, "\"600 s\"", "how long ranks wait for each other", 1e6, 24 * kHour},
};
constexpr OptionSpec kModel[] = {
    {"checkpoint", T::path, nullptr, "folder with config.json, tokenizer.json and safetensors", 0,
     0, nullptr, L, true},
    {"context_tokens", T::integer, "0", "longest sequence; 0 = the model's limit", 0, kTokens,
     nullptr, A},
    {"slots", T::integer, "4", "streams at once", 1, 48, nullptr, A},
    {"extra_tensors", T::path_list, "[]",
     "further safetensors files (router biases, draft blocks)"},
    {"rank_files", T::path, nullptr, "where rank files lie"},
    {"served_name", T::string, nullptr, "model id of the API; the profile's name if absent"},
    {"aliases", T::string_list, "[]", "further model ids"},
};
constexpr OptionSpec kCompute[] = {
    {"fusions_off", T::string_list, "[]", "fused ops not to bind, by op name", 0, 0, nullptr, A},
};
constexpr OptionSpec kEngram[] = {
    {"lanes", T::integer, "1", "read rings; this version uses one", 1, 4, nullptr, A},
    {"dir", T::path, nullptr, "folder of the row tables; the checkpoint's if absent"},
    {"layout", T::choice, "\"auto\"", "form of the tables on disk", 0, 0, "auto|official|packed"},
    {"self_test", T::boolean, "true", "read known rows at start and compare"},
};
constexpr OptionSpec kEngine[] = {
    {"step_rows", T::integer, "0", "rows of all windows of a step; 0 = the larger of 16 and slots",
     0, 48, nullptr, A},
    {"window_rows", T::integer, "16", "rows of one window", 1, 16, nullptr, A},
    {"chunk_rows", T::integer, "2048", "prompt rows a step", 64, 4096, nullptr, A},
    {"pool_tokens", T::integer, "0",
     "positions in the page pool; 0 = min(slots x context, max(context, 2^20))", 0, kTokens * 48,
     nullptr, A},
    {"in_flight", T::integer, "2", "steps submitted ahead; this version submits one", 1, 2, nullptr,
     A},
    {"feature_arena", T::size, "\"256 MiB\"",
     "image rows on each rank; not used before image input", 0, kBytes, nullptr, A},
    {"replay", T::choice, "\"exact\"", "prompt tail", 0, 0, "exact|bounded", A},
    {"drafts", T::boolean, "true", "propose drafts", 0, 0, nullptr, A},
    {"draft_depth", T::integer, "0", "cap of drafts; 0 = the model's", 0, 15, nullptr, A},
    {"max_queued", T::integer, "64", "waiting requests, then 429", 1, 4096},
    {"copy_drafts", T::boolean, "true", "drafts looked up in the stream's own text"},
    {"clamp_max_tokens", T::boolean, "false", "cut max_tokens to the room instead of refusing"},
    {"fairness", T::time, "\"60 s\"", "longest wait because of other prompts", 1e3, 24 * kHour},
    {"fairness_background", T::time, "\"600 s\"", "the same for background requests", 1e3,
     24 * kHour},
    {"slow_client_limit", T::time, "\"30 s\"", "how long a client may keep its reply blocked", 1e3,
     24 * kHour},
    {"warm_up", T::time, "\"1800 s\"", "how long the model's first passes may take at start", 1e6,
     24 * kHour},
    {"join_wait", T::time, "\"60 s\"", "how long a request waits for a shared prefix", 0,
     24 * kHour},
    {"drain", T::time, "\"20 s\"", "time for running replies after SIGTERM", 0, 24 * kHour},
};
constexpr OptionSpec kPrefix[] = {
    {"snapshot_budget", T::size, "\"357 MiB\"", "kept cuts", 0, kBytes, nullptr, A},
    {"scope", T::choice, "\"shared\"",
     "whose prefixes are shared: everybody's, or those of one API key", 0, 0, "shared|key"},
    {"strict", T::boolean, "false", "reuse prompt-class cuts only"},
    {"replay_budget", T::size, "\"64 MiB\"",
     "ids of earlier replies, found by their text; 0 = none", 0, kBytes},
};
constexpr OptionSpec kSpill[] = {
    {"dir", T::path, nullptr,
     "folder of the disk tier of kept prefixes, one process each; off if absent"},
    {"budget", T::size, "\"64 GiB\"", "bytes of its files; the least recently used go first", 0,
     kBytes},
    {"on_exit", T::boolean, "true", "write all kept prefixes at shutdown, within engine.drain"},
};
constexpr OptionSpec kMemory[] = {
    {"min_available", T::size, "0", "MemAvailable needed at start; 0 = what the plan needs", 0,
     kBytes},
    {"reserve", T::size, "\"2 GiB\"", "kept free by the plan", 0, kBytes},
    {"device_reserve", T::size, "\"1 GiB\"",
     "kept free by the plan on a device with memory of its own, for what its driver takes", 0,
     kBytes},
    {"soft", T::size, "\"1 GiB\"", "below: no admission", 0, kBytes},
    {"hard", T::size, "\"512 MiB\"", "below, twice: the newest stream ends", 0, kBytes},
    {"last", T::size, "\"256 MiB\"", "below: the process ends with 70", 0, kBytes},
};
constexpr OptionSpec kSampling[] = {
    {"temperature", T::floating, "1.0", "where a request is silent; 0 = greedy", 0, 100},
    {"top_p", T::floating, "0.95", "nucleus", 1e-6, 1},
    {"top_k", T::integer, "0", "0 = off", 0, 1 << 20},
    {"min_p", T::floating, "0.0", "0 = off", 0, 0.999999},
    {"max_tokens", T::integer, "32768", "capped to the room", 1, kTokens},
    {"seed_salt", T::string, "\"\"", "goes into default seeds"},
};
constexpr OptionSpec kConstraint[] = {
    {"compile_time", T::time, "\"2 s\"", "limit of one grammar", 1e3, kHour},
    {"cache", T::size, "\"64 MiB\"", "compiled grammars", 0, kBytes},
    {"whitespace", T::integer, "32", "blanks in a row in JSON", 0, 4096},
};

const SectionSpec kSections[] = {
    {"", kTop},
    {"plugins", kPlugins},
    {"log", kLog},
    {"cluster", kCluster},
    {"model", kModel, true, PluginKind::model},
    {"quant", {}, true, PluginKind::quant},
    {"compute", kCompute, true, PluginKind::compute},
    {"transport", {}, true, PluginKind::transport},
    {"engram", kEngram, true, PluginKind::storage},
    {"engine", kEngine},
    {"prefix", kPrefix},
    {"kv_spill", kSpill},
    {"memory", kMemory},
    {"sampling", kSampling},
    {"constraint", kConstraint, true, PluginKind::constraint},
    {"overlay", {}, true, PluginKind::overlay, true},
    {"frontend", {}, true, PluginKind::frontend, true},
};

}  // namespace

Span<const SectionSpec> profile_sections() {
    return kSections;
}

const SectionSpec* find_section(std::string_view name) {
    for (const SectionSpec& s : kSections) {
        if (name == s.name) {
            return &s;
        }
    }
    return nullptr;
}

}  // namespace tenon
