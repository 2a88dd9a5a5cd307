// SPDX-License-Identifier: MIT
// Barriers, bulk copies, clusters and dependent launches, as thin wrappers over PTX.
#pragma once

#include <cstdint>

#include "arch.cuh"

namespace tenon::cuda::async {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals));
}
/// Before a barrier is initialised again.
__device__ __forceinline__ void barrier_end(uint64_t* barrier) {
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
    if constexpr (kHasBulkCopies) {
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
}
/// One thread begins a phase of a barrier for one arrival: barrier_expect, its bulk_loads of
/// `bytes` in all, loads_sent.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    if constexpr (kHasBulkCopies) {
        asm volatile(
            "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
            "r"(bytes)
            : "memory");
    }
}
/// One arrival without loads.
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void loads_sent(uint64_t* barrier) {
    if constexpr (!kHasBulkCopies) {  // arrives when the copies of this thread have
        asm volatile(
            "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
            : "memory");
    }
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
    if constexpr (kHasBulkCopies) {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "AGAIN:\n\t"
            "mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n\t"
            "@p bra DONE;\n\t"
            "bra AGAIN;\n\t"
            "DONE:\n\t}" ::"r"(shared_address(barrier)),
            "r"(parity)
            : "memory");
    } else {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "AGAIN:\n\t"
            "mbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n\t"
            "@p bra DONE;\n\t"
            "bra AGAIN;\n\t"
            "DONE:\n\t}" ::"r"(shared_address(barrier)),
            "r"(parity)
            : "memory");
    }
}
__device__ __forceinline__ uint64_t read_once_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/// 16 bytes at a time, by this thread alone.
__device__ __forceinline__ void copy_in_pieces(void* to, const void* from, uint32_t bytes) {
#pragma unroll 4
    for (uint32_t at = 0; at < bytes; at += 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + at),
                     "l"(static_cast<const uint8_t*>(from) + at)
                     : "memory");
    }
}
/// Copies `bytes` (a multiple of 16) from global to shared memory; weights are read once. The
/// policy serves bulk copies only: ptxas 13.0 makes illegal instructions of 16-byte copies with
/// one.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier, uint64_t policy) {
    if constexpr (kHasBulkCopies) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
            "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
            : "memory");
    } else {
        copy_in_pieces(to, from, bytes);
    }
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
    if constexpr (kHasBulkCopies) {
        asm volatile(
            "{\n\t.reg .b64 policy;\n\t"
            "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n\t"
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], policy;\n\t}" ::"r"(shared_address(to)),
            "l"(from), "r"(bytes), "r"(shared_address(barrier))
            : "memory");
    } else {
        copy_in_pieces(to, from, bytes);
    }
}
/// As bulk_load for what others read too: it stays in the L2 cache as other data do.
__device__ __forceinline__ void bulk_load_kept(void* to, const void* from, uint32_t bytes,
                                               uint64_t* barrier) {
    if constexpr (kHasBulkCopies) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
            "[%3];" ::"r"(shared_address(to)),
            "l"(from), "r"(bytes), "r"(shared_address(barrier))
            : "memory");
    } else {
        copy_in_pieces(to, from, bytes);
    }
}
/// Copies `bytes` (a multiple of 512) of a warp's shared memory, written by all of it, to global
/// memory. Returns when the shared memory may be written again.
__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes, int lane) {
    if constexpr (kHasBulkCopies) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) {
            asm volatile(
                "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                "cp.async.bulk.commit_group;\n"
                "cp.async.bulk.wait_group 0;" ::"l"(to),
                "r"(shared_address(from)), "r"(bytes)
                : "memory");
        }
    } else {
        __syncwarp();
        for (uint32_t at = 16 * lane; at < bytes; at += 512) {
            *reinterpret_cast<uint4*>(static_cast<uint8_t*>(to) + at) =
                *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(from) + at);
        }
    }
}

__device__ __forceinline__ void cluster_arrive(int blocks) {
    if (kHasClusters && blocks > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    }
}
__device__ __forceinline__ void cluster_wait(int blocks) {
    if (kHasClusters && blocks > 1) {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
}
__device__ __forceinline__ void cluster_sync(int blocks) {
    if (blocks > 1) {
        cluster_arrive(blocks);
        cluster_wait(blocks);
    } else {
        __syncthreads();
    }
}
/// Writes into the shared memory of block `rank` of the cluster, at the same place as `to` here.
__device__ __forceinline__ void store_cluster(float* to, int rank, int blocks, float value) {
    if (!kHasClusters || blocks == 1) {
        *to = value;
        return;
    }
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(remote)
                 : "r"(shared_address(to)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
}

/// True in one lane of a whole warp, in a form that the compiler knows to be that.
__device__ __forceinline__ bool elect_lane() {
    if constexpr (kArch < 90) {
        return threadIdx.x % 32 == 0;
    }
    uint32_t elected;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xFFFFFFFF;\n\tselp.b32 %0, 1, 0, p;\n\t}"
                 : "=r"(elected));
    return elected != 0;
}

/// Dependent launch: everything before this call may overlap the previous kernel of the stream.
__device__ __forceinline__ void wait_for_previous_kernel() {
    if constexpr (kHasDependentLaunch) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }
}
__device__ __forceinline__ void let_next_kernel_start() {
    if constexpr (kHasDependentLaunch) {
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    }
}

}  // namespace tenon::cuda::async
