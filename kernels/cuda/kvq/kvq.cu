// SPDX-License-Identifier: MIT
// kvq.quantize and kvq.dequantize.
#include "kvq/kvq.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

Status quantize(void*, const KvqQuantize& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t n = p.x.shape[1];
    if (p.x.shape[0] == 0 || n == 0) {
        return {};
    }
    const QuantizeArgs a{p.x.as<const uint16_t>(),
                         p.x.stride[0],
                         p.values.as<uint16_t>(),
                         p.values.stride[0],
                         p.codes.as<uint8_t>(),
                         p.scales.as<uint8_t>(),
                         n,
                         code_bytes(p.format, n),
                         scale_bytes(p.format, n)};
    const auto kernel = p.format == RowFormat::q8    ? &quantize_kernel<RowFormat::q8>
                        : p.format == RowFormat::q4u ? &quantize_kernel<RowFormat::q4u>
                                                     : &quantize_kernel<RowFormat::q4e>;
    kernel<<<static_cast<unsigned>(p.x.shape[0]), kKvqThreads, 0, native(stream)>>>(a);
    return launched(KvqQuantize::kOp.name);
}

Status dequantize(void*, const KvqDequantize& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t values = p.out.elements();
    if (values == 0) {
        return {};
    }
    const auto kernel = p.format == RowFormat::q8    ? &dequantize_kernel<RowFormat::q8>
                        : p.format == RowFormat::q4u ? &dequantize_kernel<RowFormat::q4u>
                                                     : &dequantize_kernel<RowFormat::q4e>;
    const auto blocks = static_cast<unsigned>((values / 4 + kKvqThreads - 1) / kKvqThreads);
    kernel<<<blocks, kKvqThreads, 0, native(stream)>>>(
        p.codes.as<const uint8_t>(), p.scales.as<const uint8_t>(), values, p.out.as<uint16_t>());
    return launched(KvqDequantize::kOp.name);
}

}  // namespace

void add_kvq(Registry& r) {
    r.add<KvqQuantize>(&quantize, Exactness::exact);
    r.add<KvqDequantize>(&dequantize, Exactness::exact);
}

}  // namespace tenon::cuda
