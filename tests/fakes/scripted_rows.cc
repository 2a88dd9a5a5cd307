// SPDX-License-Identifier: MIT
// Rows of the scripted model: what a row reads and writes in pages and rings, what it draws, and
// the windows and drafts made of rows.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/fakes/scripted_limits.h"
#include "tests/fakes/scripted_model.h"

namespace tenon::fakes {

using scripted::kVocab;
using scripted::kWindow;
using scripted::wrong;

namespace {

constexpr int32_t kCandidates = 12;
constexpr int32_t kMaxCandidates = 64;

uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

double unit(uint64_t bits) {
    return (static_cast<double>(bits >> 40) + 0.5) / (1 << 24);
}

}  // namespace

Status ScriptedModel::cell(const Slot& slot, int64_t position, Cell** out) {
    const int64_t index = position / options_.page_tokens;
    if (position < 0 || index >= static_cast<int64_t>(slot.table.size()) ||
        slot.table[static_cast<size_t>(index)] < 0) {
        return wrong(step_, format("request {} position {} has no page", slot.request, position));
    }
    const int64_t at = int64_t{slot.table[static_cast<size_t>(index)]} * options_.page_tokens +
                       position % options_.page_tokens;
    *out = &cells_[static_cast<size_t>(at)];
    return {};
}

Status ScriptedModel::write(uint32_t index, int64_t position, int32_t token) {
    Slot& s = slots_[index];
    uint64_t before = 0;
    if (position > 0) {
        Cell* previous = nullptr;
        TENON_TRY(cell(s, position - 1, &previous));
        if (previous->position != position - 1 ||
            previous->hash != s.hashes[static_cast<size_t>(position) - 1]) {
            return wrong(step_,
                         format("request {}: the cell before {} holds position {}, perhaps of "
                                "another sequence",
                                s.request, position, previous->position));
        }
        before = previous->hash;
    }
    // Layers look at the window through the ring and at older rows through pages, so both must be
    // right.
    uint64_t seen = 0;
    for (int64_t p = std::max<int64_t>(0, position - kWindow); p < position; ++p) {
        const RingRow& row = s.ring[static_cast<size_t>(p) % s.ring.size()];
        if (row.position != p) {
            return wrong(step_, format("request {}: ring row of position {} holds {}", s.request, p,
                                       row.position));
        }
        seen = mix(seen, static_cast<uint64_t>(row.token));
    }
    for (uint64_t k = 0; k < 3 && position > kWindow; ++k) {
        const auto p = static_cast<int64_t>(mix(before, k) % static_cast<uint64_t>(position));
        Cell* old = nullptr;
        TENON_TRY(cell(s, p, &old));
        if (old->position != p || old->hash != s.hashes[static_cast<size_t>(p)]) {
            return wrong(step_, format("request {}: the cell of {} holds position {}, perhaps of "
                                       "another sequence",
                                       s.request, p, old->position));
        }
        seen = mix(seen, static_cast<uint64_t>(old->token) ^ old->hash);
    }
    Cell* c = nullptr;
    TENON_TRY(cell(s, position, &c));
    *c = Cell{position, token, mix(mix(before, static_cast<uint64_t>(token)), seen)};
    s.hashes[static_cast<size_t>(position)] = c->hash;
    s.ring[static_cast<size_t>(position) % s.ring.size()] = RingRow{position, token};
    return {};
}

Status ScriptedModel::draw(uint32_t index, int64_t position, Span<const int32_t> earlier,
                           Candidate* best, Candidate* all, int32_t* count) {
    const Slot& s = slots_[index];
    Cell* c = nullptr;
    TENON_TRY(cell(s, position, &c));
    int32_t n = 0;
    if (s.scripted) {
        const auto at = static_cast<size_t>(position - s.first_row);
        all[n++] = {at < s.script.size() ? s.script[at] : kEos, 10};
        *best = all[0];
        *count = n;
        return {};
    }
    for (uint64_t k = 0; k < kCandidates; ++k) {
        const auto id = static_cast<int32_t>(32 + mix(c->hash, k) % 95);
        const bool twice =
            std::any_of(all, all + n, [id](const Candidate& a) { return a.id == id; });
        if (!twice) {
            all[n++] = {id, 10 * unit(mix(c->hash, k + 100))};
        }
    }
    if (mix(c->hash, 200) % 1000 < static_cast<uint64_t>(options_.eos_permille)) {
        all[n++] = {kEos, 12};
    }
    for (const plan::Pair& b : s.bias) {
        float add = 0;
        std::memcpy(&add, &b.bits, sizeof add);
        Candidate* found =
            std::find_if(all, all + n, [&](const Candidate& a) { return a.id == b.token; });
        if (found == all + n) {
            if (n == kMaxCandidates) {
                continue;
            }
            *found = {b.token, 0};
            ++n;
        }
        found->score += add;
    }
    *best = {};
    for (int32_t i = 0; i < n; ++i) {
        Candidate& a = all[i];
        const auto id = static_cast<size_t>(a.id);
        const auto drafted = std::count(earlier.begin(), earlier.end(), a.id);
        const double output = s.seen[id] + static_cast<double>(drafted);
        if (output > 0 || s.in_prompt[id] != 0) {
            a.score = a.score > 0 ? a.score / static_cast<double>(s.sampler.repetition)
                                  : a.score * static_cast<double>(s.sampler.repetition);
        }
        a.score -= (output > 0 ? static_cast<double>(s.sampler.presence) : 0) +
                   output * static_cast<double>(s.sampler.frequency);
        double score = a.score;
        if (s.sampler.temperature > 0) {
            const uint64_t key = mix(mix(s.sampler.seed, static_cast<uint64_t>(position + 1)), id);
            score =
                score / static_cast<double>(s.sampler.temperature) - std::log(-std::log(unit(key)));
        }
        if (best->id < 0 || score > best->score || (score == best->score && a.id < best->id)) {
            *best = {a.id, score};
        }
    }
    *count = n;
    return {};
}

void ScriptedModel::start_script(Slot& slot, uint32_t index, int64_t position) {
    if (slot.first_row >= 0) {
        return;
    }
    slot.first_row = position;
    if (!script_) {
        return;
    }
    std::vector<int32_t> prompt;
    for (int64_t p = 0; p <= position; ++p) {
        Cell* c = nullptr;
        if (!cell(slots_[index], p, &c).ok()) {
            return;
        }
        prompt.push_back(c->token);
    }
    slot.script = script_(prompt);
    slot.scripted = !slot.script.empty();
}

Status ScriptedModel::run_window(const plan::Window& w, const StepPlan& plan) {
    Slot* s = nullptr;
    TENON_TRY(slot_of(w.slot, w.generation, &s));
    if (w.position < s->whole_from) {
        return wrong(step_, format("window of request {} at {}, whose state is whole from {} on",
                                   s->request, w.position, s->whole_from));
    }
    if (w.position != s->length || !s->has_sampler || s->next_stage != 0) {
        return wrong(step_, format("window of request {} at {}, length {}", s->request, w.position,
                                   s->length));
    }
    const Span<const int32_t> rows =
        plan.tokens.subspan(w.tokens_off, static_cast<uint64_t>(w.rows));
    WindowResult result;
    result.slot = w.slot;
    result.generation = w.generation;
    result.tokens_off = static_cast<uint32_t>(results_.tokens.size());
    result.logprobs_off = static_cast<uint32_t>(results_.logprobs.size());
    result.top = w.top;
    Candidate all[kMaxCandidates];
    bool going = true;
    for (int32_t r = 0; r < w.rows; ++r) {
        TENON_TRY(write(w.slot, w.position + r, rows[static_cast<uint64_t>(r)]));
        if (r == 0) {
            start_script(*s, w.slot, w.position);
        }
        if (!going) {
            continue;  // rejected rows are computed too; nothing may depend on them
        }
        Candidate best;
        int32_t count = 0;
        TENON_TRY(draw(w.slot, w.position + r, rows.subspan(1, static_cast<uint64_t>(r)), &best,
                       all, &count));
        const bool forced = r < w.forced;
        const int32_t token = forced ? rows[static_cast<uint64_t>(r + 1)] : best.id;
        results_.tokens.push_back(token);
        ++result.emitted;
        if ((w.flags & plan::kWantLogprobs) != 0) {
            std::sort(all, all + count,
                      [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
            results_.logprobs.push_back({token, -static_cast<float>(w.position + r) / 1024});
            for (int32_t i = 0; i < w.top; ++i) {
                results_.logprobs.push_back(
                    {i < count ? all[i].id : i, -static_cast<float>(i + 1)});
            }
        }
        const bool stop = std::find(s->stops.begin(), s->stops.end(), token) != s->stops.end();
        const bool full = result.emitted == w.accept_max;
        result.finish = stop   ? WindowFinish::stop_id
                        : full ? WindowFinish::accept_max
                               : WindowFinish::none;
        going = !stop && !full && r + 1 < w.rows && rows[static_cast<uint64_t>(r + 1)] == token;
    }
    result.accepted = result.emitted - 1;
    for (int32_t i = 0; i < result.emitted; ++i) {
        ++s->seen[static_cast<size_t>(
            results_.tokens[result.tokens_off + static_cast<uint32_t>(i)])];
    }
    s->length += result.emitted;
    result.status = status_of(*s, w.position + w.rows);
    if (break_results_) {
        results_.tokens.push_back(0);
        ++result.emitted;
    }
    results_.windows.push_back(result);
    return {};
}

Status ScriptedModel::run_draft(const plan::Draft& d) {
    Slot* s = nullptr;
    TENON_TRY(slot_of(d.slot, d.generation, &s));
    const auto mine = [&](const WindowResult& w) { return w.slot == d.slot; };
    const auto window = std::find_if(results_.windows.begin(), results_.windows.end(), mine);
    if (window == results_.windows.end() || d.rows > options_.draft_max) {
        return wrong(step_,
                     format("draft of slot {} without a window, or with {} rows", d.slot, d.rows));
    }
    DraftResult result;
    result.slot = d.slot;
    result.generation = d.generation;
    int32_t pending =
        results_.tokens[window->tokens_off + static_cast<uint32_t>(window->emitted) - 1];
    Candidate all[kMaxCandidates];
    for (int32_t i = 0; i < d.rows; ++i) {
        // Rows beyond the length are scratch: the next window writes them again before anything
        // reads them.
        const int64_t position = s->length + i;
        if (position >= options_.context ||
            s->table[static_cast<size_t>(position / options_.page_tokens)] < 0) {
            break;
        }
        TENON_TRY(write(d.slot, position, pending));
        Candidate best;
        int32_t count = 0;
        TENON_TRY(draw(d.slot, position, {}, &best, all, &count));
        const uint64_t luck = mix(mix(step_, d.slot), static_cast<uint64_t>(i) + 7);
        const bool good = luck % 100 < static_cast<uint64_t>(options_.draft_quality);
        pending = good ? best.id : static_cast<int32_t>(32 + luck % 95);
        result.tokens[i] = pending;
        result.confidence[i] = good ? 2.0f : -1.0f;
        result.count = i + 1;
        if (options_.draft_garbage && luck % 11 == 3) {
            result.tokens[i] = luck % 2 == 0 ? -5 : kVocab + 9;
            break;
        }
    }
    results_.drafts.push_back(result);
    return {};
}

}  // namespace tenon::fakes
