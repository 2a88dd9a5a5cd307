// SPDX-License-Identifier: MIT
// HostServices over the process log, the metric registry and the monotonic clock.
#include "host/services/host_services.h"

#include <pthread.h>
#include <time.h>

#include "host/log/log.h"

namespace tenon {

void HostServices::publish(const char* facet, Object* object) {
    const std::lock_guard lock(mutex_);
    if (object == nullptr) {
        services_.erase(facet);
    } else {
        services_[facet] = object;
    }
}

bool HostServices::log_enabled(LogLevel level) noexcept {
    return tenon::log_enabled(level);
}

void HostServices::log(LogLevel level, StrView component, StrView message) noexcept {
    log_line(level, component, message);
}

void HostServices::metrics_text(void (*write)(void*, StrView) noexcept, void* arg) noexcept {
    const Status ignored = guard([&] { write(arg, metrics_.text()); });
}

Object* HostServices::service(StrView facet) noexcept {
    const std::lock_guard lock(mutex_);
    const auto it = services_.find(facet.view());
    return it == services_.end() ? nullptr : it->second;
}

int64_t HostServices::now_us() noexcept {
    timespec ts{};
    ::clock_gettime(CLOCK_MONOTONIC, &ts);
    return static_cast<int64_t>(ts.tv_sec) * 1'000'000 + ts.tv_nsec / 1000;
}

void HostServices::register_thread(StrView name) noexcept {
    char text[16] = {};  // the kernel's limit, with the null
    std::memcpy(text, name.data, name.size < 15 ? name.size : 15);
    ::pthread_setname_np(::pthread_self(), text);
}

}  // namespace tenon
