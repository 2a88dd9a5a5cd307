// SPDX-License-Identifier: MIT
// state.save and state.load: a slot's newest ring rows and its open pair, in a record that knows no
// ring size.
#include <cstring>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"

namespace tenon::cpu {

namespace {

// Calls part(state, record_offset, bytes) for each piece; null state stands for a position below 0.
template <class P, class Part>
void for_parts(const P& p, Part&& part) {
    int64_t at = 0;
    for (const Ring& r : p.rings) {
        const int64_t codes = code_bytes(r.format, r.width);
        const int64_t scales = scale_bytes(r.format, r.width);
        for (int64_t i = 0; i < p.positions; ++i) {
            const int64_t pos = int64_t{p.length} - p.positions + i;
            const StoredRow row = pos < 0 ? StoredRow{} : ring_row(r, p.slot, pos);
            part(row.codes, at + i * codes, codes);
            if (scales > 0) {
                part(row.scales, at + p.positions * codes + i * scales, scales);
            }
        }
        at += p.positions * (codes + scales);
    }
    for (const TensorView& raw : p.raws) {
        const int64_t bytes = 2 * raw.shape[3] * 4;
        const int64_t pos = p.length - 1;
        uint8_t* pair =
            p.length % 2 == 0
                ? nullptr
                : raw.as<uint8_t>() + (p.slot * kRawPositions + pos % kRawPositions) * bytes;
        part(pair, at, bytes);
        at += bytes;
    }
}

Status save(void*, const StateSave& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    uint8_t* record = p.record.as<uint8_t>();
    for_parts(p, [&](const uint8_t* state, int64_t at, int64_t bytes) {
        if (state == nullptr) {
            std::memset(record + at, 0, static_cast<size_t>(bytes));
        } else {
            std::memcpy(record + at, state, static_cast<size_t>(bytes));
        }
    });
    return {};
}

Status load(void*, const StateLoad& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const uint8_t* record = p.record.as<uint8_t>();
    for_parts(p, [&](uint8_t* state, int64_t at, int64_t bytes) {
        if (state != nullptr) {
            std::memcpy(state, record + at, static_cast<size_t>(bytes));
        }
    });
    return {};
}

}  // namespace

void add_state(Registry& r) {
    r.add<StateSave>(&save, Exactness::exact);
    r.add<StateLoad>(&load, Exactness::exact);
}

}  // namespace tenon::cpu
