// SPDX-License-Identifier: MIT
// Finds a model family that claims the folder; without config.json the first family that opens its
// tokenizer.
#include "host/cli/text_source.h"

#include "host/checkpoint/checkpoint.h"

namespace tenon::cli {

TextSource::~TextSource() {
    codec_.reset();
    checkpoint_.reset();
    if (family_object_ != nullptr) {
        family_object_->release();
    }
}

Status TextSource::open_folder(const std::string& folder) {
    TENON_TRY(registry_.load({}));
    exit_code_ = kExitData;
    TENON_TRY(open_checkpoint({folder, {}, false}, checkpoint_.out()));
    std::string reasons;
    for (const FoundComponent& f : registry_.all(PluginKind::model)) {
        OptionBag bag;
        for (const OptionSpec& o : f.component->options) {
            TENON_TRY(bag.add(o, nullptr, "[model]", folder));
        }
        Object* object = nullptr;
        TENON_TRY(f.component->create(host_, bag.view("[model]"), &object));
        auto* family = facet_of<ModelFamily>(object);
        Status status = family == nullptr ? error(Code::unavailable, "no model family")
                                          : family->open_text(*checkpoint_, codec_.out());
        if (status.ok()) {
            options_ = std::move(bag);
            family_object_ = object;
            return {};
        }
        object->release();
        reasons +=
            format("{}{}: {}", reasons.empty() ? "" : "; ", f.component->name, status.message());
    }
    return error(Code::invalid_argument, "{}: {}", folder,
                 reasons.empty() ? "no model plugin is installed" : reasons);
}

Status TextSource::open(const TextArgs& args) {
    if (!args.checkpoint.empty()) {
        return open_folder(args.checkpoint);
    }
    deployment_ = std::make_unique<Deployment>(host_);
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
        TENON_TRY(open_checkpoint({model->bag.text("checkpoint"), {}, false}, checkpoint_.out()));
        return family->open_text(*checkpoint_, codec_.out());
    };
    Status status = steps();
    exit_code_ = deployment_->exit_code();
    return status;
}

}  // namespace tenon::cli
