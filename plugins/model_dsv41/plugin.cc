// SPDX-License-Identifier: MIT
// The component `dsv41` and its options.
#include "tenon/plugin.h"
#include "family.h"

namespace tenon::dsv41 {

namespace {

const OptionSpec kOptions[] = {
    {"stages", OptionType::integer, "0", "slices of a prompt chunk; 0 = the model's choice", 0, 64,
     nullptr, OptionTag::agree},
    {"state_format", OptionType::choice, "\"packed\"",
     "form of cached rows: packed FP8/FP4, or bf16 (equal results)", 0, 0, "packed|bf16",
     OptionTag::agree},
    {"vision", OptionType::choice, "\"auto\"", "image input", 0, 0, "auto|on|off",
     OptionTag::agree},
    {"idx_split", OptionType::boolean, "false", "split prompt index rows over ranks", 0, 0, nullptr,
     OptionTag::agree},
    {"candidates_only", OptionType::boolean, "false",
     "send only the top candidates of logits between ranks", 0, 0, nullptr, OptionTag::agree},
    {"thinking", OptionType::boolean, "true", "replies think unless the request says otherwise"},
    {"effort", OptionType::integer, "75", "default reasoning effort", 1, 100},
    {"efforts", OptionType::table, nullptr, "names of efforts, like { low = 50, max = 100 }"},
    {"text_specials", OptionType::boolean, "false",
     "special strings in user text become control tokens"},
};

const Need kNeeds[] = {
    {"compute.device/1"},
    {"compute.ops/1"},
    {"quant.format/1"},
    {"storage.row_store/1", true},
};

Status probe(const ProbeEnv&, ProbeResult* out) noexcept {
    out->score = 100;
    set_text(out->reason, "claims checkpoints of model_type deepseek_v41");
    return {};
}

Status create(Host& host, const Options& options, Object** out) noexcept {
    return guard([&]() -> Status {
        const auto refuse = [&](const char* key, const char* why) {
            return error(Code::unsupported, "{} {}", key, why);
        };
        if (options.text("vision") == StrView("on")) {
            return refuse("vision = \"on\":",
                          "image input is not implemented; use \"auto\" or \"off\"");
        }
        if (options.flag("idx_split")) {
            return refuse("idx_split = true:",
                          "splitting of index rows is not implemented; use false");
        }
        if (options.flag("candidates_only")) {
            return refuse("candidates_only = true:", "it is not implemented; use false");
        }
        FamilyOptions o;
        o.stages = static_cast<int32_t>(options.integer("stages"));
        o.packed_state = options.text("state_format") != StrView("bf16");
        o.text.thinking = options.flag("thinking");
        o.text.effort = static_cast<int32_t>(options.integer("effort"));
        o.text.efforts_json = options.text("efforts").str();
        o.text.text_specials = options.flag("text_specials");
        *out = static_cast<ModelFamily*>(new Family(host, std::move(o)));
        return {};
    });
}

const Component kComponents[] = {
    {sizeof(Component), PluginKind::model, "dsv41",
     "DeepSeek-V4.1-Flash and models of its architecture", kOptions, kNeeds, &probe, &create},
};

}  // namespace

}  // namespace tenon::dsv41

TENON_PLUGIN("dsv41", "0.1.0", "dsv41 model family: text backbone, Engram tables, DSpark drafts",
             "MIT", stable, tenon::dsv41::kComponents)
