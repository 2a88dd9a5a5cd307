// SPDX-License-Identifier: MIT
// serve, check, explain: the verbs around a whole profile.
#include <algorithm>
#include <cstdio>

#include "host/cli/verbs.h"
#include "host/engine/engine_loop.h"
#include "host/engine/step_bundle.h"
#include "host/lifecycle/lacks.h"
#include "host/lifecycle/server.h"
#include "host/log/log.h"

namespace tenon::cli {
namespace {

/// Lists what is missing; with nothing missing, plugins and memory plan.
int check_deployment(Deployment& d, bool strict) {
    std::printf("profile   %s, digest %s\n", d.profile().name.c_str(),
                d.profile().digest.substr(0, 16).c_str());
    const std::vector<Lack> lacks = find_lacks(d.profile(), d.host());
    for (const Lack& lack : lacks) {
        std::printf("missing   %s\n", lack.text.c_str());
    }
    for (const std::string& line : d.profile().ineffective) {
        std::printf("no effect %s\n", line.c_str());
    }
    if (!lacks.empty()) {
        std::printf("not planned: %d thing%s missing on this machine\n",
                    static_cast<int>(lacks.size()), lacks.size() == 1 ? " is" : "s are");
        return strict ? static_cast<int>(lacks.front().code) : static_cast<int>(kExitOk);
    }
    Status status = d.create();
    for (const std::string& line : d.chosen()) {
        std::printf("plugin    %s\n", line.c_str());
    }
    if (status.ok()) {
        status = d.plan();
    }
    if (status.ok()) {
        std::printf("model     %s\n\n%s", d.info().summary, d.memory().table().c_str());
        status = d.check_fit();
    }
    if (!status.ok()) {
        std::fflush(stdout);
        return fail(d.exit_code(), status.message().str());
    }
    status = EngineLoop::check(d.info(), d.engine_settings());
    if (!status.ok()) {
        std::fflush(stdout);
        return fail(kExitUsage, format("{}: {}", d.profile().shown, status.message()));
    }
    std::printf("fits\n");
    return kExitOk;
}

void print_section(const ProfileSection& s) {
    constexpr const char* kTags[] = {"A", "L", "i"};
    if (s.bag.rows().empty() && s.plugin.empty()) {
        return;
    }
    std::printf("%s\n", s.bag.section().c_str());
    if (const LoadedLibrary* library = s.component.library) {
        std::printf("  %-22s = %-28s A  %s %s\n", "plugin", s.plugin.c_str(),
                    library->descriptor->version, library->path.c_str());
    }
    for (const OptionBag::Row& row : s.bag.rows()) {
        std::printf("  %-22s = %-28s %s  %s\n", row.key.c_str(), row.value.c_str(),
                    kTags[static_cast<int>(row.tag)], row.origin.c_str());
    }
}

}  // namespace

int fail(int code, const std::string& message) {
    std::fprintf(stderr, "tenon: %s\n", message.c_str());
    return code;
}

int serve_verb(const ProfileArgs& args, const std::string& record) {
    SignalThread::block();
    HostServices host;
    Deployment d(host);
    Status status = d.open(args.profile, args.set);
    if (status.ok()) {
        status = d.require_plugins();
    }
    if (!status.ok()) {
        return fail(d.exit_code(), status.message().str());
    }
    const int64_t world = d.profile().bag("cluster").integer("world");
    if (args.rank >= world) {
        return fail(kExitUsage,
                    format("{}: rank {}, but cluster.world = {}", args.profile, args.rank, world));
    }
    for (const std::string& line : d.profile().ineffective) {
        log_line(LogLevel::warn, "profile", line);
    }
    SignalThread signals;
    const auto load = [&]() -> Status {
        TENON_TRY(d.probe_frontends());
        TENON_TRY(d.create());
        TENON_TRY(d.plan());
        TENON_TRY(d.check_fit());
        return d.load();
    };
    status = load();
    if (!status.ok()) {
        return fail(d.exit_code(), status.message().str());
    }
    log_line(LogLevel::info, "serve",
             format("loaded profile={} digest={} model=\"{}\"", d.profile().name,
                    d.profile().digest.substr(0, 12), StrView(d.info().summary)));
    std::unique_ptr<engine::BundleWriter> recorder;
    if (!record.empty()) {
        auto made =
            engine::BundleWriter::create(record, record_manifest(args, d.profile().digest), host);
        if (!made.ok()) {
            return fail(exit_code_of(made.status().code(), kExitUsage),
                        made.status().message().str());
        }
        recorder = std::move(*made);
    }
    int code = kExitInternal;
    status = serve(d, signals, recorder.get(), &code);
    return status.ok() ? code : fail(code, status.message().str());
}

int check_verb(const ProfileArgs& args) {
    HostServices host;
    Deployment d(host);
    d.quiet();
    const Status status = d.open(args.profile, args.set);
    return status.ok() ? check_deployment(d, args.strict)
                       : fail(d.exit_code(), status.message().str());
}

int explain_verb(const ProfileArgs& args) {
    HostServices host;
    Deployment d(host);
    d.quiet();
    const Status status = d.open(args.profile, args.set);
    if (!status.ok()) {
        return fail(d.exit_code(), status.message().str());
    }
    std::printf("key = value, tag (A ranks must agree, L local, i informational), origin\n\n");
    for (const auto& s : d.profile().sections) {
        print_section(*s);
    }
    const auto overlays = d.profile().all("overlay");
    std::printf("overlays, nearest to the model first:%s", overlays.empty() ? " none" : "");
    for (const ProfileSection* s : overlays) {
        std::printf(" -> %s", s->plugin.c_str());
    }
    std::printf("\n\n");
    return check_deployment(d, false);
}

}  // namespace tenon::cli
