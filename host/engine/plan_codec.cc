// SPDX-License-Identifier: MIT
// Little-endian, 8-byte aligned sections in ascending order of kind; empty ones are left out.
#include "host/engine/plan_codec.h"

#define XXH_STATIC_LINKING_ONLY  // the state struct on the stack
#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace tenon {
namespace {

using plan::SectionKind;

static_assert(std::endian::native == std::endian::little,
              "plans are copied as little-endian records");

constexpr uint64_t kMaxBytes = 4ull << 20;
constexpr uint32_t kMaxSections = 32;
constexpr uint64_t kDigestAt = 48;

template <class T>
void put(SectionKind kind, Span<const T> records, std::vector<uint8_t>* out, uint32_t* sections) {
    if (records.empty()) {
        return;
    }
    plan::SectionHeader h;
    h.kind = static_cast<uint16_t>(kind);
    h.flags = 1;
    h.count = static_cast<uint32_t>(records.size);
    const uint64_t bytes = records.size * sizeof(T);
    h.bytes = static_cast<uint32_t>((bytes + 7) / 8 * 8);
    h.record_bytes = sizeof(T);
    const size_t at = out->size();
    out->resize(at + sizeof h + h.bytes);
    std::memcpy(out->data() + at, &h, sizeof h);
    std::memcpy(out->data() + at + sizeof h, records.data, bytes);
    std::fill_n(out->data() + at + sizeof h + bytes, h.bytes - bytes, uint8_t{0});
    ++*sections;
}

bool inside(uint64_t offset, uint64_t count, uint64_t size) {
    return offset <= size && count <= size - offset;
}

Status bad(const char* what) {
    return error(Code::invalid_argument, "step plan: {}", what);
}

Status check_limits(const StepPlan& p) {
    if (p.windows.size > 256 || p.chunks.size > 16 || p.targets.size > 64 || p.pages.size > 65536) {
        return bad("more than 256 windows, 16 chunks, 64 targets or 65,536 page entries");
    }
    int64_t rows = 0;
    for (const plan::Window& w : p.windows) {
        if (w.rows < 1 || w.rows > plan::kMaxWindowRows || w.forced < 0 || w.forced >= w.rows + 1 ||
            w.top < 0 || w.top > 20 ||
            !inside(w.tokens_off, static_cast<uint64_t>(w.rows), p.tokens.size)) {
            return bad("a window has an impossible row count or tokens outside the pool");
        }
        rows += w.rows;
    }
    if (rows > 512) {
        return bad("more than 512 window rows");
    }
    int64_t tokens = 0;
    for (const plan::Chunk& c : p.chunks) {
        if (c.begin < 0 || c.end <= c.begin || c.end - c.begin > 16384 ||
            !inside(c.tokens_off, static_cast<uint64_t>(c.end - c.begin), p.tokens.size) ||
            !inside(c.target_off, c.target_count, p.targets.size) ||
            !inside(c.image_off, c.image_count, p.image_runs.size)) {
            return bad("a chunk has an impossible range or spans outside their pools");
        }
        tokens += c.end - c.begin;
    }
    if (tokens > 16384) {
        return bad("more than 16,384 chunk tokens");
    }
    for (const plan::PageMap& m : p.page_maps) {
        if (!inside(m.pages_off, m.count, p.pages.size)) {
            return bad("a page_map has pages outside the pool");
        }
    }
    for (const plan::Sampler& s : p.samplers) {
        if (!inside(s.bias_off, s.bias_count, p.pairs.size) ||
            !inside(s.counts_off, s.counts_count, p.pairs.size) || s.stop_count > 16 ||
            !inside(s.stop_off, s.stop_count, p.tokens.size)) {
            return bad("a sampler has spans outside their pools");
        }
    }
    for (const Span<const plan::SnapOp>& ops : {p.snap_in, p.snap_out}) {
        for (const plan::SnapOp& s : ops) {
            if (!inside(s.pages_off, s.pages_count, p.pages.size)) {
                return bad("a snapshot op has pages outside the pool");
            }
        }
    }
    return {};
}

}  // namespace

uint64_t plan_digest(Span<const uint8_t> bytes) {
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    constexpr uint64_t kZero = 0;
    XXH3_64bits_update(&state, bytes.data, kDigestAt);
    XXH3_64bits_update(&state, &kZero, sizeof kZero);
    XXH3_64bits_update(&state, bytes.data + kDigestAt + 8, bytes.size - kDigestAt - 8);
    return XXH3_64bits_digest(&state);
}

void encode_plan(const StepPlan& p, std::vector<uint8_t>* out) {
    plan::Header h = p.header;
    h.digest = 0;
    uint32_t sections = 0;
    out->clear();
    out->resize(sizeof h);
    put(SectionKind::slot_op, p.slot_ops, out, &sections);
    put(SectionKind::page_map, p.page_maps, out, &sections);
    put(SectionKind::page_copy, p.page_copies, out, &sections);
    put(SectionKind::snap_in, p.snap_in, out, &sections);
    put(SectionKind::sampler, p.samplers, out, &sections);
    put(SectionKind::feature, p.features, out, &sections);
    put(SectionKind::window, p.windows, out, &sections);
    put(SectionKind::draft, p.drafts, out, &sections);
    put(SectionKind::chunk, p.chunks, out, &sections);
    put(SectionKind::target, p.targets, out, &sections);
    put(SectionKind::image_run, p.image_runs, out, &sections);
    put(SectionKind::encode, p.encodes, out, &sections);
    put(SectionKind::snap_out, p.snap_out, out, &sections);
    put(SectionKind::prefetch, p.prefetches, out, &sections);
    put(SectionKind::tokens, p.tokens, out, &sections);
    put(SectionKind::pages, p.pages, out, &sections);
    put(SectionKind::pairs, p.pairs, out, &sections);
    put(SectionKind::bytes, p.bytes, out, &sections);
    put(SectionKind::note, p.note, out, &sections);
    h.sections = sections;
    h.total_bytes = static_cast<uint32_t>(out->size());
    std::memcpy(out->data(), &h, sizeof h);
    h.digest = plan_digest(*out);
    std::memcpy(out->data(), &h, sizeof h);
}

template <class T>
Status PlanDecoder::section(const plan::SectionHeader& h, const uint8_t* payload,
                            Span<const T>* out) {
    if (h.record_bytes == 0 || uint64_t{h.count} * h.record_bytes > h.bytes) {
        return bad("a section's records do not fit into its payload");
    }
    if (h.record_bytes == sizeof(T)) {
        *out = Span<const T>(reinterpret_cast<const T*>(payload), h.count);
        return {};
    }
    if (h.record_bytes < 4 && sizeof(T) >= 4) {
        return bad("records are too short");
    }
    // Another minor version: shorter records are zero-filled, longer ones cut.
    copies_.emplace_back((uint64_t{h.count} * sizeof(T) + 7) / 8, 0);
    auto* to = reinterpret_cast<uint8_t*>(copies_.back().data());
    const size_t common = std::min<size_t>(h.record_bytes, sizeof(T));
    for (uint32_t i = 0; i < h.count; ++i) {
        std::memcpy(to + size_t{i} * sizeof(T), payload + size_t{i} * h.record_bytes, common);
    }
    *out = Span<const T>(reinterpret_cast<const T*>(to), h.count);
    return {};
}

Status PlanDecoder::decode(Span<const uint8_t> bytes, StepPlan* out) {
    copies_.clear();
    StepPlan p;
    if (bytes.size < sizeof(plan::Header) || bytes.size > kMaxBytes) {
        return bad("its size is not between 64 bytes and 4 MiB");
    }
    if (reinterpret_cast<uintptr_t>(bytes.data) % 8 != 0) {
        return bad("it is not 8-byte aligned");
    }
    std::memcpy(&p.header, bytes.data, sizeof p.header);
    const plan::Header& h = p.header;
    if (h.magic != plan::kPlanMagic || h.major != plan::kMajor) {
        return error(Code::invalid_argument,
                     "step plan: magic {} version {}, expected {} version {}", h.magic, h.major,
                     plan::kPlanMagic, plan::kMajor);
    }
    if (h.total_bytes != bytes.size || h.sections > kMaxSections) {
        return error(Code::invalid_argument,
                     "step plan: says {} bytes and {} sections, found {} bytes", h.total_bytes,
                     h.sections, bytes.size);
    }
    if (h.digest != plan_digest(bytes)) {
        return error(Code::invalid_argument,
                     "step plan: digest {} of step {} does not match its bytes", h.digest, h.step);
    }
    uint64_t at = sizeof h;
    uint16_t last = 0;
    for (uint32_t i = 0; i < h.sections; ++i) {
        plan::SectionHeader s;
        if (bytes.size - at < sizeof s) {
            return bad("a section header is cut short");
        }
        std::memcpy(&s, bytes.data + at, sizeof s);
        at += sizeof s;
        if (s.kind <= last || s.bytes % 8 != 0 || s.bytes > bytes.size - at) {
            return error(Code::invalid_argument,
                         "step plan: section {} is out of order or cut short", s.kind);
        }
        last = s.kind;
        const uint8_t* payload = bytes.data + at;
        at += s.bytes;
        Status status;
        switch (static_cast<SectionKind>(s.kind)) {
            case SectionKind::slot_op:
                status = section(s, payload, &p.slot_ops);
                break;
            case SectionKind::page_map:
                status = section(s, payload, &p.page_maps);
                break;
            case SectionKind::page_copy:
                status = section(s, payload, &p.page_copies);
                break;
            case SectionKind::snap_in:
                status = section(s, payload, &p.snap_in);
                break;
            case SectionKind::sampler:
                status = section(s, payload, &p.samplers);
                break;
            case SectionKind::feature:
                status = section(s, payload, &p.features);
                break;
            case SectionKind::window:
                status = section(s, payload, &p.windows);
                break;
            case SectionKind::draft:
                status = section(s, payload, &p.drafts);
                break;
            case SectionKind::chunk:
                status = section(s, payload, &p.chunks);
                break;
            case SectionKind::target:
                status = section(s, payload, &p.targets);
                break;
            case SectionKind::image_run:
                status = section(s, payload, &p.image_runs);
                break;
            case SectionKind::encode:
                status = section(s, payload, &p.encodes);
                break;
            case SectionKind::snap_out:
                status = section(s, payload, &p.snap_out);
                break;
            case SectionKind::prefetch:
                status = section(s, payload, &p.prefetches);
                break;
            case SectionKind::tokens:
                status = section(s, payload, &p.tokens);
                break;
            case SectionKind::pages:
                status = section(s, payload, &p.pages);
                break;
            case SectionKind::pairs:
                status = section(s, payload, &p.pairs);
                break;
            case SectionKind::bytes:
                status = section(s, payload, &p.bytes);
                break;
            case SectionKind::note:
                status = section(s, payload, &p.note);
                break;
            default:
                if ((s.flags & 1) != 0) {
                    return error(Code::invalid_argument,
                                 "step plan: required section {} is unknown", s.kind);
                }
        }
        TENON_TRY(std::move(status));
    }
    if (at != bytes.size) {
        return bad("bytes follow the last section");
    }
    TENON_TRY(check_limits(p));
    *out = p;
    return {};
}

}  // namespace tenon
