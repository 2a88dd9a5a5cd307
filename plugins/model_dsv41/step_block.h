// SPDX-License-Identifier: MIT
// Host-made inputs of one row group, filled in pinned memory and brought to the device by one copy.
#pragma once

#include "tenon/compute.h"
#include "tenon/ops/rows.h"

namespace tenon::dsv41 {

/// A bump allocator over a pinned buffer and its device twin. Pieces keep their place until
/// `reset`.
class StepBlock {
  public:
    Status allocate(int64_t bytes, StrView tag, Device& device) {
        BufferDesc desc;
        desc.bytes = bytes;
        desc.tag = tag;
        desc.kind = BufferKind::pinned;
        TENON_TRY(device.allocate(desc, host_.out()));
        desc.kind = BufferKind::device;
        return device.allocate(desc, device_.out());
    }
    static int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

    void reset() { used_ = sent_ = 0; }

    /// `n` elements in pinned memory; `view` is their device twin of the given shape.
    template <class E>
    E* take(DType dtype, std::initializer_list<int64_t> shape, TensorView* view) {
        *view =
            make_view(static_cast<char*>(device_->data()) + used_, dtype, shape, device_->place());
        auto* host = reinterpret_cast<E*>(static_cast<char*>(host_->data()) + used_);
        used_ += padded(view->bytes());
        TENON_CHECK(used_ <= host_->bytes(), "step block holds {} bytes, {} wanted", host_->bytes(),
                    used_);
        return host;
    }
    template <class E>
    E* take_structs(int64_t n, TensorView* view) {
        return take<E>(DType::u8, {n, static_cast<int64_t>(sizeof(E))}, view);
    }

    /// Enqueues the copy of everything taken since the last upload.
    Status upload(Device& device, Stream& stream) {
        const int64_t n = used_ - sent_;
        if (n == 0) {
            return {};
        }
        const TensorView dst = make_view(static_cast<char*>(device_->data()) + sent_, DType::u8,
                                         {n}, device_->place());
        const TensorView src =
            make_view(static_cast<char*>(host_->data()) + sent_, DType::u8, {n}, host_->place());
        sent_ = used_;
        return device.copy(dst, src, stream);
    }

  private:
    Ref<Buffer> host_, device_;
    int64_t used_ = 0, sent_ = 0;
};

/// What a chunk computes of one layer from the last kv source on (dsv41.md 3.11): inputs, hence
/// window rows, of rows input0 …; outputs of rows output0 …, which is where the next layer starts.
/// Multiples of 4, so that views of small per-row arrays stay aligned; the group's row count =
/// none.
struct TailLayer {
    int64_t input0 = 0, output0 = 0;
    TensorView store_seg;   ///< SegInfo[1]: rows [input0, output0), of which only window rows stay
    TensorView attend_seg;  ///< SegInfo[1]: rows from output0 on
};

/// Rows that run together through the layers (ops.md 5.1).
struct RowGroup {
    Regime regime = Regime::decode;
    Rows rows;
    TensorView ids;           ///< i32[T]
    TensorView inject;        ///< bf16[J, d], null: no image rows
    TensorView inject_index;  ///< i32[T], null: no image rows
    int64_t visible_end =
        0;  ///< highest position + 1: bounds the compressed rows that any row sees
    bool store_first = true;  ///< window rows may be stored before attention (ops.md 5.2)
    Rows tail;  ///< the last rows of a chunk, which the drafter's rings keep; else = rows
    int64_t tail_row0 = 0;
    /// First row of the group in buffers that keep a row's place over all layers; `rows` starts
    /// there.
    int64_t row0 = 0;
    Span<const TailLayer> tail_layers;  ///< from the last kv source on; empty: every row everywhere
};

}  // namespace tenon::dsv41
