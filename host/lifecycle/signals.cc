// SPDX-License-Identifier: MIT
// One thread that waits for signals; all others, plugins' included, inherit them blocked.
#include "host/lifecycle/signals.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <chrono>

#include "host/log/log.h"

namespace tenon {
namespace {

constexpr int kThirdKills = 3;

sigset_t our_signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR2);  // ends the thread itself
    return set;
}

/// Ends the process by this signal, so that whoever waits for it sees the truth.
void die_of(int signal) {
    log_flush();
    ::signal(signal, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    ::raise(signal);
}

}  // namespace

void SignalThread::block() {
    const sigset_t set = our_signals();
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
}

SignalThread::SignalThread() : thread_([this] { run(); }) {}

SignalThread::~SignalThread() {
    stop_.store(true, std::memory_order_release);
    ::pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
}

void SignalThread::take_over() {
    taken_over_.store(true, std::memory_order_release);
}

void SignalThread::run() {
    ::pthread_setname_np(::pthread_self(), "signals");
    const sigset_t set = our_signals();
    while (true) {
        int signal = 0;
        if (::sigwait(&set, &signal) != 0) {
            continue;
        }
        if (signal == SIGUSR2) {
            if (stop_.load(std::memory_order_acquire)) {
                return;
            }
            continue;
        }
        const bool ending = signal != SIGHUP;
        int count = 0;
        {
            const std::lock_guard lock(mutex_);
            event_.ending += ending ? 1 : 0;
            event_.reopen = event_.reopen || !ending;
            count = event_.ending;
        }
        changed_.notify_all();
        if (ending && (!taken_over_.load(std::memory_order_acquire) || count >= kThirdKills)) {
            log_line(LogLevel::warn, "serve",
                     count >= kThirdKills ? "third signal; ending at once"
                                          : "signal before ready; ending");
            die_of(signal);
        }
    }
}

SignalThread::Event SignalThread::wait(int64_t timeout_us) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                      [this] { return event_.ending != seen_ || event_.reopen || event_.woken; });
    const Event now = event_;
    seen_ = event_.ending;
    event_.reopen = event_.woken = false;
    return now;
}

void SignalThread::wake() noexcept {
    {
        const std::lock_guard lock(mutex_);
        event_.woken = true;
    }
    changed_.notify_all();
}

}  // namespace tenon
