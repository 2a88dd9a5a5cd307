// SPDX-License-Identifier: MIT
// Rates each candidate with the options that the section gives it.
#include "host/lifecycle/auto_choice.h"

#include <filesystem>

#include "host/checkpoint/checkpoint.h"
#include "tenon/model.h"

namespace tenon {
namespace {

/// Whether the family claims the checkpoint by its model_type.
Status claims(HostServices& host, const Component& component, const Options& options,
              const std::string& dir) {
    Ref<Checkpoint> checkpoint;
    TENON_TRY(open_checkpoint({dir, {}, false}, checkpoint.out()));
    Ref<Object> object;
    TENON_TRY(component.create(host, options, object.out()));
    auto* family = facet_of<ModelFamily>(object.get());
    if (family == nullptr) {
        return error(Code::unavailable, "does not offer the facet {}", ModelFamily::kFacet);
    }
    ModelInfo info;
    return family->inspect(*checkpoint, &info);
}

}  // namespace

Status AutoChoice::rate(const FoundComponent& found, const Options& options, const Value& section,
                        const std::string& folder, ProbeResult* out) const {
    const Component& c = *found.component;
    TENON_TRY(c.probe(ProbeEnv{sizeof(ProbeEnv), &host_, &options}, out));
    if (out->score <= 0) {
        return error(Code::unavailable, "{}", StrView(out->reason));
    }
    if (c.kind != PluginKind::model) {
        return {};
    }
    const Value* dir = section.find("checkpoint");
    if (dir == nullptr || dir->kind != ValueKind::string) {
        return {};  // the missing key is reported by the schema
    }
    const std::filesystem::path path(dir->string);
    return claims(host_, c, options,
                  (path.is_absolute() ? path : std::filesystem::path(folder) / path).string());
}

Result<FoundComponent> AutoChoice::choose(const SectionSpec& spec, const Value& section,
                                          const std::string& folder) {
    FoundComponent best;
    ProbeResult best_probe;
    std::string reasons;
    for (const FoundComponent& f : registry_.all(spec.kind)) {
        const std::string title = format("[{}] (plugin '{}')", spec.name, f.component->name);
        OptionBag bag;
        Status status;
        for (const OptionSpec& o : f.component->options) {
            status =
                status.ok() ? bag.add(o, section.find(o.key), title, folder) : std::move(status);
        }
        ProbeResult probe;
        if (status.ok()) {
            status = rate(f, bag.view(title), section, folder, &probe);
        }
        if (!status.ok()) {
            reasons += format("; {}: {}", f.component->name, status.message());
        } else if (best.component == nullptr || probe.score > best_probe.score) {
            best = f;
            best_probe = probe;
        }
    }
    if (best.component == nullptr) {
        return error(Code::unavailable, "no usable {} plugin for 'auto'{}", kind_name(spec.kind),
                     reasons.empty() ? "; none is installed" : reasons);
    }
    lines_.push_back(format("auto kind={} chosen={} score={} reason=\"{}\"", kind_name(spec.kind),
                            best.component->name, best_probe.score, StrView(best_probe.reason)));
    return best;
}

}  // namespace tenon
