// SPDX-License-Identifier: MIT
// replay: runs the plans of a record again and compares every result, bit for bit.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "host/cli/verbs.h"
#include "host/engine/plan_digest.h"
#include "host/engine/step_bundle.h"
#include "host/lifecycle/deployment.h"

namespace tenon::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Manifest {
    std::string profile, digest;
    std::vector<std::string> set;
};

Result<Manifest> read_manifest(const std::string& dir) {
    const std::string path = dir + "/" + engine::kManifestFile;
    std::ifstream file(path);
    if (!file) {
        return error(Code::not_found, "{}: cannot be read; is it a folder of `serve --record`?",
                     path);
    }
    const Json j = Json::parse(file, nullptr, false);
    const auto text_at = [&](const char* key) { return j.contains(key) && j[key].is_string(); };
    if (!j.is_object() || j.value("version", Json()) != 1 || !text_at("profile") ||
        !text_at("profile_digest") || !j.contains("set") || !j["set"].is_array()) {
        return error(Code::invalid_argument, "{}: not the manifest of a record of version 1", path);
    }
    Manifest m;
    m.profile = j["profile"].get<std::string>();
    m.digest = j["profile_digest"].get<std::string>();
    for (const Json& item : j["set"]) {
        if (item.is_string()) {
            m.set.push_back(item.get<std::string>());
        }
    }
    return m;
}

struct Outcome {
    uint64_t steps = 0, tokens = 0;
    uint64_t differs_at = 0;
    std::string difference;
};

/// Puts what the recorded run read from spill files where the plan's imports take it from.
bool fill_staging(Model& model, const engine::BundleReader& reader) {
    auto* staging = facet_of<ModelStaging>(&model);
    bool fits = true;
    reader.each_import([&](uint64_t job, Span<const uint8_t> bytes) {
        const int32_t areas = staging == nullptr ? 0 : staging->areas();
        if (areas == 0) {
            fits = false;
            return;
        }
        const Span<uint8_t> area =
            staging->area(static_cast<int32_t>(job % static_cast<uint64_t>(areas)));
        fits = fits && bytes.size <= area.size;
        std::copy_n(bytes.begin(), std::min(bytes.size, area.size), area.begin());
    });
    return fits;
}

/// Submits every plan to a model that nothing else uses. Stops at the first difference.
Status replay(Model& model, const std::string& dir, Outcome* out) {
    engine::BundleReader reader;
    TENON_TRY(reader.open(dir));
    StepPlan plan;
    StepResult recorded;
    for (;;) {
        bool has_result = false;
        TENON_ASSIGN(const bool found, reader.next(&plan, &recorded, &has_result));
        if (!found) {
            return {};
        }
        const uint64_t step = plan.header.step;
        if (!fill_staging(model, reader)) {
            return error(Code::invalid_argument,
                         "step {}: it imports state, but the model has no staging for it", step);
        }
        TENON_TRY_CTX(model.submit(plan), "step {}", step);
        StepResult replayed;
        TENON_TRY_CTX(model.collect(step, Stage::done, &replayed), "step {}", step);
        if (!has_result) {
            return {};  // the run ended inside this step
        }
        ++out->steps;
        out->tokens += recorded.tokens.size;
        out->difference = engine::result_difference(recorded, replayed);
        if (!out->difference.empty()) {
            out->differs_at = step;
            return {};
        }
    }
}

}  // namespace

std::string record_manifest(const ProfileArgs& args, const std::string& digest) {
    std::error_code ec;
    Json j;
    j["version"] = 1;
    j["profile"] = std::filesystem::absolute(args.profile, ec).string();
    j["set"] = args.set;
    j["profile_digest"] = digest;
    return j.dump(2) + "\n";
}

int replay_verb(const ReplayArgs& args) {
    HostServices host;
    Deployment d(host);
    d.quiet();
    Outcome outcome;
    // Whose mistake `status` is: of the record, of the deployment, or of what the command names.
    enum class At { record, deployment, command } at = At::record;
    const Status status = guard([&]() -> Status {
        auto manifest = read_manifest(args.dir);
        if (!manifest.ok()) {
            at = manifest.status().code() == Code::not_found ? At::command : At::record;
            return manifest.take_status();
        }
        const Manifest& m = *manifest;
        at = At::deployment;
        TENON_TRY(d.open(args.profile.empty() ? m.profile : args.profile, m.set));
        TENON_TRY(d.require_plugins());
        if (d.profile().digest != m.digest) {
            at = At::command;
            return error(Code::invalid_argument,
                         "{}: recorded with the profile digest {}, {} has {} now; name the profile "
                         "of the record with --profile",
                         args.dir, m.digest, d.profile().shown, d.profile().digest);
        }
        TENON_TRY(d.create());
        TENON_TRY(d.plan());
        TENON_TRY(d.check_fit());
        TENON_TRY(d.load());
        at = At::record;
        CostTable costs;
        WarmUp warm;
        warm.measure = false;
        TENON_TRY_CTX(d.model()->warm_up(warm, &costs), "warm-up");
        return replay(*d.model(), args.dir, &outcome);
    });
    if (!status.ok()) {
        const ExitCode invalid = at == At::command ? kExitUsage : kExitData;
        return fail(at == At::deployment ? d.exit_code() : exit_code_of(status.code(), invalid),
                    status.message().str());
    }
    if (!outcome.difference.empty()) {
        return fail(kExitChecks, format("step {} differs: {} ({} steps before it are equal)",
                                        outcome.differs_at, outcome.difference, outcome.steps - 1));
    }
    std::printf("%llu steps replayed, %llu tokens, all bits equal\n",
                static_cast<unsigned long long>(outcome.steps),
                static_cast<unsigned long long>(outcome.tokens));
    return kExitOk;
}

}  // namespace tenon::cli
