// SPDX-License-Identifier: MIT
// XXH3-64 over plans and results, without allocation.
#include "host/engine/plan_digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tenon::engine {

uint64_t plan_digest(Span<const uint8_t> head, Span<const uint8_t> rest) noexcept {
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, head.data, head.size);
    XXH3_64bits_update(&state, rest.data, rest.size);
    return XXH3_64bits_digest(&state);
}

uint64_t next_chain(uint64_t chain, uint64_t digest, const StepResult& result) noexcept {
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    const uint64_t head[] = {chain, digest};
    XXH3_64bits_update(&state, head, sizeof head);
    for (const WindowResult& w : result.windows) {
        const uint32_t fields[] = {w.slot, w.generation, static_cast<uint32_t>(w.emitted)};
        XXH3_64bits_update(&state, fields, sizeof fields);
        XXH3_64bits_update(&state, result.tokens.data + w.tokens_off,
                           static_cast<size_t>(w.emitted) * sizeof(int32_t));
    }
    for (const DraftResult& d : result.drafts) {
        const uint32_t fields[] = {d.slot, d.generation, static_cast<uint32_t>(d.count)};
        XXH3_64bits_update(&state, fields, sizeof fields);
        XXH3_64bits_update(&state, d.tokens, static_cast<size_t>(d.count) * sizeof(int32_t));
    }
    return XXH3_64bits_digest(&state);
}

}  // namespace tenon::engine
