// SPDX-License-Identifier: MIT
// QuantExperts over Matrix (ops.md 3.4): rows sorted by expert, then gate/up/activation, then down
// and the ordered sum.
#include <algorithm>

#include "activate.h"
#include "check.h"
#include "facets.h"
#include "tenon/numeric.h"

namespace tenon::packed {

namespace {

// Rows of one expert that are multiplied together. Staged rows of w1 and w3 are per worker, so this
// bounds scratch.
constexpr int64_t kExpertRows = 128;

/// Rows [first, first + count) of the sorted entries, all of one expert.
struct Piece {
    int32_t expert;
    int32_t first;
    int32_t count;
};

class Experts final : public Implements<Experts, QuantExperts> {
  public:
    Experts(ExpertsDesc desc, ParallelFor* pool) : desc_(std::move(desc)), pool_(pool) {
        for (auto& e : desc_.experts) {
            note(e);
        }
        note(desc_.shared);
        if (!desc_.reference && activate_simd() != nullptr) {
            activate_ = activate_simd();
        }
        for (int32_t id = 0; id <= static_cast<int32_t>(desc_.experts.size()); ++id) {
            const ExpertMatrices& e = expert(id);
            shares_.push_back(e.w1 != nullptr && e.w1->stages_for(*e.w3) ? 1 : 0);
        }
    }

    int64_t device_bytes() noexcept override { return bytes_; }

    int64_t scratch_bytes(int64_t rows, int32_t k, Regime) noexcept override {
        return rows <= 0 ? 0 : lay_out(rows, k, nullptr).used;
    }

    void keep_f32(bool on) noexcept override { keep_f32_ = on; }

    Status run(const ExpertsArgs& args, Stream&) noexcept override {
        TENON_TRY(check(args));
        const int64_t rows = args.x.shape[0];
        if (rows == 0) {
            return {};
        }
        const int64_t k = args.ids.shape[1];
        TENON_TRY(check_scratch("experts", args.scratch, lay_out(rows, k, nullptr).used));
        const Layout l = lay_out(rows, k, args.scratch.data);
        const int64_t pieces = sort_rows(args, l);
        gate_and_up(args, l, pieces);
        down_and_sum(args, l, pieces);
        return {};
    }

  private:
    struct Layout {
        int64_t entries = 0;
        int32_t* row = nullptr;    // [entries] row of x, sorted by expert
        float* weight = nullptr;   // [entries]
        int32_t* place = nullptr;  // [T, k + 1] entry of (row, slot), -1 = none; the last is shared
        int32_t* fill = nullptr;   // [E + 1]
        Piece* pieces = nullptr;
        uint16_t* a = nullptr;  // [entries, a_width] bf16
        int64_t a_width = 0;
        std::byte* worker = nullptr;
        int64_t worker_bytes = 0;
        int64_t staged1 = 0, staged3 = 0, g = 0, u = 0, p = 0,
                work = 0;  // offsets in a worker's part
        int64_t used = 0;
    };

    void note(const ExpertMatrices& e) {
        for (const Matrix* m : {e.w1.get(), e.w3.get(), e.w2.get()}) {
            if (m != nullptr) {
                bytes_ += m->bytes();
                work_bytes_ = std::max(work_bytes_, m->work_bytes());
            }
        }
        if (e.w1 != nullptr) {
            staged_in_ = std::max(
                {staged_in_, e.w1->staged_bytes(), e.w3->staged_bytes(), e.w2->staged_bytes()});
        }
    }

    Layout lay_out(int64_t rows, int64_t k, void* scratch) const {
        Layout l;
        const auto count = static_cast<int64_t>(desc_.experts.size());
        l.entries = rows * k + rows;
        Arena arena(scratch);
        l.row = arena.take<int32_t>(l.entries);
        l.weight = arena.take<float>(l.entries);
        l.place = arena.take<int32_t>(rows * (k + 1));
        l.fill = arena.take<int32_t>(count + 1);
        l.pieces = arena.take<Piece>(l.entries / kExpertRows + std::min(l.entries, count + 1));
        l.a_width = round_up(desc_.intermediate, 8);
        l.a = arena.take<uint16_t>(l.entries * l.a_width);
        const int64_t chunk = std::min(rows * std::max<int64_t>(k, 1), kExpertRows);
        Arena part;
        const auto at = [&part](int64_t bytes) {
            const int64_t offset = part.used();
            part.take<std::byte>(bytes);
            return offset;
        };
        l.staged1 = at(chunk * staged_in_);
        l.staged3 = at(chunk * staged_in_);
        l.g = at(chunk * kBlock * 4);
        l.u = at(chunk * kBlock * 4);
        l.p = at(l.entries * kBlock * 4);
        l.work = at(work_bytes_);
        l.worker_bytes = part.used();
        l.worker = arena.take<std::byte>(l.worker_bytes * workers_of(pool_));
        l.used = arena.used();
        return l;
    }

    Status check(const ExpertsArgs& args) const {
        const std::string& name = desc_.name;
        TENON_TRY(check_experts(name, desc_.hidden, args));
        const auto count = static_cast<int64_t>(desc_.experts.size());
        for (int64_t i = 0; i < args.ids.elements(); ++i) {
            const int32_t id = args.ids.as<int32_t>()[i];
            if (id < -1 || id >= count) {
                return error(Code::invalid_argument,
                             "experts {}: id {} of row {}, expected -1 to {}", name, id,
                             i / args.ids.shape[1], count - 1);
            }
        }
        return {};
    }

    const ExpertMatrices& expert(int32_t id) const {
        return id == static_cast<int32_t>(desc_.experts.size())
                   ? desc_.shared
                   : desc_.experts[static_cast<size_t>(id)];
    }

    // Stable by expert, then row, then slot; the shared expert counts as the last one.
    int64_t sort_rows(const ExpertsArgs& args, const Layout& l) const {
        const int64_t rows = args.x.shape[0];
        const int64_t k = args.ids.shape[1];
        const auto* ids = args.ids.as<int32_t>();
        const auto* weights = args.weights.as<float>();
        const auto count = static_cast<int32_t>(desc_.experts.size());
        std::fill_n(l.fill, count + 1, 0);
        const auto held = [&](int32_t id) { return id >= 0 && expert(id).w1 != nullptr; };
        for (int64_t i = 0; i < rows * k; ++i) {
            l.fill[held(ids[i]) ? ids[i] : 0] += held(ids[i]) ? 1 : 0;
        }
        l.fill[count] = held(count) ? static_cast<int32_t>(rows) : 0;
        int64_t pieces = 0;
        int32_t first = 0;
        for (int32_t e = 0; e <= count; ++e) {
            const int32_t n = l.fill[e];
            for (int32_t done = 0; done < n; done += kExpertRows) {
                l.pieces[pieces++] = {e, first + done, std::min<int32_t>(n - done, kExpertRows)};
            }
            l.fill[e] = first;
            first += n;
        }
        for (int64_t t = 0; t < rows; ++t) {
            for (int64_t slot = 0; slot <= k; ++slot) {
                const int32_t id = slot == k ? count : ids[t * k + slot];
                int32_t& place = l.place[t * (k + 1) + slot];
                if (!held(id)) {
                    place = -1;
                    continue;
                }
                place = l.fill[id]++;
                l.row[place] = static_cast<int32_t>(t);
                l.weight[place] = slot == k ? 1.0f : weights[t * k + slot];
            }
        }
        return pieces;
    }

    void gate_and_up(const ExpertsArgs& args, const Layout& l, int64_t pieces) const {
        const int64_t blocks = (desc_.intermediate + kBlock - 1) / kBlock;
        const int64_t work = l.entries * desc_.hidden * desc_.intermediate * 2;
        parallel_for(pool_for(pool_, work), pieces * blocks, 1,
                     [&](int64_t begin, int64_t end, int32_t worker) {
                         std::byte* mine = l.worker + worker * l.worker_bytes;
                         auto* g = reinterpret_cast<float*>(mine + l.g);
                         auto* u = reinterpret_cast<float*>(mine + l.u);
                         int64_t staged_piece = -1;
                         for (int64_t at = begin; at < end; ++at) {
                             // The shared expert has most rows: begun last, it would keep one
                             // worker busy alone.
                             const int64_t task = pieces * blocks - 1 - at;
                             const Piece& piece = l.pieces[task / blocks];
                             const int64_t block = task % blocks;
                             const ExpertMatrices& e = expert(piece.expert);
                             const bool shares = shares_[static_cast<size_t>(piece.expert)] != 0;
                             std::byte* staged1 = mine + l.staged1;
                             std::byte* staged3 = shares ? staged1 : mine + l.staged3;
                             if (staged_piece != task / blocks) {
                                 staged_piece = task / blocks;
                                 RowsIn x;
                                 x.data = args.x.data;
                                 x.stride = args.x.stride[0];
                                 x.index = l.row + piece.first;
                                 e.w1->stage(x, piece.count, staged1);
                                 if (!shares) {
                                     e.w3->stage(x, piece.count, staged3);
                                 }
                             }
                             e.w1->block(block, staged1, piece.count, g, mine + l.work);
                             e.w3->block(block, staged3, piece.count, u, mine + l.work);
                             activate(args.limit, l, piece, block, g, u);
                         }
                     });
    }

    void activate(float limit, const Layout& l, const Piece& piece, int64_t block, const float* g,
                  const float* u) const {
        const int64_t col0 = block * kBlock;
        const int64_t cols = std::min(kBlock, desc_.intermediate - col0);
        for (int64_t r = 0; r < piece.count; ++r) {
            const int64_t entry = piece.first + r;
            const float weight = l.weight[entry];
            uint16_t* a = l.a + entry * l.a_width + col0;
            activate_(limit, weight, g + r * kBlock, u + r * kBlock, cols, a);
        }
    }

    void down_and_sum(const ExpertsArgs& args, const Layout& l, int64_t pieces) const {
        const int64_t blocks = (desc_.hidden + kBlock - 1) / kBlock;
        const int64_t work = l.entries * desc_.hidden * desc_.intermediate;
        const bool round = desc_.whole_width && !keep_f32_;
        parallel_for(pool_for(pool_, work), blocks, 1,
                     [&](int64_t begin, int64_t end, int32_t worker) {
                         std::byte* mine = l.worker + worker * l.worker_bytes;
                         auto* p = reinterpret_cast<float*>(mine + l.p);
                         for (int64_t block = begin; block < end; ++block) {
                             for (int64_t i = 0; i < pieces; ++i) {
                                 const Piece& piece = l.pieces[i];
                                 const Matrix& w2 = *expert(piece.expert).w2;
                                 RowsIn a;
                                 a.data = l.a + piece.first * l.a_width;
                                 a.stride = l.a_width;
                                 w2.stage(a, piece.count, mine + l.staged1);
                                 w2.block(block, mine + l.staged1, piece.count,
                                          p + piece.first * kBlock, mine + l.work);
                             }
                             sum_slots(args, l, block, p, round);
                         }
                     });
    }

    void sum_slots(const ExpertsArgs& args, const Layout& l, int64_t block, const float* p,
                   bool round) const {
        const int64_t slots = args.ids.shape[1] + 1;
        const int64_t col0 = block * kBlock;
        const int64_t cols = std::min(kBlock, desc_.hidden - col0);
        for (int64_t t = 0; t < args.x.shape[0]; ++t) {
            float* out = args.out.row<float>(t) + col0;
            std::fill_n(out, cols, 0.0f);
            for (int64_t slot = 0; slot < slots; ++slot) {
                const int32_t entry = l.place[t * slots + slot];
                if (entry < 0) {
                    continue;
                }
                const float* src = p + entry * kBlock;
                for (int64_t c = 0; c < cols; ++c) {
                    out[c] += round ? round_bf16(src[c]) : src[c];
                }
            }
        }
    }

    ExpertsDesc desc_;
    ParallelFor* pool_;
    int64_t bytes_ = 0;
    int64_t work_bytes_ = 0;
    int64_t staged_in_ = 0;  // widest staged row of any matrix
    bool keep_f32_ = false;
    ActivateFn activate_ = &activate_reference;
    std::vector<uint8_t> shares_;  // by expert: w3 reads the rows staged for w1
};

}  // namespace

QuantExperts* make_experts(ExpertsDesc desc, ParallelFor* pool) {
    return new Experts(std::move(desc), pool);
}

}  // namespace tenon::packed
