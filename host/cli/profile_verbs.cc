// SPDX-License-Identifier: MIT
// serve, check, explain: the verbs around a whole profile.
#include <cstdio>

#include "host/cli/verbs.h"
#include "host/lifecycle/server.h"
#include "host/log/log.h"

namespace tenon::cli {

int fail(int code, const std::string& message) {
    std::fprintf(stderr, "tenon: %s\n", message.c_str());
    return code;
}

int serve_verb(const ProfileArgs& args) {
    block_signals();
    HostServices host;
    Deployment d(host);
    const auto steps = [&]() -> Status {
        TENON_TRY(d.open(args.profile, args.set));
        TENON_TRY(d.require_plugins());
        TENON_TRY(d.create());
        TENON_TRY(d.plan());
        TENON_TRY(d.check_fit());
        return d.load();
    };
    const Status status = steps();
    if (!status.ok()) {
        return fail(d.exit_code(), status.message().str());
    }
    log_line(LogLevel::info, "serve",
             format("loaded profile={} digest={} model=\"{}\"", d.profile().name,
                    d.profile().digest.substr(0, 12), StrView(d.info().summary)));
    return serve(d);
}

int check_verb(const ProfileArgs& args) {
    HostServices host;
    Deployment d(host);
    Status status = d.open(args.profile, args.set);
    if (!status.ok()) {
        return fail(d.exit_code(), status.message().str());
    }
    std::printf("profile   %s, digest %s\n", d.profile().name.c_str(),
                d.profile().digest.substr(0, 16).c_str());
    int code = kExitOk;
    const auto lacks = [&](int exit_code, const std::string& line) {
        std::printf("missing   %s\n", line.c_str());
        code = args.strict && code == kExitOk ? exit_code : code;
    };
    for (const std::string& line : d.profile().missing) {
        lacks(kExitPlugin, line);
    }
    if (d.profile().missing.empty()) {
        status = d.create();
        for (const std::string& line : d.chosen()) {
            std::printf("plugin    %s\n", line.c_str());
        }
        if (!status.ok()) {
            lacks(d.exit_code(), status.message().str());
            return code;
        }
        status = d.plan();
        if (!status.ok()) {
            if (d.exit_code() == kExitUsage || status.code() == Code::invalid_argument) {
                return fail(d.exit_code(), status.message().str());
            }
            lacks(d.exit_code(), status.message().str());
            return code;
        }
        std::printf("model     %s\n\n%s", d.info().summary, d.memory().table().c_str());
        status = d.check_fit();
        if (!status.ok()) {
            return fail(d.exit_code(), status.message().str());
        }
        std::printf("fits\n");
    }
    return code;
}

int explain_verb(const ProfileArgs& args) {
    HostServices host;
    Deployment d(host);
    const Status status = d.open(args.profile, args.set);
    if (!status.ok()) {
        return fail(d.exit_code(), status.message().str());
    }
    constexpr const char* kTags[] = {"A", "L", "i"};
    for (const auto& s : d.profile().sections) {
        if (s->bag.rows().empty() && s->plugin.empty()) {
            continue;
        }
        std::printf("%s\n", s->bag.section().c_str());
        for (const OptionBag::Row& row : s->bag.rows()) {
            std::printf("  %-22s = %-28s %s  %s\n", row.key.c_str(), row.value.c_str(),
                        kTags[static_cast<int>(row.tag)], row.origin.c_str());
        }
    }
    std::printf("overlays");
    for (const ProfileSection* s : d.profile().all("overlay")) {
        std::printf(" -> %s", s->plugin.c_str());
    }
    std::printf("%s\n\n", d.profile().all("overlay").empty() ? " none" : "");
    ProfileArgs rest = args;
    return check_verb(rest);
}

}  // namespace tenon::cli
