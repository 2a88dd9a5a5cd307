// SPDX-License-Identifier: MIT
// The plugin `io_uring`: O_DIRECT row reads through io_uring, or pread threads where that is
// refused.
#include "tenon/plugin.h"

#include "plugins/storage_common/row_table.h"
#include "plugins/storage_common/threads_backend.h"
#include "plugins/storage_io_uring/uring_backend.h"

#include <algorithm>

namespace tenon::storage {
namespace {

constexpr const char* kName = "io_uring";
constexpr int32_t kLanes = 4;

constexpr OptionSpec kOptions[] = {
    {.key = "queue_depth",
     .type = OptionType::integer,
     .default_value = "64",
     .help = "reads under way at once, per ring",
     .min = 1,
     .max = 4096},
    {.key = "direct",
     .type = OptionType::boolean,
     .default_value = "true",
     .help = "read past the page cache (O_DIRECT) where the filesystem allows it"},
    {.key = "fallback",
     .type = OptionType::choice,
     .default_value = "\"threads\"",
     .help =
         "where the kernel or a container refuses io_uring: read with threads, or refuse to run",
     .choices = "threads|none"},
    {.key = "threads",
     .type = OptionType::integer,
     .default_value = "16",
     .help = "reader threads of the fallback, per ring",
     .min = 1,
     .max = 256},
    {.key = "in_memory",
     .type = OptionType::size,
     .default_value = "0",
     .help = "tables up to this size are read whole at start and answered from memory",
     .min = 0,
     .max = 0x1p40},
};

struct Settings {
    int32_t queue_depth = 64;
    bool direct = true;
    bool fall_back = true;
    int32_t threads = 16;
    int64_t in_memory = 0;  // bytes
};

Status check_range(const Options& options, const char* key, int64_t value, int64_t max) {
    if (value >= 1 && value <= max) {
        return {};
    }
    return error(Code::invalid_argument, "{} = {} is out of range 1…{} in {}", key, value, max,
                 options.section);
}

/// The host fills every value; a caller that does not gets the declared defaults.
Result<Settings> read_settings(const Options& options) {
    Settings s;
    const auto has = [&](const char* key) {
        const OptionValue* value = options.find(key);
        return value != nullptr && value->is_set;
    };
    int64_t depth = s.queue_depth;
    int64_t threads = s.threads;
    if (has("queue_depth")) {
        depth = options.integer("queue_depth");
    }
    if (has("threads")) {
        threads = options.integer("threads");
    }
    if (has("in_memory")) {
        s.in_memory = std::max<int64_t>(options.integer("in_memory"), 0);
    }
    if (has("direct")) {
        s.direct = options.flag("direct");
    }
    if (has("fallback")) {
        const StrView fallback = options.text("fallback");
        if (fallback != "threads" && fallback != "none") {
            return error(Code::invalid_argument, "fallback = '{}' in {}, expected threads or none",
                         fallback, options.section);
        }
        s.fall_back = fallback == "threads";
    }
    TENON_TRY(check_range(options, "queue_depth", depth, 4096));
    TENON_TRY(check_range(options, "threads", threads, 256));
    s.queue_depth = static_cast<int32_t>(depth);
    s.threads = static_cast<int32_t>(threads);
    return s;
}

Result<std::shared_ptr<ReadLane>> start_threads(Host& host, const Settings& settings,
                                                const std::string& thread_name) {
    return ReadLane::start(host, kName, thread_name,
                           std::make_unique<ThreadsBackend>(host, settings.threads));
}

Result<std::shared_ptr<ReadLane>> start_lane(Host& host, const Settings& settings, bool use_ring,
                                             int32_t lane) {
    const std::string thread_name = format("engram_ring_{}", lane);
    if (!use_ring) {
        return start_threads(host, settings, thread_name);
    }
    auto ring = ReadLane::start(host, kName, thread_name,
                                std::make_unique<UringBackend>(settings.queue_depth));
    if (ring.ok() || ring.status().code() != Code::unavailable || !settings.fall_back) {
        return ring;
    }
    // A small ring was allowed at create, one of this depth is not.
    host.log(LogLevel::warn, kName,
             format("reading with threads instead of io_uring lane={} threads={} reason=\"{}\"",
                    lane, settings.threads, ring.status().message()));
    return start_threads(host, settings, thread_name);
}

Status probe(const ProbeEnv& env, ProbeResult* result) noexcept {
    return guard([&]() -> Status {
        TENON_ASSIGN(const Settings settings, env.options == nullptr ? Result<Settings>(Settings{})
                                                                     : read_settings(*env.options));
        TENON_ASSIGN(const std::string refusal, io_uring_refusal());
        if (refusal.empty()) {
            result->score = 100;
            set_text(result->reason, "io_uring works");
        } else if (settings.fall_back) {
            result->score = 40;
            set_text(result->reason, "reads with threads: " + refusal);
        } else {
            result->score = 0;
            set_text(result->reason, refusal + "; fallback = \"none\" forbids threads");
        }
        return {};
    });
}

Status create(Host& host, const Options& options, Object** out) noexcept {
    return guard([&]() -> Status {
        TENON_ASSIGN(const Settings settings, read_settings(options));
        TENON_ASSIGN(const std::string refusal, io_uring_refusal());
        const bool use_ring = refusal.empty();
        if (!use_ring && !settings.fall_back) {
            return error(Code::unavailable,
                         "{}; fallback = \"none\" in {} forbids reading with threads", refusal,
                         options.section);
        }
        if (!use_ring) {
            host.log(LogLevel::warn, kName,
                     format("reading with threads instead of io_uring threads={} reason=\"{}\"",
                            settings.threads, refusal));
        }
        *out = new LaneRowStore(
            host, kName, settings.direct ? Access::direct : Access::buffered, kLanes,
            [&host, settings, use_ring](int32_t lane) {
                return start_lane(host, settings, use_ring, lane);
            },
            static_cast<uint64_t>(settings.in_memory));
        return {};
    });
}

constexpr Component kComponents[] = {{.struct_size = sizeof(Component),
                                      .kind = PluginKind::storage,
                                      .name = kName,
                                      .summary = "rows by asynchronous O_DIRECT reads",
                                      .options = {kOptions, std::size(kOptions)},
                                      .needs = {},
                                      .probe = &probe,
                                      .create = &create}};

}  // namespace
}  // namespace tenon::storage

TENON_PLUGIN("io_uring", "0.1.0", "Row store on io_uring with a pread fallback", "MIT", stable,
             tenon::storage::kComponents)
