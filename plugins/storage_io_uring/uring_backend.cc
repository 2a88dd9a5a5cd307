// SPDX-License-Identifier: MIT
// Set-up, registration, submission and reaping of the ring.
#include "plugins/storage_io_uring/uring_backend.h"

#include <algorithm>
#include <cerrno>

#include <sys/eventfd.h>
#include <unistd.h>

namespace tenon::storage {
namespace {

constexpr size_t kMostFiles =
    64;  // tables of one lane with a registered file; more use descriptors

/// Creates a ring with the best flags that this kernel knows. Returns 0 or an errno.
int create_ring(unsigned entries, io_uring* ring) {
    // One thread submits and reaps, so completions need no interrupt of it: they are run when it
    // asks.
    constexpr unsigned kFlags[] = {
        IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,  // 6.1
        IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN,                                // 5.19
        IORING_SETUP_CLAMP,
    };
    int rc = 0;
    for (const unsigned flags : kFlags) {
        io_uring_params params{};
        params.flags = flags;
        rc = -io_uring_queue_init_params(entries, ring, &params);
        if (rc != EINVAL) {
            break;
        }
    }
    return rc;
}

bool is_refusal(int number) {
    return number == EPERM || number == ENOSYS || number == EINVAL || number == ENOMEM ||
           number == EACCES;
}

std::string refusal_text(int number) {
    const char* hint = number == EPERM || number == EACCES
                           ? "; a seccomp filter or kernel.io_uring_disabled forbids it"
                       : number == ENOMEM ? "; raise the limit on locked memory"
                                          : "";
    return format("io_uring_setup: {}{}", errno_text(number), hint);
}

}  // namespace

Result<std::string> io_uring_refusal() {
    io_uring ring{};
    const int rc = create_ring(4, &ring);
    if (rc == 0) {
        io_uring_queue_exit(&ring);
        return std::string();
    }
    if (is_refusal(rc)) {
        return refusal_text(rc);
    }
    return error(Code::io, "cannot create a ring: {}", errno_text(rc));
}

Status UringBackend::start(std::span<Read> reads) noexcept {
    return guard([&]() -> Status {
        TENON_TRY(arena_.share_out(reads, max_read_bytes()));
        // One entry more than reads: the wake-up is always armed.
        const int rc = create_ring(static_cast<unsigned>(depth_) + 1, &ring_);
        if (rc != 0) {
            return is_refusal(rc) ? Status(Code::unavailable, refusal_text(rc))
                                  : error(Code::io, "cannot create a ring: {}", errno_text(rc));
        }
        has_ring_ = true;
        wake_fd_ = ::eventfd(0, EFD_CLOEXEC);
        if (wake_fd_ < 0) {
            return error(Code::io, "cannot create an eventfd: {}", errno_text(errno));
        }
        // Both registrations save work in the kernel and are optional: limits may forbid them.
        const iovec whole{arena_.base(), arena_.bytes()};
        registered_buffers_ = io_uring_register_buffers(&ring_, &whole, 1) == 0;
        if (io_uring_register_files_sparse(&ring_, kMostFiles) == 0) {
            files_.assign(kMostFiles, -1);
        }
        return {};
    });
}

UringBackend::~UringBackend() {
    if (has_ring_) {
        io_uring_queue_exit(&ring_);
    }
    if (wake_fd_ >= 0) {
        ::close(wake_fd_);
    }
}

void UringBackend::attach(RowFile& file) noexcept {
    const auto free = std::find(files_.begin(), files_.end(), -1);
    if (free == files_.end()) {
        return;
    }
    const auto index = static_cast<unsigned>(free - files_.begin());
    const int fd = file.fd();
    if (io_uring_register_files_update(&ring_, index, &fd, 1) == 1) {
        *free = fd;
        file.registered = static_cast<int>(index);
    }
}

void UringBackend::detach(RowFile& file) noexcept {
    if (file.registered < 0) {
        return;
    }
    const int none = -1;
    static_cast<void>(
        io_uring_register_files_update(&ring_, static_cast<unsigned>(file.registered), &none, 1));
    files_[static_cast<size_t>(file.registered)] = -1;
    file.registered = -1;
}

io_uring_sqe* UringBackend::next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
        // Never with CLAMP on a sane kernel: the queue holds depth + 1 entries.
        io_uring_submit(&ring_);
        entry = io_uring_get_sqe(&ring_);
    }
    return entry;
}

void UringBackend::queue(Read& read) noexcept {
    io_uring_sqe* entry = next_entry();
    const bool fixed_file = read.file->registered >= 0;
    const int fd = fixed_file ? read.file->registered : read.file->fd();
    const auto bytes = static_cast<unsigned>(read.range.end - read.range.begin);
    if (registered_buffers_) {
        io_uring_prep_read_fixed(entry, fd, read.buffer, bytes, read.range.begin, 0);
    } else {
        io_uring_prep_read(entry, fd, read.buffer, bytes, read.range.begin);
    }
    if (fixed_file) {
        io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
    }
    io_uring_sqe_set_data(entry, &read);
}

void UringBackend::arm_wake() {
    if (wake_armed_) {
        return;
    }
    io_uring_sqe* entry = next_entry();
    io_uring_prep_read(entry, wake_fd_, &wake_count_, sizeof wake_count_, 0);
    io_uring_sqe_set_data(entry, nullptr);
    wake_armed_ = true;
}

Status UringBackend::wait(std::vector<Completion>* done) noexcept {
    arm_wake();
    const int rc = io_uring_submit_and_wait(&ring_, 1);
    // Interrupted, or short of memory for requests while others are under way: look and come again.
    if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY) {
        return error(Code::io, "io_uring_enter: {}", errno_text(-rc));
    }
    io_uring_cqe* completion = nullptr;
    unsigned head = 0;
    unsigned seen = 0;
    io_uring_for_each_cqe(&ring_, head, completion) {
        ++seen;
        auto* read = static_cast<Read*>(io_uring_cqe_get_data(completion));
        if (read == nullptr) {
            wake_armed_ = false;
        } else {
            done->push_back({read, completion->res, read->buffer});
        }
    }
    io_uring_cq_advance(&ring_, seen);
    return {};
}

void UringBackend::wake() noexcept {
    const uint64_t one = 1;
    // Fails only when 2^64 - 1 wakes are unread.
    static_cast<void>(!::write(wake_fd_, &one, sizeof one));
}

}  // namespace tenon::storage
