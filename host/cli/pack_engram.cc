// SPDX-License-Identifier: MIT
// pack-engram: the packed row tables of one rank, made by the model family.
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "host/cli/verbs.h"
#include "host/lifecycle/deployment.h"

namespace tenon::cli {
namespace {

/// A line that renews itself on a terminal, one each ten seconds elsewhere.
class Progress {
  public:
    explicit Progress(Host& host) : host_(host) {}
    ~Progress() {
        if (terminal_ && shown_us_ != 0) {
            std::fputc('\n', stderr);
        }
    }
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void show(const PackProgress& p) {
        const int64_t now = host_.now_us();
        if (p.rows_done < p.rows_total && now - shown_us_ < (terminal_ ? 200'000 : 10'000'000)) {
            return;
        }
        shown_us_ = now;
        std::fprintf(stderr, "%slayer %d: %lld of %lld rows%s", terminal_ ? "\r" : "", p.layer,
                     static_cast<long long>(p.rows_done), static_cast<long long>(p.rows_total),
                     terminal_ ? "" : "\n");
    }

  private:
    Host& host_;
    const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
    int64_t shown_us_ = 0;
};

}  // namespace

int pack_engram_verb(const PackArgs& args) {
    if (args.rank >= args.world) {
        return fail(kExitUsage, format("--rank {} is not below --world {}", args.rank, args.world));
    }
    HostServices host;
    Deployment d(host);
    d.quiet();
    bool planned = false;
    const auto steps = [&]() -> Status {
        TENON_TRY(d.open(args.profile.profile, args.profile.set));
        TENON_TRY(d.require_plugins());
        TENON_TRY(d.create());
        TENON_TRY(d.plan());
        planned = true;
        auto* packer = facet_of<RowPacker>(d.family());
        if (packer == nullptr) {
            return error(Code::unsupported, "this model family has no row tables to pack");
        }
        std::error_code ec;
        if (!args.verify && !std::filesystem::create_directories(args.out, ec) && ec) {
            return error(Code::io, "--out {}: {}", args.out, ec.message());
        }
        PackRequest request;
        request.rank = args.rank;
        request.world = args.world;
        request.verify_only = args.verify;
        request.source = d.tables();
        request.out_dir = args.out;
        Progress progress(host);
        request.arg = &progress;
        request.progress = [](void* arg, const PackProgress& p) noexcept {
            static_cast<Progress*>(arg)->show(p);
        };
        return packer->pack(*d.checkpoint(), request);
    };
    const Status status = steps();
    if (!status.ok()) {
        return fail(planned ? exit_code_of(status.code(), kExitData) : d.exit_code(),
                    status.message().str());
    }
    std::printf("%s: tables of rank %d of %d are %s\n", args.out.c_str(), args.rank, args.world,
                args.verify ? "whole" : "packed");
    return kExitOk;
}

}  // namespace tenon::cli
