// SPDX-License-Identifier: MIT
// spdlog behind log.h; the only file that includes it.
#include "host/log/log.h"

#include <fcntl.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tenon {
namespace {

/// The message as a JSON string: quotes and invalid UTF-8 must not break a line.
class JsonText final : public spdlog::custom_flag_formatter {
  public:
    explicit JsonText(bool logger_name) : name_(logger_name) {}
    void format(const spdlog::details::log_msg& msg, const std::tm&,
                spdlog::memory_buf_t& dest) override {
        const auto view = name_ ? msg.logger_name : msg.payload;
        const std::string text =
            nlohmann::json(std::string(view.data(), view.size()))
                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        dest.append(text.data(), text.data() + text.size());
    }
    std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
        return std::make_unique<JsonText>(name_);
    }

  private:
    bool name_;
};

/// Appends each line with one write, so that lines stay whole beside other writers of the file, and
/// a crash loses none. Logs are sparse: nothing is written per token.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
  public:
    explicit FileSink(std::string path) : path_(std::move(path)), fd_(open_file(path_)) {
        if (fd_ < 0) {
            throw std::runtime_error(std::strerror(errno));
        }
    }
    ~FileSink() override { ::close(fd_); }

  protected:
    void sink_it_(const spdlog::details::log_msg& msg) override {
        spdlog::memory_buf_t line;
        formatter_->format(msg, line);
        const ssize_t n = ::write(fd_, line.data(), line.size());
        const bool lost = n != static_cast<ssize_t>(line.size());
        if (lost && !is_losing_) {
            std::fprintf(stderr, "tenon: log.file %s: could not be written: %s; lines are lost\n",
                         path_.c_str(), n < 0 ? std::strerror(errno) : "the disk is full");
        }
        is_losing_ = lost;
    }
    void flush_() override {}

  private:
    static int open_file(const std::string& path) {
        return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }

    std::string path_;
    int fd_;
    bool is_losing_ = false;  // said once on standard error, until a line is written again
};

struct State {
    std::mutex mutex;  // guards sink, settings, json
    spdlog::sink_ptr sink;
    LogSettings settings;
    bool json = false;
    std::atomic<LogLevel> level{LogLevel::info};
};

State& state() {
    static State s;
    return s;
}

std::unique_ptr<spdlog::formatter> make_formatter(bool json) {
    if (!json) {
        return std::make_unique<spdlog::pattern_formatter>("%H:%M:%S.%e %^%-5l%$ %n: %v");
    }
    auto f = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
    f->add_flag<JsonText>('*', false).add_flag<JsonText>('&', true);
    f->set_pattern(R"({"ts":"%Y-%m-%dT%H:%M:%S.%fZ","level":"%l","component":%&,"msg":%*})");
    return f;
}

bool is_control(char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

/// One line stays one line, and a terminal gets no control sequences of strangers.
std::string escaped(std::string_view text) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    for (const char c : text) {
        if (is_control(c)) {
            const auto b = static_cast<unsigned char>(c);
            ((out += "\\x") += kDigits[b >> 4]) += kDigits[b & 15];
        } else {
            out += c;
        }
    }
    return out;
}

spdlog::level::level_enum level_of(LogLevel level) {
    switch (level) {
        case LogLevel::debug:
            return spdlog::level::debug;
        case LogLevel::info:
            return spdlog::level::info;
        case LogLevel::warn:
            return spdlog::level::warn;
        case LogLevel::error:
            break;
    }
    return spdlog::level::err;
}

spdlog::sink_ptr make_sink(const LogSettings& settings, bool json) {
    spdlog::sink_ptr sink;
    if (settings.file.empty()) {
        sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    } else {
        sink = std::make_shared<FileSink>(settings.file);
    }
    sink->set_formatter(make_formatter(json));
    return sink;
}

}  // namespace

Status log_configure(const LogSettings& settings) {
    State& s = state();
    const bool json = settings.format == LogFormat::json ||
                      (settings.format == LogFormat::automatic &&
                       !(settings.file.empty() && ::isatty(STDERR_FILENO) != 0));
    try {
        spdlog::sink_ptr sink = make_sink(settings, json);
        const std::lock_guard lock(s.mutex);
        s.sink = std::move(sink);
        s.settings = settings;
        s.json = json;
        s.level.store(settings.level, std::memory_order_relaxed);
    } catch (const std::exception& e) {
        return error(Code::io, "log.file {}: cannot be opened: {}", settings.file, e.what());
    }
    return {};
}

void log_reopen() noexcept {
    const Status status = guard([]() -> Status {
        LogSettings settings;
        {
            const std::lock_guard lock(state().mutex);
            settings = state().settings;
        }
        return settings.file.empty() ? Status() : log_configure(settings);
    });
    if (!status.ok()) {
        log_line(LogLevel::warn, "log", status.message());
    }
}

void log_flush() noexcept {
    const std::lock_guard lock(state().mutex);
    if (state().sink) {
        state().sink->flush();
    }
}

bool log_enabled(LogLevel level) noexcept {
    return level >= state().level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, StrView component, StrView message) noexcept {
    if (!log_enabled(level)) {
        return;
    }
    try {
        State& s = state();
        spdlog::sink_ptr sink;
        bool json = false;
        {
            const std::lock_guard lock(s.mutex);
            if (!s.sink) {
                s.sink = make_sink(s.settings, false);
            }
            sink = s.sink;
            json = s.json;
        }
        std::string clean;
        std::string_view text = message;
        if (!json && std::any_of(text.begin(), text.end(), is_control)) {
            text = clean = escaped(text);
        }
        const spdlog::details::log_msg line(spdlog::string_view_t(component.data, component.size),
                                            level_of(level),
                                            spdlog::string_view_t(text.data(), text.size()));
        sink->log(line);
        if (level >= LogLevel::warn) {
            sink->flush();
        }
    } catch (...) {
        // A log line that cannot be written has nowhere to be reported.
    }
}

}  // namespace tenon
