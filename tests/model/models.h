// SPDX-License-Identifier: MIT
// The checkpoints that model tests run on.
#pragma once

#include "model/golden.h"
#include "model/model_rig.h"

namespace tenon::testing {

/// Random weights in the official formats: 9 layers, window 32, ratio 2 and 1, candidates from 80
/// rows on.
inline RigOptions tiny_model() {
    RigOptions o;
    o.checkpoint = golden_path("tiny");
    return o;
}

/// The same model as an EXL3 pack with native parts.
inline RigOptions tiny_exl3_model() {
    RigOptions o;
    o.checkpoint = golden_path("tiny_exl3");
    o.tables = golden_path("tiny");
    o.extra = {o.checkpoint / "gate_bias_vl.safetensors"};
    return o;
}

/// The trained model of this repository, an EXL3 pack: window 64.
inline RigOptions mini_model() {
    RigOptions o;
    o.checkpoint = std::filesystem::path(TENON_MODELS) / "tenon-mini";
    o.tables = o.checkpoint / "engram";
    o.formats = {"exl3"};
    o.context = 1024;
    return o;
}

inline std::unique_ptr<ModelRig> make_rig(const RigOptions& options) {
    auto rig = ModelRig::make(options);
    check(rig.ok() ? Status() : rig.take_status());
    return std::move(*rig);
}

inline const Safetensors& tiny_prompts() {
    static const Safetensors file = Safetensors::open(golden_path("prompts.safetensors"));
    return file;
}

/// `count` ids without structure, all known to every tokenizer here and none of them special.
inline std::vector<int32_t> some_ids(int64_t count, uint64_t seed) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        ids.push_back(static_cast<int32_t>(3 + (seed >> 33) % 400));
    }
    return ids;
}

/// Every byte of a slot's visible state, and the logits of one more row (which leaves the slot
/// longer by one).
inline std::string state_of(ModelRig& rig, uint32_t slot, const std::vector<int>& sources,
                            int layers, int stages, bool with_logits = true) {
    std::string bytes;
    const auto add = [&](const std::string& name) {
        const TensorView v = rig.trace(name, slot);
        bytes.append(v.as<char>(), static_cast<size_t>(v.bytes()));
    };
    for (int i = 0; i < layers; ++i) {
        add("state.layers." + std::to_string(i) + ".window_kv");
    }
    for (const int i : sources) {
        add("state.layers." + std::to_string(i) + ".compressed_kv");
        add("state.layers." + std::to_string(i) + ".index_keys");
    }
    for (int s = 0; s < stages; ++s) {
        add("state.mtp." + std::to_string(s) + ".ring");
    }
    if (with_logits) {
        rig.want_logits(true);
        rig.window(slot, {7}, 1);
        const std::vector<float> logits = rig.logits();
        rig.want_logits(false);
        bytes.append(reinterpret_cast<const char*>(logits.data()), logits.size() * 4);
    }
    return bytes;
}

}  // namespace tenon::testing
