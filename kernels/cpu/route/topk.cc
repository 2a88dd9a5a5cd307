// SPDX-License-Identifier: MIT
// route.topk: scores, choice and weights of the experts of each row (M 3.8).
#include <cmath>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"
#include "tenon/ops/route.h"

namespace tenon::cpu {

namespace {

float score(float logit) {
    const double z = logit;
    return static_cast<float>(std::sqrt(z > 20.0 ? z : std::log1p(std::exp(z))));
}

// The k largest keys, ties to the lower index, as ascending ids; returns how many there are.
int32_t choose(const float* key, int64_t E, int32_t k, int32_t* ids) {
    bool taken[kMaxExperts] = {};
    int32_t found = 0;
    for (; found < k; ++found) {
        int64_t best = -1;
        for (int64_t e = 0; e < E; ++e) {
            if (!taken[e] && !std::isnan(key[e]) && (best < 0 || key[e] > key[best])) {
                best = e;
            }
        }
        if (best < 0) {
            break;
        }
        taken[best] = true;
    }
    int32_t n = 0;
    for (int64_t e = 0; e < E && n < found; ++e) {
        if (taken[e]) {
            ids[n++] = static_cast<int32_t>(e);
        }
    }
    return found;
}

void route_row(const RouteTopk& p, int64_t t) {
    const int64_t E = p.logits.shape[1];
    int32_t* ids = p.ids.row<int32_t>(t);
    float* weights = p.weights.row<float>(t);
    for (int32_t i = 0; i < p.k; ++i) {
        ids[i] = -1;
        weights[i] = 0;
    }
    const RowInfo& info = row_infos(p.rows)[t];
    if (info.slot < 0) {
        return;
    }
    const bool image = (info.flags & kRowImage) != 0 && !p.bias_image.null();
    const float* bias = (image ? p.bias_image : p.bias).as<float>();
    float s[kMaxExperts];
    float key[kMaxExperts];
    for (int64_t e = 0; e < E; ++e) {
        s[e] = score(p.logits.row<float>(t)[e]);
        key[e] = s[e] + bias[e];
    }
    const int32_t found = choose(key, E, p.k, ids);
    float sum = 0;
    for (int32_t i = 0; i < found; ++i) {
        sum += s[ids[i]];
    }
    sum += 1e-20f;
    for (int32_t i = 0; i < found; ++i) {
        weights[i] = s[ids[i]] / sum * p.scale;
    }
}

Status topk(void* self, const RouteTopk& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = rows_of(p.logits);
    const int64_t E = dim(p.logits, 1);
    share(context(self), T, 16, E * 60, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            route_row(p, t);
        }
    });
    return {};
}

}  // namespace

void add_route_topk(Registry& r) {
    r.add<RouteTopk>(&topk, Exactness::invariant);
}

}  // namespace tenon::cpu
