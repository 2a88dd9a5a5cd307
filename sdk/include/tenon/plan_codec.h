// SPDX-License-Identifier: MIT
// Wire form of step plans and step results: encoder, and a decoder that checks before it uses
// (engine.md 1.5).
#pragma once

#include <memory>

#include "tenon/plan_check.h"

namespace tenon::plan {

/// XXH3-64 (seed 0) of `head` followed by `rest`. Passed in, because the SDK brings no hash of its
/// own.
using DigestFn = uint64_t (*)(Span<const uint8_t> head, Span<const uint8_t> rest) noexcept;

namespace detail {

inline uint64_t padded(uint64_t bytes) {
    return (bytes + 7) / 8 * 8;
}

/// Digest of a whole message with its digest field read as zero.
inline uint64_t message_digest(Span<const uint8_t> message, DigestFn digest) {
    Header head;
    std::memcpy(&head, message.data, sizeof head);
    head.digest = 0;
    uint8_t bytes[sizeof head];
    std::memcpy(bytes, &head, sizeof head);
    return digest({bytes, sizeof bytes}, message.subspan(sizeof head, message.size - sizeof head));
}

/// Calls f(kind, flags, span) for the sections of a plan in canonical order.
template <class Plan, class F>
void each_section(Plan& p, F&& f) {
    const auto call = [&f](SectionKind kind, auto& span, uint16_t flags = kSectionRequired) {
        f(static_cast<uint16_t>(kind), flags, span);
    };
    call(SectionKind::slot_op, p.slot_ops);
    call(SectionKind::page_map, p.page_maps);
    call(SectionKind::page_copy, p.page_copies);
    call(SectionKind::snap_in, p.snap_in);
    call(SectionKind::sampler, p.samplers);
    call(SectionKind::feature, p.features);
    call(SectionKind::window, p.windows);
    call(SectionKind::draft, p.drafts);
    call(SectionKind::chunk, p.chunks);
    call(SectionKind::target, p.targets);
    call(SectionKind::image_run, p.image_runs);
    call(SectionKind::encode, p.encodes);
    call(SectionKind::snap_out, p.snap_out);
    call(SectionKind::prefetch, p.prefetches, 0);  // advice: leaving it out changes no result
    call(SectionKind::tokens, p.tokens);
    call(SectionKind::pages, p.pages);
    call(SectionKind::pairs, p.pairs);
    call(SectionKind::bytes, p.bytes);
    call(SectionKind::note, p.note, 0);
}

/// Probe and timing of a result, as one record.
struct ResultTail {
    uint64_t probe = 0;
    StepTiming timing;
};
static_assert(sizeof(WindowResult) == 40 && sizeof(DraftResult) == 136 &&
              sizeof(ChunkResult) == 24);
static_assert(sizeof(JobResult) == 16 && sizeof(TokenLogprob) == 8 && sizeof(ResultTail) == 48);

template <class Result, class Tail, class F>
void each_result_section(Result& r, Tail& tail, F&& f) {
    f(uint16_t{1}, kSectionRequired, r.windows);
    f(uint16_t{2}, kSectionRequired, r.drafts);
    f(uint16_t{3}, kSectionRequired, r.chunks);
    f(uint16_t{4}, kSectionRequired, r.jobs);
    f(uint16_t{5}, kSectionRequired, r.tokens);
    f(uint16_t{6}, kSectionRequired, r.logprobs);
    f(uint16_t{7}, kSectionRequired, tail);
}

class Writer {
  public:
    explicit Writer(Span<uint8_t> out) : out_(out) {}

    template <class T>
    void section(uint16_t kind, uint16_t flags, const Span<T>& records) {
        if (records.size == 0) {
            return;
        }
        const uint64_t bytes = records.size * sizeof(T);
        if (at_ + sizeof(SectionHeader) + padded(bytes) <= out_.size) {
            SectionHeader head;
            head.kind = kind;
            head.flags = flags;
            head.count = static_cast<uint32_t>(records.size);
            head.bytes = static_cast<uint32_t>(padded(bytes));
            head.record_bytes = sizeof(T);
            std::memcpy(out_.data + at_, &head, sizeof head);
            std::memcpy(out_.data + at_ + sizeof head, records.data, bytes);
            std::memset(out_.data + at_ + sizeof head + bytes, 0, padded(bytes) - bytes);
        }
        at_ += sizeof(SectionHeader) + padded(bytes);  // counted even when it does not fit
        ++sections_;
    }

    Status finish(Header header, uint32_t magic, DigestFn digest, uint64_t* bytes) {
        if (at_ > out_.size || at_ > kMaxPlanBytes) {
            return error(Code::does_not_fit, "plan {}: {} bytes do not fit into {} (limit {})",
                         header.step, at_, out_.size, kMaxPlanBytes);
        }
        header.magic = magic;
        header.major = kMajor;
        header.minor = kMinor;
        header.total_bytes = static_cast<uint32_t>(at_);
        header.sections = sections_;
        header.digest = 0;
        std::memcpy(out_.data, &header, sizeof header);
        header.digest = message_digest({out_.data, at_}, digest);
        std::memcpy(out_.data, &header, sizeof header);
        *bytes = at_;
        return {};
    }

  private:
    Span<uint8_t> out_;
    uint64_t at_ = sizeof(Header);
    uint32_t sections_ = 0;
};

/// Walks the sections of one message. Knows nothing of their kinds.
class Reader {
  public:
    /// Header checks and the digest: after it every bit of the message is what the sender wrote.
    Status open(Span<const uint8_t> message, uint32_t magic, DigestFn digest, Header* header) {
        if (message.size < sizeof(Header) || message.size > kMaxPlanBytes) {
            return error(Code::invalid_argument, "plan: {} bytes, expected {} to {}", message.size,
                         sizeof(Header), kMaxPlanBytes);
        }
        if (reinterpret_cast<uintptr_t>(message.data) % 8 != 0) {
            return Status(Code::invalid_argument, "plan: the buffer is not 8-byte aligned");
        }
        std::memcpy(header, message.data, sizeof *header);
        if (header->magic != magic) {
            return error(Code::invalid_argument, "plan: magic {}, expected {}", header->magic,
                         magic);
        }
        if (header->major != kMajor) {
            return error(Code::unsupported,
                         "plan: version {}.{}, this build reads {}.x; use equal builds",
                         header->major, header->minor, kMajor);
        }
        if (header->total_bytes != message.size) {
            return error(Code::invalid_argument, "plan {}: header says {} bytes, message has {}",
                         header->step, header->total_bytes, message.size);
        }
        const uint64_t found = message_digest(message, digest);
        if (found != header->digest) {
            return error(Code::invalid_argument,
                         "plan {}: digest {}, header says {}; bytes were changed", header->step,
                         found, header->digest);
        }
        if (header->sections > kMaxSections) {
            return error(Code::invalid_argument, "plan {}: {} sections, limit {}", header->step,
                         header->sections, kMaxSections);
        }
        if (header->minor <= kMinor && (header->flags & ~kKnownFlags) != 0) {
            return error(Code::invalid_argument, "plan {}: unknown flags {}", header->step,
                         header->flags);
        }
        header->flags &= kKnownFlags;  // what a later minor version added means nothing here
        message_ = message;
        left_ = header->sections;
        minor_ = header->minor;
        at_ = sizeof(Header);
        return {};
    }

    bool more() const { return left_ > 0; }

    /// The next section's header and payload, inside the message.
    Status next(SectionHeader* head, Span<const uint8_t>* payload) {
        if (message_.size - at_ < sizeof *head) {
            return error(Code::invalid_argument, "plan: section header at byte {} is cut off", at_);
        }
        std::memcpy(head, message_.data + at_, sizeof *head);
        at_ += sizeof *head;
        if (head->bytes % 8 != 0 || head->bytes > message_.size - at_) {
            return error(Code::invalid_argument,
                         "plan: section {} at byte {}: {} bytes, {} are left", head->kind, at_,
                         head->bytes, message_.size - at_);
        }
        if (head->kind <= last_kind_) {
            return error(Code::invalid_argument, "plan: section {} follows {}; kinds must ascend",
                         head->kind, last_kind_);
        }
        if (minor_ <= kMinor && (head->flags & ~kSectionRequired) != 0) {
            return error(Code::invalid_argument, "plan: section {}: unknown flags {}", head->kind,
                         head->flags);
        }
        last_kind_ = head->kind;
        *payload = message_.subspan(at_, head->bytes);
        at_ += head->bytes;
        --left_;
        return {};
    }

    Status end() const {
        if (at_ != message_.size) {
            return error(Code::invalid_argument, "plan: {} bytes behind the last section",
                         message_.size - at_);
        }
        return {};
    }

    /// Views of the records, in place when their size is ours; else copied into `copies`.
    template <class T>
    Status records(const SectionHeader& head, Span<const uint8_t> payload,
                   std::vector<std::unique_ptr<uint64_t[]>>* copies, Span<const T>* out) const {
        const bool frozen = sizeof(T) <= 8;  // pools and notes never grow
        const bool shorter = head.record_bytes < sizeof(T) && minor_ >= kMinor;
        if (head.record_bytes == 0 || shorter || (frozen && head.record_bytes != sizeof(T))) {
            return error(Code::invalid_argument,
                         "plan: section {}: records of {} bytes, expected {}", head.kind,
                         head.record_bytes, sizeof(T));
        }
        const uint64_t bytes = uint64_t{head.count} * head.record_bytes;
        if (padded(bytes) != head.bytes) {
            return error(Code::invalid_argument,
                         "plan: section {}: {} records of {} bytes in {} bytes", head.kind,
                         head.count, head.record_bytes, head.bytes);
        }
        for (uint64_t i = bytes; i < head.bytes; ++i) {
            if (payload[i] != 0) {
                return error(Code::invalid_argument, "plan: section {}: padding is not zero",
                             head.kind);
            }
        }
        if (head.record_bytes == sizeof(T)) {
            *out = {reinterpret_cast<const T*>(payload.data), head.count};
            return {};
        }
        const uint64_t kept = head.record_bytes < sizeof(T) ? head.record_bytes : sizeof(T);
        auto copy = std::make_unique<uint64_t[]>(padded(head.count * sizeof(T)) / 8 + 1);
        auto* first = reinterpret_cast<uint8_t*>(copy.get());
        for (uint64_t i = 0; i < head.count; ++i) {
            std::memcpy(first + i * sizeof(T), payload.data + i * head.record_bytes, kept);
        }
        *out = {reinterpret_cast<const T*>(first), head.count};
        copies->push_back(std::move(copy));
        return {};
    }

  private:
    Span<const uint8_t> message_;
    uint64_t at_ = 0;
    uint32_t left_ = 0;
    uint32_t last_kind_ = 0;
    uint16_t minor_ = 0;
};

template <class T>
bool same_records(Span<const T> a, Span<const T> b) {
    return a.size == b.size &&
           (a.size == 0 || std::memcmp(a.data, b.data, a.size * sizeof(T)) == 0);
}

}  // namespace detail

/// Bytes that `encode` writes.
inline uint64_t encoded_bytes(const StepPlan& p) {
    uint64_t bytes = sizeof(Header);
    detail::each_section(p, [&bytes](uint16_t, uint16_t, const auto& span) {
        if (span.size > 0) {
            bytes += sizeof(SectionHeader) + detail::padded(span.size * sizeof(span[0]));
        }
    });
    return bytes;
}

/// Writes the canonical form: sections ascending, empty ones left out, padding zero. Allocates
/// nothing unless it fails. Of the header step, epoch, chain and flags are taken, the rest is
/// filled in.
///
/// out      8-byte aligned
/// errors   does_not_fit: out or the 4 MiB limit is too small
inline Status encode(const StepPlan& p, DigestFn digest, Span<uint8_t> out, uint64_t* bytes) {
    detail::Writer writer(out);
    detail::each_section(p, [&writer](uint16_t kind, uint16_t flags, const auto& span) {
        writer.section(kind, flags, span);
    });
    return writer.finish(p.header, kPlanMagic, digest, bytes);
}

inline Status encode(const StepResult& r, DigestFn digest, Span<uint8_t> out, uint64_t* bytes) {
    detail::ResultTail tail{r.probe, r.timing};
    const Span<const detail::ResultTail> tails(&tail, 1);
    detail::Writer writer(out);
    detail::each_result_section(r, tails,
                                [&writer](uint16_t kind, uint16_t flags, const auto& span) {
                                    writer.section(kind, flags, span);
                                });
    Header header;
    header.step = r.step;
    return writer.finish(header, kResultMagic, digest, bytes);
}

/// Decodes in place: the plan's spans point into `message`, which must be 8-byte aligned and
/// outlive them. Records of another size (another minor version) are copied into the decoder, valid
/// until its next call. Allocates nothing for messages of this version. Nothing is read before its
/// bounds were checked, and nothing is returned unless everything is within the limits of
/// engine.md 1.5.
///
/// errors   invalid_argument: malformed, names section and record; unsupported: another major
/// version
///          or an unknown required section
class Decoder {
  public:
    Status decode(Span<const uint8_t> message, DigestFn digest, StepPlan* out) {
        copies_.clear();
        StepPlan p;
        detail::Reader reader;
        TENON_TRY(reader.open(message, kPlanMagic, digest, &p.header));
        TENON_TRY(sections(reader, [&p](auto&& f) { detail::each_section(p, f); }));
        TENON_TRY_CTX(check(p), "plan {}", p.header.step);
        *out = p;
        return {};
    }

    Status decode(Span<const uint8_t> message, DigestFn digest, StepResult* out) {
        copies_.clear();
        StepResult r;
        Span<const detail::ResultTail> tail;
        Header header;
        detail::Reader reader;
        TENON_TRY(reader.open(message, kResultMagic, digest, &header));
        TENON_TRY(sections(reader, [&](auto&& f) { detail::each_result_section(r, tail, f); }));
        if (tail.size != 1) {
            return error(Code::invalid_argument, "result {}: {} summary records, expected 1",
                         header.step, tail.size);
        }
        r.step = header.step;
        r.probe = tail[0].probe;
        r.timing = tail[0].timing;
        TENON_TRY_CTX(check(r), "result {}", r.step);
        *out = r;
        return {};
    }

  private:
    template <class Each>
    Status sections(detail::Reader& reader, Each&& each) {
        while (reader.more()) {
            SectionHeader head;
            Span<const uint8_t> payload;
            TENON_TRY(reader.next(&head, &payload));
            bool known = false;
            Status status;
            each([&](uint16_t kind, uint16_t, auto& span) {
                if (kind == head.kind) {
                    known = true;
                    status = reader.records(head, payload, &copies_, &span);
                }
            });
            TENON_TRY(std::move(status));
            if (!known && (head.flags & kSectionRequired) != 0) {
                return error(Code::unsupported,
                             "plan: required section {} is unknown to this build", head.kind);
            }
        }
        return reader.end();
    }

    std::vector<std::unique_ptr<uint64_t[]>> copies_;
};

/// Field for field equal (digest, sizes and version of the header aside).
inline bool equal(const StepPlan& a, const StepPlan& b) {
    using detail::same_records;
    const Header &x = a.header, &y = b.header;
    return x.step == y.step && x.group_epoch == y.group_epoch && x.chain == y.chain &&
           x.chain_step == y.chain_step && x.flags == y.flags &&
           same_records(a.slot_ops, b.slot_ops) && same_records(a.page_maps, b.page_maps) &&
           same_records(a.page_copies, b.page_copies) && same_records(a.snap_in, b.snap_in) &&
           same_records(a.samplers, b.samplers) && same_records(a.features, b.features) &&
           same_records(a.windows, b.windows) && same_records(a.drafts, b.drafts) &&
           same_records(a.chunks, b.chunks) && same_records(a.targets, b.targets) &&
           same_records(a.image_runs, b.image_runs) && same_records(a.encodes, b.encodes) &&
           same_records(a.snap_out, b.snap_out) && same_records(a.prefetches, b.prefetches) &&
           same_records(a.tokens, b.tokens) && same_records(a.pages, b.pages) &&
           same_records(a.pairs, b.pairs) && same_records(a.bytes, b.bytes) &&
           same_records(a.note, b.note);
}

}  // namespace tenon::plan
