// SPDX-License-Identifier: MIT
// rows.digest: a hash of live rows that does not depend on their order or on padding.
#include <cstring>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"

namespace tenon::cpu {

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

Status digest(void*, const RowsDigest& p, Stream&) noexcept {
    const int64_t T = p.rows.T;
    TENON_TRY(check_op(p));
    const int64_t row = T == 0 ? 0 : p.x.bytes() / T;
    uint64_t sum = 0;
    for (int64_t t = 0; t < T; ++t) {
        const RowInfo& info = row_infos(p.rows)[t];
        if (info.slot < 0) {
            continue;
        }
        uint64_t words = 0;
        for (int64_t i = 0; i < row / 8; ++i) {
            uint64_t w;
            std::memcpy(&w, p.x.as<char>() + t * row + i * 8, sizeof w);
            words += splitmix64_mix(w ^ (static_cast<uint64_t>(i + 1) * kGolden));
        }
        const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(info.slot)) << 32) |
                             static_cast<uint32_t>(info.pos);
        sum += (2 * splitmix64_mix(key) + 1) * words;
    }
    *p.out.as<uint64_t>() = sum;
    return {};
}

}  // namespace

void add_rows_digest(Registry& r) {
    r.add<RowsDigest>(&digest, Exactness::exact);
}

}  // namespace tenon::cpu
