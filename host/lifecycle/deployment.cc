// SPDX-License-Identifier: MIT
// The steps before serving. Creation order: compute, transport, storage, quant, overlay,
// constraint, model.
#include "host/lifecycle/deployment.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "host/checkpoint/checkpoint.h"
#include "host/log/log.h"
#include "host/profile/units.h"
#include "host/version.h"

namespace tenon {
namespace {

/// World 1 needs no network: each rank's blob is the only one.
class SingleRendezvous final : public Implements<SingleRendezvous, Rendezvous> {
  public:
    int32_t rank() noexcept override { return 0; }
    int32_t world() noexcept override { return 1; }
    Status all_gather(StrView, Span<const uint8_t> mine, Span<uint8_t> all,
                      int64_t) noexcept override {
        std::memcpy(all.data, mine.data, std::min(mine.size, all.size));
        return {};
    }
    void release() noexcept override {}
};

}  // namespace

Deployment::~Deployment() {
    model_.reset();
    communicator_.reset();
    tables_.reset();
    checkpoint_.reset();
    release_last(created_.size());
}

void Deployment::release_last(size_t count) {
    for (; count > 0 && !created_.empty(); --count) {
        created_.back()->release();
        created_.pop_back();
    }
}

Status Deployment::open(const std::string& path, const std::vector<std::string>& overrides) {
    exit_code_ = kExitUsage;
    TENON_ASSIGN(ProfileSource source, read_profile(path, overrides));
    std::vector<std::string> folders;
    if (const Value* plugins = source.root.find("plugins")) {
        if (const Value* list = plugins->find("path")) {
            OptionBag bag;
            const OptionSpec* spec = find_section("plugins")->keys.data;
            TENON_TRY(bag.add(*spec, list, "[plugins]", source.folder_of(*list)));
            folders = bag.list("path");
        }
    }
    TENON_TRY(registry_.load(folders));
    TENON_ASSIGN(profile_, resolve_profile(source, registry_));
    LogSettings log;
    const OptionBag& bag = profile_.bag("log");
    const std::string level = bag.text("level");
    log.level = level == "debug"   ? LogLevel::debug
                : level == "warn"  ? LogLevel::warn
                : level == "error" ? LogLevel::error
                                   : LogLevel::info;
    log.format = bag.text("format") == "json"   ? LogFormat::json
                 : bag.text("format") == "text" ? LogFormat::text
                                                : LogFormat::automatic;
    log.file = bag.text("file");
    return log_configure(log);
}

Status Deployment::require_plugins() {
    exit_code_ = kExitPlugin;
    if (profile_.missing.empty()) {
        return {};
    }
    std::string text;
    for (const std::string& line : profile_.missing) {
        text += (text.empty() ? "" : "\n") + line;
    }
    return Status(Code::unavailable, text);
}

Status Deployment::create_component(const ProfileSection& section, Object** out) {
    const Component& c = *section.component.component;
    const std::string title = section.bag.section();
    const Options options = section.bag.view(title);
    ProbeResult probe;
    TENON_TRY_CTX(c.probe(ProbeEnv{sizeof(ProbeEnv), &host_, &options}, &probe), "{}: probe",
                  title);
    if (probe.score <= 0) {
        return error(Code::unavailable, "{}: not usable here: {}", title, StrView(probe.reason));
    }
    TENON_TRY_CTX(c.create(host_, options, out), "{}", title);
    created_.push_back(*out);
    chosen_.push_back(format("{} = {} {} ({})", kind_name(c.kind), c.name,
                             section.component.library->descriptor->version,
                             StrView(probe.reason)));
    return {};
}

template <class T>
Status Deployment::create_as(const ProfileSection& section, T** out) {
    Object* object = nullptr;
    TENON_TRY(create_component(section, &object));
    *out = facet_of<T>(object);
    if (*out == nullptr) {
        return error(Code::unavailable, "{}: does not offer the facet {}", section.bag.section(),
                     T::kFacet);
    }
    return {};
}

Status Deployment::create() {
    exit_code_ = kExitPlugin;
    TENON_TRY(create_as(*profile_.find("compute"), &device_));
    if (auto* ops = facet_of<OpTable>(device_)) {
        op_tables_.push_back(ops);
    }
    TENON_TRY(create_as(*profile_.find("transport"), &transport_));
    if (!profile_.find("engram")->plugin.empty()) {
        TENON_TRY(create_as(*profile_.find("engram"), &store_));
    }
    for (const ProfileSection* s : profile_.all("quant")) {
        QuantFormat* quant_format = nullptr;
        TENON_TRY(create_as(*s, &quant_format));
        formats_.push_back(quant_format);
        if (auto* ops = facet_of<OpTable>(quant_format)) {
            op_tables_.push_back(ops);
        }
    }
    for (const ProfileSection* s : profile_.all("overlay")) {
        Object* object = nullptr;
        TENON_TRY(create_component(*s, &object));
        auto* weights = facet_of<WeightOverlay>(object);
        auto* schedule = facet_of<ScheduleOverlay>(object);
        auto* media = facet_of<MediaCache>(object);
        if (weights == nullptr && schedule == nullptr && media == nullptr) {
            return error(Code::unavailable, "{}: offers none of the overlay hooks",
                         s->bag.section());
        }
        if (weights != nullptr) {
            weight_overlays_.push_back(weights);
        }
        if (schedule != nullptr) {
            schedule_overlays_.push_back(schedule);
        }
        if (media != nullptr) {
            if (media_ != nullptr) {
                return error(Code::invalid_argument, "{}: a second overlay on the media hook",
                             s->bag.section());
            }
            media_ = media;
        }
    }
    return create_as(*profile_.find("model"), &family_);
}

Status Deployment::make_request() {
    const OptionBag& model = profile_.bag("model");
    const OptionBag& engine = profile_.bag("engine");
    const OptionBag& engram = profile_.bag("engram");
    ModelRequest r;
    r.device = device_;
    r.world = static_cast<int32_t>(profile_.bag("cluster").integer("world"));
    if (r.world > 1) {
        exit_code_ = kExitPlugin;
        return error(Code::unsupported, "{}: cluster.world = {}: this build serves one rank",
                     profile_.shown, r.world);
    }
    r.slots = static_cast<int32_t>(model.integer("slots"));
    r.context_tokens = model.integer("context_tokens");
    r.context_tokens = r.context_tokens == 0 ? info_.context_limit : r.context_tokens;
    if (r.context_tokens > info_.context_limit) {
        exit_code_ = kExitUsage;
        return error(Code::invalid_argument,
                     "{}: model.context_tokens = {}, but the checkpoint goes up to {}",
                     profile_.shown, r.context_tokens, info_.context_limit);
    }
    r.window_rows = static_cast<int32_t>(engine.integer("window_rows"));
    r.step_rows = static_cast<int32_t>(engine.integer("step_rows"));
    r.step_rows = r.step_rows == 0 ? std::max(16, r.slots) : r.step_rows;
    if (r.step_rows < r.slots) {
        exit_code_ = kExitUsage;
        return error(Code::invalid_argument,
                     "{}: engine.step_rows = {} is less than model.slots = {}", profile_.shown,
                     r.step_rows, r.slots);
    }
    r.chunk_rows = static_cast<int32_t>(engine.integer("chunk_rows"));
    r.in_flight = 1;
    r.drafts = engine.flag("drafts");
    r.replay_exact = engine.text("replay") == "exact";
    const int64_t asked = engine.integer("pool_tokens");
    r.pool_tokens = asked != 0 ? asked
                               : std::min<int64_t>(r.slots * r.context_tokens,
                                                   std::max<int64_t>(r.context_tokens, 1 << 20));
    r.engram_self_test = engram.flag("self_test");
    engram_dir_ = engram.text("dir");
    engram_layout_ = engram.text("layout");
    r.engram_dir = engram_dir_;
    r.engram_layout = engram_layout_;
    fusions_off_ = profile_.bag("compute").list("fusions_off");
    fusions_views_.assign(fusions_off_.begin(), fusions_off_.end());
    r.fusions_off = fusions_views_;
    request_ = r;
    return {};
}

Status Deployment::plan_for(int64_t context_tokens, MemoryReport* out) {
    ModelRequest r = request_;
    if (context_tokens != r.context_tokens) {
        const int64_t asked = profile_.bag("engine").integer("pool_tokens");
        r.context_tokens = context_tokens;
        r.pool_tokens = asked != 0 ? std::max(asked, context_tokens)
                                   : std::min<int64_t>(r.slots * context_tokens,
                                                       std::max<int64_t>(context_tokens, 1 << 20));
    }
    MemoryPlan plan;
    TENON_TRY(family_->plan(*checkpoint_, *weights_, formats_, r, &plan));
    out->entries.clear();
    for (const MemoryEntry& e : plan.entries) {
        out->entries.push_back({e.tag.str(), e.note.str(), e.place, e.bytes, e.count});
    }
    EngineSettings settings = engine_settings();
    settings.context_tokens = r.context_tokens;
    settings.pool_pages = pool_pages(r, info_);
    for (const MemoryEntry& e : engine_memory(settings, info_)) {
        out->entries.push_back({e.tag.str(), e.note.str(), e.place, e.bytes, e.count});
    }
    out->entries.push_back({"program", "code and libraries, measured before load", PlanPlace::host,
                            program_bytes_, 1});
    out->reserve = profile_.bag("memory").integer("reserve");
    out->available = memory_available() + program_bytes_;
    return {};
}

Status Deployment::plan() {
    exit_code_ = kExitData;
    const OptionBag& model = profile_.bag("model");
    CheckpointOptions options;
    options.dir = model.text("checkpoint");
    options.extra_tensors = model.list("extra_tensors");
    TENON_TRY_CTX(open_checkpoint(options, checkpoint_.out()), "model.checkpoint");
    const std::string dir = profile_.bag("engram").text("dir");
    if (!dir.empty()) {
        CheckpointOptions tables;
        tables.dir = dir;
        tables.need_weights = false;
        TENON_TRY_CTX(open_checkpoint(tables, tables_.out()), "engram.dir");
    }
    weights_ = checkpoint_->weights();
    for (WeightOverlay* overlay : weight_overlays_) {
        WeightSource* decorated = nullptr;
        TENON_TRY(overlay->decorate(*weights_, &decorated));
        weights_ = decorated;
    }
    TENON_TRY(family_->inspect(*checkpoint_, &info_));
    if (info_.has_tables && store_ == nullptr) {
        exit_code_ = kExitUsage;
        return error(Code::invalid_argument,
                     "{}: the model has Engram tables, so [engram] needs the key 'plugin'",
                     profile_.shown);
    }
    TENON_TRY(make_request());
    program_bytes_ = memory_resident();
    return plan_for(request_.context_tokens, &memory_);
}

Status Deployment::check_fit() {
    exit_code_ = kExitFit;
    if (memory_.fits()) {
        return {};
    }
    // Largest context in whole pages that fits; the plan allocates nothing, so trying is cheap.
    int64_t low = 0;
    int64_t high = request_.context_tokens / info_.page_tokens;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        MemoryReport report;
        TENON_TRY(plan_for(middle * info_.page_tokens, &report));
        if (report.fits()) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const std::string hint =
        low > 0
            ? format("the largest context that fits {} slots: model.context_tokens = {}",
                     request_.slots, low * info_.page_tokens)
            : std::string("no context fits; use fewer slots, a smaller pool, or a smaller model");
    return error(Code::does_not_fit,
                 "the plan needs {} and a reserve of {}, {} are available; {}\n{}",
                 size_text(memory_.total()), size_text(memory_.reserve),
                 size_text(memory_.available), hint, memory_.table());
}

Status Deployment::load() {
    exit_code_ = kExitFit;
    const int64_t guard_bytes = profile_.bag("memory").integer("min_available");
    if (guard_bytes > memory_available()) {
        return error(Code::does_not_fit, "memory.min_available = {}, but only {} are available",
                     size_text(guard_bytes), size_text(memory_available()));
    }
    exit_code_ = kExitPeer;
    SingleRendezvous rendezvous;
    TENON_TRY(transport_->connect(rendezvous, *device_, communicator_.out()));
    exit_code_ = kExitData;
    ModelServices services;
    services.host = &host_;
    services.device = device_;
    services.op_tables = op_tables_;
    services.formats = formats_;
    services.communicator = communicator_.get();
    services.store = store_;
    services.checkpoint = checkpoint_.get();
    services.weights = weights_;
    services.tables = tables();
    services.media = media_;
    const Status status = family_->load(services, request_, model_.out());
    if (!status.ok()) {
        exit_code_ = status.code() == Code::unavailable ? kExitPlugin
                     : status.code() == Code::internal  ? kExitInternal
                                                        : kExitData;
        return status.copy();
    }
    for (WeightOverlay* overlay : weight_overlays_) {
        TENON_TRY(overlay->finish());
    }
    info_ = model_->info();
    return {};
}

EngineSettings Deployment::engine_settings() const {
    const OptionBag& engine = profile_.bag("engine");
    const OptionBag& sampling = profile_.bag("sampling");
    const OptionBag& model = profile_.bag("model");
    EngineSettings s;
    s.slots = request_.slots;
    s.context_tokens = request_.context_tokens;
    s.pool_pages = pool_pages(request_, info_);
    s.step_rows = request_.step_rows;
    s.window_rows = request_.window_rows;
    s.chunk_rows = request_.chunk_rows;
    s.world = request_.world;
    s.draft_depth = 0;
    s.max_queued = static_cast<int32_t>(engine.integer("max_queued"));
    s.clamp_max_tokens = engine.flag("clamp_max_tokens");
    s.fairness_us = engine.integer("fairness");
    s.fairness_background_us = engine.integer("fairness_background");
    s.slow_client_limit_us = engine.integer("slow_client_limit");
    s.sampling.temperature = static_cast<float>(sampling.number("temperature"));
    s.sampling.top_p = static_cast<float>(sampling.number("top_p"));
    s.sampling.min_p = static_cast<float>(sampling.number("min_p"));
    s.sampling.top_k = static_cast<int32_t>(sampling.integer("top_k"));
    s.sampling.max_tokens = sampling.integer("max_tokens");
    s.sampling.seed_salt = sampling.text("seed_salt");
    s.served_name = model.text("served_name");
    s.served_name = s.served_name.empty() ? profile_.name : s.served_name;
    s.aliases = model.list("aliases");
    s.profile_name = profile_.name;
    s.profile_digest = profile_.digest;
    s.version = kVersion;
    struct stat st {};
    if (checkpoint_ && ::stat((checkpoint_->dir().str() + "/config.json").c_str(), &st) == 0) {
        s.created_unix = static_cast<int64_t>(st.st_mtime);
    }
    return s;
}

}  // namespace tenon
