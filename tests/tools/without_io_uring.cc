// SPDX-License-Identifier: MIT
// Runs a program to which the kernel refuses io_uring: `without_io_uring COMMAND ARGS…`.
#include "tests/tools/seccomp_filter.h"

#include <cerrno>
#include <cstdio>

#include <unistd.h>

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s COMMAND [ARGUMENTS]\n", argv[0]);
        return 2;
    }
    if (!tenon::testing::refuse_io_uring(EPERM)) {
        std::perror("seccomp filter");
        return 77;  // CTest: skipped
    }
    execvp(argv[1], argv + 1);
    std::perror(argv[1]);
    return 127;
}
