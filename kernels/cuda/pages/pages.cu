// SPDX-License-Identifier: MIT
// pages.copy, pages.pack and pages.unpack.
#include "pages/pages.cuh"

#include <algorithm>

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

constexpr int kThreads = 256;

dim3 grid_of(int64_t records, int64_t bytes) {
    const int64_t blocks = std::clamp<int64_t>(bytes / (16 * kThreads), 1, 64);
    return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(records));
}

Status copy(void* self, const PagesCopy& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t n = rows_of(p.src);
    const int64_t bytes = dim(p.pool, 1);
    if (n == 0 || bytes == 0) {
        return {};
    }
    // Usually one launch; lists of more planes than fit an argument go in pieces.
    uint64_t done = 0;
    do {
        Planes planes{};
        for (; planes.count < kPlanesAtOnce && done + planes.count < p.planes.size;
             ++planes.count) {
            planes.plane[planes.count] = p.planes[done + planes.count];
        }
        copy_pages_kernel<<<grid_of(n, bytes), kThreads, 0, native(stream)>>>(
            p.pool.as<uint8_t>(), p.pool.shape[0], bytes, p.src.as<const int32_t>(),
            p.dst.as<const int32_t>(), p.tokens.as<const int32_t>(), planes, p.page_tokens,
            done == 0, context(self).faults);
        done += planes.count;
    } while (done < p.planes.size);
    return launched(PagesCopy::kOp.name);
}

template <bool kPack, class P>
Status move(void* self, const P& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t n = rows_of(p.ids);
    const int64_t bytes = dim(p.pool, 1);
    if (n == 0 || bytes == 0) {
        return {};
    }
    move_pages_kernel<kPack><<<grid_of(n, bytes), kThreads, 0, native(stream)>>>(
        p.pool.template as<uint8_t>(), p.pool.shape[0], bytes, p.ids.template as<const int32_t>(),
        p.records.template as<uint8_t>(), context(self).faults);
    return launched(P::kOp.name);
}

}  // namespace

void add_pages(Registry& r) {
    r.add<PagesCopy>(&copy, Exactness::exact);
    r.add<PagesPack>(&move<true, PagesPack>, Exactness::exact);
    r.add<PagesUnpack>(&move<false, PagesUnpack>, Exactness::exact);
}

}  // namespace tenon::cuda
