// SPDX-License-Identifier: MIT
// A model family whose plan is one MiB a token and one GiB a slot, for tests of the memory plan.
#include "tenon/model.h"

namespace tenon {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class Family final : public Implements<Family, ModelFamily> {
  public:
    Status inspect(Checkpoint& checkpoint, ModelInfo* out) noexcept override {
        return guard([&]() -> Status {
            if (checkpoint.config_json().view().find("fake_family") == std::string_view::npos) {
                return error(Code::not_found, "model_type is not fake_family");
            }
            ModelInfo info;
            info.context_limit = int64_t{1} << 20;
            info.vocab = 8;
            set_text(info.family, "fake");
            set_text(info.summary, "layers=0");
            *out = info;
            return {};
        });
    }
    Status open_text(Checkpoint&, TextCodec**) noexcept override {
        return error(Code::unsupported, "a fake reads no text");
    }
    Status plan(Checkpoint&, WeightSource&, Span<QuantFormat* const>, const ModelRequest& request,
                MemoryPlan* out) noexcept override {
        entries_[0] = {"state.pages",       PlanPlace::device, 0, request.pool_tokens * kMiB,
                       request.pool_tokens, "tokens"};
        entries_[1] = {"state.windows", PlanPlace::host, 0, request.slots * 1024 * kMiB,
                       request.slots,   "slots"};
        entries_[2] = {"tables", PlanPlace::disk, 0, int64_t{1} << 50, 1, "not memory"};
        *out = {};
        out->entries = entries_;
        return {};
    }
    Status load(const ModelServices&, const ModelRequest&, Model**) noexcept override {
        return error(Code::device, "the device fell off the bus");
    }

  private:
    MemoryEntry entries_[3];
};

Status usable(const ProbeEnv&, ProbeResult* out) noexcept {
    out->score = 1;
    set_text(out->reason, "works everywhere");
    return {};
}
Status make(Host&, const Options&, Object** out) noexcept {
    return guard([&] { *out = new Family; });
}

const Component kComponents[] = {
    {sizeof(Component), PluginKind::model, "fake_model", "one MiB a token", {}, {}, &usable, &make},
};

}  // namespace
}  // namespace tenon

TENON_PLUGIN("fake_model", "9.9.9", "a fake for tests", "MIT", stable, tenon::kComponents)
