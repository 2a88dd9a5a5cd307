// SPDX-License-Identifier: MIT
// engram.decode, engram.gate and engram.reduce_gate.
#include "engram/engram.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

Status decode(void*, const EngramDecode& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const DecodeArgs a{p.values.as<const uint8_t>(),
                       p.scales.as<const uint8_t>(),
                       p.values.stride[0],
                       p.values.stride[1],
                       p.scales.stride[0],
                       p.scales.stride[1],
                       p.rows.row.as<const RowInfo>(),
                       p.rows.T,
                       dim(p.values, 1),
                       dim(p.values, 2),
                       p.out.as<uint16_t>()};
    const int64_t threads = a.T * a.c * a.w / 8;
    if (threads == 0) {
        return {};
    }
    engram_decode_kernel<<<static_cast<unsigned>((threads + 127) / 128), 128, 0, native(stream)>>>(
        a);
    return launched(EngramDecode::kOp.name);
}

// P: EngramGate with kv, or EngramReduceGate with parts of several ranks.
template <class K, class W, class P>
void launch_gate(const P& p, const void* kv, int64_t parts, cudaStream_t stream) {
    const int64_t d = p.h.shape[2];
    const GateArgs<K, W> a{static_cast<const K*>(kv),
                           parts,
                           p.rows.T * 5 * d,
                           p.h.template as<uint16_t>(),
                           p.q_weight.template as<const W>(),
                           p.k_weight.template as<const W>(),
                           p.rows.row.template as<const RowInfo>(),
                           d,
                           p.eps};
    engram_gate_kernel<<<dim3(static_cast<unsigned>(p.rows.T), 4), kGateThreads, 0, stream>>>(a);
}

template <class K, class P>
void launch_gate_weights(const P& p, const void* kv, int64_t parts, cudaStream_t stream) {
    p.q_weight.dtype == DType::bf16 ? launch_gate<K, uint16_t>(p, kv, parts, stream)
                                    : launch_gate<K, float>(p, kv, parts, stream);
}

Status gate(void*, const EngramGate& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    if (p.rows.T == 0 || p.h.shape[2] == 0) {
        return {};
    }
    p.kv.dtype == DType::bf16 ? launch_gate_weights<uint16_t>(p, p.kv.data, 1, native(stream))
                              : launch_gate_weights<float>(p, p.kv.data, 1, native(stream));
    return launched(EngramGate::kOp.name);
}

Status reduce_gate(void*, const EngramReduceGate& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    if (p.rows.T == 0 || p.h.shape[2] == 0) {
        return {};
    }
    launch_gate_weights<float>(p, p.parts.data, p.parts.shape[0], native(stream));
    return launched(EngramReduceGate::kOp.name);
}

}  // namespace

void add_engram(Registry& r) {
    r.add<EngramDecode>(&decode, Exactness::exact);
    r.add<EngramGate>(&gate, Exactness::invariant);
    r.add<EngramReduceGate>(&reduce_gate, Exactness::invariant);
}

}  // namespace tenon::cuda
