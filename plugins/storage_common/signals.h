// SPDX-License-Identifier: MIT
// Keeps the process' signals away from plugin threads.
#pragma once

#include <csignal>

namespace tenon::storage {

/// Blocks every signal for the calling thread and those it creates; restores the mask at the end.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &saved_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t saved_;
};

}  // namespace tenon::storage
