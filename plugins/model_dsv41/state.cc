// SPDX-License-Identifier: MIT
// Layout and allocation of the state.
#include "state.h"

#include <algorithm>

namespace tenon::dsv41 {

namespace {

constexpr int64_t kPlaneBytes = 256;  ///< planes of a page start on multiples of this
constexpr int64_t kPageRows = 128;    ///< rows of the largest ratio in one page: one index tile
constexpr int64_t kMaxPoolPages = 1 << 24;

constexpr int64_t round_up(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
}

}  // namespace

int64_t StateShape::ring_bytes_per_slot(const ModelConfig& c) const {
    const RowFormat f = window_format();
    return ring_rows * (code_bytes(f, c.head_dim) + scale_bytes(f, c.head_dim));
}

int64_t StateShape::ring_bytes(const ModelConfig& c, int64_t layers) const {
    const RowFormat f = window_format();
    const int64_t rows = int64_t{slots} * ring_rows;
    return layers * (round_up(rows * code_bytes(f, c.head_dim), 256) +
                     round_up(rows * scale_bytes(f, c.head_dim), 256));
}

int64_t StateShape::raw_bytes_per_slot(const ModelConfig& c) const {
    int64_t n = 0;
    for (const Source& s : sources) {
        n += s.ratio == 2 ? kRawPositions * 2 * c.head_dim * 4 : 0;
    }
    return n;
}

Result<StateShape> state_shape(const ModelConfig& c, const ModelRequest& r) {
    const auto refuse = [](const char* what, int64_t found, int64_t least, int64_t most) {
        return error(Code::invalid_argument, "{} = {} is out of range {}..{}", what, found, least,
                     most);
    };
    if (r.slots < 1 || r.slots > 48) {
        return refuse("model.slots", r.slots, 1, 48);
    }
    if (r.window_rows < 1 || r.window_rows > plan::kMaxWindowRows) {
        return refuse("engine.window_rows", r.window_rows, 1, plan::kMaxWindowRows);
    }
    if (r.step_rows < r.slots || r.step_rows > 64) {
        return refuse("engine.step_rows", r.step_rows, r.slots, 64);
    }
    if (r.chunk_rows < 1 || r.chunk_rows > 16384) {
        return refuse("engine.chunk_rows", r.chunk_rows, 1, 16384);
    }
    StateShape s;
    s.context_tokens = r.context_tokens == 0 ? c.max_positions : r.context_tokens;
    if (s.context_tokens < 2 || s.context_tokens > c.max_positions) {
        return refuse("model.context_tokens", s.context_tokens, 2, c.max_positions);
    }
    s.slots = r.slots;
    s.packed = r.packed_state;
    s.ring_rows = static_cast<int32_t>(round_up(c.window + r.window_rows, 16));
    s.page_tokens = static_cast<int32_t>(kPageRows * c.max_ratio());
    int64_t at = 0;
    for (const int32_t layer : c.kv_sources) {
        StateShape::Source source;
        source.layer = layer;
        source.ratio = c.layer[static_cast<size_t>(layer)].ratio;
        const int64_t rows = s.page_tokens / source.ratio;
        const auto plane = [&](int64_t row_bytes) {
            const int64_t here = at;
            at += round_up(rows * row_bytes, kPlaneBytes);
            return here;
        };
        source.comp_codes = plane(code_bytes(s.comp_format(), c.head_dim));
        source.comp_scales = plane(scale_bytes(s.comp_format(), c.head_dim));
        source.key_codes = plane(code_bytes(s.key_format(), c.index_dim));
        source.key_scales = plane(scale_bytes(s.key_format(), c.index_dim));
        s.sources.push_back(source);
    }
    s.page_bytes = std::max(at, kPlaneBytes);
    s.table_width = (s.context_tokens + s.page_tokens - 1) / s.page_tokens;
    const int64_t pool_tokens = r.pool_tokens > 0 ? r.pool_tokens : s.slots * s.context_tokens;
    s.pages = (pool_tokens + s.page_tokens - 1) / s.page_tokens + 2 * s.slots;
    if (s.pages < s.table_width + 2 * s.slots) {
        return error(Code::invalid_argument,
                     "engine.pool_tokens = {} holds {} pages, fewer than the {} of one full "
                     "context of {} tokens",
                     pool_tokens, s.pages - 2 * s.slots, s.table_width, s.context_tokens);
    }
    if (s.pages > kMaxPoolPages) {
        return refuse("engine.pool_tokens", pool_tokens, 1,
                      (kMaxPoolPages - 2 * s.slots) * s.page_tokens);
    }
    return s;
}

Status DeviceState::allocate(const ModelConfig& c, const StateShape& shape, bool with_drafts,
                             bool with_counts, Device& device) {
    shape_ = shape;
    const int64_t slots = shape.slots;
    const auto make = [&](const char* tag, int64_t bytes, BufferKind kind,
                          Ref<Buffer>* out) -> Status {
        BufferDesc desc;
        desc.bytes = std::max<int64_t>(bytes, 256);
        desc.kind = kind;
        desc.tag = tag;
        return device.allocate(desc, out->out());
    };
    const auto view = [](const Ref<Buffer>& b, int64_t at, DType t,
                         std::initializer_list<int64_t> dims) {
        return make_view(static_cast<char*>(b->data()) + at, t, dims, b->place());
    };

    // Codes of all layers first, then their scales: every ring's base stays 256-byte aligned.
    const RowFormat wf = shape.window_format();
    const int64_t codes = round_up(slots * shape.ring_rows * code_bytes(wf, c.head_dim), 256);
    const int64_t scales = round_up(slots * shape.ring_rows * scale_bytes(wf, c.head_dim), 256);
    const auto make_rings = [&](const char* tag, int64_t n, Ref<Buffer>* buffer,
                                std::vector<Ring>* out) -> Status {
        TENON_TRY(make(tag, n * (codes + scales), BufferKind::device, buffer));
        for (int64_t i = 0; i < n; ++i) {
            Ring ring;
            ring.R = shape.ring_rows;
            ring.width = c.head_dim;
            ring.format = wf;
            if (wf == RowFormat::bf16) {
                ring.codes = view(*buffer, i * codes, DType::bf16, {slots, ring.R, c.head_dim});
            } else {
                ring.codes = view(*buffer, i * codes, DType::u8,
                                  {slots, ring.R, code_bytes(wf, c.head_dim)});
                ring.scales = view(*buffer, n * codes + i * scales, DType::u8,
                                   {slots, ring.R, scale_bytes(wf, c.head_dim)});
            }
            out->push_back(ring);
        }
        return {};
    };
    TENON_TRY(make_rings("state.windows", c.layers, &ring_buffer_, &rings_));
    if (with_drafts) {
        TENON_TRY(make_rings("state.windows", c.draft.stages, &draft_buffer_, &draft_rings_));
    }

    TENON_TRY(make("state.windows", slots * shape.raw_bytes_per_slot(c), BufferKind::device,
                   &raw_buffer_));
    TENON_TRY(
        make("state.pages", shape.pages * shape.page_bytes, BufferKind::device, &pool_buffer_));
    TENON_TRY(
        make("state.pages", slots * shape.table_width * 4, BufferKind::device, &table_buffer_));
    TENON_TRY(make("state.pages", slots * shape.table_width * 4, BufferKind::pinned,
                   &host_table_buffer_));
    pool_view_ = view(pool_buffer_, 0, DType::u8, {shape.pages, shape.page_bytes});
    table_view_ = view(table_buffer_, 0, DType::i32, {slots, shape.table_width});
    host_table_ = static_cast<int32_t*>(host_table_buffer_->data());

    int64_t raw_at = 0;
    for (const StateShape::Source& s : shape.sources) {
        const auto rows = static_cast<int32_t>(shape.page_tokens / s.ratio);
        Pages comp{pool_view_, table_view_, s.comp_codes, s.comp_scales,
                   rows,       s.ratio,     c.head_dim,   shape.comp_format()};
        Pages keys{pool_view_, table_view_, s.key_codes, s.key_scales,
                   rows,       s.ratio,     c.index_dim, shape.key_format()};
        for (const Pages& p : {comp, keys}) {
            planes_.push_back({p.codes_at, code_bytes(p.format, p.width), s.ratio, 0});
            if (p.format != RowFormat::bf16) {
                planes_.push_back({p.scales_at, scale_bytes(p.format, p.width), s.ratio, 0});
            }
        }
        compressed_.push_back(comp);
        keys_.push_back(keys);
        TensorView raw;
        if (s.ratio == 2) {
            raw = view(raw_buffer_, raw_at, DType::f32, {slots, kRawPositions, 2, c.head_dim});
            raw_at += raw.bytes();
        }
        raws_.push_back(raw);
    }
    if (with_counts) {
        TENON_TRY(make("sampler", slots * c.vocab * 2, BufferKind::device, &seen_buffer_));
        TENON_TRY(make("sampler", c.vocab * 2, BufferKind::pinned, &host_seen_buffer_));
        seen_view_ = view(seen_buffer_, 0, DType::u16, {slots, c.vocab});
        host_seen_ = static_cast<uint16_t*>(host_seen_buffer_->data());
    }
    return {};
}

size_t DeviceState::index_of(int32_t source_layer) const {
    for (size_t i = 0; i < shape_.sources.size(); ++i) {
        if (shape_.sources[i].layer == source_layer) {
            return i;
        }
    }
    TENON_CHECK(false, "layer {} owns no compressed rows", source_layer);
    return 0;
}

Status DeviceState::upload_table(uint32_t slot, int64_t first, int64_t count, Device& device,
                                 Stream& stream) {
    const int64_t at = slot * shape_.table_width + first;
    TensorView dst =
        make_view(table_view_.as<int32_t>() + at, DType::i32, {count}, table_view_.place);
    const TensorView src =
        make_view(host_table_ + at, DType::i32, {count}, host_table_buffer_->place());
    return device.copy(dst, src, stream);
}

Status DeviceState::map_pages(uint32_t slot, int64_t first, Span<const int32_t> pages,
                              Device& device, Stream& stream) {
    std::copy(pages.begin(), pages.end(), host_table_ + slot * shape_.table_width + first);
    return upload_table(slot, first, static_cast<int64_t>(pages.size), device, stream);
}

Status DeviceState::clear_slot(uint32_t slot, Device& device, Stream& stream) {
    std::fill_n(host_table_ + slot * shape_.table_width, shape_.table_width, -1);
    return upload_table(slot, 0, shape_.table_width, device, stream);
}

Status DeviceState::set_counts(uint32_t slot, Span<const plan::Pair> counts, Device& device,
                               Stream& stream) {
    const int64_t vocab = seen_view_.shape[1];
    std::fill_n(host_seen_, vocab, uint16_t{0});
    for (const plan::Pair& p : counts) {
        const uint32_t n = std::min<uint32_t>(p.bits & 0x7FFFFFFFU, 0x7FFFU);
        host_seen_[p.token] = static_cast<uint16_t>(n | ((p.bits >> 31) != 0 ? 0x8000U : 0U));
    }
    const TensorView src = make_view(host_seen_, DType::u16, {vocab}, host_seen_buffer_->place());
    TensorView dst = seen_view_.rows(slot, 1);
    dst.rank = 1;
    dst.shape[0] = vocab;
    dst.stride[0] = 1;
    TENON_TRY(device.copy(dst, src, stream));
    // The staging row is reused by the next slot of the same plan.
    return device.synchronize(stream);
}

}  // namespace tenon::dsv41
