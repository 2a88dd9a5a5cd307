// SPDX-License-Identifier: MIT
// Every optional fused op as the composition that its header names, over another table's parts.
// With it a model's calls of fused ops are checked bit for bit, before any kernel fuses anything.
#pragma once

#include <set>

#include "kernels/shared/op_checks.h"
#include "tenon/ops/attn.h"
#include "tenon/ops/cache.h"
#include "tenon/ops/compress.h"
#include "tenon/ops/draft.h"
#include "tenon/ops/engram.h"
#include "tenon/ops/index.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/linear.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/route.h"
#include "tenon/ops/window.h"

namespace tenon::testing {

class FusedByParts final : public OpTable {
  public:
    /// names  fused ops to offer; empty: all
    void attach(OpTable* inner, std::set<std::string> names = {}) {
        entries_.assign(inner->ops().begin(), inner->ops().end());
        calls_ = 0;
        OpBinder binder({inner});
        const auto bind = [&](auto* op) { binder.bind(op, Regime::decode); };
        bind(&mix_), bind(&collapse_), bind(&expand_), bind(&norm_), bind(&turn_), bind(&quantize_);
        bind(&window_store_), bind(&cache_store_), bind(&pool_), bind(&linear_), bind(&route_),
            bind(&sparse_);
        bind(&score_), bind(&blocks_), bind(&topk_), bind(&gate_), bind(&step_), bind(&pick_);
        names_ = std::move(names);
        offer<MhcReduceExpand>(&reduce_expand);
        offer<MhcMixCollapseNorm>(&mix_collapse_norm);
        offer<MhcCollapseNorm>(&collapse_norm);
        offer<MhcSeam>(&seam);
        offer<RouteGateTopk>(&gate_topk);
        offer<AttnQkvPrep>(&qkv_prep);
        offer<AttnSparseTurn>(&sparse_turn);
        offer<CompressEmit>(&compress_emit);
        offer<IndexKeyEmit>(&key_emit);
        offer<IndexQueryPrep>(&query_prep);
        offer<IndexSelect>(&select);
        offer<EngramReduceGate>(&reduce_gate);
        offer<DraftMarkov>(&markov);
    }
    static std::vector<std::string> all_names() {
        return {"mhc.reduce_expand", "mhc.mix_collapse_norm", "mhc.collapse_norm",
                "mhc.seam",          "route.gate_topk",       "attn.qkv_prep",
                "attn.sparse_turn",  "compress.emit",         "index.key_emit",
                "index.query_prep",  "index.select",          "engram.reduce_gate",
                "draft.markov"};
    }
    int64_t calls() const { return calls_; }

    void* query(StrView facet) noexcept override {
        return facet == StrView(OpTable::kFacet) ? static_cast<OpTable*>(this) : nullptr;
    }
    void release() noexcept override {}
    Span<const OpEntry> ops() noexcept override { return entries_; }
    StrView provider() noexcept override { return "fused by parts"; }

  private:
    using Self = FusedByParts;

    template <class P>
    void offer(Status (*body)(Self&, const P&, Stream&)) {
        if (!names_.empty() && names_.count(P::kOp.name) == 0) {
            return;
        }
        static Status (*function)(Self&, const P&, Stream&) = nullptr;
        function = body;
        OpTraits traits;
        traits.equal_regimes = true;
        traits.rows_max[0] = traits.rows_max[1] = 1 << 20;
        entries_.push_back(make_op<P>(
            this,
            [](void* self, const P& p, Stream& s) noexcept -> Status {
                auto& me = *static_cast<Self*>(self);
                ++me.calls_;
                // What a real kernel refuses.
                if constexpr (requires { kernels::check_op(p); }) {
                    TENON_TRY(kernels::check_op(p));
                }
                return guard([&] { return function(me, p, s); });
            },
            traits));
    }
    TensorView temp(int i, DType dtype, std::initializer_list<int64_t> shape) {
        TensorView v = make_view(static_cast<void*>(nullptr), dtype, shape);
        std::vector<uint64_t>& m = memory_[i];
        m.resize(static_cast<size_t>(v.bytes() / 8 + 64));
        v.data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(m.data()) + 255) / 256 * 256);
        return v;
    }
    template <class P>
    Status run(const OpFn<P>& op, P p, Stream& s) {
        if constexpr (requires { p.scratch; }) {
            p.scratch = temp(9, DType::u8, {std::max<int64_t>(op.scratch(p), 256)});
        }
        return op(p, s);
    }
    TensorView sum(const TensorView& parts) {
        const int64_t n = parts.shape[1] * parts.shape[2];
        TensorView y = temp(0, DType::f32, {parts.shape[1], parts.shape[2]});
        for (int64_t i = 0; i < n; ++i) {
            float total = 0;
            for (int64_t w = 0; w < parts.shape[0]; ++w) {
                total += parts.as<float>()[w * n + i];
            }
            y.as<float>()[i] = total;
        }
        return y;
    }

    static Status reduce_expand(Self& me, const MhcReduceExpand& p, Stream& s) {
        return me.run(me.expand_, MhcExpand{me.sum(p.parts), p.h, p.post, p.comb, p.out}, s);
    }
    static Status mix_collapse_norm(Self& me, const MhcMixCollapseNorm& p, Stream& s) {
        const TensorView pre = me.temp(1, DType::f32, {p.h.shape[0], 4});
        TENON_TRY(me.run(
            me.mix_,
            MhcMix{p.h, p.fn, p.scale, p.base, p.eps, p.hc_eps, p.iters, pre, p.post, p.comb, {}},
            s));
        TENON_TRY(me.run(me.collapse_, MhcCollapse{p.h, p.pre_in, p.x}, s));
        std::memcpy(p.pre.data, pre.data,
                    static_cast<size_t>(pre.bytes()));  // p.pre may be p.pre_in
        return me.run(me.norm_, NormRms{p.x, p.norm_weight, p.x, p.eps}, s);
    }
    static Status collapse_norm(Self& me, const MhcCollapseNorm& p, Stream& s) {
        TENON_TRY(me.run(me.collapse_, MhcCollapse{p.h, p.pre, p.x}, s));
        return me.run(me.norm_, NormRms{p.x, p.norm_weight, p.x, p.eps}, s);
    }
    static Status seam(Self& me, const MhcSeam& p, Stream& s) {
        if (p.parts.null() == p.y.null()) {
            return error(Code::invalid_argument, "mhc.seam: exactly one of parts and y");
        }
        const TensorView y = p.parts.null() ? p.y : me.sum(p.parts);
        TENON_TRY(me.run(me.expand_, MhcExpand{y, p.h, p.post_in, p.comb_in, p.out}, s));
        MhcMixCollapseNorm next;
        next.h = p.out;
        next.fn = p.fn;
        next.scale = p.scale;
        next.base = p.base;
        next.eps = p.eps;
        next.hc_eps = p.hc_eps;
        next.iters = p.iters;
        next.pre_in = p.pre_in;
        next.norm_weight = p.norm_weight;
        next.x = p.x;
        next.pre = p.pre;
        next.post = p.post;
        next.comb = p.comb;
        return mix_collapse_norm(me, next, s);
    }
    static Status gate_topk(Self& me, const RouteGateTopk& p, Stream& s) {
        const TensorView logits = me.temp(1, DType::f32, {p.x.shape[0], p.gate.shape[0]});
        TENON_TRY(me.run(me.linear_, LinearPlain{p.x, p.gate, {}, logits, {}}, s));
        return me.run(
            me.route_,
            RouteTopk{logits, p.bias, p.bias_image, p.k, p.scale, p.rows, p.ids, p.weights}, s);
    }
    static Status qkv_prep(Self& me, const AttnQkvPrep& p, Stream& s) {
        if (!p.qa_raw.null()) {
            TENON_TRY(me.run(me.norm_, NormRms{p.qa_raw, p.qa_weight, p.qa, p.eps}, s));
        }
        TENON_TRY(me.run(me.norm_, NormRms{p.kv_raw, p.kv_weight, p.kv, p.eps}, s));
        TENON_TRY(me.run(me.turn_, RopeTurn{p.kv, p.cs, false, p.kv}, s));
        TENON_TRY(me.run(me.quantize_, KvqQuantize{p.kv, RowFormat::q8, p.kv, {}, {}}, s));
        return p.ring.codes.null() ? Status()
                                   : me.run(me.window_store_, WindowStore{p.kv, p.rows, p.ring}, s);
    }
    static Status sparse_turn(Self& me, const AttnSparseTurn& p, Stream& s) {
        const TensorView q = me.temp(1, DType::bf16, {p.q.shape[0], p.q.shape[1], p.q.shape[2]});
        TENON_TRY(me.run(me.turn_, RopeTurn{p.q, p.cs, false, q}, s));
        AttnSparse a;
        a.q = q;
        a.kv = p.kv;
        a.ring = p.ring;
        a.comp = p.comp;
        a.sel = p.sel;
        a.count = p.count;
        a.sink = p.sink;
        a.scale = p.scale;
        a.window = p.window;
        a.half = p.half;
        a.mode = p.mode;
        a.rows = p.rows;
        a.out = p.out;
        TENON_TRY(me.run(me.sparse_, a, s));
        return me.run(me.turn_, RopeTurn{p.out, p.cs, true, p.out}, s);
    }
    static Status compress_emit(Self& me, const CompressEmit& p, Stream& s) {
        if (p.latent_raw.null()) {
            TENON_TRY(me.run(me.pool_, CompressPool{p.a, p.s, p.rows, p.raw, p.latent}, s));
            TENON_TRY(me.run(me.norm_, NormRms{p.latent, p.norm_weight, p.latent, p.eps}, s));
        } else {
            TENON_TRY(me.run(me.norm_, NormRms{p.latent_raw, p.norm_weight, p.latent, p.eps}, s));
        }
        const TensorView turned = me.temp(1, DType::bf16, {p.latent.shape[0], p.latent.shape[1]});
        TENON_TRY(me.run(me.turn_, RopeTurn{p.latent, p.cs, false, turned}, s));
        return me.run(me.cache_store_, CacheStore{turned, p.rows, p.comp, RowFormat::q4e}, s);
    }
    static Status key_emit(Self& me, const IndexKeyEmit& p, Stream& s) {
        const TensorView k = me.temp(1, DType::bf16, {p.k_raw.shape[0], p.k_raw.shape[1]});
        TENON_TRY(me.run(me.norm_, NormRms{p.k_raw, p.norm_weight, k, p.eps}, s));
        TENON_TRY(me.run(me.turn_, RopeTurn{k, p.cs, false, k}, s));
        return me.run(me.cache_store_, CacheStore{k, p.rows, p.keys, RowFormat::q4u}, s);
    }
    static Status query_prep(Self& me, const IndexQueryPrep& p, Stream& s) {
        TENON_TRY(me.run(me.turn_, RopeTurn{p.iq, p.cs, false, p.iq}, s));
        const TensorView flat = make_view(
            p.iq.data, DType::bf16, {p.iq.shape[0], p.iq.shape[1] * p.iq.shape[2]}, p.iq.place);
        TENON_TRY(me.run(me.quantize_, KvqQuantize{flat, RowFormat::q4u, flat, {}, {}}, s));
        return me.run(me.linear_, LinearPlain{p.x, p.weights_proj, {}, p.w, {}}, s);
    }
    static Status select(Self& me, const IndexSelect& p, Stream& s) {
        const int64_t n = p.cand.null() ? p.N : p.cand.shape[1] * p.block;
        TensorView scores = me.temp(1, DType::f32, {p.rows.T, (n + 3) / 4 * 4});
        scores.shape[1] = n;
        TENON_TRY(me.run(
            me.score_,
            IndexScore{p.iq, p.w, p.w_scale, p.keys, p.rows, p.cand, p.block, scores, {}}, s));
        if (!p.blocks.null()) {
            TENON_TRY(me.run(
                me.blocks_,
                IndexBlocks{scores, p.rows, p.keys.ratio, p.block, p.blocks, p.block_count, {}},
                s));
        }
        return me.run(me.topk_,
                      IndexTopk{scores, p.rows, p.keys.ratio, p.cand, p.block, p.sel, p.count, {}},
                      s);
    }
    static Status reduce_gate(Self& me, const EngramReduceGate& p, Stream& s) {
        return me.run(me.gate_,
                      EngramGate{me.sum(p.parts), p.h, p.q_weight, p.k_weight, p.eps, p.rows}, s);
    }
    static Status markov(Self& me, const DraftMarkov& p, Stream& s) {
        const int64_t segments = p.base.shape[0];
        const int64_t block = p.base.shape[1];
        const TensorView best =
            me.temp(1, DType::u8, {segments, static_cast<int64_t>(sizeof(DraftBest))});
        for (int64_t i = 0; i < block; ++i) {
            const auto column = [&](int64_t c) {
                TensorView v = p.token;
                v.rank = 1;
                v.data = v.as<int32_t>() + c;
                return v;
            };
            DraftStep d;
            d.base = make_view(p.base.as<float>() + i * p.base.shape[2], DType::f32,
                               {segments, p.base.shape[2]});
            d.base.stride[0] = block * p.base.shape[2];
            d.prev = i == 0 ? p.first : column(i - 1);
            d.embed = p.embed;
            d.head = p.head;
            d.forbid = p.forbid;
            d.params = p.params;
            d.rows = p.rows;
            d.step = static_cast<int32_t>(i);
            d.best = best;
            TENON_TRY(me.run(me.step_, d, s));
            const TensorView ranks =
                make_view(best.data, DType::u8, {1, best.shape[0], best.shape[1]});
            TENON_TRY(me.run(me.pick_, DraftPick{ranks, column(i), {}}, s));
        }
        return {};
    }

    std::vector<OpEntry> entries_;
    std::set<std::string> names_;
    int64_t calls_ = 0;
    std::vector<uint64_t> memory_[10];
    OpFn<MhcMix> mix_;
    OpFn<MhcCollapse> collapse_;
    OpFn<MhcExpand> expand_;
    OpFn<NormRms> norm_;
    OpFn<RopeTurn> turn_;
    OpFn<KvqQuantize> quantize_;
    OpFn<WindowStore> window_store_;
    OpFn<CacheStore> cache_store_;
    OpFn<CompressPool> pool_;
    OpFn<LinearPlain> linear_;
    OpFn<RouteTopk> route_;
    OpFn<AttnSparse> sparse_;
    OpFn<IndexScore> score_;
    OpFn<IndexBlocks> blocks_;
    OpFn<IndexTopk> topk_;
    OpFn<EngramGate> gate_;
    OpFn<DraftStep> step_;
    OpFn<DraftPick> pick_;
};

}  // namespace tenon::testing
