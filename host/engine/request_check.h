// SPDX-License-Identifier: MIT
// Admission checks of one request: every refusal names the field and says what was found and
// expected.
#pragma once

#include "host/engine/request.h"
#include "tenon/model.h"

namespace tenon::engine {

struct RequestLimits {
    int64_t context_tokens = 0;
    int32_t vocab = 0;       ///< logits per row
    int32_t text_vocab = 0;  ///< ids of the tokenizer; ids above never occur
    int32_t eos = -1;
    uint64_t pairs = 0;   ///< bias entries and distinct prompt ids that fit into one plan
    bool images = false;  ///< the model encodes images
    int64_t default_max_tokens = 32768;
    bool clamp_max_tokens = false;
    bool records_turns = false;  ///< chat replies go into the replay memory
    std::string seed_salt;
};

/// errors  invalid_argument, unsupported: the field; does_not_fit: the context
Status check_request(const RequestDesc& desc, const RequestLimits& limits);

/// A checked request's copy, with codec objects. The caller owns one reference (the front end's).
/// errors  what check_request gives, and what the codec says about parser or stops
Result<Request*> make_request(const RequestDesc& desc, const RequestLimits& limits,
                              TextCodec& codec, uint64_t id, int64_t now_us,
                              std::shared_ptr<WakeEvent> wake);

}  // namespace tenon::engine
