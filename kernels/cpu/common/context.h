// SPDX-License-Identifier: MIT
// What every CPU op gets as `self`: the thread pool, and the count of misuse that a GPU would only
// see on the device.
#pragma once

#include <atomic>

#include "tenon/compute.h"

namespace tenon::cpu {

struct Context {
    ParallelFor* pool = nullptr;
    int32_t workers = 1;
    std::atomic<uint64_t> faults{0};

    void fault() { faults.fetch_add(1, std::memory_order_relaxed); }
};

inline Context& context(void* self) {
    return *static_cast<Context*>(self);
}

template <class P>
using OpCall = Status (*)(void*, const P&, Stream&) noexcept;

/// Work, in units of about a nanosecond, from which sharing a loop repays a wake-up of the pool.
constexpr int64_t kShareWork = 24'000;

/// Calls body(begin, end, worker) over [0, n). `unit_ns`: rough cost of one unit; little work stays
/// on the calling thread. Ranges end at multiples of `grain`. No result may depend on the
/// partition.
template <class F>
void share(Context& c, int64_t n, int64_t grain, int64_t unit_ns, F&& body) {
    if (c.workers > 1 && n > grain && n * unit_ns >= kShareWork) {
        parallel_for(c.pool, n, grain, body);
    } else if (n > 0) {
        body(int64_t{0}, n, int32_t{0});
    }
}

}  // namespace tenon::cpu
