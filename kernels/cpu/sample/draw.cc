// SPDX-License-Identifier: MIT
// sample.draw, reference: a full sort of the row, then the filters and the noise as ops.md 3.9
// states them.
#include "sample/draw.h"

#include <algorithm>
#include <cmath>

#include "common/registry.h"
#include "tenon/numeric.h"

namespace tenon::cpu {

namespace {

constexpr int64_t round_up(int64_t n) {
    return (n + 255) / 256 * 256;
}
constexpr int32_t kMaxDrafts = 64;

// Ids of rows 1..r of the segment of row t; returns how many.
int32_t drafts_before(Context& c, const SampleDraw& p, int64_t t, int32_t* drafts) {
    const SegInfo* seg = segment_of(c, p.rows, row_infos(p.rows)[t], t);
    int32_t n = 0;
    if (seg != nullptr) {
        for (int64_t i = int64_t{seg->row0} + 1; i <= t && n < kMaxDrafts; ++i) {
            drafts[n++] = p.ids.as<const int32_t>()[i];
        }
    }
    return n;
}

float penalise(float l, uint32_t count, const SampleParams& s) {
    l = l > 0 ? l / s.repetition : l * s.repetition;
    if (count > 0) {
        l = l - s.frequency * static_cast<float>(count);
        l = l - s.presence;
    }
    return l;
}

void apply_penalties(Context& c, const SampleDraw& p, int64_t m, const SampleParams& s, float* l) {
    const int64_t V = p.logits.shape[1];
    const int64_t t = p.index.as<const int32_t>()[m];
    const int32_t slot = row_infos(p.rows)[t].slot;
    if (slot < 0 || slot >= p.seen.shape[0]) {
        c.fault();
        return;
    }
    int32_t drafts[kMaxDrafts];
    const int32_t n = drafts_before(c, p, t, drafts);
    const auto drafted = [&](int64_t id) {
        return static_cast<uint32_t>(std::count(drafts, drafts + n, static_cast<int32_t>(id)));
    };
    const uint16_t* seen = p.seen.row<const uint16_t>(slot);
    for (int64_t id = 0; id < V; ++id) {
        if (seen[id] != 0) {
            l[id] = penalise(l[id], (seen[id] & uint32_t{kSeenCount}) + drafted(id), s);
        }
    }
    for (int32_t i = 0; i < n; ++i) {
        const int32_t id = drafts[i];
        const bool first = std::find(drafts, drafts + i, id) == drafts + i;
        if (first && id >= 0 && id < V && seen[id] == 0) {
            l[id] = penalise(l[id], drafted(id), s);
        }
    }
}

// Kept ids in falling order of logit; the filters cut this list from behind.
struct Kept {
    int32_t* ids;
    int64_t n;
};

int32_t draw_kept(const Kept& kept, const float* l, const SampleParams& s) {
    double best = -std::numeric_limits<double>::infinity();
    int32_t token = kNoToken;
    for (int64_t i = 0; i < kept.n; ++i) {
        const int32_t id = kept.ids[i];
        const double v = static_cast<double>(l[id]) / static_cast<double>(s.temperature) +
                         gumbel_noise(s.seed, s.pos, id);
        if (token < 0 || v > best || (v == best && id < token)) {
            best = v;
            token = id;
        }
    }
    return token;
}

int32_t draw_sorted(const float* l, int64_t V, const SampleParams& s, int32_t* order) {
    int64_t n = 0;
    for (int64_t id = 0; id < V; ++id) {
        if (l[id] > kNoLogit) {
            order[n++] = static_cast<int32_t>(id);
        }
    }
    if (n == 0) {
        return kNoToken;
    }
    std::stable_sort(order, order + n, [l](int32_t a, int32_t b) { return l[a] > l[b]; });
    if (!(s.temperature > 0)) {
        return order[0];
    }
    if (s.top_k > 0) {
        n = std::min<int64_t>(n, s.top_k);
    }
    const double temperature = s.temperature;
    const double top = static_cast<double>(l[order[0]]) / temperature;
    const auto weight = [&](int64_t i) {
        return std::exp(static_cast<double>(l[order[i]]) / temperature - top);
    };
    if (s.top_p < 1) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
            sum += weight(i);
        }
        double prefix = 0;
        for (int64_t i = 0; i < n; ++i) {
            prefix += weight(i);
            if (prefix >= static_cast<double>(s.top_p) * sum) {
                n = i + 1;
            }
        }
    }
    while (s.min_p > 0 && n > 1 && weight(n - 1) < static_cast<double>(s.min_p)) {
        --n;
    }
    return draw_kept({order, n}, l, s);
}

double log_sum_exp(const float* l, int64_t V) {
    const double top = *std::max_element(l, l + V);
    double sum = 0;
    for (int64_t i = 0; i < V; ++i) {
        sum += std::exp(l[i] - top);
    }
    return top + std::log(sum);
}

void draw_row(Context& c, const SampleDraw& p, int64_t m, const DrawScratch& scratch) {
    const int64_t V = p.logits.shape[1];
    const float* raw = p.logits.row<const float>(m);
    const SampleParams& s = p.params.as<const SampleParams>()[m];
    int32_t& token = p.token.as<int32_t>()[m];
    const bool bad = std::any_of(raw, raw + V,
                                 [](float x) { return !(x <= std::numeric_limits<float>::max()); });
    if (!p.logprob.null()) {
        p.logprob.as<float>()[m] = 0;
    }
    if (bad) {
        token = kBadLogits;
        return;
    }
    adjust_logits(c, p, m, scratch.logits);
    token = draw_sorted(scratch.logits, V, s, scratch.order);
    if (token >= 0 && !p.logprob.null()) {
        p.logprob.as<float>()[m] = static_cast<float>(raw[token] - log_sum_exp(raw, V));
    }
}

Status draw(void* self, const SampleDraw& p, Stream&) noexcept {
    TENON_TRY(check_op(p, sample_draw_scratch(self, p)));
    Context& c = context(self);
    const int64_t V = p.logits.shape[1];
    share(c, p.logits.shape[0], 1, V * 60, [&](int64_t begin, int64_t end, int32_t worker) {
        for (int64_t m = begin; m < end; ++m) {
            if (!p.seen.null() && (p.index.as<const int32_t>()[m] < 0 ||
                                   p.index.as<const int32_t>()[m] >= p.rows.T)) {
                p.token.as<int32_t>()[m] = kNoToken;
                if (!p.logprob.null()) {
                    p.logprob.as<float>()[m] = 0;
                }
                continue;
            }
            draw_row(c, p, m, draw_scratch(p, worker));
        }
    });
    return {};
}

}  // namespace

int64_t sample_draw_worker_bytes(int64_t V) {
    return round_up(V * 4) * 2;
}

int64_t sample_draw_scratch(void* self, const SampleDraw& p) noexcept {
    const int64_t rows = std::min<int64_t>(rows_of(p.logits), context(self).workers);
    return rows == 0 ? 0 : context(self).workers * sample_draw_worker_bytes(dim(p.logits, 1));
}

DrawScratch draw_scratch(const SampleDraw& p, int32_t worker) {
    const int64_t V = p.logits.shape[1];
    uint8_t* base = p.scratch.as<uint8_t>() + worker * sample_draw_worker_bytes(V);
    return {reinterpret_cast<float*>(base), reinterpret_cast<int32_t*>(base + round_up(V * 4))};
}

void adjust_logits(Context& c, const SampleDraw& p, int64_t m, float* logits) {
    const int64_t V = p.logits.shape[1];
    const SampleParams& s = p.params.as<const SampleParams>()[m];
    std::copy_n(p.logits.row<const float>(m), V, logits);
    if (!p.bias_begin.null()) {
        const int32_t* begin = p.bias_begin.as<const int32_t>();
        const auto entries = static_cast<int32_t>(p.bias_ids.shape[0]);
        for (int32_t i = std::max(0, begin[m]); i < std::min(entries, begin[m + 1]); ++i) {
            const int32_t id = p.bias_ids.as<const int32_t>()[i];
            if (id >= 0 && id < V) {
                logits[id] += p.bias_add.as<const float>()[i];
            }
        }
    }
    if (!p.seen.null() && (s.repetition != 1 || s.presence != 0 || s.frequency != 0)) {
        apply_penalties(c, p, m, s, logits);
    }
    if (p.mask.null() && p.forbid.null()) {
        return;
    }
    for (int64_t first = 0; first < V; first += 32) {
        const int64_t word = first / 32;
        uint32_t allowed = p.mask.null() ? ~0u : p.mask.row<const uint32_t>(m)[word];
        allowed &= p.forbid.null() ? ~0u : ~p.forbid.as<const uint32_t>()[word];
        for (uint32_t out = ~allowed; out != 0; out &= out - 1) {
            const int64_t id = first + std::countr_zero(out);
            if (id < V) {
                logits[id] = kNoLogit;
            }
        }
    }
}

void add_sample_draw(Registry& r) {
    r.add_best<SampleDraw>(&draw, sample_draw_fast(), Exactness::invariant, &sample_draw_scratch);
}

}  // namespace tenon::cpu
