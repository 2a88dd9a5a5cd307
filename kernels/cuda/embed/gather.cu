// SPDX-License-Identifier: MIT
// embed.gather.
#include "embed/gather.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

Status gather(void* self, const EmbedGather& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = rows_of(p.ids);
    const int64_t d = dim(p.table, 1);
    if (T == 0) {
        return {};
    }
    EmbedArgs a{};
    a.ids = p.ids.as<const int32_t>();
    a.table = p.table.as<const uint4>();
    a.table_rows = rows_of(p.table);
    a.inject = p.inject.as<const uint4>();
    a.inject_index = p.inject_index.as<const int32_t>();
    a.inject_rows = rows_of(p.inject);
    a.out = p.out.as<uint4>();
    a.pre = p.pre.as<float4>();
    a.width = d / 8;
    embed_kernel<<<static_cast<unsigned>(T), 256, 0, native(stream)>>>(a, context(self).faults);
    return launched(EmbedGather::kOp.name);
}

}  // namespace

void add_embed(Registry& r) {
    r.add<EmbedGather>(&gather, Exactness::exact);
}

}  // namespace tenon::cuda
