// SPDX-License-Identifier: MIT
// Layout of the arena and the copies in and out of it.
#include "snapshots.h"

#include <algorithm>

namespace tenon::dsv41 {

namespace {

constexpr int64_t kCellAlign = 4096;

constexpr int64_t round_up(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
}

}  // namespace

SnapshotShape snapshot_shape(const ModelConfig& c, const StateShape& state, bool with_drafts) {
    const RowFormat f = state.window_format();
    const int64_t ring = c.window * (code_bytes(f, c.head_dim) + scale_bytes(f, c.head_dim));
    int64_t raws = 0;
    for (const StateShape::Source& source : state.sources) {
        raws += source.ratio == 2 ? 2 * int64_t{c.head_dim} * 4 : 0;
    }
    const int64_t shared = raws + static_cast<int64_t>(sizeof(SnapshotArena::HostPart));
    SnapshotShape s;
    s.full_layers = c.layers;
    s.full_bytes = (c.layers + (with_drafts ? c.draft.stages : 0)) * ring + shared;
    if (!c.kv_sources.empty() && c.kv_sources.back() + 1 < c.layers) {
        s.partial_layers = c.kv_sources.back() + 1;
        s.partial_bytes = s.partial_layers * ring + shared;
    }
    s.cell_bytes = round_up(std::max((s.full_bytes + 1) / 2, s.partial_bytes), kCellAlign);
    return s;
}

Status SnapshotArena::allocate(const ModelConfig& c, const DeviceState& state,
                               const SnapshotShape& shape, int64_t cells, bool with_drafts,
                               Device& device) {
    shape_ = shape;
    window_ = c.window;
    info_.resize(static_cast<size_t>(cells));
    for (int32_t layer = 0; layer < c.layers; ++layer) {
        full_rings_.push_back(state.window_ring(layer));
    }
    partial_rings_.assign(full_rings_.begin(), full_rings_.begin() + shape.partial_layers);
    for (int32_t stage = 0; with_drafts && stage < c.draft.stages; ++stage) {
        full_rings_.push_back(state.draft_ring(stage));
    }
    for (const StateShape::Source& source : state.shape().sources) {
        if (source.ratio == 2) {
            raws_.push_back(state.raw(source.layer));
        }
    }
    if (cells == 0) {
        return {};
    }
    BufferDesc desc;
    desc.bytes = cells * shape.cell_bytes;
    desc.tag = "snapshots";
    return device.allocate(desc, buffer_.out());
}

TensorView SnapshotArena::record(uint32_t snapshot, plan::CutKind kind) const {
    auto* at = static_cast<char*>(buffer_->data()) + (snapshot - 1) * shape_.cell_bytes;
    const int64_t bytes = shape_.bytes_of(kind) - static_cast<int64_t>(sizeof(HostPart));
    return make_view(at, DType::u8, {bytes}, buffer_->place());
}

Status SnapshotArena::take(const plan::SnapOp& op, const HostPart& part) {
    const bool known = op.kind == plan::CutKind::full || op.kind == plan::CutKind::tail ||
                       (op.kind == plan::CutKind::partial && shape_.partial_layers > 0);
    if (!known || op.snapshot < 1 ||
        op.snapshot - 1 + static_cast<uint32_t>(plan::cells_of(op.kind)) > info_.size()) {
        return error(Code::internal, "snapshot {} of kind {}: {} cells", op.snapshot,
                     static_cast<int>(op.kind), info_.size());
    }
    const auto first = info_.begin() + (op.snapshot - 1);
    const auto last = first + plan::cells_of(op.kind);
    if (std::any_of(first, last, [](const Info& i) { return i.taken; })) {
        return error(Code::internal, "snapshot {} of kind {}: a cell is in use", op.snapshot,
                     static_cast<int>(op.kind));
    }
    for (auto i = first; i != last; ++i) {
        *i = Info();
        i->taken = true;
    }
    first->host = part;
    first->host.kind = static_cast<int32_t>(op.kind);
    first->at = op.at;
    return {};
}

Status SnapshotArena::find(const plan::SnapOp& op, Info** out) {
    Info* info =
        op.snapshot >= 1 && op.snapshot <= info_.size() ? &info_[op.snapshot - 1] : nullptr;
    if (info == nullptr || info->host.kind != static_cast<int32_t>(op.kind) || info->at != op.at) {
        return error(Code::internal, "snapshot {} of kind {} at {}: found kind {} at {}",
                     op.snapshot, static_cast<int>(op.kind), op.at,
                     info == nullptr ? 0 : info->host.kind, info == nullptr ? -1 : info->at);
    }
    *out = info;
    return {};
}

Status SnapshotArena::save(const plan::SnapOp& op, const int32_t (&classes)[kClasses],
                           int64_t whole_from, const OpSet& ops, Stream& stream) {
    HostPart part;
    std::copy(std::begin(classes), std::end(classes), part.classes);
    TENON_TRY(take(op, part));
    info_[op.snapshot - 1].whole_from = whole_from;
    StateSave s;
    s.slot = static_cast<int32_t>(op.slot);
    s.length = static_cast<int32_t>(op.at);
    s.positions = window_;
    s.rings = op.kind == plan::CutKind::partial ? partial_rings_ : full_rings_;
    s.raws = raws_;
    s.record = record(op.snapshot, op.kind);
    return ops.state_save(s, stream);
}

Status SnapshotArena::load(const plan::SnapOp& op, const OpSet& ops, Stream& stream, HostPart* out,
                           int64_t* whole_from) {
    Info* info = nullptr;
    TENON_TRY(find(op, &info));
    *out = info->host;
    *whole_from = info->whole_from;
    StateLoad s;
    s.slot = static_cast<int32_t>(op.slot);
    s.length = static_cast<int32_t>(op.at);
    s.positions = window_;
    s.rings = op.kind == plan::CutKind::partial ? partial_rings_ : full_rings_;
    s.raws = raws_;
    s.record = record(op.snapshot, op.kind);
    return ops.state_load(s, stream);
}

Status SnapshotArena::drop(const plan::SnapOp& op) {
    Info* info = nullptr;
    TENON_TRY(find(op, &info));
    std::fill_n(info, plan::cells_of(op.kind), Info());
    return {};
}

Status SnapshotArena::host_part(const plan::SnapOp& op, HostPart* out) const {
    Info* info = nullptr;
    TENON_TRY(const_cast<SnapshotArena*>(this)->find(op, &info));
    *out = info->host;
    return {};
}

Status SnapshotArena::adopt(const plan::SnapOp& op, const HostPart& part) {
    return take(op, part);
}

}  // namespace tenon::dsv41
