// SPDX-License-Identifier: MIT
// Runs a program to which the kernel refuses something: `refusing io_uring|populate COMMAND
// ARGUMENTS…`.
#include "tests/tools/seccomp_filter.h"

#include <cerrno>
#include <cstdio>
#include <string>

#include <unistd.h>

int main(int argc, char** argv) {
    const std::string what = argc > 2 ? argv[1] : "";
    if (what != "io_uring" && what != "populate") {
        std::fprintf(stderr, "usage: %s io_uring|populate COMMAND [ARGUMENTS]\n", argv[0]);
        return 2;
    }
    const bool installed = what == "io_uring" ? tenon::testing::refuse_io_uring(EPERM)
                                              : tenon::testing::refuse_populate();
    if (!installed) {
        std::perror("seccomp filter");
        return 77;  // CTest: skipped
    }
    execvp(argv[2], argv + 2);
    std::perror(argv[2]);
    return 127;
}
