// SPDX-License-Identifier: MIT
// What a [[frontend]] section says, validated, and the times and sizes that protect the server.
#pragma once

#include <string>
#include <vector>

#include "tenon/plugin.h"

namespace tenon::http {

/// Deadlines in microseconds. Fixed in the product; tests shorten them.
struct Timing {
    int64_t head_us = 10'000'000;          ///< first byte (or accept) to the end of the header
    int64_t reserved_head_us = 2'000'000;  ///< the same beyond max_connections
    int64_t body_grace_us = 30'000'000;    ///< a body may take this long plus bytes / body_rate
    int64_t body_rate = 32 * 1024;         ///< bytes a second
    /// One write that takes nothing: the client is slow, as one that keeps its sink blocked for
    /// slow_client_limit is (engine.md 6); it needs no full sink, so it ends slow replies too.
    int64_t write_stall_us = 40'000'000;
    int64_t poll_us = 100'000;      ///< how often a waiting reply looks at its socket
    int64_t linger_us = 2'000'000;  ///< reading on after a refusal, so that it arrives
    int64_t shutdown_grace_us =
        1'500'000;  ///< from cancelling replies at the drain's end to closing
};

struct Settings {
    std::string bind = "127.0.0.1:8888";
    std::string api_key_file;  ///< empty: no keys
    std::string tls_cert, tls_key;
    int64_t max_connections = 1024;
    int64_t max_body = 64 << 20;
    int64_t keepalive_us = 15'000'000;
    std::vector<std::string> cors_origins;
    bool metrics_open = false;
    bool accept_any_model = false;
    Timing timing;
};

/// The keys of a [[frontend]] section with plugin = "openai".
Span<const OptionSpec> option_specs();

/// errors  invalid_argument: a TLS file without its partner, an address without a port
Result<Settings> read_settings(const Options& options);

constexpr int64_t kReservedThreads = 8;        // for /health and /metrics beyond max_connections
constexpr int64_t kMaxHeadBytes = 32 * 1024;   // request line and fields; then 431
constexpr int64_t kMaxTargetBytes = 8 * 1024;  // then 414
constexpr int64_t kMaxFields = 100;
constexpr int64_t kMaxChunkLine = 256;
constexpr int64_t kMaxTrailerBytes = 8 * 1024;
constexpr int64_t kJsonDepth = 128;         // dump() recurses on 512 KiB stacks
constexpr int64_t kJsonValues = 4'000'000;  // a prompt of a million ids and room
constexpr int64_t kJsonKeys = 262'144;      // in the whole body; objects are searched linearly
constexpr int64_t kJsonKeysPerObject = 8'192;
constexpr int64_t kBodiesInMemory = 8;  // times max_body: bytes of all bodies together
constexpr int kStackBytes = 512 * 1024;
constexpr int kBacklog = 256;
// Small, so that a client that stops reading blocks its reply after some hundred events and not
// after megabytes; the kernel doubles it.
constexpr int kSendBufferBytes = 64 * 1024;

}  // namespace tenon::http
