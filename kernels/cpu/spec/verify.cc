// SPDX-License-Identifier: MIT
// spec.verify: how far each segment's drafts agree with what was drawn.
#include "tenon/ops/spec.h"

#include <algorithm>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"

namespace tenon::cpu {

namespace {

bool stops(const VerifyLimits& limits, int32_t token) {
    return std::any_of(std::begin(limits.stop_ids), std::end(limits.stop_ids),
                       [&](int32_t id) { return id >= 0 && id == token; });
}

// The draw of row r of a segment; -1 if that row wanted no logits.
int32_t drawn_at(const SpecVerify& p, const SegInfo& seg, int32_t r) {
    const RowInfo* rows = row_infos(p.rows) + seg.row0;
    int64_t at = seg.out0;
    for (int32_t i = 0; i < r; ++i) {
        at += (rows[i].flags & kRowLogits) != 0;
    }
    const bool has = (rows[r].flags & kRowLogits) != 0 && at >= 0 && at < p.drawn.shape[0];
    return has ? p.drawn.as<const int32_t>()[at] : -1;
}

VerifyDecision verify_segment(const SpecVerify& p, const SegInfo& seg, const VerifyLimits& limits) {
    const int32_t* ids = p.ids.as<const int32_t>() + seg.row0;
    VerifyDecision d;
    std::fill(std::begin(d.tokens), std::end(d.tokens), -1);
    const auto emit = [&](int32_t token) {
        d.tokens[d.emitted++] = d.last = token;
        if (stops(limits, token)) {
            d.finish = static_cast<int32_t>(VerifyFinish::stop_id);
        } else if (d.emitted >= limits.accept_max) {
            d.finish = static_cast<int32_t>(VerifyFinish::accept_max);
        }
        return d.finish == 0;
    };
    if (limits.accept_max <= 0) {
        d.finish = static_cast<int32_t>(VerifyFinish::accept_max);
        return d;
    }
    int32_t r = 0;
    for (; r + 1 < seg.rows; ++r) {
        if (r >= limits.forced && ids[r + 1] != drawn_at(p, seg, r)) {
            break;
        }
        if (!emit(ids[r + 1])) {
            d.accepted = d.emitted - 1;
            return d;
        }
    }
    const int32_t token = drawn_at(p, seg, r);
    if (token < 0) {
        d.accepted = d.emitted;
        d.last = token;
        d.finish = static_cast<int32_t>(VerifyFinish::no_token);
        return d;
    }
    emit(token);
    d.accepted = d.emitted - 1;
    return d;
}

Status verify(void* self, const SpecVerify& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = p.rows.T;
    Context& ctx = context(self);
    for (int64_t s = 0; s < p.rows.S; ++s) {
        const SegInfo& seg = seg_infos(p.rows)[s];
        VerifyDecision& out = p.decision.as<VerifyDecision>()[s];
        if (seg.slot < 0 || seg.rows <= 0 || seg.row0 < 0 || seg.rows > kVerifyTokens ||
            int64_t{seg.row0} + seg.rows > T) {
            if (seg.slot >= 0) {
                ctx.fault();
            }
            out = VerifyDecision{};
            std::fill(std::begin(out.tokens), std::end(out.tokens), -1);
            continue;
        }
        out = verify_segment(p, seg, p.limits.as<const VerifyLimits>()[s]);
    }
    return {};
}

}  // namespace

void add_spec_verify(Registry& r) {
    r.add<SpecVerify>(&verify, Exactness::exact);
}

}  // namespace tenon::cpu
