// SPDX-License-Identifier: MIT
// window.store.
#include "window/store.cuh"

#include <algorithm>

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

Status store(void* self, const WindowStore& p, Stream& stream) noexcept {
    TENON_TRY(kernels::check_op(p));
    const int64_t T = p.rows.T;
    if (T == 0 || p.rows.S == 0 || p.ring.width == 0) {
        return {};
    }
    const int64_t rows = std::min<int64_t>({T, p.ring.R, 1024});
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(p.rows.S));
    window_store_kernel<<<grid, 128, 0, native(stream)>>>(p.kv.as<const uint16_t>(),
                                                          p.rows.seg.as<const SegInfo>(), T,
                                                          ring_ref(p.ring), context(self).faults);
    return launched(WindowStore::kOp.name);
}

}  // namespace

void add_window(Registry& r) {
    r.add<WindowStore>(&store, Exactness::exact);
}

}  // namespace tenon::cuda
