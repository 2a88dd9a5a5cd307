// SPDX-License-Identifier: MIT
// Makes the kernel refuse io_uring to this process and its children, as the seccomp profile of a
// container does.
#pragma once

#include <cerrno>
#include <cstddef>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

namespace tenon::testing {

inline bool install_filter(sock_filter* code, size_t count) {
    const sock_fprog program{static_cast<unsigned short>(count), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// io_uring_setup fails with that errno from now on; false if filters cannot be installed here.
inline bool refuse_io_uring(unsigned error_number) {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error_number & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return install_filter(code, sizeof code / sizeof code[0]);
}

/// madvise(MADV_POPULATE_READ) fails with EINVAL, as before Linux 5.14.
inline bool refuse_populate() {
    constexpr unsigned kPopulateRead = 22;
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),  // low half
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPopulateRead, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return install_filter(code, sizeof code / sizeof code[0]);
}

}  // namespace tenon::testing
