// SPDX-License-Identifier: MIT
// Reading and comparing keys.
#include "keys.h"

#include <sys/stat.h>

#include <fstream>

namespace tenon::http {
namespace {

bool equal_time(const std::string& a, const std::string& b) {
    unsigned difference = a.size() == b.size() ? 0 : 1;
    for (size_t i = 0; i < a.size(); ++i) {
        difference |=
            static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^
                                  static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]));
    }
    return difference == 0;
}

}  // namespace

Status Keys::read(std::vector<std::string>* out, int64_t* stamp) const {
    struct stat st {};
    if (::stat(path_.c_str(), &st) != 0) {
        return error(Code::io, "api_key_file {}: {}", path_, std::strerror(errno));
    }
    if ((st.st_mode & 077) != 0) {
        return error(Code::invalid_argument, "api_key_file {}: others may read it; run chmod 600",
                     path_);
    }
    *stamp = static_cast<int64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec;
    std::ifstream file(path_);
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        if (line.empty() || line[0] == '#') {
            continue;
        }
        const size_t colon = line.find(": ");
        if (colon == std::string::npos || colon == 0 || colon + 2 >= line.size()) {
            return error(Code::invalid_argument, "api_key_file {}:{}: expected 'label: key'", path_,
                         number);
        }
        out->push_back(line.substr(colon + 2));
    }
    return out->empty() ? error(Code::invalid_argument, "api_key_file {}: holds no key", path_)
                        : Status();
}

Status Keys::load() {
    if (!required()) {
        return {};
    }
    std::vector<std::string> fresh;
    int64_t stamp = 0;
    TENON_TRY(read(&fresh, &stamp));
    const std::lock_guard lock(mutex_);
    keys_ = std::move(fresh);
    stamp_ = stamp;
    return {};
}

bool Keys::allows(const std::string& key) {
    if (!required()) {
        return true;
    }
    struct stat st {};
    const std::lock_guard lock(mutex_);
    if (::stat(path_.c_str(), &st) == 0 &&
        static_cast<int64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec != stamp_) {
        std::vector<std::string> fresh;
        int64_t stamp = 0;
        if (read(&fresh, &stamp).ok()) {
            keys_ = std::move(fresh);
            stamp_ = stamp;
        }
    }
    bool found = false;
    for (const std::string& k : keys_) {
        found = equal_time(k, key) || found;
    }
    return found;
}

}  // namespace tenon::http
