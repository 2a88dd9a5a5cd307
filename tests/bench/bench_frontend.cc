// SPDX-License-Identifier: MIT
// Cost of a streamed event in the front end: 64 streams over loopback from a fake engine, flat out
// and paced like decoding. Prints one JSON line a case; the clients run in a child process.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "fakes/fake_engine.h"
#include "frontend.h"
#include "protocol/raw_client.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {

namespace {

constexpr int kStreams = 64;

double cpu_seconds() {
    rusage use = {};
    ::getrusage(RUSAGE_SELF, &use);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// Reads all streams at once, in a child process so that its time is not counted.
[[noreturn]] void run_clients(int port) {
    const std::string body =
        R"({"model":"fake","stream":true,"messages":[{"role":"user","content":"x"}]})";
    std::atomic<int> whole{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kStreams; ++i) {
        threads.emplace_back([&] {
            RawClient client(port);
            client.send(post("/v1/chat/completions", body));
            whole += client.read().is_whole;
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    ::_exit(whole.load() == kStreams ? 0 : 1);
}

void measure(const char* name, int events, int64_t every_us) {
    TestHost host;
    FakeEngine engine;
    engine.answer_with(Script().pieces(events, every_us).finish("stop"));
    http::Settings settings;
    settings.bind = "127.0.0.1:0";
    auto frontend = http::make_frontend(host, engine, settings);
    if (!frontend.ok() || !(*frontend)->start().ok()) {
        std::fprintf(stderr, "the front end does not start\n");
        return;
    }
    const std::string url = (*frontend)->url().str();
    const int port = std::stoi(url.substr(url.rfind(':') + 1));
    const double cpu = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    const pid_t child = ::fork();
    if (child == 0) {
        run_clients(port);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double used = cpu_seconds() - cpu;
    const double total = static_cast<double>(events) * kStreams;
    std::printf(
        "{\"case\":\"%s\",\"streams\":%d,\"events\":%.0f,\"wall_s\":%.3f,"
        "\"events_per_s\":%.0f,"
        "\"server_cpu_us_per_event\":%.2f,\"all_whole\":%s}\n",
        name, kStreams, total, wall, total / wall, used * 1e6 / total,
        status == 0 ? "true" : "false");
    std::fflush(stdout);
}

}  // namespace

}  // namespace tenon::testing

int main() {
    tenon::testing::measure("flat out", 20'000, 0);
    tenon::testing::measure("one per 20 ms", 500, 20'000);
    tenon::testing::measure("one per 5 ms", 1'000, 5'000);
    return 0;
}
