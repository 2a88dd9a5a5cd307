// SPDX-License-Identifier: MIT
// eventfd and ppoll behind WakeEvent.
#include "host/engine/wake_event.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>

namespace tenon::engine {

WakeEvent::WakeEvent() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) {
        throw std::system_error(errno, std::generic_category(), "eventfd");
    }
}

WakeEvent::~WakeEvent() {
    close(fd_);
}

void WakeEvent::signal() noexcept {
    if (!sleeping_.exchange(false, std::memory_order_acq_rel)) {
        return;
    }
    const uint64_t one = 1;
    // It fails only when the counter is at its limit, and then the sleeper is awake anyway.
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
}

void WakeEvent::wait(int64_t timeout_us) noexcept {
    const int64_t us = timeout_us > 0 ? timeout_us : 0;
    const timespec limit{static_cast<time_t>(us / 1'000'000),
                         static_cast<long>(us % 1'000'000 * 1000)};
    pollfd descriptor{fd_, POLLIN, 0};
    ppoll(&descriptor, 1, &limit, nullptr);
    dismiss();
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t bytes = read(fd_, &count, sizeof count);
}

}  // namespace tenon::engine
