// SPDX-License-Identifier: MIT
// Calibration by acceptance, and the choice of slots that draft.
#include "host/engine/draft_policy.h"

#include <algorithm>
#include <cmath>

#include "host/engine/sequence.h"

namespace tenon::engine {
namespace {

constexpr double kPrior = 8;     // tests that the drafter's own word counts for
constexpr double kMemory = 512;  // tests after which a bin forgets half: texts change
constexpr double kCopyPrior = 3;
constexpr double kGainWeight = 1.0 / 8;
constexpr double kMeanWeight = 1.0 / 64;
constexpr int32_t kFirstProbe = 16, kLastProbe = 64;

size_t bin_of(double p, int bins) {
    return static_cast<size_t>(std::clamp(static_cast<int>(p * bins), 0, bins - 1));
}

size_t copy_bin(int64_t match) {
    return static_cast<size_t>(match < 8 ? 0 : match < 16 ? 1 : match < 32 ? 2 : 3);
}

}  // namespace

void DraftPolicy::count(Bin* bin, bool accepted) {
    bin->tested += 1;
    bin->accepted += accepted ? 1 : 0;
    if (bin->tested >= kMemory) {
        bin->tested /= 2;
        bin->accepted /= 2;
    }
}

double DraftPolicy::believe(float logit, bool sampled, float* raw) const {
    const double p = std::isfinite(logit) ? 1 / (1 + std::exp(-static_cast<double>(logit))) : 0;
    *raw = static_cast<float>(p);
    const Bin& bin = model_[sampled ? 1 : 0][bin_of(p, kBins)];
    return (bin.accepted + kPrior * p) / (bin.tested + kPrior);
}

double DraftPolicy::believe_copy(const DraftRecord& record, int64_t match) const {
    const Bin& bin = copy_[copy_bin(match)];
    const double usual = (bin.accepted + kPrior * 0.5) / (bin.tested + kPrior);
    return (record.copy_hits + kCopyPrior * usual) / (record.copy_tests + kCopyPrior);
}

void DraftPolicy::observe(DraftRecord* record, int32_t accepted, bool cut) {
    const int32_t tested = std::min(record->offered, accepted + (cut ? 0 : 1));
    for (int32_t i = 0; i < tested; ++i) {
        const bool taken = i < accepted;
        if (record->source == DraftSource::copy) {
            count(&copy_[copy_bin(record->match)], taken);
            record->copy_tests = record->copy_tests * 0.95 + 1;
            record->copy_hits = record->copy_hits * 0.95 + (taken ? 1 : 0);
        } else {
            const double p = static_cast<double>(record->raw[i]);
            count(&model_[record->sampled ? 1 : 0][bin_of(p, kBins)], taken);
        }
    }
    record->copy_run =
        record->source == DraftSource::copy && accepted == record->offered ? record->offered : 0;
    record->source = DraftSource::none;
    record->offered = 0;
}

void DraftPolicy::note_gain(DraftRecord* record, double gain, int32_t rows) {
    if (!record->known) {
        record->known = true;
        record->gain = mean_gain_;
        record->rows = mean_rows_;
    }
    // Upwards faster: a text that turned predictable is noticed by one probe in a while.
    const double weight = gain > record->gain ? 2 * kGainWeight : kGainWeight;
    record->gain += (gain - record->gain) * weight;
    record->rows += (rows - record->rows) * weight;
    mean_gain_ += (gain - mean_gain_) * kMeanWeight;
    mean_rows_ += (rows - mean_rows_) * kMeanWeight;
}

void DraftPolicy::choose(Span<DraftRecord* const> records, int32_t streams, const StepCosts& costs,
                         int32_t row_cap, bool* wanted) {
    const auto count = static_cast<int32_t>(records.size);
    std::fill(wanted, wanted + count, false);
    if (row_cap <= streams) {
        return;
    }
    if (!costs.measured()) {
        std::fill(wanted, wanted + count, true);
        return;
    }
    const auto gain = [&](int32_t i) {
        const DraftRecord& r = *records[static_cast<uint64_t>(i)];
        return r.known ? r.gain : mean_gain_;
    };
    int32_t order[kMaxSlots];
    for (int32_t i = 0; i < count; ++i) {
        order[i] = i;
    }
    std::sort(order, order + count, [&](int32_t a, int32_t b) {
        return gain(a) != gain(b) ? gain(a) > gain(b) : a < b;  // std::stable_sort allocates
    });
    double best_rate = streams / costs.window_us(streams);
    int32_t chosen = 0;
    double tokens = streams, rows = streams;
    for (int32_t m = 1; m <= count; ++m) {
        const DraftRecord& r = *records[static_cast<uint64_t>(order[m - 1])];
        tokens += gain(order[m - 1]);
        rows += r.known ? r.rows : mean_rows_;
        const auto total = std::min(static_cast<int64_t>(std::ceil(rows)), int64_t{row_cap});
        const double rate = tokens / (costs.window_us(total) + costs.draft_us(m));
        if (rate > best_rate) {
            best_rate = rate;
            chosen = m;
        }
    }
    for (int32_t i = 0; i < count; ++i) {
        DraftRecord& r = *records[static_cast<uint64_t>(order[i])];
        bool& w = wanted[order[i]];
        if (i < chosen) {
            w = true;
            r.probe_after = kFirstProbe;
        } else if (++r.rounds_without >= r.probe_after) {
            w = true;
            r.probe_after = std::min(2 * r.probe_after, kLastProbe);
        }
        r.rounds_without = w ? 0 : r.rounds_without;
    }
}

}  // namespace tenon::engine
