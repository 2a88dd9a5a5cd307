// SPDX-License-Identifier: MIT
// What happened since the last step: submits, cancels, blocked sinks, deadlines, memory levels.
#include "host/engine/planner.h"

#include <algorithm>

namespace tenon::engine {
namespace {

EndCause cause_of(CancelReason reason) {
    switch (reason) {
        case CancelReason::slow_client:
            return EndCause::slow_client;
        case CancelReason::deadline:
            return EndCause::deadline;
        case CancelReason::shutdown:
            return EndCause::shutdown;
        case CancelReason::memory:
            return EndCause::memory;
        case CancelReason::none:
        case CancelReason::client_gone:
            break;
    }
    return EndCause::client_gone;
}

}  // namespace

void Planner::take_event(const PlannerEvent& event, int64_t now_us) {
    switch (event.kind) {
        case PlannerEventKind::flush:
            flush_ = true;
            return;
        case PlannerEventKind::submit:
            TENON_CHECK(waiting_.size() < waiting_.capacity(), "waiting list of {}",
                        waiting_.capacity());
            waiting_.push_back({event.spec, -1, -1, look_up(*event.spec).at});
            return;
        case PlannerEventKind::cancel:
            cancel(event.request, cause_of(event.reason));
            return;
        case PlannerEventKind::sink_blocked:
        case PlannerEventKind::sink_free:
            break;
    }
    const int64_t since = event.kind == PlannerEventKind::sink_blocked ? now_us : -1;
    for (Slot& s : slots_) {
        if (s.spec != nullptr && s.spec->request == event.request) {
            s.blocked_since = since;
        }
    }
    for (Waiting& w : waiting_) {
        if (w.spec->request == event.request) {
            w.blocked_since = since;
        }
    }
    for (Parked& p : parked_) {
        if (p.spec != nullptr && p.spec->request == event.request) {
            p.blocked_since = since;
        }
    }
}

void Planner::cancel(uint64_t request, EndCause cause) {
    for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].spec != nullptr && slots_[i].spec->request == request) {
            end(i, cause);
        }
    }
    for (Parked& p : parked_) {
        if (p.spec != nullptr && p.spec->request == request) {
            effects_.push_back({EffectKind::ended, cause, 0, 0, p.spec});
            spill_.release(p.spec->arrival_seq);
            if (p.has_state) {
                forget_parked(*p.spec, p.history.tokens());
            }
            p.spec = nullptr;
        }
    }
    const auto gone = [&](const Waiting& w) {
        if (w.spec->request != request) {
            return false;
        }
        spill_.release(w.spec->arrival_seq);
        effects_.push_back({EffectKind::ended, cause, 0, 0, w.spec, 0});
        return true;
    };
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), gone), waiting_.end());
}

void Planner::expire(int64_t now_us) {
    // Ending a request removes entries, so the search starts again; each round ends at least one
    // sequence.
    for (;;) {
        uint64_t request = 0;
        EndCause cause = EndCause::complete;
        const auto look = [&](const SequenceSpec& spec, int64_t blocked_since) {
            if (spec.deadline_us > 0 && now_us >= spec.deadline_us) {
                cause = EndCause::deadline;
            } else if (blocked_since >= 0 &&
                       now_us - blocked_since >= config_.slow_client_limit_us) {
                cause = EndCause::slow_client;
            } else {
                return false;
            }
            request = spec.request;
            return true;
        };
        const bool found =
            std::any_of(slots_.begin(), slots_.end(),
                        [&](const Slot& s) {
                            return s.spec != nullptr && look(*s.spec, s.blocked_since);
                        }) ||
            std::any_of(waiting_.begin(), waiting_.end(),
                        [&](const Waiting& w) { return look(*w.spec, w.blocked_since); }) ||
            std::any_of(parked_.begin(), parked_.end(), [&](const Parked& p) {
                return p.spec != nullptr && look(*p.spec, p.blocked_since);
            });
        if (!found) {
            return;
        }
        cancel(request, cause);
    }
}

void Planner::end_newest() {
    size_t newest = slots_.size();
    for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].spec != nullptr &&
            (newest == slots_.size() ||
             slots_[i].spec->arrival_seq > slots_[newest].spec->arrival_seq)) {
            newest = i;
        }
    }
    if (newest < slots_.size()) {
        end(newest, EndCause::memory);
    }
}

}  // namespace tenon::engine
