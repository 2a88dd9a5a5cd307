// SPDX-License-Identifier: MIT
// Experts for many rows: sort, rotate, gate and up, activation, down, ordered sum.
#include "prefill_experts.h"

#include <algorithm>

#include "device_state.h"
#include "linear.h"
#include "prefill.h"
#include "prefill_grouped.h"
#include "prefill_rotate.cuh"

namespace tenon::exl3::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kSortWarps = 4;

/// Where the row of an entry stands in sorted order; slot -1: no expert here.
struct Place {
    int32_t slot, tile;
};

struct Sort {
    int32_t rows, k, experts;
    int32_t tile_rows;  // most of a tile
    const int32_t* ids;
    const Weight* table;
    int32_t* count;      // [experts]
    ExpertTile* tiles;   // [most_tiles]
    int32_t* tile_ends;  // [kTileClasses]
    int32_t* entry_of;   // [slots]
    Place* place;        // [rows * k]
};

constexpr int kSortAhead = 32;  ///< ids that a lane has in flight

// A warp an expert: how many entries chose it.
__global__ void count_kernel(const __grid_constant__ Sort s) {
    const int expert = static_cast<int>(blockIdx.x) * kSortWarps + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (expert >= s.experts) {
        return;
    }
    int count = 0;
    if (s.table[expert].words != nullptr) {
#pragma unroll kSortAhead
        for (int i = lane; i < s.rows * s.k; i += 32) {
            count += __ldg(s.ids + i) == expert ? 1 : 0;
        }
        count = __reduce_add_sync(0xFFFFFFFFu, count);
    }
    if (lane == 0) {
        s.count[expert] = count;
    }
}

// A warp an expert: its slots, in the order of entries, and its tiles.
__global__ void place_kernel(const __grid_constant__ Sort s) {
    const int expert = static_cast<int>(blockIdx.x) * kSortWarps + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (expert >= s.experts) {
        return;
    }
    const int full_class = tile_class(s.tile_rows);
    int slot0 = 0;
    int before[kTileClasses] = {}, all[kTileClasses] = {};  // tiles of experts before, of all
    for (int e = lane; e < s.experts; e += 32) {
        const int full = s.count[e] / s.tile_rows;
        const int rest = s.count[e] % s.tile_rows;
#pragma unroll
        for (int c = 0; c < kTileClasses; ++c) {
            const int tiles =
                (c == full_class ? full : 0) + (rest > 0 && c == tile_class(rest) ? 1 : 0);
            all[c] += tiles;
            before[c] += e < expert ? tiles : 0;
        }
        slot0 += e < expert ? (s.count[e] + kExpertPad - 1) / kExpertPad * kExpertPad : 0;
    }
    slot0 = __reduce_add_sync(0xFFFFFFFFu, slot0);
    int end = 0;
    int full0 = 0, rest0 = 0;
    const int count = s.count[expert];
    const int full = count / s.tile_rows;
    const int rest = count % s.tile_rows;
#pragma unroll
    for (int c = 0; c < kTileClasses; ++c) {
        const int at = end + __reduce_add_sync(0xFFFFFFFFu, before[c]);
        end += __reduce_add_sync(0xFFFFFFFFu, all[c]);
        full0 = c == full_class ? at : full0;
        rest0 = c == tile_class(rest) ? at + (c == full_class ? full : 0) : rest0;
        if (expert == 0 && lane == 0) {
            s.tile_ends[c] = end;
        }
    }
    for (int t = lane; t < full; t += 32) {
        s.tiles[full0 + t] = {expert, slot0 + t * s.tile_rows, s.tile_rows, s.tile_rows};
    }
    if (rest > 0 && lane == 0) {
        s.tiles[rest0] = {expert, slot0 + full * s.tile_rows, rest,
                          (rest + kExpertPad - 1) / kExpertPad * kExpertPad};
    }
    const int entries = s.rows * s.k;
    int seen = 0;
    for (int base = 0; base < entries && seen < count; base += 32 * kSortAhead) {
        int ids[kSortAhead];
#pragma unroll
        for (int j = 0; j < kSortAhead; ++j) {
            const int i = base + 32 * j + lane;
            ids[j] = i < entries ? __ldg(s.ids + i) : -1;
        }
#pragma unroll
        for (int j = 0; j < kSortAhead; ++j) {
            const bool match = ids[j] == expert;
            const unsigned int mask = __ballot_sync(0xFFFFFFFFu, match);
            if (match) {
                const int entry = base + 32 * j + lane;
                const int rank = seen + __popc(mask & ((1u << lane) - 1));
                const int tile = rank / s.tile_rows;
                s.entry_of[slot0 + rank] = entry;
                s.place[entry] = {slot0 + rank, tile < full ? full0 + tile : rest0};
            }
            seen += __popc(mask);
        }
    }
}

// Entries that no expert here works for.
__global__ void skip_kernel(const __grid_constant__ Sort s) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < s.rows * s.k) {
        const int id = s.ids[i];
        if (id < 0 || id >= s.experts || s.table[id].words == nullptr) {
            s.place[i] = {-1, -1};
        }
    }
}

// Four columns of a row of a tile, in the order of prefill_grouped.cuh.
__device__ __forceinline__ void store_sorted(uint8_t* panel, const ExpertTile& tile, int row,
                                             int64_t k, int column, uint32_t low, uint32_t high) {
    const int t = column % kUnit / 16;
    const int s = column % 8 / 2;
    const int h = column % 16 / 8;
    uint8_t* at = panel + tile.slot0 * k * 2 + int64_t{column / kUnit} * tile.padded * 128;
    *reinterpret_cast<uint32_t*>(at + gemm::cuda::chunk_at(row, 2 * s + h) + 4 * t) = low;
    *reinterpret_cast<uint32_t*>(at + gemm::cuda::chunk_at(row, 2 * s + 2 + h) + 4 * t) = high;
}

// Adds two halves to a thread's part of the sum of a row.
__device__ __forceinline__ void add_halves(uint32_t pair, float& sum) {
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    sum = __fadd_rn(sum, __fadd_rn(v.x, v.y));
}

// The sum of a row in a fixed order, in thread 0: lanes by a tree, then warps.
__device__ __forceinline__ float sum_of_row(float part) {
    __shared__ float parts[kThreads / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        part += __shfl_xor_sync(0xFFFFFFFFu, part, step);
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = part;
    }
    __syncthreads();
    float sum = parts[0];
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) {
        sum += parts[i];
    }
    return sum;
}

struct RotateUp {
    const void* x;
    int64_t x_stride;
    int32_t k, in, slots;  // slots of a row
    const Weight* table[2];
    uint8_t* panel[2];
    float *scale[2], *sum[2];
    const Place* place;
    const ExpertTile* tiles;
};

// Grid (entries, gate and up).
__global__ void __launch_bounds__(kThreads) rotate_up_kernel(const __grid_constant__ RotateUp c) {
    __shared__ unsigned int most;
    const Place place = c.place[blockIdx.x];
    if (place.slot < 0) {
        return;
    }
    const int side = blockIdx.y;
    const ExpertTile tile = c.tiles[place.tile];
    const int64_t row = blockIdx.x / c.slots;
    if (threadIdx.x == 0) {
        most = 0;
    }
    __syncthreads();
    float part = 0;
    const float inverse = rotate_row(
        c.k, c.table[side][tile.expert].suh, &most,
        [&](int at, float(&v)[4]) {
            load_x4(c.x, Element::bf16, row * c.x_stride + at, c.in - at, v);
        },
        [&](int at, uint32_t low, uint32_t high) {
            add_halves(low, part);
            add_halves(high, part);
            store_sorted(c.panel[side], tile, place.slot - tile.slot0, c.k, at, low, high);
        });
    const float sum = sum_of_row(part);
    if (threadIdx.x == 0) {
        c.scale[side][place.slot] = inverse;
        c.sum[side][place.slot] = sum;
    }
}

__device__ __forceinline__ float activation(float gate, float up, float weight, float limit) {
    if (limit > 0) {
        gate = gate > limit ? limit : gate;
        up = up < -limit ? -limit : (up > limit ? limit : up);
    }
    const float silu = gate / (1.0f + expf(-gate));
    return __bfloat162float(__float2bfloat16_rn(weight * silu * up));
}

struct Activate {
    const __nv_bfloat16 *gate, *up;  // by slot
    int64_t stride;
    int32_t width, k;
    const float* weights;  // by entry
    float limit;
    const Weight* table;
    uint8_t* panel;
    float *scale, *sum;
    const Place* place;
    const ExpertTile* tiles;
};

// A block an entry: a = bf16(weight silu(g) u), rotated for the down projection.
__global__ void __launch_bounds__(kThreads) activate_kernel(const __grid_constant__ Activate c) {
    extern __shared__ float a[];  // [k]
    __shared__ unsigned int most;
    const Place place = c.place[blockIdx.x];
    if (place.slot < 0) {
        return;
    }
    const ExpertTile tile = c.tiles[place.tile];
    const float weight = c.weights[blockIdx.x];
    if (threadIdx.x == 0) {
        most = 0;
    }
    for (int i = threadIdx.x; i < c.k; i += kThreads) {
        const int64_t at = place.slot * c.stride + i;
        a[i] = i < c.width ? activation(__bfloat162float(c.gate[at]), __bfloat162float(c.up[at]),
                                        weight, c.limit)
                           : 0.0f;
    }
    __syncthreads();
    float part = 0;
    const float inverse = rotate_row(
        c.k, c.table[tile.expert].suh, &most,
        [&](int at, float(&v)[4]) {
            const float4 four = *reinterpret_cast<const float4*>(a + at);
            v[0] = four.x;
            v[1] = four.y;
            v[2] = four.z;
            v[3] = four.w;
        },
        [&](int at, uint32_t low, uint32_t high) {
            add_halves(low, part);
            add_halves(high, part);
            store_sorted(c.panel, tile, place.slot - tile.slot0, c.k, at, low, high);
        });
    const float sum = sum_of_row(part);
    if (threadIdx.x == 0) {
        c.scale[place.slot] = inverse;
        c.sum[place.slot] = sum;
    }
}

// The shared expert: g becomes a, in place.
__global__ void __launch_bounds__(kThreads)
    activate_shared_kernel(__nv_bfloat16* gate, const __nv_bfloat16* up, int64_t count,
                           float limit) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i < count) {
        gate[i] = __float2bfloat16_rn(
            activation(__bfloat162float(gate[i]), __bfloat162float(up[i]), 1.0f, limit));
    }
}

struct Combine {
    const void* products;  // by entry
    const void* shared;    // by row, or null
    int64_t stride;        // of both, a multiple of 8
    bool is_f32;
    int32_t width, slots;
    const Place* place;
    float* out;
    int64_t out_stride;
};

__device__ __forceinline__ void add_product(const void* products, bool is_f32, int64_t at,
                                            float (&sum)[4]) {
    float p[4];
    if (is_f32) {
        const float4 four =
            *reinterpret_cast<const float4*>(static_cast<const float*>(products) + at);
        p[0] = four.x;
        p[1] = four.y;
        p[2] = four.z;
        p[3] = four.w;
    } else {
        load_x4(products, Element::bf16, at, 4, p);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum[i] += p[i];
    }
}

// Grid (columns / 4, rows): slots ascending, then the shared expert.
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ Combine c) {
    const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * 4;
    if (column >= c.width) {
        return;
    }
    const int64_t row = blockIdx.y;
    float sum[4] = {};
    for (int slot = 0; slot < c.slots; ++slot) {
        const int64_t entry = row * c.slots + slot;
        if (c.place[entry].slot >= 0) {
            add_product(c.products, c.is_f32, entry * c.stride + column, sum);
        }
    }
    if (c.shared != nullptr) {
        add_product(c.shared, c.is_f32, row * c.stride + column, sum);
    }
    for (int i = 0; i < 4 && column + i < c.width; ++i) {
        c.out[row * c.out_stride + column + i] = sum[i];
    }
}

cudaError_t multiply(const GroupedCall& call, const ExpertKind* kinds, int count,
                     cudaStream_t stream) {
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < count && status == cudaSuccess; ++i) {
        const Code code = kinds[i].code;
        switch (kinds[i].twice_k) {
            case 2:
                status = grouped<2>(call, code, stream);
                break;
            case 3:
                status = grouped<3>(call, code, stream);
                break;
            case 4:
                status = grouped<4>(call, code, stream);
                break;
            case 5:
                status = grouped<5>(call, code, stream);
                break;
            case 6:
                status = grouped<6>(call, code, stream);
                break;
            case 7:
                status = grouped<7>(call, code, stream);
                break;
            case 8:
                status = grouped<8>(call, code, stream);
                break;
            case 10:
                status = grouped<10>(call, code, stream);
                break;
            case 12:
                status = grouped<12>(call, code, stream);
                break;
            case 14:
                status = grouped<14>(call, code, stream);
                break;
            case 16:
                status = grouped<16>(call, code, stream);
                break;
            default:
                status = cudaErrorInvalidValue;
        }
    }
    return status;
}

constexpr int64_t padded(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

/// Parts of the scratch; null without a base.
struct Parts {
    uint8_t* panel[2] = {};  // rotated rows of gate and up; later the products
    void* products = nullptr;
    uint8_t* down_panel = nullptr;
    __nv_bfloat16* gated[2] = {};
    float* scale[2] = {};
    float* sum[2] = {};
    float* down_scale = nullptr;
    float* down_sum = nullptr;
    int32_t* count = nullptr;
    int32_t* tile_ends = nullptr;
    ExpertTile* tiles = nullptr;
    int32_t* entry_of = nullptr;
    Place* place = nullptr;
    __nv_bfloat16* shared_gated[2] = {};
    void* shared_product = nullptr;
    uint8_t* linear = nullptr;  // of the shared expert
    int64_t linear_w = 0;       // bytes of decoded weights in it
    int32_t most_tiles = 0;
    int64_t width_stride = 0, product_stride = 0;
    int64_t bytes = 0;
};

Parts lay_out(const ExpertPrefill& c, void* base) {
    Parts p;
    const int64_t rows = std::min<int64_t>(c.rows, kExpertRows);
    const int64_t entries = rows * c.k;
    const int64_t used = std::min<int64_t>(c.experts, entries);
    const int64_t slots = padded(entries + used * (kExpertPad - 1), kExpertPad);
    p.most_tiles = static_cast<int32_t>(entries / kExpertTileLess + used);
    p.width_stride = padded(c.width, 8);
    p.product_stride = padded(c.hidden, 8);
    auto* bytes = static_cast<uint8_t*>(base);
    const auto take = [&](auto*& part, int64_t size) {
        if (bytes != nullptr) {
            part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(bytes + p.bytes);
        }
        p.bytes += padded(size, 1024);
    };
    // Products may be f32 at any call, whatever c.round says now.
    const int64_t panel = padded(slots * c.k_up * 2, 1024);
    const int64_t products = entries * p.product_stride * 4;
    take(p.panel[0], panel);
    take(p.panel[1], std::max(panel, products - panel));
    p.products = p.panel[0];
    take(p.down_panel, slots * c.k_down * 2);
    take(p.gated[0], slots * p.width_stride * 2);
    take(p.gated[1], slots * p.width_stride * 2);
    take(p.scale[0], slots * 4);
    take(p.scale[1], slots * 4);
    take(p.down_scale, slots * 4);
    take(p.sum[0], slots * 4);
    take(p.sum[1], slots * 4);
    take(p.down_sum, slots * 4);
    take(p.count, c.experts * 4);
    take(p.tile_ends, kTileClasses * 4);
    take(p.tiles, p.most_tiles * static_cast<int64_t>(sizeof(ExpertTile)));
    take(p.entry_of, slots * 4);
    take(p.place, entries * static_cast<int64_t>(sizeof(Place)));
    if (c.has_shared) {
        take(p.shared_gated[0], rows * p.width_stride * 2);
        take(p.shared_gated[1], rows * p.width_stride * 2);
        auto* product = static_cast<uint8_t*>(nullptr);
        take(product, rows * p.product_stride * 4);
        p.shared_product = product;
        p.linear_w = std::min(kPanelBytes, std::max(2 * prefill_w_bytes(c.width, c.k_up),
                                                    prefill_w_bytes(c.hidden, c.k_down)));
        take(p.linear,
             std::max(2 * prefill_x_bytes(rows, c.k_up), prefill_x_bytes(rows, c.k_down)) +
                 p.linear_w);
    }
    return p;
}

/// Jobs of one x with the weights of the shared expert, in as few calls as their kinds allow.
cudaError_t multiply_shared(const ExpertPrefill& c, const Parts& p, const Weight* weights,
                            int count, const void* x, int64_t x_stride, void* const* ys,
                            int64_t y_stride, Element y_element, cudaStream_t stream) {
    LinearCall call;
    call.rows = c.rows;
    call.scratch = p.linear;
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < count && status == cudaSuccess; ++i) {
        const Weight& w = weights[i];
        call.k = w.k;
        call.in = w.in;
        call.twice_k = w.twice_k;
        call.code = w.code;
        Job& job = call.jobs[call.job_count++];
        job = {};
        job.words = w.words;
        job.suh = w.suh;
        job.svh = w.svh;
        job.bias = w.bias;
        job.x = x;
        job.x_stride = x_stride;
        job.y = ys[i];
        job.y_stride = y_stride;
        job.y_element = y_element;
        job.out = w.out;
        const bool more = i + 1 < count && weights[i + 1].twice_k == w.twice_k &&
                          weights[i + 1].code == w.code && weights[i + 1].k == w.k;
        if (!more) {
            status = prefill(call, p.linear_w, stream);
            call.job_count = 0;
        }
    }
    return status;
}

cudaError_t run_shared(const ExpertPrefill& c, const Parts& p, cudaStream_t stream) {
    void* const gated[2] = {p.shared_gated[0], p.shared_gated[1]};
    cudaError_t status = multiply_shared(c, p, c.shared, 2, c.x, c.x_stride, gated, p.width_stride,
                                         Element::bf16, stream);
    if (status != cudaSuccess) {
        return status;
    }
    const int64_t count = c.rows * p.width_stride;
    activate_shared_kernel<<<static_cast<unsigned int>((count + kThreads - 1) / kThreads), kThreads,
                             0, stream>>>(p.shared_gated[0], p.shared_gated[1], count, c.limit);
    status = cudaGetLastError();
    if (status != cudaSuccess) {
        return status;
    }
    void* const product[1] = {p.shared_product};
    return multiply_shared(c, p, c.shared + 2, 1, p.shared_gated[0], p.width_stride, product,
                           p.product_stride, c.round ? Element::bf16 : Element::f32, stream);
}

int grouped_tile_rows() {
    return shared_most() >= kExpertTileShared ? kExpertTile : kExpertTileLess;
}

cudaError_t run_routed(const ExpertPrefill& c, const Parts& p, cudaStream_t stream) {
    const auto entries = static_cast<unsigned int>(c.rows * c.k);
    const Sort sort = {c.rows,  c.k,     c.experts,   grouped_tile_rows(), c.ids,  c.gate,
                       p.count, p.tiles, p.tile_ends, p.entry_of,          p.place};
    const auto experts = static_cast<unsigned int>((c.experts + kSortWarps - 1) / kSortWarps);
    count_kernel<<<experts, 32 * kSortWarps, 0, stream>>>(sort);
    skip_kernel<<<(entries + kThreads - 1) / kThreads, kThreads, 0, stream>>>(sort);
    place_kernel<<<experts, 32 * kSortWarps, 0, stream>>>(sort);
    const RotateUp rotate = {c.x,
                             c.x_stride,
                             c.k_up,
                             c.hidden,
                             c.k,
                             {c.gate, c.up},
                             {p.panel[0], p.panel[1]},
                             {p.scale[0], p.scale[1]},
                             {p.sum[0], p.sum[1]},
                             p.place,
                             p.tiles};
    rotate_up_kernel<<<dim3(entries, 2), kThreads, 0, stream>>>(rotate);
    GroupedCall g;
    g.sides = 2;
    for (int i = 0; i < 2; ++i) {
        g.side[i] = {i == 0 ? c.gate : c.up, p.panel[i], p.scale[i], p.sum[i], p.gated[i],
                     p.width_stride};
    }
    g.tiles = p.tiles;
    g.tile_ends = p.tile_ends;
    g.processors = device_attribute(cudaDevAttrMultiProcessorCount);
    g.k = c.k_up;
    g.out = c.width;
    cudaError_t status = cudaGetLastError();
    if (status == cudaSuccess) {
        status = multiply(g, c.up_kind, c.up_kinds, stream);
    }
    if (status != cudaSuccess) {
        return status;
    }
    const Activate activate = {p.gated[0], p.gated[1], p.width_stride, c.width,      c.k_down,
                               c.weights,  c.limit,    c.down,         p.down_panel, p.down_scale,
                               p.down_sum, p.place,    p.tiles};
    activate_kernel<<<entries, kThreads, static_cast<size_t>(c.k_down) * 4, stream>>>(activate);
    g.sides = 1;
    g.side[0] = {c.down, p.down_panel, p.down_scale, p.down_sum, p.products, p.product_stride};
    g.entry_of = p.entry_of;
    g.k = c.k_down;
    g.out = c.hidden;
    g.y_is_f32 = c.round ? 0 : 1;
    status = cudaGetLastError();
    return status == cudaSuccess ? multiply(g, c.down_kind, c.down_kinds, stream) : status;
}

cudaError_t run_pass(const ExpertPrefill& c, const Parts& p, cudaStream_t stream) {
    cudaError_t status = cudaSuccess;
    if (c.k > 0) {
        status = run_routed(c, p, stream);
    }
    if (c.has_shared && status == cudaSuccess) {
        status = run_shared(c, p, stream);
    }
    if (status != cudaSuccess) {
        return status;
    }
    const Combine combine = {p.products,       c.has_shared ? p.shared_product : nullptr,
                             p.product_stride, !c.round,
                             c.hidden,         c.k,
                             p.place,          c.out,
                             c.out_stride};
    const auto blocks = static_cast<unsigned int>((c.hidden + 4 * kThreads - 1) / (4 * kThreads));
    combine_kernel<<<dim3(blocks, c.rows), kThreads, 0, stream>>>(combine);
    return cudaGetLastError();
}

}  // namespace

int64_t expert_prefill_bytes(const ExpertPrefill& call) {
    return lay_out(call, nullptr).bytes;
}

cudaError_t expert_prefill(const ExpertPrefill& call, cudaStream_t stream) {
    const Parts parts = lay_out(call, call.scratch);
    cudaError_t status = cudaSuccess;
    for (int32_t row = 0; row < call.rows && status == cudaSuccess; row += kExpertRows) {
        ExpertPrefill part = call;
        part.rows = std::min(kExpertRows, call.rows - row);
        part.x = static_cast<const uint16_t*>(call.x) + row * call.x_stride;
        part.ids = call.ids + int64_t{row} * call.k;
        part.weights = call.weights + int64_t{row} * call.k;
        part.out = call.out + row * call.out_stride;
        status = run_pass(part, parts, stream);
    }
    return status;
}

}  // namespace tenon::exl3::cuda
