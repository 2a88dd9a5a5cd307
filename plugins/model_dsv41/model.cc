// SPDX-License-Identifier: MIT
// Loading: weights, state, buffers, ops, tables. After `load` nothing grows.
#include "model.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "memory_plan.h"

namespace tenon::dsv41 {

namespace {

/// A rate says something where weights cross to a device; on a CPU they are packed meanwhile.
void log_weights(Host& host, const WeightLoader& loader, std::chrono::nanoseconds took, bool cpu,
                 int64_t scratch_bytes) {
    int64_t bytes = 0;
    for (const auto& [tag, count] : loader.bytes()) {
        bytes += count;
    }
    const double seconds = std::chrono::duration<double>(took).count();
    std::string text =
        format("weights loaded bytes={} ms={}", bytes, static_cast<int64_t>(seconds * 1e3));
    if (!cpu) {
        const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
        text +=
            format(" gb_per_s={} scratch_bytes={}", std::round(rate * 100) / 100, scratch_bytes);
    }
    host.log(LogLevel::info, "dsv41", text);
}

}  // namespace

Dsv41Model::Dsv41Model(const ModelServices& services, ModelParts parts)
    : parts_(std::move(parts)),
      host_(services.host),
      device_(services.device),
      communicator_(parts_.ranks.world > 1 ? services.communicator : nullptr) {}

Dsv41Model::~Dsv41Model() {
    engram_.drain();
    if (stream_) {
        // Nothing may still run on buffers that are about to go.
        static_cast<void>(device_->synchronize(*stream_));
    }
}

void* Dsv41Model::query(StrView facet) noexcept {
    if (facet == StrView(Model::kFacet)) {
        return static_cast<Model*>(this);
    }
    if (facet == StrView(ModelLogits::kFacet)) {
        return static_cast<ModelLogits*>(&logits_);
    }
    if (facet == StrView(ModelStaging::kFacet) && staging_.exists()) {
        return static_cast<ModelStaging*>(&staging_);
    }
    if (facet == StrView(ModelTrace::kFacet)) {
        return static_cast<ModelTrace*>(&trace_);
    }
    return nullptr;
}

Status Dsv41Model::load(const ModelServices& services, ModelParts parts, Model** out) {
    if (parts.ranks.world > 1 && services.communicator == nullptr) {
        return error(Code::unavailable, "{} ranks, but no communicator; name a transport plugin",
                     parts.ranks.world);
    }
    auto* model = new Dsv41Model(services, std::move(parts));
    Status status = guard([&] { return model->init(services); });
    if (!status.ok()) {
        model->release();
        return status;
    }
    *out = model;
    return {};
}

Status Dsv41Model::bind_ops(const ModelServices& services) {
    OpBinder binder({services.op_tables.begin(), services.op_tables.end()}, parts_.fusions_off);
    std::string fusions[2];
    ops_[0].bind(binder, Regime::decode, &fusions[0]);
    ops_[1].bind(binder, Regime::prefill, &fusions[1]);
    TENON_TRY(binder.finish());
    parts_.info.numeric_classes = binder.equal_regimes() ? 1 : 2;
    const auto shown = [](const std::string& list) {
        return list.empty() ? std::string("none") : list;
    };
    host_->log(LogLevel::info, "dsv41",
               format("ops bound numeric_classes={} fusions_decode=\"{}\" fusions_prefill=\"{}\"",
                      parts_.info.numeric_classes, shown(fusions[0]), shown(fusions[1])));
    return {};
}

Status Dsv41Model::init(const ModelServices& services) {
    const ModelConfig& c = parts_.config;
    TENON_TRY(device_->create_stream({"main", 0}, stream_.out()));
    TENON_TRY(device_->create_event(tokens_event_.out()));
    TENON_TRY(device_->create_event(drafts_event_.out()));
    TENON_TRY(device_->create_event(done_event_.out()));
    TENON_TRY(bind_ops(services));

    load_device_ = std::make_unique<LoadDevice>(*device_);
    WeightLoader loader(*services.weights, services.formats, load_device_.get(), stream_.get(),
                        parts_.ranks.rank, parts_.ranks.world);
    const auto began = std::chrono::steady_clock::now();
    Status loaded = load_weights(c, parts_.ranks, parts_.with_drafts, loader, &weights_);
    plain_buffers_ = loader.take_buffers();
    const int64_t scratch_bytes = load_device_->finish();
    TENON_TRY(std::move(loaded));
    log_weights(*host_, loader, std::chrono::steady_clock::now() - began, device_->info().cpu,
                scratch_bytes);

    TENON_TRY(
        state_.allocate(c, parts_.shape, parts_.with_drafts, parts_.ranks.rank == 0, *device_));
    if (parts_.request.snapshot_cells > 0 && (!ops_[0].state_save || !ops_[0].state_load)) {
        return error(Code::unavailable,
                     "prefix.snapshot_budget: no provider has the ops {} and {}; set it to 0",
                     StateSave::kOp.name, StateLoad::kOp.name);
    }
    TENON_TRY(snapshots_.allocate(c, state_, snapshot_shape(c, parts_.shape, parts_.with_drafts),
                                  parts_.request.snapshot_cells, parts_.with_drafts, *device_));
    if (parts_.request.spill && parts_.request.snapshot_cells > 0) {
        TENON_TRY(init_staging());
    }
    const bool fused_sums = ops_[0].mhc_reduce_expand || ops_[0].mhc_seam ||
                            ops_[1].mhc_reduce_expand || ops_[1].mhc_seam ||
                            ops_[0].engram_reduce_gate || ops_[1].engram_reduce_gate;
    TENON_TRY(act_.allocate(c, parts_.ranks,
                            activation_shape(c, parts_.request, parts_.shape, parts_.with_drafts),
                            fused_sums, parts_.with_drafts, *device_, communicator_));
    ForwardParts f;
    f.config = &parts_.config;
    f.ranks = parts_.ranks;
    f.weights = &weights_;
    f.state = &state_;
    f.act = &act_;
    f.device = device_;
    f.stream = stream_.get();
    f.communicator = communicator_;
    f.ops[0] = &ops_[0];
    f.ops[1] = &ops_[1];
    f.with_drafts = parts_.with_drafts;
    forward_.init(f);
    TENON_TRY(init_blocks());
    TENON_TRY_CTX(init_scratch(), "this geometry");
    TENON_TRY(init_forbidden());
    if (c.has_engram()) {
        TENON_TRY(init_engram(services));
    }

    slots_.resize(static_cast<size_t>(parts_.shape.slots));
    windows_.resize(slots_.size());
    init_graphs();
    logits_.init(*device_, *stream_, c.vocab);
    trace_.init(
        {&parts_.config, &state_, &ops_[0], device_, stream_.get()},
        [](const void* model, uint32_t slot) -> int64_t {
            const auto& slots = static_cast<const Dsv41Model*>(model)->slots_;
            return slot < slots.size() && slots[slot].generation != 0 ? slots[slot].length : -1;
        },
        this);
    fault_base_ = device_->fault_count();
    return {};
}

Status Dsv41Model::init_staging() {
    if (!ops_[0].pages_pack || !ops_[0].pages_unpack) {
        return error(Code::unavailable, "kv_spill: no provider has the ops {} and {}; leave it out",
                     PagesPack::kOp.name, PagesUnpack::kOp.name);
    }
    const StateShape& shape = parts_.shape;
    const SnapshotShape cut = snapshot_shape(parts_.config, shape, parts_.with_drafts);
    job_results_.reserve(kStagingAreas);
    return staging_.allocate(
        shape, cut,
        format("dsv41 {} state={} page={}x{} cut={} drafts={} replay={} classes={}",
               StrView(parts_.info.summary), shape.packed ? "packed" : "bf16", shape.page_tokens,
               shape.page_bytes, cut.full_bytes, parts_.with_drafts ? 1 : 0,
               parts_.request.replay_exact ? "exact" : "bounded", parts_.info.numeric_classes),
        *device_);
}

/// Pinned inputs, device outputs with their pinned copies, and the vectors of results.
Status Dsv41Model::init_blocks() {
    const ModelConfig& c = parts_.config;
    const BlockSizes sizes = block_sizes(c, parts_.request, parts_.shape);
    TENON_TRY(window_block_.allocate(sizes.window, "plan", *device_));
    TENON_TRY(chunk_block_.allocate(sizes.chunk, "plan", *device_));
    mask_words_ = (c.vocab + 31) / 32;

    const int64_t slots = parts_.shape.slots;
    const int64_t rows = act_.logits_part.shape[0];
    const int64_t block = std::max(c.draft.block, 1);
    BufferDesc desc;
    desc.bytes = sizes.output;
    desc.tag = "logprobs";
    TENON_TRY(device_->allocate(desc, output_buffer_.out()));
    desc.kind = BufferKind::pinned;
    TENON_TRY(device_->allocate(desc, output_host_buffer_.out()));
    int64_t at = 0;
    const auto take = [&](Output* out, DType dtype, std::initializer_list<int64_t> shape) {
        out->device = make_view(static_cast<char*>(output_buffer_->data()) + at, dtype, shape,
                                output_buffer_->place());
        out->host = make_view(static_cast<char*>(output_host_buffer_->data()) + at, dtype, shape,
                              output_host_buffer_->place());
        at += StepBlock::padded(out->device.bytes());
        TENON_CHECK(at <= sizes.output, "{} of {}", at, sizes.output);
    };
    take(&decision_, DType::u8, {slots, static_cast<int64_t>(sizeof(VerifyDecision))});
    take(&probe_, DType::u64, {2 * kProbeStride});
    take(&drawn_, DType::i32, {rows});
    take(&lp_ids_, DType::i32, {rows, kMaxLogprobs});
    take(&lp_values_, DType::f32, {rows, kMaxLogprobs});
    take(&lp_drawn_, DType::f32, {rows});
    take(&lp_given_, DType::f32, {rows});
    take(&chunk_lp_, DType::f32, {rows});
    take(&draft_tokens_, DType::i32, {slots, block + 1});
    take(&draft_confidence_, DType::f32, {slots, block});

    desc.kind = BufferKind::device;
    desc.bytes = sizes.work;
    desc.tag = "decode.scratch";
    TENON_TRY(device_->allocate(desc, work_buffer_.out()));
    at = 0;
    const auto work = [&](TensorView* out, DType dtype, std::initializer_list<int64_t> shape) {
        *out = make_view(static_cast<char*>(work_buffer_->data()) + at, dtype, shape,
                         work_buffer_->place());
        at += StepBlock::padded(out->bytes());
        TENON_CHECK(at <= sizes.work, "{} of {}", at, sizes.work);
    };
    const int64_t drafted = slots * block;
    const auto best = static_cast<int64_t>(sizeof(DraftBest));
    work(&draft_ids_, DType::i32, {drafted});
    work(&draft_rows_, DType::u8, {drafted, static_cast<int64_t>(sizeof(RowInfo))});
    work(&draft_segs_, DType::u8, {slots, static_cast<int64_t>(sizeof(SegInfo))});
    work(&draft_best_, DType::u8, {parts_.ranks.world, slots, best});
    work(&draft_best_own_, DType::u8, {slots, best});

    const auto step_rows = static_cast<size_t>(parts_.info.max_step_rows);
    const auto group_rows = static_cast<size_t>(act_.h.shape[0]);
    const size_t most_chunks = 16;
    tail_layers_.reserve(static_cast<size_t>(c.layers));
    runs_.reserve(static_cast<size_t>(slots));
    run_classes_.reserve(group_rows + static_cast<size_t>(slots) * 16 + 16);
    window_failed_.assign(group_rows, 0);
    active_failed_.assign(group_rows, 0);
    window_results_.reserve(static_cast<size_t>(slots));
    draft_results_.reserve(static_cast<size_t>(slots));
    chunk_results_.reserve(most_chunks);
    result_tokens_.reserve(static_cast<size_t>(slots) * kVerifyTokens);
    result_logprobs_.reserve(step_rows * (kMaxLogprobs + 1));
    return {};
}

/// Scratch of the largest groups; at the same time every op says whether it supports the geometry.
Status Dsv41Model::init_scratch() {
    const ModelConfig& c = parts_.config;
    forward_.set_measuring(true);
    const auto group = [&](Regime regime, int64_t rows, int64_t segments) {
        RowGroup g;
        g.regime = regime;
        g.rows = make_rows(nullptr, rows, nullptr, segments);
        g.ids = make_view(static_cast<void*>(nullptr), DType::i32, {rows});
        g.visible_end = parts_.shape.context_tokens;
        g.store_first = rows <= parts_.shape.ring_rows - c.window;
        const int64_t tail = std::min<int64_t>(rows, act_.taps.null() ? rows : act_.taps.shape[0]);
        g.tail = make_rows(nullptr, tail, nullptr, segments);
        g.tail_row0 = rows - tail;
        return g;
    };
    const int64_t step_rows = parts_.info.max_step_rows;
    const RowGroup decode = group(Regime::decode, step_rows, parts_.shape.slots);
    const RowGroup prefill = group(Regime::prefill, parts_.info.max_chunk_rows, 1);
    for (const RowGroup* g : {&decode, &prefill}) {
        TENON_TRY(forward_.backbone(*g, nullptr));
        TENON_TRY(forward_.head(*g, TensorView(), std::min(act_.logits_part.shape[0], g->rows.T)));
        TENON_TRY(forward_.digest(*g, probe_.device.rows(0, 1)));
        if (parts_.with_drafts) {
            TENON_TRY(forward_.absorb(*g));
        }
    }
    if (parts_.with_drafts) {
        DraftPass pass;
        pass.decision = decision_.device;
        pass.window = decode.rows;
        pass.slot = make_view(static_cast<void*>(nullptr), DType::i32, {parts_.shape.slots});
        pass.forbid =
            make_view(static_cast<void*>(nullptr), DType::u32, {mask_words_ / parts_.ranks.world});
        pass.ids = draft_ids_;
        pass.row = draft_rows_;
        pass.seg = draft_segs_;
        pass.best = draft_best_;
        pass.best_own = draft_best_own_;
        pass.tokens = draft_tokens_.device;
        pass.confidence = draft_confidence_.device;
        TENON_TRY(forward_.draft(pass));
    }
    int64_t most = forward_.scratch_bytes();
    for (const OpSet& o : ops_) {
        SampleDraw draw;
        draw.logits = act_.logits;
        draw.seen = state_.seen();
        draw.params = make_view(static_cast<void*>(nullptr), DType::u8,
                                {act_.logits.shape[0], static_cast<int64_t>(sizeof(SampleParams))});
        SampleLogprobs lp;
        lp.logits = act_.logits;
        lp.ids = lp_ids_.device;
        lp.lp = lp_values_.device;
        most = std::max({most, o.sample_draw.scratch(draw), o.sample_logprobs.scratch(lp)});
    }
    forward_.set_measuring(false);
    return act_.allocate_scratch(most, *device_);
}

/// Ids that are never sampled: the codec's list and everything beyond the tokenizer.
Status Dsv41Model::init_forbidden() {
    const TextInfo text = parts_.text->info();
    std::vector<uint32_t> bits(static_cast<size_t>(mask_words_), 0);
    const auto forbid = [&](int32_t id) {
        if (id >= 0 && id < parts_.config.vocab) {
            bits[static_cast<size_t>(id / 32)] |= 1U << (id % 32);
        }
    };
    for (const int32_t id : text.forbidden) {
        forbid(id);
    }
    for (int32_t id = text.vocab; id < parts_.config.vocab; ++id) {
        forbid(id);
    }
    BufferDesc desc;
    desc.bytes = mask_words_ * 4;
    desc.tag = "masks";
    TENON_TRY(device_->allocate(desc, forbid_buffer_.out()));
    forbid_ = make_view(forbid_buffer_->data(), DType::u32, {mask_words_}, forbid_buffer_->place());
    const TensorView host = make_view(bits.data(), DType::u32, {mask_words_});
    TENON_TRY(device_->copy(forbid_, host, *stream_));
    TENON_TRY(device_->synchronize(*stream_));
    forbid_local_ = forbid_;
    if (parts_.ranks.world > 1) {
        const int64_t words = mask_words_ / parts_.ranks.world;
        forbid_local_ = make_view(forbid_.as<uint32_t>() + parts_.ranks.rank * words, DType::u32,
                                  {words}, forbid_.place);
    }
    return {};
}

Status Dsv41Model::init_engram(const ModelServices& services) {
    if (services.store == nullptr) {
        return error(Code::unavailable,
                     "this model reads Engram tables; name a row store in [engram] plugin");
    }
    Checkpoint* tables = services.tables != nullptr ? services.tables : services.checkpoint;
    const EngramOptions options =
        engram_options(parts_.config, parts_.request, parts_.shape, parts_.engram_layout);
    TENON_TRY(engram_.open(parts_.config, parts_.ranks, *tables, *services.store, *device_, host_,
                           options));
    engram_.set_pad_class(parts_.token_classes[static_cast<size_t>(parts_.config.engram.pad_id)]);
    return {};
}

}  // namespace tenon::dsv41
