// SPDX-License-Identifier: MIT
// Copies between state and staging areas.
#include "staging.h"

#include <algorithm>

namespace tenon::dsv41 {

int64_t staging_area_bytes(const StateShape& state, const SnapshotShape& snapshot) {
    const int64_t all = kMostPiecePages * state.page_bytes + snapshot.full_bytes;
    const int64_t least = state.page_bytes + snapshot.full_bytes;
    return (std::max(std::min(all, kStagingBytes), least) + 4095) / 4096 * 4096;
}

Status StagingFacet::allocate(const StateShape& state, const SnapshotShape& snapshot,
                              std::string format, Device& device) {
    page_bytes_ = state.page_bytes;
    snapshot_bytes_ = snapshot.full_bytes;
    area_bytes_ = staging_area_bytes(state, snapshot);
    format_ = std::move(format);
    BufferDesc desc;
    desc.bytes = area_bytes_;
    desc.kind = BufferKind::pinned;
    desc.tag = "spill.staging";
    for (int64_t i = 0; i < kStagingAreas; ++i) {
        TENON_TRY(device.allocate(desc, areas_.emplace_back().out()));
    }
    return ids_.allocate(staging_id_bytes(), "spill.staging", device);
}

Span<uint8_t> StagingFacet::area(int32_t index) noexcept {
    Buffer& buffer = *areas_[static_cast<size_t>(index)];
    return {static_cast<uint8_t*>(buffer.data()), static_cast<uint64_t>(area_bytes_)};
}

TensorView StagingFacet::part_of(const plan::SnapOp& op, int64_t at, int64_t bytes) const {
    Buffer& buffer = area_of(op);
    return make_view(static_cast<char*>(buffer.data()) + at, DType::u8, {bytes}, buffer.place());
}

Status StagingFacet::check(const plan::SnapOp& op, int64_t pages) const {
    const int64_t bytes = pages * page_bytes_ + (op.snapshot != 0 ? snapshot_bytes_ : 0);
    if (areas_.empty() || pages > kMostPiecePages || bytes > area_bytes_ ||
        (op.snapshot != 0 && op.kind != plan::CutKind::full)) {
        return error(Code::internal,
                     "job {}: {} pages and snapshot {} of kind {} for {} areas of {} bytes", op.job,
                     pages, op.snapshot, static_cast<int>(op.kind), areas_.size(), area_bytes_);
    }
    return {};
}

Status StagingFacet::upload(Span<const int32_t> pages, TensorView* ids, Device& device,
                            Stream& stream) {
    const auto n = static_cast<int64_t>(pages.size);
    std::copy(pages.begin(), pages.end(), ids_.take<int32_t>(DType::i32, {n}, ids));
    return ids_.upload(device, stream);
}

Status StagingFacet::pack(const plan::SnapOp& op, Span<const int32_t> pages, const TensorView& pool,
                          const TensorView& record, const SnapshotArena::HostPart& part,
                          const OpSet& ops, Device& device, Stream& stream) {
    const auto n = static_cast<int64_t>(pages.size);
    TENON_TRY(check(op, n));
    Buffer& area = area_of(op);
    if (n > 0) {
        TensorView ids;
        TENON_TRY(upload(pages, &ids, device, stream));
        PagesPack pack;
        pack.pool = pool;
        pack.ids = ids;
        pack.records = make_view(area.data(), DType::u8, {n, page_bytes_}, area.place());
        TENON_TRY(ops.pages_pack(pack, stream));
    }
    if (op.snapshot == 0) {
        return {};
    }
    const int64_t at = n * page_bytes_;
    std::memcpy(static_cast<char*>(area.data()) + at + record.bytes(), &part, sizeof part);
    return device.copy(part_of(op, at, record.bytes()), record, stream);
}

Status StagingFacet::host_part(const plan::SnapOp& op, SnapshotArena::HostPart* out) const {
    TENON_TRY(check(op, op.staged));
    const int64_t at = op.staged * page_bytes_ + snapshot_bytes_;
    std::memcpy(out, static_cast<const char*>(area_of(op).data()) + at - sizeof *out, sizeof *out);
    if (out->kind != static_cast<int32_t>(op.kind)) {
        return error(Code::internal, "job {}: a record of kind {}, expected {}", op.job, out->kind,
                     static_cast<int>(op.kind));
    }
    return {};
}

Status StagingFacet::unpack(const plan::SnapOp& op, Span<const int32_t> pages,
                            const TensorView& pool, const TensorView& record, const OpSet& ops,
                            Device& device, Stream& stream) {
    const auto n = static_cast<int64_t>(pages.size);
    TENON_TRY(check(op, n));
    Buffer& area = area_of(op);
    if (n > 0) {
        TensorView ids;
        TENON_TRY(upload(pages, &ids, device, stream));
        PagesUnpack unpack;
        unpack.pool = pool;
        unpack.ids = ids;
        unpack.records = make_view(area.data(), DType::u8, {n, page_bytes_}, area.place());
        TENON_TRY(ops.pages_unpack(unpack, stream));
    }
    return op.snapshot == 0
               ? Status()
               : device.copy(record, part_of(op, n * page_bytes_, record.bytes()), stream);
}

}  // namespace tenon::dsv41
