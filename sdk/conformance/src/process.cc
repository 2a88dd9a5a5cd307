// SPDX-License-Identifier: MIT
// Counts of what a component might leave behind, and the create call with the rules of every kind.
#include "tenon/testing/plugin_fixture.h"

#include <algorithm>
#include <fstream>

#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

namespace tenon::testing {
namespace fs = std::filesystem;

Result<Ref<Object>> create_component(const Component& component, Host& host, OptionSet& options) {
    Object* object = nullptr;
    const Status status = component.create(host, options.view(), &object);
    Ref<Object> owner(object);
    if (!status.ok()) {
        if (object != nullptr) {
            return error(Code::internal, "{}: create failed and still returned an object",
                         component.name);
        }
        if (status.message().empty()) {
            return error(Code::internal, "{}: create failed with {} and no message", component.name,
                         code_name(status.code()));
        }
        return status.copy();
    }
    if (object == nullptr) {
        return error(Code::internal, "{}: create succeeded without an object", component.name);
    }
    return Result<Ref<Object>>(std::move(owner));
}

namespace {

int64_t listed_threads() {
    int64_t count = 0;
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator("/proc/self/task", ec)) {
        // The kernel's own workers for io_uring are listed here too and linger for seconds.
        std::string name;
        std::getline(std::ifstream(entry.path() / "comm"), name);
        count += name.compare(0, 8, "iou-wrk-") == 0 ? 0 : 1;
    }
    return count;
}

}  // namespace

int64_t thread_count() {
    // The kernel wakes who joins a thread before it takes the thread off the list: a count stands
    // once it has not changed for a while.
    constexpr int kQuiet = 25;
    constexpr int kPatience = 1000;
    int64_t count = listed_threads();
    for (int i = 0, quiet = 0; quiet < kQuiet && i < kPatience; ++i) {
        ::usleep(2000);
        const int64_t now = listed_threads();
        quiet = now == count ? quiet + 1 : 0;
        count = now;
    }
    return count;
}

std::vector<std::string> open_descriptors() {
    std::vector<std::string> out;
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
        const fs::path target = fs::read_symlink(entry.path(), ec);
        // The descriptor of this very listing.
        if (!ec && target.native().find("/proc/") != 0) {
            out.push_back(entry.path().filename().native() + " -> " + target.native());
        }
    }
    std::sort(out.begin(), out.end());
    return out;
}

int64_t malloc_bytes() {
    const auto info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

TempDir::TempDir() {
    const char* base = getenv("TMPDIR");
    std::string name = std::string(base == nullptr ? "/tmp" : base) + "/tenon-test-XXXXXX";
    TENON_CHECK(mkdtemp(name.data()) != nullptr, "cannot make {}", name);
    path_ = name;
}

TempDir::~TempDir() {
    std::error_code ec;
    fs::remove_all(path_, ec);
}

}  // namespace tenon::testing
