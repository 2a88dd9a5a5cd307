// SPDX-License-Identifier: MIT
// The steps before serving. Creation order: compute, transport, storage, quant, overlay,
// constraint, model.
#include "host/lifecycle/deployment.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "host/checkpoint/checkpoint.h"
#include "host/lifecycle/auto_choice.h"
#include "host/log/log.h"
#include "host/profile/units.h"
#include "host/version.h"

namespace tenon {
namespace {

constexpr int64_t kUsualPoolTokens = 1 << 20;  // more only if one context needs it
constexpr int64_t kLeastContext = 2;           // a prompt of one token and its reply
constexpr int64_t kMostCells = 4096;           // an eviction looks at every cut

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

/// What a model is given without an overlay on the media hook: nothing is kept.
class NoMediaCache final : public Implements<NoMediaCache, MediaCache> {
  public:
    bool get(const uint8_t*, Span<uint8_t>) noexcept override { return false; }
    void put(const uint8_t*, Span<const uint8_t>) noexcept override {}
    bool keeps_states() noexcept override { return false; }
    void release() noexcept override {}
};

MediaCache* no_media_cache() {
    static NoMediaCache cache;
    return &cache;
}

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
    const Value* plugins = source.root.find("plugins");
    if (const Value* list = plugins == nullptr ? nullptr : plugins->find("path")) {
        OptionBag bag;
        const OptionSpec* spec = find_section("plugins")->keys.data;
        TENON_TRY(bag.add(*spec, list, "[plugins]", source.folder_of(*list)));
        folders = bag.list("path");
    }
    TENON_TRY(registry_.load(folders));
    AutoChoice choice(host_, registry_);
    TENON_ASSIGN(profile_, resolve_profile(source, registry_,
                                           [&](const SectionSpec& spec, const Value& section,
                                               const std::string& folder) {
                                               return choice.choose(spec, section, folder);
                                           }));
    TENON_TRY(configure_log());
    for (const std::string& line : choice.lines()) {
        log_line(LogLevel::info, "plugins", line);
    }
    return {};
}

Status Deployment::configure_log() {
    LogSettings log;
    const OptionBag& bag = profile_.bag("log");
    const std::string level = bag.text("level");
    log.level = level == "debug"            ? LogLevel::debug
                : level == "error"          ? LogLevel::error
                : level == "warn" || quiet_ ? LogLevel::warn
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

Status Deployment::in_section(const ProfileSection& section, const Status& status) {
    exit_code_ = exit_code_of(status.code(), kExitUsage);
    return status.with_context(format("{}: {}", profile_.shown, section.bag.section()));
}

Status Deployment::probe(const ProfileSection& section, ProbeResult* out) {
    const std::string title = section.bag.section();
    const Options options = section.bag.view(title);
    Status status =
        section.component.component->probe(ProbeEnv{sizeof(ProbeEnv), &host_, &options}, out);
    if (status.ok() && out->score <= 0) {
        status = error(Code::unavailable, "not usable here: {}", StrView(out->reason));
    }
    return status.ok() ? Status() : in_section(section, status);
}

Status Deployment::probe_frontends() {
    for (const ProfileSection* section : profile_.all("frontend")) {
        ProbeResult ignored;
        TENON_TRY(probe(*section, &ignored));
    }
    return {};
}

Status Deployment::create_component(const ProfileSection& section, Object** out) {
    const Component& c = *section.component.component;
    ProbeResult probed;
    TENON_TRY(probe(section, &probed));
    const Status status = c.create(host_, section.bag.view(section.bag.section()), out);
    if (!status.ok()) {
        return in_section(section, status);
    }
    created_.push_back(*out);
    chosen_.push_back(format("{} = {} {} ({})", kind_name(c.kind), c.name,
                             section.component.library->descriptor->version,
                             StrView(probed.reason)));
    return {};
}

template <class T>
Status Deployment::create_as(const ProfileSection& section, T** out) {
    Object* object = nullptr;
    TENON_TRY(create_component(section, &object));
    *out = facet_of<T>(object);
    if (*out == nullptr) {
        exit_code_ = kExitPlugin;
        return error(Code::unavailable, "{}: {}: does not offer the facet {}", profile_.shown,
                     section.bag.section(), T::kFacet);
    }
    if (auto* ops = facet_of<OpTable>(object)) {
        op_tables_.push_back(ops);
    }
    return {};
}

Status Deployment::create_overlay(const ProfileSection& section) {
    Object* object = nullptr;
    TENON_TRY(create_component(section, &object));
    auto* weights = facet_of<WeightOverlay>(object);
    auto* schedule = facet_of<ScheduleOverlay>(object);
    auto* media = facet_of<MediaCache>(object);
    if (weights == nullptr && schedule == nullptr && media == nullptr) {
        exit_code_ = kExitPlugin;
        return error(Code::unavailable, "{}: {}: offers none of the overlay hooks", profile_.shown,
                     section.bag.section());
    }
    if (weights != nullptr) {
        weight_overlays_.push_back(weights);
    }
    if (schedule != nullptr) {
        schedule_overlays_.push_back(schedule);
    }
    if (media != nullptr && media_ != nullptr) {
        exit_code_ = kExitUsage;
        return error(Code::invalid_argument,
                     "{}: {}: a second overlay on the media hook, which takes one", profile_.shown,
                     section.bag.section());
    }
    media_ = media != nullptr ? media : media_;
    return {};
}

Status Deployment::create() {
    exit_code_ = kExitPlugin;
    return create_all();
}

Status Deployment::create_all() {
    TENON_TRY(create_as(*profile_.find("compute"), &device_));
    TENON_TRY(create_as(*profile_.find("transport"), &transport_));
    if (!profile_.find("engram")->plugin.empty()) {
        TENON_TRY(create_as(*profile_.find("engram"), &store_));
    }
    for (const ProfileSection* s : profile_.all("quant")) {
        QuantFormat* quant_format = nullptr;
        TENON_TRY(create_as(*s, &quant_format));
        formats_.push_back(quant_format);
    }
    for (const ProfileSection* s : profile_.all("overlay")) {
        TENON_TRY(create_overlay(*s));
    }
    if (!profile_.find("constraint")->plugin.empty()) {
        TENON_TRY(create_as(*profile_.find("constraint"), &constraint_));
        host_.publish(ConstraintCompiler::kFacet, constraint_);
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
    r.slots = static_cast<int32_t>(model.integer("slots"));
    r.context_tokens = model.integer("context_tokens");
    r.context_tokens = r.context_tokens == 0 ? info_.context_limit : r.context_tokens;
    if (r.context_tokens < kLeastContext || r.context_tokens > info_.context_limit) {
        exit_code_ = kExitUsage;
        return error(Code::invalid_argument,
                     "{}: model.context_tokens = {} is out of range {}…{} (0 = the checkpoint's "
                     "limit)",
                     profile_.shown, r.context_tokens, kLeastContext, info_.context_limit);
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
    r.engram_self_test = engram.flag("self_test");
    engram_dir_ = engram.text("dir");
    engram_layout_ = engram.text("layout");
    r.engram_dir = engram_dir_;
    r.engram_layout = engram_layout_;
    fusions_off_ = profile_.bag("compute").list("fusions_off");
    fusions_views_.assign(fusions_off_.begin(), fusions_off_.end());
    r.fusions_off = fusions_views_;
    request_ = r;
    request_ = request_with(r.context_tokens, r.slots);
    const int64_t asked = engine.integer("pool_tokens");
    if (asked != 0) {
        request_.pool_tokens = std::max(asked, r.context_tokens);
    }
    return plan_cells();
}

/// Cells of kept cuts from their budget; 0 keeps nothing.
Status Deployment::plan_cells() {
    const int64_t budget = profile_.bag("prefix").integer("snapshot_budget");
    const bool spills = !profile_.bag("kv_spill").text("dir").empty();
    if (budget == 0 || info_.snapshot_bytes == 0) {
        if (spills) {
            exit_code_ = kExitUsage;
            return error(Code::invalid_argument,
                         "{}: kv_spill.dir: nothing is kept, so nothing can go to disk; set "
                         "prefix.snapshot_budget, or leave the key out",
                         profile_.shown);
        }
        return {};
    }
    const int64_t cells = std::min<int64_t>(budget / info_.snapshot_bytes, kMostCells);
    const int64_t least = 2 * (int64_t{request_.slots} + 2);
    if (cells < least) {
        exit_code_ = kExitUsage;
        return error(Code::invalid_argument,
                     "{}: prefix.snapshot_budget = {} holds {} cells of {} bytes; {} slots need at "
                     "least {} ({}), and 0 turns kept prefixes off",
                     profile_.shown, size_text(budget), cells, info_.snapshot_bytes, request_.slots,
                     least, size_text(least * info_.snapshot_bytes));
    }
    request_.snapshot_cells = static_cast<int32_t>(cells);
    request_.spill = spills;
    return {};
}

ModelRequest Deployment::request_with(int64_t context_tokens, int32_t slots) const {
    ModelRequest r = request_;
    r.context_tokens = context_tokens;
    r.slots = slots;
    r.pool_tokens = std::min(slots * context_tokens, std::max(context_tokens, kUsualPoolTokens));
    return r;
}

Status Deployment::plan_for(const ModelRequest& r, MemoryReport* out) {
    MemoryPlan plan;
    TENON_TRY(family_->plan(*checkpoint_, *weights_, formats_, r, &plan));
    out->entries.clear();
    const auto add = [&](const MemoryEntry& e) {
        out->entries.push_back({e.tag.str(), e.note.str(), e.place, e.bytes, e.count});
    };
    for (const MemoryEntry& e : plan.entries) {
        add(e);
    }
    for (const MemoryEntry& e : engine_memory(engine_settings(r), info_)) {
        add(e);
    }
    out->entries.push_back({"program", "code and libraries, measured before load", PlanPlace::host,
                            program_bytes_, 1});
    out->token_bytes = plan.token_bytes;
    out->reserve = profile_.bag("memory").integer("reserve");
    // What the program takes already is part of the sum, so it counts as available.
    out->available = memory_available() + program_bytes_;
    const DeviceInfo device = device_->info();
    out->own_memory = !device.cpu && !device.unified_memory;
    out->device_free = device.bytes_free;
    out->device_reserve = profile_.bag("memory").integer("device_reserve");
    return {};
}

Status Deployment::plan() {
    exit_code_ = kExitData;
    Status status = make_plan();
    if (!status.ok() && exit_code_ == kExitData) {
        exit_code_ = exit_code_of(status.code(), kExitData);
    }
    return status;
}

Status Deployment::make_plan() {
    const OptionBag& model = profile_.bag("model");
    CheckpointOptions options;
    options.dir = model.text("checkpoint");
    options.extra_tensors = model.list("extra_tensors");
    options.synthetic = synthetic_;
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
    return plan_for(request_, &memory_);
}

Result<int64_t> Deployment::largest(int64_t most,
                                    const std::function<ModelRequest(int64_t)>& request) {
    // The plan allocates nothing, so trying is cheap.
    int64_t low = 0;
    int64_t high = most;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        MemoryReport report;
        TENON_TRY(plan_for(request(middle), &report));
        (report.fits() ? low : high) = report.fits() ? middle : middle - 1;
    }
    return low;
}

Status Deployment::check_fit() {
    exit_code_ = kExitFit;
    if (memory_.fits()) {
        return {};
    }
    const int64_t page = info_.page_tokens;
    TENON_ASSIGN(const int64_t pages, largest(request_.context_tokens / page, [&](int64_t n) {
                     return request_with(n * page, request_.slots);
                 }));
    TENON_ASSIGN(const int64_t slots, largest(request_.slots - 1, [&](int64_t n) {
                     return request_with(request_.context_tokens, static_cast<int32_t>(n));
                 }));
    std::string hint;
    if (pages > 0) {
        hint = format("the largest context that fits {} slots is model.context_tokens = {}",
                      request_.slots, pages * page);
    }
    if (slots > 0) {
        hint += format("{}a context of {} fits model.slots = {}", hint.empty() ? "" : "; ",
                       request_.context_tokens, slots);
    }
    if (!hint.empty() && profile_.bag("engine").integer("pool_tokens") != 0) {
        hint += "; both without engine.pool_tokens";
    }
    return error(
        Code::does_not_fit, "{}: {}; {}\n{}", profile_.shown, memory_.needs(),
        hint.empty() ? "no context fits: a smaller model, fewer rows a step, or more memory" : hint,
        memory_.table());
}

void Deployment::put_tap() {
    for (OpTable*& table : op_tables_) {
        tapped_ops_.push_back(std::make_unique<TappedOps>(*table, *tap_));
        table = tapped_ops_.back().get();
    }
    for (QuantFormat*& format : formats_) {
        tapped_formats_.push_back(std::make_unique<TappedFormat>(*format, *tap_));
        format = tapped_formats_.back().get();
    }
}

Status Deployment::load() {
    exit_code_ = kExitFit;
    const int64_t guard_bytes = profile_.bag("memory").integer("min_available");
    const int64_t available = memory_available();
    if (guard_bytes > available) {
        return error(Code::does_not_fit, "{}: memory.min_available = {}, but {} are available",
                     profile_.shown, size_text(guard_bytes), size_text(available));
    }
    exit_code_ = kExitPeer;
    SingleRendezvous rendezvous;
    TENON_TRY_CTX(transport_->connect(rendezvous, *device_, communicator_.out()), "transport");
    if (tap_ != nullptr && tapped_ops_.empty()) {
        put_tap();
    }
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
    services.media = media_ != nullptr ? media_ : no_media_cache();
    Status status = family_->load(services, request_, model_.out());
    for (size_t i = 0; status.ok() && i < weight_overlays_.size(); ++i) {
        status = weight_overlays_[i]->finish();
    }
    if (!status.ok()) {
        exit_code_ = exit_code_of(status.code(), kExitData);
        return status;
    }
    info_ = model_->info();
    return {};
}

namespace {

/// A line for a file, or for each file in a folder. Size and time stand for the contents, which are
/// too many to read at every start.
void add_stamps(const std::filesystem::path& path, std::string* text) {
    std::vector<std::string> lines;
    const auto add = [&lines](const std::filesystem::path& file) {
        struct stat st {};
        if (::stat(file.c_str(), &st) == 0 && S_ISREG(st.st_mode)) {
            lines.push_back(format(
                "{} {} {}.{}\n", file.filename().string(), static_cast<int64_t>(st.st_size),
                static_cast<int64_t>(st.st_mtim.tv_sec), static_cast<int64_t>(st.st_mtim.tv_nsec)));
        }
    };
    add(path);
    std::error_code ec;
    for (const auto& entry : std::filesystem::directory_iterator(path, ec)) {
        add(entry.path());
    }
    std::sort(lines.begin(), lines.end());
    for (const std::string& line : lines) {
        *text += line;
    }
}

}  // namespace

std::string Deployment::spill_identity() const {
    std::string text = format("tenon {}\n", kVersion);
    if (checkpoint_) {
        text += format("{}\n", checkpoint_->config_json());
        add_stamps(checkpoint_->dir().str(), &text);
    }
    if (tables_) {
        add_stamps(tables_->dir().str(), &text);
    }
    for (const std::string& path : profile_.bag("model").list("extra_tensors")) {
        add_stamps(path, &text);
    }
    for (const auto& section : profile_.sections) {
        const std::string title = section->bag.section();
        const bool matters = title == "model" || title == "quant" || title == "compute" ||
                             title == "overlay" || title.rfind("overlay", 0) == 0;
        const LoadedLibrary* library = section->component.library;
        if (matters && library != nullptr) {
            text += format("{} {} {}\n", title, section->plugin, library->descriptor->version);
        }
    }
    for (WeightOverlay* overlay : weight_overlays_) {
        const Span<const uint8_t> digest = overlay->digest();
        text.append(reinterpret_cast<const char*>(digest.data), digest.size);
    }
    for (const std::string& fusion : profile_.bag("compute").list("fusions_off")) {
        text += "off " + fusion + "\n";
    }
    return text;
}

EngineSettings Deployment::engine_settings(const ModelRequest& request) const {
    const OptionBag& engine = profile_.bag("engine");
    const OptionBag& sampling = profile_.bag("sampling");
    const OptionBag& model = profile_.bag("model");
    EngineSettings s;
    s.slots = request.slots;
    s.context_tokens = request.context_tokens;
    s.pool_pages = pool_pages(request, info_);
    s.step_rows = request.step_rows;
    s.window_rows = request.window_rows;
    s.chunk_rows = request.chunk_rows;
    s.world = request.world;
    if (engine.flag("drafts")) {
        const auto depth = static_cast<int32_t>(engine.integer("draft_depth"));
        s.draft_depth = depth == 0 ? plan::kMaxDrafts : depth;  // the engine keeps to the model's
        s.copy_drafts = engine.flag("copy_drafts");
    }
    s.snapshot_cells = request.snapshot_cells;
    s.bounded_replay = !request.replay_exact;
    s.image_states = media_ != nullptr && media_->keeps_states();
    s.prefix_strict = profile_.bag("prefix").flag("strict");
    s.salt_by_key = profile_.bag("prefix").text("scope") == "key";
    s.replay_bytes = profile_.bag("prefix").integer("replay_budget");
    const OptionBag& spill = profile_.bag("kv_spill");
    s.spill_dir = spill.text("dir");
    s.spill_budget = spill.integer("budget");
    s.spill_on_exit = spill.flag("on_exit");
    s.spill_identity = s.spill_dir.empty() ? "" : spill_identity();
    s.join_wait_us = engine.integer("join_wait");
    s.max_queued = static_cast<int32_t>(engine.integer("max_queued"));
    s.clamp_max_tokens = engine.flag("clamp_max_tokens");
    s.fairness_us = engine.integer("fairness");
    s.fairness_background_us = engine.integer("fairness_background");
    s.slow_client_limit_us = engine.integer("slow_client_limit");
    s.warm_up_us = engine.integer("warm_up");
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
