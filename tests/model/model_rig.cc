// SPDX-License-Identifier: MIT
// Loading of plugins by file, and the driver.
#include "model/model_rig.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace tenon::testing {

void check(Status status) {
    if (!status.ok()) {
        throw std::runtime_error(std::string(code_name(status.code())) + ": " +
                                 status.message().str());
    }
}

namespace {

/// Loads `<name>.so` and creates its component of that kind.
Status create(const std::string& file, PluginKind kind, Host& host,
              std::vector<LoadedPlugin>* plugins, const std::function<void(OptionSet&)>& set,
              Ref<Object>* out) {
    auto plugin = LoadedPlugin::load(std::filesystem::path(TENON_PLUGIN_DIR) / (file + ".so"));
    if (!plugin.ok()) {
        return plugin.take_status();
    }
    plugins->push_back(std::move(*plugin));
    const Component* component = plugins->back().find(kind);
    if (component == nullptr) {
        return error(Code::not_found, "{}: no component of that kind", file);
    }
    OptionSet options(*component);
    if (set) {
        set(options);
    }
    auto object = create_component(*component, host, options);
    if (!object.ok()) {
        return object.take_status();
    }
    *out = std::move(*object);
    return {};
}

}  // namespace

Result<std::unique_ptr<ModelRig>> ModelRig::make(const RigOptions& options) {
    std::unique_ptr<ModelRig> rig(new ModelRig(options));
    Status status = rig->load();
    if (!status.ok()) {
        return status;
    }
    return rig;
}

ModelRig::~ModelRig() = default;

Status ModelRig::load_compute() {
    const char* chosen = std::getenv("TENON_TEST_COMPUTE");
    const std::string compute = chosen != nullptr ? chosen : "cpu";
    TENON_TRY(create(
        compute, PluginKind::compute, host_, &plugins_,
        [&](OptionSet& o) {
            if (compute != "cpu") {
                if (options_.graphs) {
                    o.set("graphs", *options_.graphs);
                }
                return;  // the rest are options of the CPU's
            }
            o.set("threads", options_.threads);
            if (options_.reference_ops) {
                o.set("simd", "reference");
            }
        },
        &compute_));
    device_ = facet_of<Device>(compute_.get());
    ops_ = facet_of<OpTable>(compute_.get());
    if (options_.graphs.value_or(false) && compute == "cpu") {
        capture_ = std::make_unique<CaptureDevice>(*device_);
        tapped_ops_ = std::make_unique<TappedOps>(*ops_, *capture_, true);
        ops_ = tapped_ops_.get();
    }
    counting_ = std::make_unique<CountingDevice>(capture_ ? *capture_ : *device_);
    return {};
}

Status ModelRig::load_formats() {
    for (const std::string& name : options_.formats) {
        if (name == "dense") {
            formats_.push_back(&dense_);
            continue;
        }
        Ref<Object> object;
        TENON_TRY(create(
            name, PluginKind::quant, host_, &plugins_,
            [&](OptionSet& o) {
                if (options_.activation_quant && name == "plain") {
                    o.set("activation_quant", true);
                }
            },
            &object));
        QuantFormat* format = facet_of<QuantFormat>(object.get());
        if (options_.experts_in_f32) {
            wrapped_.push_back(std::make_unique<UnroundedExperts>(*format));
            format = wrapped_.back().get();
        }
        if (capture_) {
            tapped_formats_.push_back(std::make_unique<TappedFormat>(*format, *capture_));
            format = tapped_formats_.back().get();
        }
        formats_.push_back(format);
        format_objects_.push_back(std::move(object));
    }
    return {};
}

Status ModelRig::load_store() {
    store_ = options_.store;
    if (store_ == nullptr && options_.store_plugin == "fake") {
        store_ = &fake_store_;
    }
    if (store_ == nullptr) {
        TENON_TRY(create(options_.store_plugin, PluginKind::storage, host_, &plugins_, {},
                         &store_object_));
        store_ = facet_of<RowStore>(store_object_.get());
    }
    return {};
}

ModelRequest ModelRig::request() const {
    ModelRequest request;
    request.rank = options_.rank;
    request.world = options_.world;
    request.slots = options_.slots;
    request.context_tokens = options_.context;
    request.window_rows = options_.window_rows;
    request.step_rows = options_.step_rows;
    request.chunk_rows = options_.chunk_rows;
    request.drafts = options_.drafts;
    request.packed_state = options_.packed_state;
    request.replay_exact = options_.replay_exact;
    request.snapshot_cells = options_.snapshot_cells;
    request.spill = options_.spill;
    request.engram_layout = options_.layout;
    request.fusions_off = fusions_off_;
    request.device = counting_.get();
    return request;
}

Status ModelRig::plan(MemoryPlan* out) {
    return family_->plan(*checkpoint_, *checkpoint_->weights(), {formats_.data(), formats_.size()},
                         request(), out);
}

Status ModelRig::load() {
    fusions_off_.assign(options_.fusions_off.begin(), options_.fusions_off.end());
    TENON_TRY(load_compute());
    TENON_TRY(load_formats());
    TENON_TRY(load_store());
    TENON_TRY(create("dsv41", PluginKind::model, host_, &plugins_, {}, &family_object_));
    family_ = facet_of<ModelFamily>(family_object_.get());
    checkpoint_.reset(new CheckpointFolder(options_.checkpoint));
    for (const auto& file : options_.extra) {
        checkpoint_->add_file(file);
    }
    if (!options_.tables.empty()) {
        tables_.reset(new CheckpointFolder(options_.tables));
    }
    if (options_.edit) {
        options_.edit(*checkpoint_);
    }
    const ModelRequest request = this->request();
    OpTable* table = options_.decorate ? options_.decorate(ops_) : ops_;
    ModelServices services;
    services.host = &host_;
    services.device = counting_.get();
    services.op_tables = Span<OpTable* const>(&table, 1);
    services.formats = Span<QuantFormat* const>(formats_.data(), formats_.size());
    services.communicator = options_.communicator;
    services.store = store_;
    services.checkpoint = checkpoint_.get();
    services.weights = checkpoint_->weights();
    services.tables = tables_ ? tables_.get() : checkpoint_.get();
    TENON_TRY(family_->load(services, request, model_.out()));
    slots_.resize(static_cast<size_t>(options_.slots));
    const int64_t pages = pool_pages(request, model_->info());
    for (int64_t i = 0; i < pages; ++i) {
        free_pages_.push_back(static_cast<int32_t>(i));
    }
    // Neighbouring positions should not lie in neighbouring pages.
    std::reverse(free_pages_.begin(), free_pages_.end());
    std::rotate(free_pages_.begin(), free_pages_.begin() + pages / 3, free_pages_.end());
    return {};
}

void ModelRig::reserve(PlanBuilder& plan, uint32_t slot, int64_t end) {
    SlotState& s = slots_[slot];
    const int64_t tokens = model_->info().page_tokens;
    const auto wanted = static_cast<size_t>((end + tokens - 1) / tokens);
    std::vector<int32_t> pages;
    const auto first = static_cast<int64_t>(s.pages.size());
    while (s.pages.size() < wanted) {
        pages.push_back(free_pages_.back());
        free_pages_.pop_back();
        s.pages.push_back(pages.back());
    }
    if (!pages.empty()) {
        plan.map(slot, s.generation, first, pages);
    }
}

void ModelRig::open(uint32_t slot) {
    SlotState& s = slots_[slot];
    s.generation = ++next_generation_;
    s.length = 0;
    PlanBuilder plan = next();
    plan.open(slot, s.generation);
    run(plan);
}

void ModelRig::close(uint32_t slot) {
    SlotState& s = slots_[slot];
    PlanBuilder plan = next();
    plan.close(slot, s.generation);
    run(plan);
    free_pages_.insert(free_pages_.end(), s.pages.begin(), s.pages.end());
    s = SlotState();
}

StepOutcome ModelRig::run(PlanBuilder& plan) {
    for (const plan::Window& w : plan.view().windows) {
        reserve(plan, w.slot, w.position + w.rows);
    }
    for (const plan::Chunk& c : plan.view().chunks) {
        reserve(plan, c.slot, c.end);
    }
    const StepPlan view = plan.view();
    check(model_->submit(view));
    StepResult r;
    StepOutcome out;
    check(model_->collect(view.header.step, Stage::tokens, &r));
    for (uint64_t i = 0; i < r.windows.size; ++i) {
        const WindowResult& w = r.windows[i];
        WindowOutcome o;
        o.tokens.assign(r.tokens.data + w.tokens_off, r.tokens.data + w.tokens_off + w.emitted);
        o.accepted = w.accepted;
        o.finish = w.finish;
        o.status = w.status;
        const int64_t entries = w.emitted * (1 + w.top);
        if ((view.windows[i].flags & plan::kWantLogprobs) != 0) {
            o.logprobs.assign(r.logprobs.data + w.logprobs_off,
                              r.logprobs.data + w.logprobs_off + entries);
        }
        slots_[w.slot].length += w.emitted;
        out.windows.push_back(std::move(o));
    }
    check(model_->collect(view.header.step, Stage::drafts, &r));
    out.drafts.assign(r.drafts.begin(), r.drafts.end());
    check(model_->collect(view.header.step, Stage::done, &r));
    for (const ChunkResult& c : r.chunks) {
        out.chunks.push_back(c.status);
    }
    for (const plan::Chunk& c : view.chunks) {
        slots_[c.slot].length = c.end;
    }
    for (const plan::SlotOp& op : view.slot_ops) {
        if (op.op == plan::SlotOpKind::rewind) {
            slots_[op.slot].length = op.length;
        }
    }
    out.probe = r.probe;
    return out;
}

std::vector<float> ModelRig::prefill(uint32_t slot, const std::vector<int32_t>& ids,
                                     std::vector<int64_t> chunks, bool logits) {
    if (chunks.empty()) {
        chunks.push_back(static_cast<int64_t>(ids.size()));
    }
    std::vector<float> all;
    auto at = ids.begin();
    for (const int64_t n : chunks) {
        const int64_t begin = slots_[slot].length;
        PlanBuilder plan = next();
        plan.chunk(slot, slots_[slot].generation, begin, {at, at + n},
                   logits ? static_cast<int32_t>(n) : 0);
        want_logits(logits);
        run(plan);
        at += n;
        if (logits) {
            const std::vector<float> part = this->logits();
            all.insert(all.end(), part.begin(), part.end());
            want_logits(false);
        }
    }
    return all;
}

WindowOutcome ModelRig::window(uint32_t slot, const std::vector<int32_t>& tokens,
                               int32_t accept_max, int32_t forced) {
    plan::Window w;
    w.slot = slot;
    w.generation = slots_[slot].generation;
    w.position = slots_[slot].length;
    w.forced = forced;
    w.accept_max = accept_max;
    PlanBuilder plan = next();
    plan.window(w, tokens);
    return run(plan).windows.at(0);
}

std::vector<int32_t> ModelRig::greedy(uint32_t slot, int32_t pending, int64_t count) {
    std::vector<int32_t> out;
    while (static_cast<int64_t>(out.size()) < count) {
        const WindowOutcome w = window(slot, {pending}, 1);
        pending = w.tokens.at(0);
        out.push_back(pending);
    }
    return out;
}

std::vector<float> ModelRig::logits() {
    TensorView v;
    check(facet_of<ModelLogits>(model_.get())->rows(step_, &v));
    return {v.as<float>(), v.as<float>() + v.elements()};
}

void ModelRig::want_logits(bool on) {
    facet_of<ModelLogits>(model_.get())->want(on);
}

void ModelRig::want_trace(bool on) {
    facet_of<ModelTrace>(model_.get())->want(on);
}

TensorView ModelRig::trace(const std::string& name, uint32_t slot) {
    TensorView v;
    check(facet_of<ModelTrace>(model_.get())->get(name, slot, &v));
    return v;
}

}  // namespace tenon::testing
