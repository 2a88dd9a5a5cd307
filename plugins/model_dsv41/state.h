// SPDX-License-Identifier: MIT
// Device state of all slots, addressed by absolute position: window rings, raw pairs, paged
// compressed rows.
#pragma once

#include "config.h"
#include "tenon/model.h"
#include "tenon/ops/pages.h"
#include "tenon/ops/state.h"

namespace tenon::dsv41 {

/// Sizes that follow from the configuration and the request; computed before anything is allocated.
struct StateShape {
    int32_t slots = 0;
    int32_t ring_rows = 0;    ///< R: window + most rows of a window, rounded up to 16
    int32_t page_tokens = 0;  ///< positions of one page
    int64_t page_bytes = 0;
    int64_t pages = 0;
    int64_t table_width = 0;  ///< pages of one slot at full context
    int64_t context_tokens = 0;
    bool packed = true;

    /// Planes of one kv source inside a page.
    struct Source {
        int32_t layer = 0;
        int32_t ratio = 1;
        int64_t comp_codes = 0, comp_scales = 0;
        int64_t key_codes = 0, key_scales = 0;
    };
    std::vector<Source> sources;

    RowFormat window_format() const { return packed ? RowFormat::q8 : RowFormat::bf16; }
    RowFormat comp_format() const { return packed ? RowFormat::q4e : RowFormat::bf16; }
    RowFormat key_format() const { return packed ? RowFormat::q4u : RowFormat::bf16; }
    int64_t ring_bytes_per_slot(const ModelConfig& c) const;  ///< one layer
    /// Codes and scales of `layers` rings of all slots, each plane on a multiple of 256.
    int64_t ring_bytes(const ModelConfig& c, int64_t layers) const;
    int64_t raw_bytes_per_slot(const ModelConfig& c) const;  ///< all ratio-2 sources
};

/// errors  invalid_argument: slots, rows or context out of range
Result<StateShape> state_shape(const ModelConfig& config, const ModelRequest& request);

/// Owns the buffers and hands out the views that ops take. Thread: the engine thread.
class DeviceState {
  public:
    Status allocate(const ModelConfig& config, const StateShape& shape, bool with_drafts,
                    bool with_counts, Device& device);

    const StateShape& shape() const { return shape_; }
    Ring window_ring(int32_t layer) const { return rings_[static_cast<size_t>(layer)]; }
    Ring draft_ring(int32_t stage) const { return draft_rings_[static_cast<size_t>(stage)]; }
    /// Pages of a kv source layer.
    Pages compressed(int32_t source_layer) const { return compressed_[index_of(source_layer)]; }
    Pages index_keys(int32_t source_layer) const { return keys_[index_of(source_layer)]; }
    TensorView raw(int32_t source_layer) const { return raws_[index_of(source_layer)]; }
    TensorView seen() const { return seen_view_; }
    TensorView pool() const { return pool_view_; }
    Span<const PagePlane> planes() const { return planes_; }

    /// Sets `count` entries of a slot's table; the host keeps a mirror.
    Status map_pages(uint32_t slot, int64_t first, Span<const int32_t> pages, Device& device,
                     Stream& stream);
    /// Unmaps everything of the slot and forgets its token counts.
    Status clear_slot(uint32_t slot, Device& device, Stream& stream);
    int32_t page_of(uint32_t slot, int64_t index) const {
        return host_table_[static_cast<size_t>(slot) * static_cast<size_t>(shape_.table_width) +
                           static_cast<size_t>(index)];
    }
    /// Replaces the counts of a slot: low 15 bits output count, top bit in prompt.
    Status set_counts(uint32_t slot, Span<const plan::Pair> counts, Device& device, Stream& stream);

  private:
    size_t index_of(int32_t source_layer) const;
    Status upload_table(uint32_t slot, int64_t first, int64_t count, Device& device,
                        Stream& stream);

    StateShape shape_;
    Ref<Buffer> ring_buffer_, draft_buffer_, raw_buffer_, pool_buffer_, table_buffer_, seen_buffer_;
    Ref<Buffer> host_table_buffer_, host_seen_buffer_;
    std::vector<Ring> rings_, draft_rings_;
    std::vector<Pages> compressed_, keys_;
    std::vector<TensorView> raws_;
    std::vector<PagePlane> planes_;
    TensorView pool_view_, table_view_, seen_view_;
    int32_t* host_table_ = nullptr;  ///< pinned, [slots, table_width]
    uint16_t* host_seen_ = nullptr;  ///< pinned, one slot's counts
};

}  // namespace tenon::dsv41
