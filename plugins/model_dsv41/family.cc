// SPDX-License-Identifier: MIT
// What the host asks before there is a model.
#include "family.h"

#include "model.h"
#include "packed_rows.h"

namespace tenon::dsv41 {

namespace {

Result<EngramLayout> layout_of(StrView text) {
    if (text.empty() || text == StrView("auto")) {
        return EngramLayout::automatic;
    }
    if (text == StrView("official")) {
        return EngramLayout::official;
    }
    if (text == StrView("packed")) {
        return EngramLayout::packed;
    }
    return error(Code::invalid_argument,
                 "engram.layout = \"{}\", expected auto, official or packed", text);
}

}  // namespace

Status Family::inspect(Checkpoint& checkpoint, ModelInfo* out) noexcept {
    return guard([&]() -> Status {
        TENON_ASSIGN(const ModelConfig config, parse_config(checkpoint.config_json()));
        ModelRequest request;
        request.slots = 1;
        request.packed_state = options_.packed_state;
        TENON_ASSIGN(const StateShape shape, state_shape(config, request));
        *out = model_info(config, request, shape);
        return {};
    });
}

Status Family::open_codec(Checkpoint& checkpoint, TextCodec** out) {
    for (auto& [dir, codec] : codecs_) {
        if (dir == checkpoint.dir().view()) {
            *out = codec.get();
            return {};
        }
    }
    CodecOptions options = options_.text;
    // A tokenizer alone is enough for text work; where there is a config it must be ours.
    if (!checkpoint.config_json().empty()) {
        TENON_ASSIGN(const ModelConfig config, parse_config(checkpoint.config_json()));
        options.image_id = config.image_id;
    }
    StrView json;
    TENON_TRY(checkpoint.file("tokenizer.json", &json));
    Ref<TextCodec> codec;
    TENON_TRY(make_codec(json, options, codec.out()));
    *out = codec.get();
    codecs_.emplace_back(checkpoint.dir().str(), std::move(codec));
    return {};
}

Status Family::open_text(Checkpoint& checkpoint, TextCodec** out) noexcept {
    return guard([&] { return open_codec(checkpoint, out); });
}

/// The request with this component's own options applied.
ModelRequest Family::effective(const ModelRequest& asked) const {
    ModelRequest request = asked;
    request.packed_state = asked.packed_state && options_.packed_state;
    return request;
}

Status Family::check_options(const ModelConfig& config, const ModelRequest& request) const {
    if (options_.stages > 1) {
        return error(Code::unsupported, "model.stages = {}: chunks run in one stage; use 0 or 1",
                     options_.stages);
    }
    return check_rank_shape(config, {request.rank, request.world});
}

Status Family::plan(Checkpoint& checkpoint, WeightSource& weights, Span<QuantFormat* const> formats,
                    const ModelRequest& asked, MemoryPlan* out) noexcept {
    return guard([&]() -> Status {
        const ModelRequest request = effective(asked);
        TENON_ASSIGN(const ModelConfig config, parse_config(checkpoint.config_json()));
        TENON_TRY(check_options(config, request));
        return plan_.build(config, request, weights, formats, out);
    });
}

Status Family::load(const ModelServices& services, const ModelRequest& asked,
                    Model** out) noexcept {
    return guard([&]() -> Status {
        const ModelRequest request = effective(asked);
        ModelParts parts;
        TENON_ASSIGN(parts.config, parse_config(services.checkpoint->config_json()));
        TENON_TRY(check_options(parts.config, request));
        TENON_ASSIGN(parts.shape, state_shape(parts.config, request));
        TENON_ASSIGN(parts.engram_layout, layout_of(request.engram_layout));
        parts.ranks = {request.rank, request.world};
        parts.request = request;
        parts.with_drafts = request.drafts && parts.config.has_drafts();
        parts.info = model_info(parts.config, request, parts.shape);
        for (const StrView& name : request.fusions_off) {
            parts.fusions_off.push_back(name.str());
        }
        parts.request.fusions_off = {};
        parts.request.engram_dir = {};
        parts.request.engram_layout = {};
        TENON_TRY(open_codec(*services.checkpoint, &parts.text));
        if (parts.config.has_engram()) {
            TENON_ASSIGN(parts.token_classes, token_classes(parts.config, *services.checkpoint));
        }
        TENON_TRY(Dsv41Model::load(services, std::move(parts), out));
        host_.log(LogLevel::info, "dsv41", format("loaded {}", (*out)->info().summary));
        return {};
    });
}

Status Family::pack(Checkpoint& checkpoint, const PackRequest& request) noexcept {
    return guard([&]() -> Status {
        TENON_ASSIGN(const ModelConfig config, parse_config(checkpoint.config_json()));
        return pack_rows(config, request);
    });
}

}  // namespace tenon::dsv41
