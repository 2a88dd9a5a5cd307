// SPDX-License-Identifier: MIT
// sample.draw without a full sort: partial selection for the filters, noise only for ids that can
// still win. Draws the reference's tokens; the sum behind top_p has another order (f64), which
// matters at 1e-13 only.
#include <algorithm>
#include <cmath>

#include "sample/draw.h"
#include "tenon/numeric.h"

namespace tenon::cpu {

namespace {

struct Fast {
    const SampleKernels& kernels;
    const SampleParams& s;
    const float* l;
    int64_t V;
    int32_t* order;

    double at(int32_t id) const {
        return static_cast<double>(l[id]) / static_cast<double>(s.temperature);
    }
    bool before(int32_t a, int32_t b) const { return l[a] > l[b] || (l[a] == l[b] && a < b); }

    // Ids of [logit >= low, logit < high) appended to order[n..) in falling order; returns the new
    // length.
    int64_t append_sorted(int64_t n, float low, float high) const {
        const int64_t first = n;
        for (int64_t id = 0; id < V; ++id) {
            if (l[id] >= low && l[id] < high) {
                order[n++] = static_cast<int32_t>(id);
            }
        }
        std::sort(order + first, order + n, [this](int32_t a, int32_t b) { return before(a, b); });
        return n;
    }

    // order[0..): the shortest prefix of the falling order with at least top_p of `sum`; returns
    // its length. The row is sorted band by band from the top, since few ids usually carry the
    // weight.
    int64_t top_p_of_all(double top, double sum) const {
        const auto logit_at = [&](double depth) {
            return static_cast<float>((top - depth) * static_cast<double>(s.temperature));
        };
        float high = std::numeric_limits<float>::infinity();
        double prefix = 0;
        int64_t n = 0;
        for (double depth : {2.0, 4.0, 8.0, 16.0, 1e300}) {
            const float low = depth > 1e6 ? -std::numeric_limits<float>::max() : logit_at(depth);
            if (!(low < high)) {
                continue;
            }
            const int64_t end = append_sorted(n, low, high);
            for (; n < end; ++n) {
                prefix += std::exp(at(order[n]) - top);
                if (prefix >= static_cast<double>(s.top_p) * sum) {
                    return n + 1;
                }
            }
            high = low;
        }
        return n;
    }

    // order[0..n): the k largest in falling order, cut by top_p among themselves.
    int64_t top_k_then_p(int64_t available, double top) const {
        const int64_t n = std::min<int64_t>(available, s.top_k);
        const auto falling = [this](int32_t a, int32_t b) { return before(a, b); };
        std::nth_element(order, order + n - 1, order + available, falling);
        std::sort(order, order + n, falling);
        if (!(s.top_p < 1)) {
            return n;
        }
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
            sum += std::exp(at(order[i]) - top);
        }
        double prefix = 0;
        for (int64_t i = 0; i < n; ++i) {
            prefix += std::exp(at(order[i]) - top);
            if (prefix >= static_cast<double>(s.top_p) * sum) {
                return i + 1;
            }
        }
        return n;
    }

    // argmax of value + noise; ids in any order, `bound` first rejects what cannot win.
    template <class Id>
    int32_t draw(int64_t n, int32_t strongest, double least, const Id& id_of) const {
        double best = at(strongest) + gumbel_noise(s.seed, s.pos, strongest);
        int32_t token = strongest;
        NoiseSource noise(s.seed, s.pos);
        for (int64_t i = 0; i < n; ++i) {
            const int32_t id = id_of(i);
            const double x = at(id);
            if (!(x >= least) || x + kGumbelLargest < best) {
                continue;
            }
            const uint32_t word = noise.word(id);
            if (x + gumbel_bound(word) < best) {
                continue;
            }
            const double v = x + gumbel_of_word(word);
            if (v > best || (v == best && id < token)) {
                best = v;
                token = id;
            }
        }
        return token;
    }

    int32_t run() const {
        bool bad = false;
        const float top_logit = kernels.row_max(l, V, &bad);
        if (!(top_logit > kNoLogit)) {
            return kNoToken;
        }
        const auto strongest = static_cast<int32_t>(std::find(l, l + V, top_logit) - l);
        if (!(s.temperature > 0)) {
            return strongest;
        }
        const double top = at(strongest);
        // The reference keeps what has exp(x - top) >= min_p; the same test decides here.
        const auto passes_min_p = [&](int32_t id) {
            return id == strongest || !(s.min_p > 0) ||
                   !(std::exp(at(id) - top) < static_cast<double>(s.min_p));
        };
        const bool limits = s.top_k > 0 && s.top_k < V;
        if (!limits && !(s.top_p < 1)) {
            const double least =
                s.min_p > 0 ? top + std::log(s.min_p) - 1e-6 : -std::numeric_limits<double>::max();
            if (!(s.min_p > 0)) {
                return draw(V, strongest, least, [](int64_t i) { return static_cast<int32_t>(i); });
            }
            int64_t n = 0;
            for (int64_t id = 0; id < V; ++id) {
                if (at(static_cast<int32_t>(id)) >= least &&
                    passes_min_p(static_cast<int32_t>(id))) {
                    order[n++] = static_cast<int32_t>(id);
                }
            }
            return draw(n, strongest, least, [this](int64_t i) { return order[i]; });
        }
        int64_t n = 0;
        if (limits) {
            for (int64_t id = 0; id < V; ++id) {
                if (l[id] > kNoLogit) {
                    order[n++] = static_cast<int32_t>(id);
                }
            }
            n = top_k_then_p(n, top);
        } else {
            n = top_p_of_all(top, kernels.sum_exp(l, V, s.temperature, top));
        }
        while (n > 1 && !passes_min_p(order[n - 1])) {
            --n;
        }
        return draw(n, strongest, -std::numeric_limits<double>::max(),
                    [this](int64_t i) { return order[i]; });
    }
};

void draw_row(Context& c, const SampleKernels& kernels, const SampleDraw& p, int64_t m,
              const DrawScratch& scratch) {
    const int64_t V = p.logits.shape[1];
    const float* raw = p.logits.row<const float>(m);
    bool bad = false;
    const float top = kernels.row_max(raw, V, &bad);
    int32_t& token = p.token.as<int32_t>()[m];
    if (!p.logprob.null()) {
        p.logprob.as<float>()[m] = 0;
    }
    if (bad) {
        token = kBadLogits;
        return;
    }
    adjust_logits(c, p, m, scratch.logits);
    const SampleParams& s = p.params.as<const SampleParams>()[m];
    token = Fast{kernels, s, scratch.logits, V, scratch.order}.run();
    if (token >= 0 && !p.logprob.null()) {
        const double sum = kernels.sum_exp(raw, V, 1.0, top);
        p.logprob.as<float>()[m] =
            static_cast<float>(static_cast<double>(raw[token]) - (top + std::log(sum)));
    }
}

Status draw(void* self, const SampleDraw& p, Stream&) noexcept {
    static const SampleKernels kernels = sample_kernels_simd();
    TENON_TRY(check_op(p, sample_draw_scratch(self, p)));
    Context& c = context(self);
    const int64_t V = p.logits.shape[1];
    share(c, p.logits.shape[0], 1, V * 4, [&](int64_t begin, int64_t end, int32_t worker) {
        for (int64_t m = begin; m < end; ++m) {
            if (!p.seen.null() && (p.index.as<const int32_t>()[m] < 0 ||
                                   p.index.as<const int32_t>()[m] >= p.rows.T)) {
                p.token.as<int32_t>()[m] = kNoToken;
                if (!p.logprob.null()) {
                    p.logprob.as<float>()[m] = 0;
                }
                continue;
            }
            draw_row(c, kernels, p, m, draw_scratch(p, worker));
        }
    });
    return {};
}

}  // namespace

OpCall<SampleDraw> sample_draw_fast() {
    return sample_kernels_simd().row_max == nullptr ? nullptr : &draw;
}

}  // namespace tenon::cpu
