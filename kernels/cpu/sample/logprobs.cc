// SPDX-License-Identifier: MIT
// sample.logprobs and sample.count: log-softmax of raw logits for replies, and the counts behind
// penalties.
#include <algorithm>
#include <cmath>

#include "common/registry.h"
#include "sample/draw.h"

namespace tenon::cpu {

namespace {

// The n largest of a row, falling, ties to the lower id.
void largest(const float* l, int64_t V, int64_t n, int32_t* ids) {
    int64_t found = 0;
    for (int64_t id = 0; id < V; ++id) {
        if (found == n && !(l[id] > l[ids[n - 1]])) {
            continue;
        }
        int64_t at = found < n ? found++ : n - 1;
        for (; at > 0 && l[id] > l[ids[at - 1]]; --at) {
            ids[at] = ids[at - 1];
        }
        ids[at] = static_cast<int32_t>(id);
    }
    std::fill(ids + found, ids + n, -1);
}

Status logprobs(void* self, const SampleLogprobs& p, Stream&) noexcept {
    const int64_t M = rows_of(p.logits);
    const int64_t V = dim(p.logits, 1);
    const int64_t n = dim(p.ids, 1);
    TENON_TRY(check_op(p));
    share(context(self), M, 1, V * 12, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t m = begin; m < end; ++m) {
            const float* l = p.logits.row<const float>(m);
            const double top = *std::max_element(l, l + V);
            double sum = 0;
            for (int64_t i = 0; i < V; ++i) {
                sum += std::exp(static_cast<double>(l[i]) - top);
            }
            const double norm = top + std::log(sum);
            const auto lp = [&](int64_t id) { return static_cast<float>(l[id] - norm); };
            const int32_t token = p.token.as<const int32_t>()[m];
            p.token_lp.as<float>()[m] = token >= 0 && token < V ? lp(token) : 0.0f;
            if (n > 0) {
                int32_t* ids = p.ids.row<int32_t>(m);
                largest(l, V, n, ids);
                for (int64_t i = 0; i < n; ++i) {
                    p.lp.row<float>(m)[i] = ids[i] >= 0 ? lp(ids[i]) : kNoLogit;
                }
            }
        }
    });
    return {};
}

Status count(void* self, const SampleCount& p, Stream&) noexcept {
    const int64_t n = rows_of(p.token);
    TENON_TRY(check_op(p));
    for (int64_t i = 0; i < n; ++i) {
        const int32_t token = p.token.as<const int32_t>()[i];
        const int32_t slot = p.slot.as<const int32_t>()[i];
        if (token < 0 || slot < 0) {
            continue;
        }
        if (token >= p.seen.shape[1] || slot >= p.seen.shape[0]) {
            context(self).fault();
            continue;
        }
        uint16_t& seen = p.seen.row<uint16_t>(slot)[token];
        if ((seen & kSeenCount) != kSeenCount) {
            ++seen;
        }
    }
    return {};
}

}  // namespace

void add_sample_logprobs(Registry& r) {
    r.add<SampleLogprobs>(&logprobs, Exactness::invariant);
    r.add<SampleCount>(&count, Exactness::exact);
}

}  // namespace tenon::cpu
