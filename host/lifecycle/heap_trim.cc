// SPDX-License-Identifier: MIT
// malloc_trim, when much has become free, and thresholds that leave little for it.
#include "host/lifecycle/heap_trim.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tenon {

HeapTrim::HeapTrim() {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, kMapBytes);
    mallopt(M_TRIM_THRESHOLD, kMapBytes);
#endif
}

int64_t HeapTrim::tick() {
    if (++ticks_ % kTicks != 0) {
        return 0;
    }
#if defined(__GLIBC__)
    const auto free_bytes = static_cast<int64_t>(mallinfo2().fordblks);
    if (free_bytes < kSlack || free_bytes == after_) {
        return 0;
    }
    malloc_trim(0);
    after_ = static_cast<int64_t>(mallinfo2().fordblks);
    return free_bytes;
#else
    return 0;
#endif
}

}  // namespace tenon
