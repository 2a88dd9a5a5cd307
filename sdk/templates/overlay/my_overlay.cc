// SPDX-License-Identifier: MIT
// A schedule overlay: while replies are being decoded, a prompt gets its slice in every n-th step
// only.
#include "tenon/overlay.h"
#include "tenon/plugin.h"

#include <cstdint>
#include <iterator>

namespace tenon::my_overlay {
namespace {

constexpr const char* kName = "my_overlay";

constexpr OptionSpec kOptions[] = {
    {.key = "every",
     .type = OptionType::integer,
     .default_value = "2",
     .help = "steps from one prompt slice to the next while replies are being decoded",
     .min = 1,
     .max = 1000},
};

/// Thread: the engine thread of rank 0. The other ranks execute the plan, so it may keep state.
class Policy final : public Implements<Policy, ScheduleOverlay> {
  public:
    explicit Policy(int64_t every) : every_(every) {}
    ~Policy() = default;

    Status outline(const SchedulerView& view, Outliner& inner, StepOutline* out) noexcept override {
        TENON_TRY(inner.outline(view, out));
        const bool has_slice = out->slice_slot >= 0;
        const bool decodes = out->decode_count > 0;
        if (!has_slice || !decodes) {
            steps_without_slice_ = 0;
            return {};
        }
        if (++steps_without_slice_ < every_) {
            // An outline may leave out what the inner one chose; the next step is offered it again.
            out->slice_slot = -1;
            out->slice_rows = 0;
            out->slice_stages = 0;
        } else {
            steps_without_slice_ = 0;
        }
        return {};
    }

  private:
    const int64_t every_;
    int64_t steps_without_slice_ = 0;
};

Status probe(const ProbeEnv&, ProbeResult* result) noexcept {
    result->score = 1;
    set_text(result->reason, "works everywhere");
    return {};
}

Status create(Host&, const Options& options, Object** out) noexcept {
    return guard([&] {
        const OptionValue* every = options.find("every");
        *out = new Policy(every != nullptr && every->is_set ? every->integer : 2);
    });
}

constexpr Component kComponents[] = {{.struct_size = sizeof(Component),
                                      .kind = PluginKind::overlay,
                                      .name = kName,
                                      .summary = "spaces prompt slices out while replies decode",
                                      .options = {kOptions, std::size(kOptions)},
                                      .needs = {},
                                      .probe = &probe,
                                      .create = &create}};

}  // namespace
}  // namespace tenon::my_overlay

TENON_PLUGIN("my_overlay", "0.1.0", "Spaces prompt slices out while replies decode", "MIT", stable,
             tenon::my_overlay::kComponents)
