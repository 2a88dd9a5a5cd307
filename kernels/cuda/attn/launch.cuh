// SPDX-License-Identifier: MIT
// Launching attn.sparse and attn.sparse_turn: arguments, choice of the kernel, cluster size.
#pragma once

#include "attn/prefill.h"
#include "attn/sparse.cuh"
#include "attn/wide.cuh"

#include <algorithm>

#include "common/built_for.h"
#include "common/context.h"
#include "kernels/shared/token_checks.h"

namespace tenon::cuda::sparse {

template <class P>
Args args_of(const Context& c, const P& p, const kernels::SparseShape& s) {
    Args a{};
    a.q = p.q.template as<const __nv_bfloat16>();
    a.kv = p.kv.template as<const __nv_bfloat16>();
    a.out = p.out.template as<__nv_bfloat16>();
    a.ring_codes = p.ring.codes.template as<const uint8_t>();
    a.ring_scales = p.ring.scales.template as<const uint8_t>();
    a.ring_R = p.ring.R;
    a.ring_slots = static_cast<int>(p.ring.codes.shape[0]);
    a.ring_format = static_cast<int>(p.ring.format);
    if (s.K > 0) {
        a.pool = p.comp.pool.template as<const uint8_t>();
        a.table = p.comp.table.template as<const int>();
        a.page_bytes = p.comp.pool.shape[1];
        a.codes_at = p.comp.codes_at;
        a.scales_at = p.comp.scales_at;
        a.pages = static_cast<int>(p.comp.pool.shape[0]);
        a.table_slots = static_cast<int>(p.comp.table.shape[0]);
        a.table_width = static_cast<int>(p.comp.table.shape[1]);
        a.rows_per_page = p.comp.rows_per_page;
        a.comp_format = static_cast<int>(p.comp.format);
        a.sel = p.sel.template as<const int>();
        a.count = p.count.template as<const int>();
    }
    a.K = static_cast<int>(s.K);
    a.sink = p.sink.template as<const float>();
    a.scale_log2 = p.scale * 1.4426950408889634f;
    a.window = p.window;
    a.half = p.half;
    a.block_mode = p.mode == AttnMode::block;
    a.row = p.rows.row.template as<const RowInfo>();
    a.seg = p.rows.seg.template as<const SegInfo>();
    a.T = static_cast<int>(s.T);
    a.S = static_cast<int>(p.rows.S);
    a.H = static_cast<int>(s.H);
    a.faults = c.faults;
    return a;
}

// CTAs of a cluster: one for each chunk of a full list on Hopper, whose clusters may have 16; as
// few as share the chunks evenly where the device has room for fewer, or eight is the most
// elsewhere; one where there are no clusters.
inline unsigned cluster_of(const Context& c, const Args& a) {
    const int most = std::min(c.cluster_blocks, c.arch == 90 ? kMostRanks : 8);
    const int chunks =
        (a.window + kChunk - 1) / kChunk + a.block_mode + (a.K + kChunk - 1) / kChunk;
    const int each = (chunks + most - 1) / most;
    return static_cast<unsigned>((chunks + each - 1) / each);
}

template <int kD, int kTiles, bool kTurn>
cudaError_t launch(const Args& a, unsigned cluster, cudaStream_t stream) {
    auto* kernel = &sparse_kernel<kD, kTiles, kTurn>;
    constexpr size_t kBytes = sizeof(Shared<kD, kTiles>);
    static_assert(kTiles > 1 || kBytes <= kLeastSharedBlock);
    cudaError_t result =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (result == cudaSuccess && cluster > 8) {
        result = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (result != cudaSuccess) {
        return result;
    }
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cluster, static_cast<unsigned>(a.T),
                          static_cast<unsigned>((a.H + kTiles * 16 - 1) / (kTiles * 16)));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kBytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, a);
}

constexpr int kHalvedRows = 6;  // rows of a call that the wide kernel takes in halves at most

/// Parts of a row for the wide kernel; 0: it does not take this call. Nothing of it follows from T.
inline int wide_ranks(const Context& c, const Args& a, int64_t D, Regime regime) {
    if (c.arch != 90 || regime != Regime::decode || D != kWideD || a.H <= kWideHeads / 2 ||
        a.H > kWideHeads || static_cast<size_t>(c.smem_block) < kWideBytes) {
        return 0;
    }
    const int ranks = wide_windows(a.window, a.block_mode != 0) + (a.K + kWideKeys - 1) / kWideKeys;
    return ranks <= std::min(kWideRanks, c.cluster_blocks) ? ranks : 0;
}

template <bool kTurn, int kHalves>
cudaError_t launch_wide(const Args& a, int ranks, cudaStream_t stream) {
    auto* kernel = &wide_kernel<kTurn, kHalves>;
    cudaError_t result =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWideBytes);
    if (result == cudaSuccess && ranks * kHalves > 8) {
        result = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (result != cudaSuccess) {
        return result;
    }
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = static_cast<unsigned>(ranks * kHalves);
    attributes[0].val.clusterDim.y = 1;
    attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ranks * kHalves), static_cast<unsigned>(a.T));
    config.blockDim = dim3(kWideThreads);
    config.dynamicSmemBytes = kWideBytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, a, wide_windows(a.window, a.block_mode != 0));
}

template <bool kTurn>
Status run(const char* op, const Context& c, const Args& a, int64_t D, Regime regime,
           cudaStream_t stream) {
    const unsigned cluster = regime == Regime::decode ? cluster_of(c, a) : 1;
    // Heads a CTA takes follow from the device and H, never from T.
    const bool two = a.H > 16 && sizeof(Shared<512, 2>) <= static_cast<size_t>(c.smem_block);
    if (a.T > 65535) {  // the grid's y limit
        return error(Code::unsupported, "{}: T is {}, expected at most 65535 rows", op, a.T);
    }
    cudaError_t result = cudaSuccess;
    if (const int ranks = wide_ranks(c, a, D, regime); ranks > 0) {
        // A GPC holds one cluster of that size; halves change no bits.
        const bool halves = a.T <= kHalvedRows && 2 * ranks <= c.cluster_blocks;
        result = halves ? launch_wide<kTurn, 2>(a, ranks, stream)
                        : launch_wide<kTurn, 1>(a, ranks, stream);
        return result == cudaSuccess ? launched(op) : cuda_status(result, op);
    }
    if (flows(c, a, D, regime)) {
        result = launch_flow<kTurn>(c, a, stream);
        return result == cudaSuccess ? launched(op) : cuda_status(result, op);
    }
    switch (D) {
        case 64:
            result = launch<64, 1, kTurn>(a, cluster, stream);
            break;
        case 128:
            result = launch<128, 1, kTurn>(a, cluster, stream);
            break;
        case 256:
            result = launch<256, 1, kTurn>(a, cluster, stream);
            break;
        case 512:
            result = two ? launch<512, 2, kTurn>(a, cluster, stream)
                         : launch<512, 1, kTurn>(a, cluster, stream);
            break;
        default:
            if constexpr (!kTurn) {
                if (D == 32) {
                    result = launch<32, 1, kTurn>(a, cluster, stream);
                    break;
                }
            }
            return error(Code::unsupported, "{}: D is {}, expected 64, 128, 256 or 512", op, D);
    }
    if (result != cudaSuccess) {
        return cuda_status(result, op);
    }
    return launched(op);
}

}  // namespace tenon::cuda::sparse
