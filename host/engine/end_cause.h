// SPDX-License-Identifier: MIT
// What a client is told for each way in which a reply can end early (engine.md 7).
#pragma once

#include "host/engine/sequence.h"

namespace tenon::engine {

struct EndText {
    Code code;
    const char* kind;     ///< SinkEvent::id of the error event
    const char* message;  ///< SinkEvent::text
    const char* outcome;  ///< metric label
};

constexpr EndText end_text(EndCause cause) {
    switch (cause) {
        case EndCause::complete:
            return {Code::ok, "", "", "ok"};
        case EndCause::client_gone:
            return {Code::cancelled, "client_gone", "the client cancelled the request",
                    "cancelled"};
        case EndCause::slow_client:
            return {Code::cancelled, "slow_client", "the client took no events for too long",
                    "slow_client"};
        case EndCause::deadline:
            return {Code::deadline, "timeout", "the deadline of the request has passed", "timeout"};
        case EndCause::shutdown:
            return {Code::unavailable, "shutdown", "the server is shutting down", "shutdown"};
        case EndCause::memory:
            return {Code::unavailable, "memory", "the server is short of memory; try again later",
                    "memory"};
        case EndCause::storage:
            return {Code::io, "storage", "a table row of this request could not be read",
                    "storage"};
        case EndCause::numeric:
            return {Code::internal, "numeric", "the model gave logits that are not finite",
                    "numeric"};
        case EndCause::device:
            return {Code::device, "device", "the compute device failed", "failed"};
        case EndCause::peer_lost:
            return {Code::peer, "peer_lost", "a rank of the group was lost", "failed"};
        case EndCause::stalled:
            return {Code::deadline, "stalled", "the model did not answer in time", "failed"};
        case EndCause::internal:
            break;
    }
    return {Code::internal, "internal", "internal error of the engine", "failed"};
}

}  // namespace tenon::engine
