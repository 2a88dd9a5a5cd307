// SPDX-License-Identifier: MIT
// state.save and state.load: a slot's newest ring rows and its open pair, in a record that knows no
// ring size.
#include <cstring>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"

namespace tenon::cpu {

namespace {

template <class P>
Status check(const P& p) {
    Check c(P::kOp.name);
    c.at_least("length", p.length, 0).at_least("positions", p.positions, 0);
    for (const Ring& r : p.rings) {
        c.ring(r, r.width).at_least("ring.R", r.R, p.positions);
        if (c.ok()) {
            c.in_range("slot", p.slot, 0, r.codes.shape[0] - 1);
        }
    }
    for (const TensorView& raw : p.raws) {
        c.dense("raws", raw, kF32, {kAny, kRawPositions, 2, kAny});
        if (c.ok()) {
            c.in_range("slot", p.slot, 0, raw.shape[0] - 1);
        }
    }
    c.dense("record", p.record, kU8, {kAny});
    if (c.ok()) {
        c.at_least("record bytes", p.record.shape[0],
                   state_record_bytes(p.positions, p.rings, p.raws));
    }
    return c.take();
}

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
    TENON_TRY(check(p));
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
    TENON_TRY(check(p));
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
