// SPDX-License-Identifier: MIT
// Frames of a record bundle, and the comparison of results.
#include "host/engine/step_bundle.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "host/engine/plan_digest.h"

namespace tenon::engine {
namespace {

struct FileHead {
    uint32_t magic = 0x42524E54;  // "TNRB"
    uint32_t version = 1;
    uint64_t reserved = 0;
};
struct FrameHead {
    uint32_t kind = 0, bytes = 0;
};
constexpr uint32_t kPlanFrame = 1, kResultFrame = 2, kImportFrame = 3;
constexpr uint32_t kMostStaged = 256 << 20;
constexpr uint64_t kResultBytes = 1 << 20;  // 48 rows with 20 logprobs take 9 kB
constexpr size_t kBuffer = 1 << 20;
constexpr uint64_t kFlushFrames = 256;  // what a crash may lose

std::string errno_text() {
    return std::strerror(errno);
}

}  // namespace

BundleWriter::BundleWriter(std::FILE* file, Host& host)
    : file_(file), host_(host), encoded_(kResultBytes / 8), buffer_(kBuffer) {
    std::setvbuf(file_, buffer_.data(), _IOFBF, buffer_.size());
}

BundleWriter::~BundleWriter() {
    if (file_ != nullptr && std::fclose(file_) != 0) {
        host_.log(LogLevel::warn, "record", format("the last frames were lost: {}", errno_text()));
    }
}

Result<std::unique_ptr<BundleWriter>> BundleWriter::create(const std::string& dir,
                                                           const std::string& manifest,
                                                           Host& host) {
    if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
        return error(Code::io, "{}: cannot be made: {}", dir, errno_text());
    }
    const auto make = [&dir](const char* name) {
        return std::fopen((dir + "/" + name).c_str(), "wbx");  // x: never over an older record
    };
    std::FILE* file = make(kManifestFile);
    if (file == nullptr) {
        const Code code = errno == EEXIST ? Code::invalid_argument : Code::io;
        return error(code, "{}/{}: {}; a record needs a folder of its own", dir, kManifestFile,
                     errno_text());
    }
    const bool written = std::fwrite(manifest.data(), 1, manifest.size(), file) == manifest.size();
    if (std::fclose(file) != 0 || !written) {
        return error(Code::io, "{}/{}: {}", dir, kManifestFile, errno_text());
    }
    file = make(kStepsFile);
    if (file == nullptr) {
        return error(Code::io, "{}/{}: {}", dir, kStepsFile, errno_text());
    }
    std::unique_ptr<BundleWriter> writer(new BundleWriter(file, host));
    const FileHead head;
    if (std::fwrite(&head, sizeof head, 1, file) != 1) {
        return error(Code::io, "{}/{}: {}", dir, kStepsFile, errno_text());
    }
    return writer;
}

void BundleWriter::frame(uint32_t kind, Span<const uint8_t> payload, Span<const uint8_t> rest) {
    if (file_ == nullptr) {
        return;
    }
    const uint64_t zero = 0;
    const uint64_t bytes = payload.size + rest.size;
    const uint64_t padding = (8 - bytes % 8) % 8;
    const FrameHead head{kind, static_cast<uint32_t>(bytes + padding)};
    const bool written = std::fwrite(&head, sizeof head, 1, file_) == 1 &&
                         std::fwrite(payload.data, 1, payload.size, file_) == payload.size &&
                         std::fwrite(rest.data, 1, rest.size, file_) == rest.size &&
                         std::fwrite(&zero, 1, padding, file_) == padding &&
                         (++frames_ % kFlushFrames != 0 || std::fflush(file_) == 0);
    if (!written) {
        host_.log(LogLevel::error, "record",
                  format("stopped after {} frames: {}", frames_, errno_text()));
        std::fclose(file_);
        file_ = nullptr;
    }
}

void BundleWriter::on_plan(Span<const uint8_t> message) {
    frame(kPlanFrame, message);
}

void BundleWriter::on_result(const StepResult& result) {
    uint64_t bytes = 0;
    const Span<uint8_t> out(reinterpret_cast<uint8_t*>(encoded_.data()), encoded_.size() * 8);
    const Status status = plan::encode(result, &plan_digest, out, &bytes);
    if (!status.ok()) {
        host_.log(
            LogLevel::error, "record",
            format("step {}: the result cannot be written: {}", result.step, status.message()));
        return;
    }
    frame(kResultFrame, {out.data, bytes});
}

void BundleWriter::on_import(uint64_t job, Span<const uint8_t> staged) {
    frame(kImportFrame, {reinterpret_cast<const uint8_t*>(&job), sizeof job}, staged);
}

Status BundleReader::open(const std::string& dir) {
    path_ = dir + "/" + kStepsFile;
    file_.reset(std::fopen(path_.c_str(), "rb"));
    if (file_ == nullptr) {
        return error(errno == ENOENT ? Code::not_found : Code::io, "{}: {}", path_, errno_text());
    }
    FileHead head;
    const FileHead expected;
    if (std::fread(&head, sizeof head, 1, file_.get()) != 1 || head.magic != expected.magic ||
        head.version != expected.version) {
        return error(Code::invalid_argument, "{}: not a record of version {}", path_,
                     expected.version);
    }
    return {};
}

Result<bool> BundleReader::read(Frame* out) {
    FrameHead head;
    if (std::fread(&head, sizeof head, 1, file_.get()) != 1) {
        return false;
    }
    const bool staged = head.kind == kImportFrame && head.bytes >= 8;
    if ((head.kind != kPlanFrame && head.kind != kResultFrame && !staged) ||
        head.bytes > (staged ? kMostStaged : plan::kMaxPlanBytes) || head.bytes % 8 != 0) {
        return error(Code::invalid_argument,
                     "{}: damaged after step {}: frame of kind {}, {} bytes", path_, step_,
                     head.kind, head.bytes);
    }
    out->kind = head.kind;
    out->bytes = head.bytes;
    out->payload.resize(head.bytes / 8);
    // A run that was killed may have left half a frame: the record ends before it.
    return head.bytes == 0 || std::fread(out->payload.data(), head.bytes, 1, file_.get()) == 1;
}

Result<bool> BundleReader::next(StepPlan* plan, StepResult* result, bool* has_result) {
    *has_result = false;
    if (!has_ahead_) {
        TENON_ASSIGN(const bool found, read(&ahead_));
        if (!found) {
            return false;
        }
    }
    has_ahead_ = false;
    for (import_count_ = 0; ahead_.kind == kImportFrame; ++import_count_) {
        if (import_count_ == imports_.size()) {
            imports_.emplace_back();
        }
        std::swap(imports_[import_count_], ahead_);
        TENON_ASSIGN(const bool found, read(&ahead_));
        if (!found) {
            return false;  // the run ended before the plan
        }
    }
    if (ahead_.kind != kPlanFrame) {
        return error(Code::invalid_argument, "{}: a result without its plan after step {}", path_,
                     step_);
    }
    std::swap(plan_, ahead_);
    TENON_TRY_CTX(plan_decoder_.decode(plan_.view(), &plan_digest, plan), "{}: after step {}",
                  path_, step_);
    step_ = plan->header.step;
    TENON_ASSIGN(has_ahead_, read(&ahead_));
    if (has_ahead_ && ahead_.kind == kResultFrame) {
        has_ahead_ = false;
        std::swap(result_, ahead_);
        TENON_TRY_CTX(result_decoder_.decode(result_.view(), &plan_digest, result), "{}: step {}",
                      path_, step_);
        *has_result = true;
    }
    return true;
}

namespace {

template <class T>
bool same(const T& a, const T& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

std::string window_difference(const StepResult& a, const StepResult& b, uint64_t i) {
    const WindowResult& x = a.windows[i];
    const WindowResult& y = b.windows[i];
    if (x.slot != y.slot || x.emitted != y.emitted || x.accepted != y.accepted ||
        x.finish != y.finish || x.status != y.status) {
        return format("window of slot {}: emitted {} of it accepted {}, recorded {} and {}", y.slot,
                      y.emitted, y.accepted, x.emitted, x.accepted);
    }
    for (uint64_t k = 0; k < static_cast<uint64_t>(x.emitted); ++k) {
        const int32_t was = a.tokens[x.tokens_off + k];
        const int32_t is = b.tokens[y.tokens_off + k];
        if (was != is) {
            return format("window of slot {}: token {} is {}, recorded {}", y.slot, k, is, was);
        }
    }
    return "";
}

}  // namespace

std::string result_difference(const StepResult& a, const StepResult& b) {
    if (a.windows.size != b.windows.size || a.drafts.size != b.drafts.size ||
        a.chunks.size != b.chunks.size || a.logprobs.size != b.logprobs.size) {
        return format("{} windows, {} drafts, {} chunks, {} logprobs; recorded {}, {}, {}, {}",
                      b.windows.size, b.drafts.size, b.chunks.size, b.logprobs.size, a.windows.size,
                      a.drafts.size, a.chunks.size, a.logprobs.size);
    }
    for (uint64_t i = 0; i < a.windows.size; ++i) {
        std::string text = window_difference(a, b, i);
        if (!text.empty()) {
            return text;
        }
    }
    for (uint64_t i = 0; i < a.drafts.size; ++i) {
        if (!same(a.drafts[i], b.drafts[i])) {
            return format("drafts of slot {} differ in an id or a confidence", b.drafts[i].slot);
        }
    }
    for (uint64_t i = 0; i < a.logprobs.size; ++i) {
        if (!same(a.logprobs[i], b.logprobs[i])) {
            return format("logprob {} is {} of token {}, recorded {} of {}", i,
                          b.logprobs[i].logprob, b.logprobs[i].token, a.logprobs[i].logprob,
                          a.logprobs[i].token);
        }
    }
    for (uint64_t i = 0; i < a.chunks.size; ++i) {
        if (a.chunks[i].status != b.chunks[i].status ||
            a.chunks[i].stage_end != b.chunks[i].stage_end) {
            return format("chunk of slot {}: another status", b.chunks[i].slot);
        }
    }
    if (a.jobs.size != b.jobs.size) {
        return format("{} jobs, recorded {}", b.jobs.size, a.jobs.size);
    }
    for (uint64_t i = 0; i < a.jobs.size; ++i) {
        if (!same(a.jobs[i], b.jobs[i])) {
            return format("job {}: code {}, recorded job {} with {}", b.jobs[i].job, b.jobs[i].code,
                          a.jobs[i].job, a.jobs[i].code);
        }
    }
    if (a.probe != b.probe) {
        return format("probe of the hidden rows is {}, recorded {}", b.probe, a.probe);
    }
    return "";
}

}  // namespace tenon::engine
