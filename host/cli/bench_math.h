// SPDX-License-Identifier: MIT
// What the forms of `bench` compute alike.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <vector>

namespace tenon::cli {

/// Upper median; 0 of nothing.
inline double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v.empty() ? 0 : v[v.size() / 2];
}

/// CPU time of all threads of this process, user and system, in seconds.
inline double cpu_seconds() {
    rusage u{};
    ::getrusage(RUSAGE_SELF, &u);
    return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

}  // namespace tenon::cli
