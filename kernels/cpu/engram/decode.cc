// SPDX-License-Identifier: MIT
// engram.decode: stored table rows to bf16.
#include <algorithm>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"
#include "tenon/ops/engram.h"

namespace tenon::cpu {

namespace {

Status decode(void* self, const EngramDecode& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = p.rows.T;
    const int64_t c = dim(p.values, 1);
    const int64_t w = dim(p.values, 2);
    share(context(self), T, 1, c * w * 2, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const RowInfo& row = row_infos(p.rows)[t];
            uint16_t* out = p.out.row<uint16_t>(t);
            if (row.slot < 0 || (row.flags & kRowImage) != 0) {
                std::fill(out, out + c * w, uint16_t{0});
                continue;
            }
            for (int64_t i = 0; i < c; ++i) {
                const uint8_t* v = p.values.row<uint8_t>(t) + i * p.values.stride[1];
                const uint8_t* s = p.scales.row<uint8_t>(t) + i * p.scales.stride[1];
                for (int64_t j = 0; j < w; ++j) {
                    out[i * w + j] =
                        f32_to_bf16(e4m3_to_f32(v[j]) * e8m0_to_f32(s[j / kEngramGroup]));
                }
            }
        }
    });
    return {};
}

}  // namespace

void add_engram_decode(Registry& r) {
    r.add<EngramDecode>(&decode, Exactness::exact);
}

}  // namespace tenon::cpu
