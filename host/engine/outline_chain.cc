// SPDX-License-Identifier: MIT
// Order of decode slots, choice of the prompt slice, and the guard around overlays
// (engine.md 3.1, 3.2).
#include "host/engine/outline_chain.h"

#include <algorithm>
#include <tuple>

#include "host/engine/sequence.h"

namespace tenon::engine {
namespace {

bool runnable(const SlotView& s) {
    return s.state == static_cast<uint32_t>(SlotState::decoding) && s.sink_blocked == 0;
}

bool has_slice(const SlotView& s) {
    return s.state == static_cast<uint32_t>(SlotState::prefilling) && s.sink_blocked == 0;
}

const SlotView* find_slot(const SchedulerView& view, uint32_t slot) {
    for (const SlotView& s : view.slots) {
        if (s.slot == slot) {
            return &s;
        }
    }
    return nullptr;
}

}  // namespace

bool BaseOutliner::is_overdue(const SchedulerView& view, int64_t age_us, int64_t rows,
                              bool background) const {
    int64_t chunk_us = 0;
    for (const int64_t us : view.stage_us) {
        chunk_us += us;
    }
    const int64_t chunks = view.chunk_rows > 0 ? (rows + view.chunk_rows - 1) / view.chunk_rows : 0;
    const int64_t bound = background ? fairness_background_us_ : fairness_us_;
    return age_us > bound - chunks * chunk_us;
}

Status BaseOutliner::outline(const SchedulerView& view, StepOutline* out) noexcept {
    *out = StepOutline{};
    out->row_cap = view.row_cap;

    const SlotView* order[StepOutline::kMaxSlots];
    int32_t count = 0;
    const SlotView* slice = nullptr;
    std::tuple<int, uint32_t, int64_t, uint64_t> best{};
    for (const SlotView& s : view.slots) {
        if (runnable(s) && count < StepOutline::kMaxSlots) {
            order[count++] = &s;
        } else if (has_slice(s)) {
            const int64_t rest = s.prompt - 1 - s.length;
            const bool overdue = is_overdue(view, s.age_us, rest, s.background != 0);
            const auto key =
                std::make_tuple(overdue ? 0 : 1, s.background, overdue ? 0 : rest, s.arrival_seq);
            if (slice == nullptr || key < best) {
                slice = &s;
                best = key;
            }
        }
    }
    std::sort(order, order + count, [](const SlotView* a, const SlotView* b) {
        return std::tie(a->background, a->arrival_seq) < std::tie(b->background, b->arrival_seq);
    });
    out->decode_count = std::min(count, view.row_cap);
    for (int32_t i = 0; i < out->decode_count; ++i) {
        out->decode[i] = order[i]->slot;
    }
    if (slice != nullptr) {
        out->slice_slot = static_cast<int32_t>(slice->slot);
        out->slice_rows = std::min<int64_t>(view.chunk_rows, slice->prompt - 1 - slice->length);
    }
    return {};
}

const char* outline_fault(const SchedulerView& view, const StepOutline& o) {
    if (o.row_cap < 0 || o.row_cap > view.row_cap) {
        return "row_cap is above the view's";
    }
    if (o.decode_count < 0 || o.decode_count > o.row_cap ||
        o.decode_count > StepOutline::kMaxSlots) {
        return "more decode slots than rows";
    }
    for (int32_t i = 0; i < o.decode_count; ++i) {
        const SlotView* s = find_slot(view, o.decode[i]);
        if (s == nullptr || !runnable(*s)) {
            return "a decode slot is not runnable";
        }
        for (int32_t j = 0; j < i; ++j) {
            if (o.decode[j] == o.decode[i]) {
                return "a decode slot occurs twice";
            }
        }
    }
    if (o.slice_slot >= 0) {
        const SlotView* s = find_slot(view, static_cast<uint32_t>(o.slice_slot));
        if (s == nullptr || !has_slice(*s)) {
            return "the slice's slot has no prompt rows left";
        }
        if (o.slice_rows < 1 || o.slice_rows > view.chunk_rows) {
            return "slice_rows out of range";
        }
        // One open chunk owns the scratch; until chunks are sliced by stages, each runs whole.
        if (o.slice_stages != 0 && o.slice_stages != view.stages) {
            return "slice_stages: chunks run all stages";
        }
    } else if (o.slice_slot != -1) {
        return "slice_slot is neither a slot nor -1";
    }
    if (o.decode_count == 0 && o.slice_slot < 0) {
        for (const SlotView& s : view.slots) {
            if (has_slice(s) || (runnable(s) && view.row_cap > 0)) {
                return "nothing is scheduled although there is work";
            }
        }
    }
    return nullptr;
}

class OutlineChain::Link final : public Outliner {
  public:
    Link(ScheduleOverlay* overlay, Outliner* inner, Host& host, size_t index)
        : overlay_(overlay), inner_(inner), host_(host), index_(index) {}

    Status outline(const SchedulerView& view, StepOutline* out) noexcept override {
        *out = StepOutline{};
        const Status status = overlay_->outline(view, *inner_, out);
        if (status.ok()) {
            const char* fault = outline_fault(view, *out);
            if (fault == nullptr) {
                return {};
            }
            report(fault);
        } else {
            report(status.message());
        }
        return inner_->outline(view, out);
    }

  private:
    void report(StrView what) {
        if (!reported_) {
            reported_ = true;
            host_.log(LogLevel::warn, "engine",
                      format("schedule overlay {} was overruled: {}; further cases are not logged",
                             index_, what));
        }
    }

    ScheduleOverlay* overlay_;
    Outliner* inner_;
    Host& host_;
    size_t index_;
    bool reported_ = false;
};

OutlineChain::OutlineChain(BaseOutliner& base, Span<ScheduleOverlay* const> overlays, Host& host)
    : last_(&base) {
    for (ScheduleOverlay* overlay : overlays) {
        links_.push_back(std::make_unique<Link>(overlay, last_, host, links_.size()));
        last_ = links_.back().get();
    }
}

OutlineChain::~OutlineChain() = default;

Status OutlineChain::outline(const SchedulerView& view, StepOutline* out) noexcept {
    return last_->outline(view, out);
}

}  // namespace tenon::engine
