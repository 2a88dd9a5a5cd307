// SPDX-License-Identifier: MIT
// The levels, and who else holds memory.
#include "host/lifecycle/memory_watch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "host/profile/units.h"

namespace tenon {

MemoryWatch::Reading MemoryWatch::read(int64_t available, int64_t resident) {
    if (available <= 0) {
        return {};
    }
    if (available < levels_.last) {
        return {3, false};
    }
    hard_readings_ = available < levels_.hard ? hard_readings_ + 1 : 0;
    if (hard_readings_ >= 2) {
        const bool foreign = resident - ready_resident_ < kOwnGrowth;
        return {foreign ? 1U : 2U, foreign};
    }
    return {available < levels_.soft ? 1U : 0U, false};
}

std::string largest_others(int count) {
    namespace fs = std::filesystem;
    std::vector<std::pair<int64_t, std::string>> found;
    std::error_code ec;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc", ec)) {
        const std::string name = entry.path().filename();
        const long pid = std::strtol(name.c_str(), nullptr, 10);
        if (pid <= 0 || pid == ::getpid()) {
            continue;
        }
        int64_t size = 0, resident = 0;
        std::ifstream(entry.path() / "statm") >> size >> resident;
        std::string command;
        std::getline(std::ifstream(entry.path() / "comm"), command);
        if (resident > 0 && !command.empty()) {
            found.emplace_back(resident * ::sysconf(_SC_PAGESIZE), command);
        }
    }
    std::sort(found.begin(), found.end(), std::greater<>());
    std::string text;
    for (size_t i = 0; i < std::min(found.size(), static_cast<size_t>(count)); ++i) {
        text += (i > 0 ? ", " : "") + found[i].second + " " + size_text(found[i].first);
    }
    return text;
}

}  // namespace tenon
