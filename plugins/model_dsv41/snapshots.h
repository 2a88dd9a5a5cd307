// SPDX-License-Identifier: MIT
// Kept cuts of sequences: copies of ring rows, open pairs and token classes in cells of one arena
// (engine.md 1.7, 4.2).
#pragma once

#include "engram_hash.h"
#include "op_set.h"
#include "state.h"

namespace tenon::dsv41 {

/// Bytes of the cut kinds. A partial cut takes one cell, full and tail cuts take two neighbours.
struct SnapshotShape {
    int32_t full_layers = 0;     ///< rings of the backbone in a full cut: all
    int32_t partial_layers = 0;  ///< in a partial cut; 0: this model has none
    int64_t full_bytes = 0, partial_bytes = 0;
    int64_t cell_bytes = 0;

    int64_t bytes_of(plan::CutKind kind) const {
        return kind == plan::CutKind::partial ? partial_bytes : full_bytes;
    }
};
SnapshotShape snapshot_shape(const ModelConfig& config, const StateShape& state, bool with_drafts);

/// Cells of the arena.
///
/// Thread: the engine thread. Saves and loads are enqueued on the stream; what lies on the host
/// (kind, position, token classes) is taken at the call.
class SnapshotArena {
  public:
    static constexpr int32_t kClasses =
        7;  ///< remembered classes before a cut: more than n-grams need

    /// What a record carries beside device memory; the tail of a spilled record.
    struct HostPart {
        int32_t kind = 0;  ///< plan::CutKind, 0 = the cell is free or a second half
        int32_t classes[kClasses] = {};
    };
    static_assert(sizeof(HostPart) == 32);

    /// errors  does_not_fit from the device
    Status allocate(const ModelConfig& config, const DeviceState& state, const SnapshotShape& shape,
                    int64_t cells, bool with_drafts, Device& device);

    const SnapshotShape& shape() const { return shape_; }
    int64_t cells() const { return static_cast<int64_t>(info_.size()); }

    /// errors  internal: a cell is outside the arena or in use, or the kind is unknown
    /// `whole_from`: smallest length at which a sequence that goes on from here is whole.
    Status save(const plan::SnapOp& op, const int32_t (&classes)[kClasses], int64_t whole_from,
                const OpSet& ops, Stream& stream);
    /// The inverse of save; the classes come back in `out`.
    /// errors  internal: no such snapshot, or it was saved at another position or as another kind
    Status load(const plan::SnapOp& op, const OpSet& ops, Stream& stream, HostPart* out,
                int64_t* whole_from);
    Status drop(const plan::SnapOp& op);

    /// The device part of a snapshot, u8[bytes_of(kind)] without the host part.
    TensorView record(uint32_t snapshot, plan::CutKind kind) const;
    /// errors  internal: no such snapshot
    Status host_part(const plan::SnapOp& op, HostPart* out) const;
    /// Takes the cells of a snapshot whose device part the caller copies into `record`.
    Status adopt(const plan::SnapOp& op, const HostPart& part);

  private:
    struct Info {
        HostPart host;
        int64_t at = 0;
        int64_t whole_from = 0;
        bool taken = false;
    };
    Status find(const plan::SnapOp& op, Info** out);
    Status take(const plan::SnapOp& op, const HostPart& part);

    SnapshotShape shape_;
    Ref<Buffer> buffer_;
    std::vector<Info> info_;
    std::vector<Ring> full_rings_, partial_rings_;
    std::vector<TensorView> raws_;
    int32_t window_ = 0;
};

}  // namespace tenon::dsv41
