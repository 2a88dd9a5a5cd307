// SPDX-License-Identifier: MIT
// engram.decode and engram.gate.
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

template <class K, class W>
void launch_gate(const EngramGate& p, cudaStream_t stream) {
    const GateArgs<K, W> a{p.kv.as<const K>(),
                           p.h.as<uint16_t>(),
                           p.q_weight.as<const W>(),
                           p.k_weight.as<const W>(),
                           p.rows.row.as<const RowInfo>(),
                           p.h.shape[2],
                           p.eps};
    engram_gate_kernel<<<dim3(static_cast<unsigned>(p.rows.T), 4), kGateThreads, 0, stream>>>(a);
}

template <class K>
void launch_gate_weights(const EngramGate& p, cudaStream_t stream) {
    p.q_weight.dtype == DType::bf16 ? launch_gate<K, uint16_t>(p, stream)
                                    : launch_gate<K, float>(p, stream);
}

Status gate(void*, const EngramGate& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    if (p.rows.T == 0 || p.h.shape[2] == 0) {
        return {};
    }
    p.kv.dtype == DType::bf16 ? launch_gate_weights<uint16_t>(p, native(stream))
                              : launch_gate_weights<float>(p, native(stream));
    return launched(EngramGate::kOp.name);
}

}  // namespace

void add_engram(Registry& r) {
    r.add<EngramDecode>(&decode, Exactness::exact);
    r.add<EngramGate>(&gate, Exactness::invariant);
}

}  // namespace tenon::cuda
