// SPDX-License-Identifier: MIT
// Pinned areas through which pieces of kept cuts leave and enter the state (engine.md 4.5).
#pragma once

#include "op_set.h"
#include "snapshots.h"
#include "step_block.h"
#include "tenon/model.h"

namespace tenon::dsv41 {

constexpr int64_t kStagingAreas = 2;
constexpr int64_t kStagingBytes = int64_t{16} << 20;  ///< most of one area

/// Bytes of one area: 64 pages and a snapshot, or what fits; at least a page and a snapshot.
int64_t staging_area_bytes(const StateShape& state, const SnapshotShape& snapshot);

/// Page ids of the pieces of one step, pinned and again on the device.
inline int64_t staging_id_bytes() {
    return kStagingAreas * StepBlock::padded(kMostPiecePages * 4);
}

/// Thread: the engine thread, except `area`.
class StagingFacet final : public ModelStaging {
  public:
    /// errors  does_not_fit from the device
    Status allocate(const StateShape& state, const SnapshotShape& snapshot, std::string format,
                    Device& device);
    bool exists() const { return !areas_.empty(); }

    /// A new step: the ids of its pieces take the block from the start.
    void begin() { ids_.reset(); }
    /// pages[0 … n) to the area of the job, and the record behind them.
    /// errors  internal: more than the area holds
    Status pack(const plan::SnapOp& op, Span<const int32_t> pages, const TensorView& pool,
                const TensorView& record, const SnapshotArena::HostPart& part, const OpSet& ops,
                Device& device, Stream& stream);
    /// The inverse; `record` is null for a piece without snapshot.
    Status unpack(const plan::SnapOp& op, Span<const int32_t> pages, const TensorView& pool,
                  const TensorView& record, const OpSet& ops, Device& device, Stream& stream);
    /// What a snapshot's record in the area carries beside device memory.
    Status host_part(const plan::SnapOp& op, SnapshotArena::HostPart* out) const;

    int32_t areas() noexcept override { return static_cast<int32_t>(areas_.size()); }
    Span<uint8_t> area(int32_t index) noexcept override;
    int64_t snapshot_bytes() noexcept override { return snapshot_bytes_; }
    StrView state_format() noexcept override { return format_; }
    void* query(StrView facet) noexcept override {
        return facet == StrView(kFacet) ? static_cast<ModelStaging*>(this) : nullptr;
    }
    void release() noexcept override {}

  private:
    Status check(const plan::SnapOp& op, int64_t pages) const;
    Buffer& area_of(const plan::SnapOp& op) const { return *areas_[op.job % areas_.size()]; }
    /// Bytes [at, at + bytes) of the job's area.
    TensorView part_of(const plan::SnapOp& op, int64_t at, int64_t bytes) const;
    Status upload(Span<const int32_t> pages, TensorView* ids, Device& device, Stream& stream);

    std::vector<Ref<Buffer>> areas_;
    StepBlock ids_;
    std::string format_;
    int64_t page_bytes_ = 0, snapshot_bytes_ = 0, area_bytes_ = 0;
};

}  // namespace tenon::dsv41
