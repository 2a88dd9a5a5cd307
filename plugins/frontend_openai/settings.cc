// SPDX-License-Identifier: MIT
// Declaration and reading of the [[frontend]] keys.
#include "settings.h"

namespace tenon::http {

namespace {

constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB, kSecond = 1e6;

const OptionSpec kSpecs[] = {
    {.key = "bind",
     .type = OptionType::address,
     .default_value = "\"127.0.0.1:8888\"",
     .help = "where to listen; port 0 takes a free one"},
    {.key = "api_key_file",
     .type = OptionType::path,
     .default_value = nullptr,
     .help = "keys, one 'label: key' a line, mode 0600, re-read on change; "
             "without it no key is asked"},
    {.key = "tls_cert",
     .type = OptionType::path,
     .default_value = nullptr,
     .help = "PEM certificate chain; with tls_key the listener speaks TLS 1.2 "
             "and later"},
    {.key = "tls_key",
     .type = OptionType::path,
     .default_value = nullptr,
     .help = "PEM private key of tls_cert"},
    {.key = "max_connections",
     .type = OptionType::integer,
     .default_value = "1024",
     .help = "connections at once, a thread each; beyond them only /health and "
             "/metrics answer",
     .min = 1,
     .max = 16384},
    {.key = "max_body",
     .type = OptionType::size,
     .default_value = "\"64 MiB\"",
     .help = "largest request body; a longer one is answered 413",
     .min = kKiB,
     .max = kGiB},
    {.key = "keepalive",
     .type = OptionType::time,
     .default_value = "\"15 s\"",
     .help = "pause after which a stream gets a comment, and an idle "
             "connection is closed",
     .min = kSecond / 10,
     .max = 3600 * kSecond},
    {.key = "cors_origins",
     .type = OptionType::string_list,
     .default_value = nullptr,
     .help = "origins whose pages may call the API (\"*\" = every one)"},
    {.key = "metrics_open",
     .type = OptionType::boolean,
     .default_value = "false",
     .help = "/metrics answers without a key"},
    {.key = "accept_any_model",
     .type = OptionType::boolean,
     .default_value = "false",
     .help = "every model id is served; else only served_name and aliases"},
};

}  // namespace

Span<const OptionSpec> option_specs() {
    return kSpecs;
}

Result<Settings> read_settings(const Options& options) {
    Settings s;
    if (!options.text("bind").empty()) {
        s.bind = options.text("bind").str();
    }
    const size_t colon = s.bind.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == s.bind.size()) {
        return error(Code::invalid_argument, "{}: bind = '{}' is not host:port", options.section,
                     s.bind);
    }
    s.api_key_file = options.text("api_key_file").str();
    s.tls_cert = options.text("tls_cert").str();
    s.tls_key = options.text("tls_key").str();
    if (s.tls_cert.empty() != s.tls_key.empty()) {
        return error(Code::invalid_argument, "{}: {} is set without {}; TLS needs both",
                     options.section, s.tls_cert.empty() ? "tls_key" : "tls_cert",
                     s.tls_cert.empty() ? "tls_cert" : "tls_key");
    }
    s.max_connections = options.integer("max_connections");
    s.max_body = options.integer("max_body");
    s.keepalive_us = options.integer("keepalive");
    for (const StrView origin : options.list("cors_origins")) {
        s.cors_origins.push_back(origin.str());
    }
    s.metrics_open = options.flag("metrics_open");
    s.accept_any_model = options.flag("accept_any_model");
    return s;
}

}  // namespace tenon::http
