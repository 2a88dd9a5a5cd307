// SPDX-License-Identifier: MIT
// The record of a serving run: every executed plan with its result, for `tenon replay`.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "host/engine/engine_core.h"

namespace tenon::engine {

/// File of the steps inside a bundle's folder: 16 bytes of header, then frames {u32 kind, u32
/// bytes, payload}, all little-endian and 8-byte aligned. Plans and results have their wire form
/// (engine.md 1.5), so each carries its own digest. Staged bytes {u64 job, bytes} come before the
/// plan that imports them, with a length that the plan's record gives.
constexpr const char* kStepsFile = "steps.tnr";
constexpr const char* kManifestFile = "manifest.json";

/// Writes one bundle. Engine thread. A failed write ends the recording with one log line; serving
/// goes on.
class BundleWriter final : public PlannerRecorder {
  public:
    /// errors  io: the folder or file cannot be made; invalid_argument: it holds a bundle already
    static Result<std::unique_ptr<BundleWriter>> create(const std::string& dir,
                                                        const std::string& manifest, Host& host);
    ~BundleWriter() override;

    void on_outline(const OutlineInput&) override {}
    void on_finish(const FinishInput&) override {}
    void on_plan(Span<const uint8_t> message) override;
    void on_result(const StepResult& result) override;
    void on_import(uint64_t job, Span<const uint8_t> staged) override;

  private:
    BundleWriter(std::FILE* file, Host& host);
    void frame(uint32_t kind, Span<const uint8_t> payload, Span<const uint8_t> rest = {});

    std::FILE* file_;
    Host& host_;
    std::vector<uint64_t> encoded_;
    std::vector<char> buffer_;
    uint64_t frames_ = 0;
};

/// Reads one bundle in order. Its plans and results live until the next call.
class BundleReader {
  public:
    /// errors  not_found, io; invalid_argument: not a bundle, or of another version
    Status open(const std::string& dir);
    /// The next plan, and its result if the run got that far. False: the end was reached.
    /// errors  invalid_argument: damaged, names the step before
    Result<bool> next(StepPlan* plan, StepResult* result, bool* has_result);
    /// Calls f(job, staged bytes, padded with zeros) for each import of the last plan.
    template <class F>
    void each_import(F&& f) const {
        for (size_t i = 0; i < import_count_; ++i) {
            const Span<const uint8_t> bytes = imports_[i].view();
            f(imports_[i].payload[0], bytes.subspan(8, bytes.size - 8));
        }
    }

  private:
    struct Frame {
        uint32_t kind = 0;
        std::vector<uint64_t> payload;
        uint64_t bytes = 0;
        Span<const uint8_t> view() const {
            return {reinterpret_cast<const uint8_t*>(payload.data()), bytes};
        }
    };
    Result<bool> read(Frame* out);

    struct Close {
        void operator()(std::FILE* f) const { std::fclose(f); }
    };
    std::unique_ptr<std::FILE, Close> file_;
    std::string path_;
    Frame plan_, result_, ahead_;
    std::vector<Frame> imports_;
    size_t import_count_ = 0;
    bool has_ahead_ = false;
    uint64_t step_ = 0;
    plan::Decoder plan_decoder_, result_decoder_;
};

/// What differs first between two results of one step, or "". Times are not compared.
std::string result_difference(const StepResult& recorded, const StepResult& replayed);

}  // namespace tenon::engine
