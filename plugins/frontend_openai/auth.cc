// SPDX-License-Identifier: MIT
// Reading, watching and comparing API keys.
#include "auth.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tenon::http {

namespace {

constexpr int64_t kRecheckUs = 1'000'000;
constexpr int64_t kMaxFileBytes = 1 << 20;

class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    int get() const { return fd_; }

  private:
    const int fd_;
};

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) {
        return {};
    }
    return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

bool is_printable(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

bool is_same_file(const struct stat& a, const struct stat& b) {
    return a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_size == b.st_size &&
           a.st_mode == b.st_mode && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
           a.st_mtim.tv_nsec == b.st_mtim.tv_nsec && a.st_ctim.tv_sec == b.st_ctim.tv_sec &&
           a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
}

}  // namespace

Result<std::vector<ApiKey>> parse_keys(std::string_view text, std::string_view file) {
    std::vector<ApiKey> keys;
    int line_number = 0;
    while (!text.empty()) {
        const size_t newline = text.find('\n');
        const std::string_view line = trimmed(text.substr(0, newline));
        text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
        ++line_number;
        if (line.empty() || line.front() == '#') {
            continue;
        }
        const size_t colon = line.find(':');
        const std::string_view label = trimmed(line.substr(0, colon));
        const std::string_view key =
            colon == std::string_view::npos ? std::string_view() : trimmed(line.substr(colon + 1));
        // The line itself may be a key, so the message never shows it.
        if (label.empty() || key.empty() || !is_printable(key)) {
            return error(Code::invalid_argument,
                         "{}:{}: not 'label: key' with a key of printable ASCII "
                         "without blanks",
                         file, line_number);
        }
        for (const ApiKey& other : keys) {
            if (other.label == label || other.key == key) {
                return error(Code::invalid_argument, "{}:{}: the {} occurs twice", file,
                             line_number, other.label == label ? "label" : "key");
            }
        }
        keys.push_back({std::string(label), std::string(key)});
    }
    if (keys.empty()) {
        return error(Code::invalid_argument,
                     "{}: no keys; write lines 'label: key' or leave api_key_file out", file);
    }
    return keys;
}

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
    volatile unsigned char difference = given.size() == secret.size() ? 0 : 1;
    for (size_t i = 0; i < given.size(); ++i) {
        const char other = secret.empty() ? '\0' : secret[i % secret.size()];
        difference = static_cast<unsigned char>(difference | (given[i] ^ other));
    }
    return difference == 0;
}

KeyStore::KeyStore(Host& host, std::string file) : host_(host), file_(std::move(file)) {}

Result<std::vector<ApiKey>> KeyStore::read(struct stat* info) const {
    const Descriptor fd(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) {
        return error(errno == ENOENT ? Code::not_found : Code::io, "api_key_file {}: {}", file_,
                     std::strerror(errno));
    }
    if (::fstat(fd.get(), info) != 0) {
        return error(Code::io, "api_key_file {}: {}", file_, std::strerror(errno));
    }
    if (!S_ISREG(info->st_mode) || info->st_size > kMaxFileBytes) {
        return error(Code::invalid_argument, "api_key_file {}: not a regular file of at most 1 MiB",
                     file_);
    }
    if ((info->st_mode & 0077) != 0) {
        char mode[8];
        std::snprintf(mode, sizeof mode, "%04o", info->st_mode & 07777U);
        return error(Code::invalid_argument,
                     "api_key_file {}: mode {} lets others read it; run chmod 600 on it", file_,
                     mode);
    }
    std::string text(static_cast<size_t>(info->st_size), '\0');
    size_t have = 0;
    while (have < text.size()) {
        const ssize_t n = ::read(fd.get(), text.data() + have, text.size() - have);
        if (n <= 0) {
            break;
        }
        have += static_cast<size_t>(n);
    }
    text.resize(have);
    return parse_keys(text, file_);
}

Status KeyStore::load() {
    if (file_.empty()) {
        return {};
    }
    struct stat info = {};
    auto keys = read(&info);
    if (!keys.ok()) {
        return keys.take_status();
    }
    const std::lock_guard lock(mutex_);
    seen_ = info;
    keys_ = std::make_shared<const std::vector<ApiKey>>(std::move(*keys));
    checked_us_ = host_.now_us();
    return {};
}

KeyStore::Keys KeyStore::current() {
    {
        const std::lock_guard lock(mutex_);
        const int64_t now = host_.now_us();
        if (checking_ || now - checked_us_ < kRecheckUs) {
            return keys_;
        }
        checked_us_ = now;
        checking_ = true;
    }
    {
        struct Turn {  // ends even if there is no memory to read the file
            KeyStore& store;
            ~Turn() {
                const std::lock_guard lock(store.mutex_);
                store.checking_ = false;
            }
        };
        const Turn turn{*this};
        check();
    }
    const std::lock_guard lock(mutex_);
    return keys_;
}

// By the one caller that set checking_.
void KeyStore::check() {
    std::unique_lock lock(mutex_);
    const struct stat seen = seen_;
    lock.unlock();
    struct stat info = {};
    if (::stat(file_.c_str(), &info) == 0 && is_same_file(info, seen)) {
        return;
    }
    const bool is_first_look = !is_same_file(info, seen);
    auto keys = read(&info);
    if (keys.ok()) {
        host_.log(LogLevel::info, "http", format("re-read api_key_file keys={}", keys->size()));
    } else if (is_first_look) {
        host_.log(LogLevel::error, "http",
                  format("keeping the old keys: {}", keys.status().message()));
    }
    lock.lock();
    if (keys.ok()) {
        keys_ = std::make_shared<const std::vector<ApiKey>>(std::move(*keys));
    }
    seen_ = info;
}

bool KeyStore::accepts(std::string_view key) {
    if (file_.empty()) {
        return true;
    }
    const Keys keys = current();
    bool found = false;
    for (const ApiKey& candidate : *keys) {
        found |= equal_in_constant_time(key, candidate.key);
    }
    return found;
}

}  // namespace tenon::http
