// SPDX-License-Identifier: MIT
// The layers: one row group through backbone, head or draft stages as a sequence of op calls
// (ops.md 5.2).
#pragma once

#include "activations.h"
#include "step_block.h"

namespace tenon::dsv41 {

/// Hands out the fetched Engram rows of the running group.
class EngramFeed {
  public:
    /// Waits for the table's rows; views u8[T, c, w] and u8[T, c, w / 32].
    virtual Status rows_of(int32_t table, TensorView* values, TensorView* scales) = 0;

  protected:
    ~EngramFeed() = default;
};

/// Keeps named copies of what passes by.
class Tracer {
  public:
    virtual void keep(const std::string& name, const TensorView& value) = 0;

  protected:
    ~Tracer() = default;
};

struct ForwardParts {
    const ModelConfig* config = nullptr;
    RankShape ranks;
    const ModelWeights* weights = nullptr;
    const DeviceState* state = nullptr;
    Activations* act = nullptr;
    Device* device = nullptr;
    Stream* stream = nullptr;
    Communicator* communicator = nullptr;  ///< null at world 1
    const OpSet* ops[2] = {};              ///< by regime
    bool with_drafts = false;
};

/// Inputs and outputs of one draft pass; everything on the device.
struct DraftPass {
    TensorView decision;  ///< VerifyDecision[S]
    Rows window;          ///< the group that decided
    TensorView slot;      ///< i32[S], -1: no drafts
    TensorView params;    ///< SampleParams[S], null: greedy
    TensorView forbid;    ///< u32, this rank's ids
    TensorView ids;       ///< i32[S * B], row: RowInfo[S * B], seg: SegInfo[S]
    TensorView row, seg;
    TensorView best;        ///< DraftBest[W, S]
    TensorView best_own;    ///< DraftBest[S], this rank's
    TensorView tokens;      ///< i32[S, B + 1]: the decided token, then the drafts
    TensorView confidence;  ///< f32[S, B]
};

/// Thread: the engine thread. Enqueues on one stream and never reads device memory.
class Forward {
  public:
    void init(const ForwardParts& parts);

    /// Instead of calling ops: asks each whether it supports the geometry and adds up scratch.
    void set_measuring(bool on) { measuring_ = on; }
    int64_t scratch_bytes() const { return scratch_need_; }
    void set_tracer(Tracer* tracer) { tracer_ = tracer; }

    /// Embedding and all layers; state is stored, taps are kept for `absorb`.
    Status backbone(const RowGroup& group, EngramFeed* feed);
    /// The backbone in parts: a stretch begins at layer 0 and at every layer with an Engram table,
    /// which is where the host has to wait for rows. Only for groups without tail layers.
    int32_t stretches() const;
    /// Table whose rows stretch `index` begins with, or -1.
    int32_t stretch_table(int32_t index) const;
    Status stretch(int32_t index, const RowGroup& group, EngramFeed* feed);
    /// f32 logits of `count` rows: those of `index` (i32[count]), or all rows if it is null. On
    /// rank 0 the whole vocabulary lies in `activations.logits`.
    Status head(const RowGroup& group, const TensorView& index, int64_t count);
    /// Fills the draft rings from the group's taps.
    Status absorb(const RowGroup& group);
    Status draft(const DraftPass& pass);
    /// rows.digest of the streams into u64[1].
    Status digest(const RowGroup& group, const TensorView& out);

  private:
    struct Site {
        const SiteWeights* weights;
        int32_t index;  ///< attention sites are even, expert sites odd
    };
    struct Block {
        const BlockWeights* weights;
        LayerKind kind;
        int32_t layer;  ///< of the backbone, or -1
        int32_t half;
        Ring ring;
        AttnMode mode;
        int32_t experts, experts_per_token;
    };

    template <class P>
    Status call(const OpFn<P>& op, P params);
    Status linear(const Linear& w, const TensorView& x, const TensorView& y, Regime regime);
    Status linear_group(const LinearGroup& w, const TensorView& x, Span<const TensorView> ys,
                        Regime regime);
    void keep(const Block& block, const char* what, const TensorView& value);
    void keep(const char* name, const TensorView& value);

    Status angles(const RowGroup& group);
    Status embed(const RowGroup& group);
    /// Layers [first, end); `group` shrinks to the rows that still matter.
    Status layers(int32_t first, int32_t end, RowGroup* group, EngramFeed* feed);
    /// First layer of a stretch; `layers` behind the last.
    int32_t stretch_begin(int32_t index) const;
    Status engram(const RowGroup& group, const LayerKind& kind, const EngramWeights& weights,
                  EngramFeed* feed);
    Status take_tap(const RowGroup& group, int32_t tap);
    Status start_site(const RowGroup& group, const Site& site);
    /// y into the streams, then the input of the next site if there is one to continue with.
    Status finish_site(const RowGroup& group, int32_t site, const Site* next);
    /// `after`: the rows whose output is needed, a suffix of the group. Of the others only window
    /// rows and, in a kv source, compressed rows are made.
    Status attention(const RowGroup& group, const RowGroup& after, const Block& block);
    static RowGroup suffix(const RowGroup& group, const TailLayer& layer);
    Status project_inputs(const RowGroup& group, const Block& block);
    Status prepare_rows(const RowGroup& group, const Block& block, const TensorView& cs);
    Status compress(const RowGroup& group, const Block& block);
    Status select(const RowGroup& group, const Block& block);
    Status select_tile(const RowGroup& group, const Block& block, int64_t first, int64_t count,
                       int64_t visible);
    Status attend(const RowGroup& group, const Block& block, const TensorView& cs);
    Status experts(const RowGroup& group, const Block& block);
    Status sum_over_ranks(const TensorView& partial);
    Status draft_segments(const DraftPass& pass);
    Status markov(const DraftPass& pass, const RowGroup& group, const TensorView& base);

    const OpSet& ops(Regime regime) const { return *p_.ops[static_cast<size_t>(regime)]; }
    const TensorView& pre_in(int32_t site) const { return p_.act->pre[(site + 1) & 1]; }
    const TensorView& pre_out(int32_t site) const { return p_.act->pre[site & 1]; }
    bool has_ranks() const { return p_.ranks.world > 1; }

    ForwardParts p_;
    std::vector<float> main_freq_, compress_freq_;
    bool measuring_ = false;
    int64_t scratch_need_ = 0;
    Tracer* tracer_ = nullptr;
};

}  // namespace tenon::dsv41
