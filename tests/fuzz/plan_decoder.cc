// SPDX-License-Identifier: MIT
// Fuzzes the decoders of step plans and results: no input reads outside, every accepted one is
// within limits.
#include <cstdlib>
#include <memory>

#include "host/engine/plan_digest.h"
#include "tenon/plan_codec.h"

namespace {

using tenon::Span;

/// Decodes and, if it was taken, encodes again and decodes that: both must agree.
template <class Message>
void decode(Span<const uint8_t> bytes) {
    tenon::plan::Decoder decoder;
    Message message;
    if (!decoder.decode(bytes, &tenon::engine::plan_digest, &message).ok()) {
        return;
    }
    if (!tenon::plan::check(message).ok()) {
        std::abort();
    }
    // Records of a later minor version shrink to ours, so the canonical form is never longer than
    // this.
    const uint64_t room = tenon::plan::kMaxPlanBytes;
    const auto again = std::make_unique<uint64_t[]>(room / 8);
    const Span<uint8_t> out(reinterpret_cast<uint8_t*>(again.get()), room);
    uint64_t size = 0;
    if (!tenon::plan::encode(message, &tenon::engine::plan_digest, out, &size).ok()) {
        std::abort();
    }
    tenon::plan::Decoder second;
    Message back;
    if (!second.decode({out.data, size}, &tenon::engine::plan_digest, &back).ok()) {
        std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // Own block of exactly that size (malloc aligns it), so that a read behind its end is seen.
    const std::unique_ptr<void, decltype(&std::free)> block(std::malloc(size + (size == 0)),
                                                            &std::free);
    auto* const bytes = static_cast<uint8_t*>(block.get());
    std::memcpy(bytes, data, size);
    decode<tenon::StepPlan>({bytes, size});
    if (size < sizeof(tenon::plan::Header)) {
        return 0;
    }
    // No fuzzer finds a digest, so size and digest are made right and the rest is tried.
    for (const uint32_t magic : {tenon::plan::kPlanMagic, tenon::plan::kResultMagic}) {
        tenon::plan::Header header;
        std::memcpy(&header, bytes, sizeof header);
        header.magic = magic;
        header.major = tenon::plan::kMajor;
        header.total_bytes = static_cast<uint32_t>(size);
        header.digest = 0;
        std::memcpy(bytes, &header, sizeof header);
        header.digest =
            tenon::plan::detail::message_digest({bytes, size}, &tenon::engine::plan_digest);
        std::memcpy(bytes, &header, sizeof header);
        if (magic == tenon::plan::kPlanMagic) {
            decode<tenon::StepPlan>({bytes, size});
        } else {
            decode<tenon::StepResult>({bytes, size});
        }
    }
    return 0;
}
