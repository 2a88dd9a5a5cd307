// SPDX-License-Identifier: MIT
// Finds a model family that claims the folder; without config.json the first family that opens its
// tokenizer.
#include "host/cli/text_source.h"

#include "host/checkpoint/checkpoint.h"
#include "host/log/log.h"

namespace tenon::cli {

TextSource::~TextSource() {
    checkpoint_.reset();
    if (family_object_ != nullptr) {
        family_object_->release();
    }
}

Status TextSource::open_folder(const std::string& folder) {
    TENON_TRY(registry_.load({}));
    TENON_TRY(log_configure({LogLevel::warn, LogFormat::automatic, ""}));
    exit_code_ = kExitData;
    TENON_TRY(open_checkpoint({folder, {}, false}, checkpoint_.out()));
    if (registry_.all(PluginKind::model).empty()) {
        exit_code_ = kExitPlugin;
        return error(Code::unavailable, "no model plugin is installed (tenon plugins lists all)");
    }
    std::string reasons;
    for (const FoundComponent& f : registry_.all(PluginKind::model)) {
        OptionBag bag;
        for (const OptionSpec& o : f.component->options) {
            TENON_TRY(bag.add(o, nullptr, "[model]", folder));
        }
        Object* object = nullptr;
        TENON_TRY(f.component->create(host_, bag.view("[model]"), &object));
        auto* family = facet_of<ModelFamily>(object);
        Status status = family == nullptr ? error(Code::unavailable, "does not offer the facet {}",
                                                  ModelFamily::kFacet)
                                          : family->open_text(*checkpoint_, &codec_);
        if (status.ok()) {
            options_ = std::move(bag);
            family_object_ = object;
            return {};
        }
        object->release();
        reasons +=
            format("{}{}: {}", reasons.empty() ? "" : "; ", f.component->name, status.message());
    }
    return error(Code::invalid_argument, "{}: {}", folder, reasons);
}

Status TextSource::open(const TextArgs& args) {
    if (!args.checkpoint.empty()) {
        return open_folder(args.checkpoint);
    }
    deployment_ = std::make_unique<Deployment>(host_);
    deployment_->quiet();
    bool plugin_made = false;
    const auto steps = [&]() -> Status {
        TENON_TRY(deployment_->open(args.profile, {}));
        const ProfileSection* model = deployment_->profile().find("model");
        if (model->component.component == nullptr) {
            return deployment_->require_plugins();
        }
        Object* object = nullptr;
        TENON_TRY(deployment_->create_component(*model, &object));
        auto* family = facet_of<ModelFamily>(object);
        if (family == nullptr) {
            return error(Code::unavailable, "plugin '{}' is no model family", model->plugin);
        }
        plugin_made = true;
        TENON_TRY(open_checkpoint({model->bag.text("checkpoint"), {}, false}, checkpoint_.out()));
        return family->open_text(*checkpoint_, &codec_);
    };
    Status status = steps();
    exit_code_ = plugin_made ? exit_code_of(status.code(), kExitData) : deployment_->exit_code();
    return status;
}

}  // namespace tenon::cli
