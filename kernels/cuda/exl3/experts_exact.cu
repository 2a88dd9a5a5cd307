// SPDX-License-Identifier: MIT
// Routed experts and the shared one in two launches, codebook mul1, up to four tokens:
//   up    gate and up projections, activation, input rotation of the down projection
//   down  down projection; the last block of a column range adds the slots of each token in order
// Products are exact integers as in exact.cuh; every rate is in the same kernel, so that experts of
// different rates run side by side.
#include "exact.cuh"
#include "experts_exact.h"
#include "linear.h"

namespace tenon::exl3::cuda {

namespace {

constexpr int kTokens = kExpertTokens;
constexpr int kRowsAtOnce = 4;  // of one expert: one n8 block

struct ExpertHeader {
    ExactHeader exact;
    int entry_of[kTokens * kMostSlots];  // rows of this expert, all of them
    int rows_all;
    int is_last;
};

struct ExpertLayout {
    int ring, staged, slots, other, total;
};

TENON_HD constexpr int expert_stages(int twice_k) {
    return twice_k <= 6 ? 3 : 2;
}

/// `rows`: of an expert at once, at most kRowsAtOnce.
TENON_HD constexpr ExpertLayout expert_layout(int twice_k_most, int k, int rows) {
    ExpertLayout l{};
    int at = (static_cast<int>(sizeof(ExpertHeader)) + 127) / 128 * 128;
    l.ring = at;
    at += kExactWarps * expert_stages(twice_k_most) * unit_words(twice_k_most) * 4;
    l.slots = at;  // int [2 rows][128]
    at += 2 * rows * kSlotStride * 4;
    l.staged = at;
    at += k / 16 * tile_bytes(1, rows);
    l.other = at;  // f32 [4][128], the up projection of a cluster
    at += kRowsAtOnce * kBlock * 4;
    l.total = at;
    return l;
}

__device__ __forceinline__ float round_bf16(float v) {
    return __bfloat162float(__float2bfloat16_rn(v));
}

// The expert of this block's entry and the entries that chose it; false if another block has them
// or nobody does. Entries are row * (k + 1) + slot.
__device__ bool find_rows(const ExpertStep& c, ExpertHeader& h, int* expert) {
    const int routed = c.rows * c.k;
    const int entry = blockIdx.z;
    const int id = entry < routed ? c.ids[entry] : c.experts;
    *expert = id;
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        int found = 0;
        bool is_first = id >= 0 && (entry >= routed || id < c.experts);
        if (is_first && c.down[id].words == nullptr) {
            is_first = false;  // on another rank
        }
        if (entry >= routed) {
            if (lane < c.rows) {
                h.entry_of[lane] = lane * (c.k + 1) + c.k;
            }
            found = c.rows;
        } else {
            for (int base = 0; base < routed; base += 32) {
                const int i = base + lane;
                const bool match = i < routed && c.ids[i] == id;
                const unsigned int mask = __ballot_sync(0xFFFFFFFFu, match);
                if (entry >= base + 32) {
                    is_first = is_first && mask == 0;
                } else if (entry >= base) {
                    is_first = is_first && (mask & ((1u << (entry - base)) - 1)) == 0;
                }
                if (match) {
                    h.entry_of[found + __popc(mask & ((1u << lane) - 1))] =
                        i / c.k * (c.k + 1) + i % c.k;
                }
                found += __popc(mask);
            }
        }
        if (lane == 0) {
            h.rows_all = is_first ? found : 0;
        }
    }
    __syncthreads();
    return h.rows_all > 0;
}

// State of one warp's ring.
struct Ring {
    uint64_t* full;
    uint8_t* data;
    int stages, stage = 0;
    uint32_t parity = 0;
    int fetched = 0, fetch_stage = 0;
};

struct Columns {
    const uint32_t* words;
    int twice_k, units_k, block;
    int split, half, mine;
};

__device__ __forceinline__ void fetch(const Columns& c, Ring& r) {
    const int words = unit_words(c.twice_k);
    const int64_t unit = unit_index(c.units_k, c.split + r.fetched * 8, 2 * c.block + c.half);
    barrier_expect(r.full + r.fetch_stage, words * 4);
    bulk_load(r.data + r.fetch_stage * words * 4, c.words + unit * words, words * 4,
              r.full + r.fetch_stage);
    r.fetch_stage = r.fetch_stage + 1 == r.stages ? 0 : r.fetch_stage + 1;
    ++r.fetched;
}

template <int kTwiceK>
__device__ __forceinline__ void decode_columns(const Columns& c, Ring& r, const uint8_t* staged,
                                               int rows_held, int rows, int* slot) {
    const int lane = threadIdx.x % 32;
    const int staged_tile = tile_bytes(1, rows_held);
    int sums[4][1][4] = {};
    for (int i = 0; i < c.mine; ++i) {
        barrier_wait(r.full + r.stage, r.parity);
        uint32_t runs[4][run_registers(kTwiceK)];
        load_runs<kTwiceK>(
            reinterpret_cast<const uint32_t*>(r.data + r.stage * unit_words(kTwiceK) * 4), lane,
            runs);
        __syncwarp();
        if (lane == 0 && r.fetched < c.mine) {
            fetch(c, r);
        }
        if (++r.stage == r.stages) {
            r.stage = 0;
            r.parity ^= 1;
        }
        uint32_t x[1][4];
        load_digits(staged + ((c.split + i * 8) * 4 + lane % 4) * staged_tile, rows_held, x[0]);
        exact_steps<kTwiceK, 1>(runs, x, sums, std::make_integer_sequence<int, 8>{});
    }
    add_sums<1>(sums, rows, slot, c.half);
}

__device__ __forceinline__ void decode_any(const Columns& c, Ring& r, const uint8_t* staged,
                                           int rows_held, int rows, int* slot) {
    switch (c.twice_k) {
        case 2:
            return decode_columns<2>(c, r, staged, rows_held, rows, slot);
        case 3:
            return decode_columns<3>(c, r, staged, rows_held, rows, slot);
        case 4:
            return decode_columns<4>(c, r, staged, rows_held, rows, slot);
        case 5:
            return decode_columns<5>(c, r, staged, rows_held, rows, slot);
        case 6:
            return decode_columns<6>(c, r, staged, rows_held, rows, slot);
        case 7:
            return decode_columns<7>(c, r, staged, rows_held, rows, slot);
        case 8:
            return decode_columns<8>(c, r, staged, rows_held, rows, slot);
        case 10:
            return decode_columns<10>(c, r, staged, rows_held, rows, slot);
        case 12:
            return decode_columns<12>(c, r, staged, rows_held, rows, slot);
        case 14:
            return decode_columns<14>(c, r, staged, rows_held, rows, slot);
        default:
            return decode_columns<16>(c, r, staged, rows_held, rows, slot);
    }
}

__device__ __forceinline__ Columns columns_of(const Weight& w, int block) {
    const int warp = threadIdx.x / 32;
    Columns c{};
    c.words = w.words;
    c.twice_k = w.twice_k;
    c.units_k = w.k / kUnit;
    c.block = block;
    c.split = warp % 8;
    c.half = warp / 8;
    c.mine = c.split < c.units_k ? (c.units_k - c.split + 7) / 8 : 0;
    return c;
}

// Four columns of a row: the products of a block, output rotation and scale applied.
__device__ __forceinline__ void finish_row(int* slots, const ExactHeader& h, int row, uint2 svh,
                                           float (&v)[4]) {
    const int lane = threadIdx.x % 32;
    const float unit = __uint_as_float(h.most[row]) * (1.0f / kFixedMax) * 0x1p-18f * 0x1p-7f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        v[j] = static_cast<float>(take_sum(slots, row, 4 * lane + j, h.total[row])) * unit;
    }
    rotate128(v, lane);
    scale_by(svh, v);
}

__device__ __forceinline__ void reset(ExpertHeader& h, int* slots, int rows_held, int rows) {
    for (int i = threadIdx.x; i < 2 * rows * kSlotStride; i += kExactThreads) {
        slots[i] = 0;
    }
    if (threadIdx.x < kRowsAtOnce) {
        h.exact.most[threadIdx.x] = 0;
        h.exact.total[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0) {
        h.exact.rows = rows;
        h.exact.tile_bytes = tile_bytes(1, rows_held);
    }
}

// A ring for each warp, its first units under way.
__device__ __forceinline__ Ring open_ring(const Columns& c, ExpertHeader& h, uint8_t* base,
                                          int twice_k_most) {
    const int warp = threadIdx.x / 32;
    Ring r{};
    r.stages = expert_stages(twice_k_most);
    r.full = h.exact.full + warp * kMostStages;
    r.data = base + warp * r.stages * unit_words(twice_k_most) * 4;
    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < r.stages; ++i) {
            barrier_init(r.full + i, 1);
        }
        fence_barrier_init();
        while (r.fetched < r.stages && r.fetched < c.mine) {
            fetch(c, r);
        }
    }
    return r;
}

// Grid (2, blocks of the width, entries), clusters of 2: block 0 the gate, block 1 the up
// projection.
__global__ void __launch_bounds__(kExactThreads, 2)
    up_kernel(const __grid_constant__ ExpertStep c) {
    extern __shared__ __align__(128) uint8_t smem[];
    auto& h = *reinterpret_cast<ExpertHeader*>(smem);
    const ExpertLayout layout = expert_layout(c.twice_k_up, c.k_up, c.rows);
    const int rank = blockIdx.x;
    const int block = blockIdx.y;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    cluster_arrive(2);
    wait_for_previous_kernel();  // it may have written ids and x, and read scratch
    let_next_kernel_start();
    if (rank == 0 && block == 0 && blockIdx.z == 0) {
        for (int i = threadIdx.x; i < c.blocks_down; i += kExactThreads) {
            c.arrived[i] = 0;
        }
    }
    int id = -1;
    if (!find_rows(c, h, &id)) {
        cluster_wait(2);
        return;
    }
    const Weight w = rank == 0 ? c.gate[id] : c.up[id];
    const uint16_t* down_suh = c.down[id].suh;
    const Columns columns = columns_of(w, block);
    Ring ring = open_ring(columns, h, smem + layout.ring, c.twice_k_up);
    uint8_t* staged = smem + layout.staged;
    auto* slots = reinterpret_cast<int*>(smem + layout.slots);
    auto* other = reinterpret_cast<float*>(smem + layout.other);
    const int column = block * kBlock + 4 * lane;
    const uint2 svh = *reinterpret_cast<const uint2*>(w.svh + column);
    cluster_wait(2);

    for (int base = 0; base < h.rows_all; base += c.rows) {
        const int rows = min(h.rows_all - base, c.rows);
        if (base > 0 && lane == 0) {
            ring.fetched = 0;
            while (ring.fetched < ring.stages && ring.fetched < columns.mine) {
                fetch(columns, ring);
            }
        }
        reset(h, slots, c.rows, rows);
        if (threadIdx.x < rows) {
            h.exact.x_row[threadIdx.x] = h.entry_of[base + threadIdx.x] / (c.k + 1);
        }
        __syncthreads();
        stage_exact({c.x, c.x_stride, Element::bf16, w.suh, w.k, w.in}, 0, w.k, 1, false, h.exact,
                    staged);
        decode_any(columns, ring, staged, c.rows, rows, slots);
        __syncthreads();
        float v[4] = {};
        if (warp < rows) {
            finish_row(slots, h.exact, warp, svh, v);
            if (rank == 1) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    store_cluster(other + warp * kBlock + 4 * lane + j, 0, 2, v[j]);
                }
            }
        }
        cluster_sync(2);
        if (rank == 0 && warp < rows) {
            const int entry = h.entry_of[base + warp];
            const int slot = entry % (c.k + 1);
            const float weight = slot == c.k ? 1.0f : c.weights[entry / (c.k + 1) * c.k + slot];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float gate = round_bf16(v[j]);
                float up = round_bf16(other[warp * kBlock + 4 * lane + j]);
                if (c.limit > 0) {
                    gate = gate > c.limit ? c.limit : gate;
                    up = up < -c.limit ? -c.limit : (up > c.limit ? c.limit : up);
                }
                const double z = gate;
                const auto silu = static_cast<float>(z / (1.0 + exp(-z)));
                v[j] = column + j < c.width ? round_bf16(weight * silu * up) : 0.0f;
            }
            scale_by(down_suh + column, v);
            rotate128(v, lane);
            *reinterpret_cast<float4*>(c.rotated + int64_t{entry} * c.k_down + column) =
                make_float4(v[0], v[1], v[2], v[3]);
        }
        if (base + c.rows < h.rows_all) {
            cluster_sync(2);  // `other` is read before it is written again
        }
    }
}

// Rows that are rotated already, as digits.
__device__ __forceinline__ void stage_rotated(const float* x, int64_t stride, int k, ExactHeader& h,
                                              uint8_t* staged) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int blocks = k / kBlock;
#pragma unroll 2
    for (int task = warp; task < h.rows * blocks; task += kExactWarps) {
        const float4 v = *reinterpret_cast<const float4*>(x + h.x_row[task / blocks] * stride +
                                                          task % blocks * kBlock + 4 * lane);
        unsigned int most =
            max(max(__float_as_uint(v.x) & 0x7FFFFFFFu, __float_as_uint(v.y) & 0x7FFFFFFFu),
                max(__float_as_uint(v.z) & 0x7FFFFFFFu, __float_as_uint(v.w) & 0x7FFFFFFFu));
        most = __reduce_max_sync(0xFFFFFFFFu, most);
        if (lane == 0) {
            atomicMax(&h.most[task / blocks], most);
        }
    }
    __syncthreads();
#pragma unroll 2
    for (int task = warp; task < h.rows * blocks; task += kExactWarps) {
        const int row = task / blocks;
        const int at = task % blocks * kBlock + 4 * lane;
        const float4 v = *reinterpret_cast<const float4*>(x + h.x_row[row] * stride + at);
        write_digits(v, row, at, k, h, staged);
    }
    __syncthreads();
}

// Grid (1, blocks of the hidden size, entries).
__global__ void __launch_bounds__(kExactThreads, 2)
    down_kernel(const __grid_constant__ ExpertStep c) {
    extern __shared__ __align__(128) uint8_t smem[];
    auto& h = *reinterpret_cast<ExpertHeader*>(smem);
    const ExpertLayout layout = expert_layout(c.twice_k_down, c.k_down, c.rows);
    const int block = blockIdx.y;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int column = block * kBlock + 4 * lane;
    // ids and weights were ready before the first launch, so only the rotated rows must be waited
    // for.
    int id = -1;
    if (find_rows(c, h, &id)) {
        const Weight w = c.down[id];
        const Columns columns = columns_of(w, block);
        Ring ring = open_ring(columns, h, smem + layout.ring, c.twice_k_down);
        uint8_t* staged = smem + layout.staged;
        auto* slots = reinterpret_cast<int*>(smem + layout.slots);
        const uint2 svh = *reinterpret_cast<const uint2*>(w.svh + column);
        wait_for_previous_kernel();
        let_next_kernel_start();
        for (int base = 0; base < h.rows_all; base += c.rows) {
            const int rows = min(h.rows_all - base, c.rows);
            if (base > 0 && lane == 0) {
                ring.fetched = 0;
                while (ring.fetched < ring.stages && ring.fetched < columns.mine) {
                    fetch(columns, ring);
                }
            }
            reset(h, slots, c.rows, rows);
            if (threadIdx.x < rows) {
                h.exact.x_row[threadIdx.x] = h.entry_of[base + threadIdx.x];
            }
            __syncthreads();
            stage_rotated(c.rotated, c.k_down, w.k, h.exact, staged);
            decode_any(columns, ring, staged, c.rows, rows, slots);
            __syncthreads();
            if (warp < rows) {
                float v[4];
                finish_row(slots, h.exact, warp, svh, v);
                *reinterpret_cast<float4*>(
                    c.products + int64_t{h.entry_of[base + warp]} * c.product_stride + column) =
                    make_float4(v[0], v[1], v[2], v[3]);
            }
            __syncthreads();
        }
    } else {
        wait_for_previous_kernel();
        let_next_kernel_start();
    }
    // The last block of this column range sees all products.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        h.is_last = atomicAdd(&c.arrived[block], 1u) == gridDim.z - 1 ? 1 : 0;
    }
    __syncthreads();
    if (h.is_last == 0) {
        return;
    }
    __threadfence();
    for (int i = threadIdx.x; i < c.rows * kBlock; i += kExactThreads) {
        const int row = i / kBlock;
        const int at = block * kBlock + i % kBlock;
        if (at >= c.hidden) {
            continue;
        }
        float sum = 0;
        for (int slot = 0; slot <= c.k; ++slot) {
            const int chosen = slot == c.k ? c.experts : c.ids[row * c.k + slot];
            if (chosen < 0 || (slot < c.k && chosen >= c.experts) ||
                c.down[chosen].words == nullptr) {
                continue;
            }
            const float p =
                __ldcg(c.products + int64_t{row * (c.k + 1) + slot} * c.product_stride + at);
            sum += c.round ? round_bf16(p) : p;
        }
        c.out[row * c.out_stride + at] = sum;
    }
}

cudaError_t launch(void (*kernel)(ExpertStep), dim3 grid, int shared_bytes, int cluster,
                   const ExpertStep& c, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(kExactThreads);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned int>(cluster), 1, 1};
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, c);
}

}  // namespace

bool experts_fit(int twice_k_up, int k_up, int twice_k_down, int k_down, int k) {
    return k <= kMostSlots && expert_layout(twice_k_up, k_up, kRowsAtOnce).total <= shared_most() &&
           expert_layout(twice_k_down, k_down, kRowsAtOnce).total <= shared_most();
}

cudaError_t run_experts(const ExpertStep& c, cudaStream_t stream) {
    static const cudaError_t ready = [] {
        const cudaError_t first = cudaFuncSetAttribute(
            up_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_most());
        return first != cudaSuccess
                   ? first
                   : cudaFuncSetAttribute(down_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          shared_most());
    }();
    if (ready != cudaSuccess) {
        return ready;
    }
    const auto entries = static_cast<unsigned int>(c.rows * c.k + 1);
    const cudaError_t status =
        launch(up_kernel, dim3(2, static_cast<unsigned int>(c.k_down / kBlock), entries),
               expert_layout(c.twice_k_up, c.k_up, c.rows).total, 2, c, stream);
    return status != cudaSuccess
               ? status
               : launch(down_kernel, dim3(1, static_cast<unsigned int>(c.blocks_down), entries),
                        expert_layout(c.twice_k_down, c.k_down, c.rows).total, 1, c, stream);
}

}  // namespace tenon::exl3::cuda
