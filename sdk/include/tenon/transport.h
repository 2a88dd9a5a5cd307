// SPDX-License-Identifier: MIT
// Collectives between ranks. Transports bootstrap only through the host's rendezvous.
#pragma once

#include "tenon/compute.h"

namespace tenon {

/// Blob exchange between ranks before the data path exists; implemented by the host.
class Rendezvous : public Object {
  public:
    static constexpr const char* kFacet = "host.rendezvous/1";
    virtual int32_t rank() noexcept = 0;
    virtual int32_t world() noexcept = 0;
    /// Every rank gives a blob of equal size and gets all of them, rank order. errors  peer,
    /// deadline
    virtual Status all_gather(StrView key, Span<const uint8_t> mine, Span<uint8_t> all,
                              int64_t timeout_us) noexcept = 0;
};

struct CommunicatorInfo {
    uint32_t struct_size = sizeof(CommunicatorInfo);
    int32_t rank = 0;
    int32_t world = 1;
    bool graph_capturable = false;
    bool in_place_gather = false;     ///< src may be the rank's own part of dst
    int64_t graph_safe_bytes = 0;     ///< largest message usable inside a graph
    int64_t deadline_us = 2'000'000;  ///< of one operation
};

/// Collectives in program order of one stream; all ranks call the same sequence.
/// A failed or late operation makes the group unusable. Thread: the engine thread, except `abort`.
class Communicator : public Object {
  public:
    static constexpr const char* kFacet = "transport.communicator/1";
    virtual CommunicatorInfo info() noexcept = 0;
    /// Memory that this transport can move without a copy.
    virtual Status allocate_exchange(int64_t bytes, Buffer** out) noexcept = 0;
    /// dst [W, ...] = src of every rank, rank order.
    virtual Status all_gather(const TensorView& dst, const TensorView& src,
                              Stream& stream) noexcept = 0;
    /// f32, added in rank order 0..W-1: bit-equal on all ranks.
    virtual Status all_reduce_sum(const TensorView& inout, Stream& stream) noexcept = 0;
    /// dst [W, ...] on root only.
    virtual Status gather(const TensorView& dst, const TensorView& src, int32_t root,
                          Stream& stream) noexcept = 0;
    virtual Status broadcast(const TensorView& buffer, int32_t root, Stream& stream) noexcept = 0;
    virtual Status health() noexcept = 0;  ///< peer: the group is unusable, and why
    virtual void abort() noexcept = 0;     ///< ends what waits; the group is unusable
};

class Transport : public Object {
  public:
    static constexpr const char* kFacet = "transport.transport/1";
    /// errors  unsupported: world size; peer, deadline
    virtual Status connect(Rendezvous& rendezvous, Device& device, Communicator** out) noexcept = 0;
};

}  // namespace tenon
