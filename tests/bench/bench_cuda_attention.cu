// SPDX-License-Identifier: MIT
// Attention, selection, sampling and drafts on a GPU at the released geometry: microseconds a call
// inside a graph, beside the floor (bytes that must move over the read bandwidth of the same run).
//
//   bench_cuda_attention plugins/cuda.so [word]     lines whose name contains the word
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tenon/numeric.h"
#include "tenon/ops/attn.h"
#include "tenon/ops/draft.h"
#include "tenon/ops/index.h"
#include "tenon/ops/sample.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {
namespace {

void must(cudaError_t status) {
    if (status != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
        std::exit(1);
    }
}
void must(const Status& status) {
    if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message().str().c_str());
        std::exit(1);
    }
}

__host__ __device__ inline uint32_t mix(uint64_t i) {
    return static_cast<uint32_t>(splitmix64_mix(i * 0x9E3779B97F4A7C15ull) >> 32);
}

__global__ void fill_words(uint32_t* to, int64_t n, uint32_t keep, uint32_t set) {
    for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n;
         i += gridDim.x * int64_t{256}) {
        to[i] = (mix(static_cast<uint64_t>(i)) & keep) | set;
    }
}
// Bell-shaped f32 of the given width.
__global__ void fill_floats(float* to, int64_t n, float scale) {
    for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n;
         i += gridDim.x * int64_t{256}) {
        float sum = 0;
        for (int k = 0; k < 4; ++k) {
            sum += static_cast<float>(static_cast<int>(mix(static_cast<uint64_t>(i * 4 + k)))) *
                   0x1p-31f;
        }
        to[i] = sum * scale;
    }
}
// Scales of all pages: E4M3 around 0.1 for latents, 2^-2 .. 2^1 for index keys.
__global__ void fill_scales(uint8_t* pool, int64_t page_bytes, int64_t at, int64_t n, uint8_t base,
                            uint8_t spread) {
    uint8_t* page = pool + blockIdx.x * page_bytes + at;
    for (int64_t i = threadIdx.x; i < n; i += 256) {
        page[i] =
            static_cast<uint8_t>(base + mix(static_cast<uint64_t>(i + blockIdx.x * n)) % spread);
    }
}
__global__ void read_all(const uint4* from, int64_t n, uint32_t* out) {
    uint32_t sum = 0;
    for (int64_t i = blockIdx.x * int64_t{512} + threadIdx.x; i < n;
         i += gridDim.x * int64_t{512}) {
        const uint4 v = __ldcs(from + i);
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678u) {
        *out = sum;
    }
}

struct Bench {
    TestHost host;
    Ref<Object> object;
    Device* device = nullptr;
    OpTable* table = nullptr;
    Ref<Stream> stream;
    cudaStream_t native = nullptr;
    double bandwidth = 0;
    std::string only;

    TensorView make(DType dtype, std::vector<int64_t> shape) {
        TensorView v;
        v.dtype = dtype;
        v.rank = static_cast<uint16_t>(shape.size());
        int64_t stride = 1;
        for (int i = v.rank - 1; i >= 0; --i) {
            v.shape[i] = shape[static_cast<size_t>(i)];
            v.stride[i] = stride;
            stride *= v.shape[i];
        }
        v.place = Place::device;
        void* p = nullptr;
        must(cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(v.bytes(), 16))));
        must(cudaMemset(p, 0, static_cast<size_t>(v.bytes())));
        v.data = p;
        made.push_back(p);
        return v;
    }
    template <class T>
    TensorView put(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
        TensorView v = make(dtype, std::move(shape));
        must(cudaMemcpy(v.data, values.data(), static_cast<size_t>(v.bytes()),
                        cudaMemcpyHostToDevice));
        return v;
    }
    template <class E>
    TensorView structs(const std::vector<E>& values) {
        return put(DType::u8,
                   {static_cast<int64_t>(values.size()), static_cast<int64_t>(sizeof(E))}, values);
    }
    TensorView words(DType dtype, std::vector<int64_t> shape, uint32_t keep, uint32_t set) {
        TensorView v = make(dtype, std::move(shape));
        fill_words<<<1024, 256>>>(static_cast<uint32_t*>(v.data), v.bytes() / 4, keep, set);
        return v;
    }
    TensorView floats(std::vector<int64_t> shape, float scale) {
        TensorView v = make(DType::f32, std::move(shape));
        fill_floats<<<1024, 256>>>(static_cast<float*>(v.data), v.elements(), scale);
        return v;
    }
    void drop() {
        must(cudaDeviceSynchronize());
        for (void* p : made) {
            must(cudaFree(p));
        }
        made.clear();
    }
    template <class P>
    OpFn<P> bind(Regime regime) {
        OpBinder binder({table});
        OpFn<P> fn;
        binder.bind(&fn, regime);
        must(binder.finish());
        return fn;
    }
    template <class P>
    void give_scratch(const OpFn<P>& fn, P& p) {
        if (fn.scratch(p) > 0) {
            p.scratch = make(DType::u8, {fn.scratch(p)});
        }
    }

    /// Best mean microseconds of a call over replays of a graph of `calls` calls.
    double time(int calls, const std::function<void(int)>& call) {
        call(0);
        must(cudaStreamSynchronize(native));
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        must(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < calls; ++i) {
            call(i);
        }
        must(cudaStreamEndCapture(native, &graph));
        must(cudaGraphInstantiate(&exec, graph, 0));
        cudaEvent_t begin = nullptr, end = nullptr;
        must(cudaEventCreate(&begin));
        must(cudaEventCreate(&end));
        double best = 1e30;
        for (int repeat = 0; repeat < 8; ++repeat) {
            must(cudaEventRecord(begin, native));
            must(cudaGraphLaunch(exec, native));
            must(cudaEventRecord(end, native));
            must(cudaEventSynchronize(end));
            float ms = 0;
            must(cudaEventElapsedTime(&ms, begin, end));
            best = std::min(best, 1000.0 * static_cast<double>(ms) / calls);
        }
        must(cudaGraphExecDestroy(exec));
        must(cudaGraphDestroy(graph));
        must(cudaEventDestroy(begin));
        must(cudaEventDestroy(end));
        return best;
    }
    bool wanted(const std::string& name) const { return name.find(only) != std::string::npos; }
    void line(const std::string& name, double us, double bytes, double flop = 0) {
        const double floor_us = bytes / bandwidth * 1e6;
        std::printf("%-52s %9.2f us  floor %8.2f us  %4.0f %%  %6.0f GB/s  %6.1f Tflop/s\n",
                    name.c_str(), us, floor_us, 100 * floor_us / us, bytes / us * 1e-3,
                    flop / us * 1e-6);
        std::fflush(stdout);
    }

    std::vector<void*> made;
};

constexpr int64_t kH = 64, kD = 512, kHi = 32, kDi = 128, kK = 512, kV = 129280;
constexpr int32_t kWindow = 128, kR = 144;

/// Pages of one source layer, latents and index keys, for `slots` slots of `rows` compressed rows.
struct State {
    Pages comp, keys;
    Ring ring;
    int64_t slots, rows;
};
State make_state(Bench& b, int64_t slots, int64_t rows, int32_t ratio) {
    State s;
    s.slots = slots;
    s.rows = rows;
    const int64_t per_page = 256 / ratio;
    const int64_t pages_each = (rows + per_page - 1) / per_page;
    const int64_t page_bytes = per_page * (256 + 32 + 64 + 4);
    TensorView pool = b.words(DType::u8, {slots * pages_each, page_bytes}, ~0u, 0);
    std::vector<int32_t> table(static_cast<size_t>(slots * pages_each));
    for (size_t i = 0; i < table.size(); ++i) {
        table[i] = static_cast<int32_t>(i);
    }
    for (size_t i = table.size(); i > 1; --i) {  // pages lie anywhere
        std::swap(table[i - 1], table[mix(i) % i]);
    }
    s.comp.pool = pool;
    s.comp.table = b.put(DType::i32, {slots, pages_each}, table);
    s.comp.codes_at = 0;
    s.comp.scales_at = per_page * 256;
    s.comp.rows_per_page = static_cast<int32_t>(per_page);
    s.comp.ratio = ratio;
    s.comp.width = kD;
    s.comp.format = RowFormat::q4e;
    s.keys = s.comp;
    s.keys.codes_at = per_page * 288;
    s.keys.scales_at = per_page * 352;
    s.keys.width = kDi;
    s.keys.format = RowFormat::q4u;
    auto* at = static_cast<uint8_t*>(pool.data);
    const auto blocks = static_cast<unsigned>(slots * pages_each);
    fill_scales<<<blocks, 256>>>(at, page_bytes, s.comp.scales_at, per_page * 32, 0x1A, 8);
    fill_scales<<<blocks, 256>>>(at, page_bytes, s.keys.scales_at, per_page * 4, 125, 3);
    s.ring.codes = b.words(DType::u8, {slots, kR, kD}, 0xBFBFBFBFu, 0);
    s.ring.scales = b.words(DType::u8, {slots, kR, kD / 32}, 0x01010101u, 0x76767676u);
    s.ring.R = kR;
    s.ring.width = kD;
    s.ring.format = RowFormat::q8;
    return s;
}

/// `rows` rows at the end of each of the slots [first, first + slots).
Rows end_rows(Bench& b, const State& s, int64_t first, int64_t slots, int64_t rows, int32_t ratio) {
    std::vector<RowInfo> row;
    std::vector<SegInfo> seg;
    for (int64_t i = 0; i < slots; ++i) {
        const auto pos0 = static_cast<int32_t>(s.rows * ratio - rows);
        const auto slot = static_cast<int32_t>(first + i);
        const auto row0 = static_cast<int32_t>(row.size());
        for (int64_t k = 0; k < rows; ++k) {
            row.push_back({static_cast<int32_t>(pos0 + k), slot, static_cast<int32_t>(i), 0});
        }
        seg.push_back({slot, row0, static_cast<int32_t>(rows), pos0, {0, 0}, row0, 0});
    }
    Rows r;
    r.row = b.structs(row);
    r.seg = b.structs(seg);
    r.T = static_cast<int64_t>(row.size());
    r.S = slots;
    return r;
}

AttnSparse attention(Bench& b, const State& s, const Rows& rows) {
    AttnSparse p;
    const int64_t T = rows.T;
    p.q = b.words(DType::bf16, {T, kH, kD}, 0x807F807Fu, 0x3F003F00u);
    p.kv = b.words(DType::bf16, {T, kD}, 0x80008000u, 0x3F803F80u);
    p.ring = s.ring;
    p.comp = s.comp;
    std::vector<int32_t> sel;
    for (int64_t t = 0; t < T; ++t) {  // one row of every run of equal length
        for (int64_t k = 0; k < kK; ++k) {
            const int64_t from = k * s.rows / kK;
            const int64_t to = (k + 1) * s.rows / kK;
            sel.push_back(static_cast<int32_t>(from + mix(static_cast<uint64_t>(t * kK + k)) %
                                                          static_cast<uint32_t>(to - from)));
        }
    }
    p.sel = b.put(DType::i32, {T, kK}, sel);
    p.count = b.put(DType::i32, {T}, std::vector<int32_t>(static_cast<size_t>(T), kK));
    p.sink = b.floats({kH}, 1);
    p.scale = 0.0441941738f;
    p.window = kWindow;
    p.rows = rows;
    p.out = b.make(DType::bf16, {T, kH, kD});
    return p;
}
double attention_bytes(const Rows& rows) {
    // Window rows of a slot are read once, selected rows by each row.
    return static_cast<double>(rows.T) * (kH * kD * 4 + kK * 288) +
           static_cast<double>(rows.S) * kWindow * 528;
}
double attention_flop(const Rows& rows) {
    return static_cast<double>(rows.T) * kH * (kK + kWindow) * kD * 4;
}

IndexSelect selection(Bench& b, const State& s, const Rows& rows) {
    IndexSelect p;
    const int64_t T = rows.T;
    std::vector<uint16_t> iq(static_cast<size_t>(T * kHi * kDi));
    for (size_t i = 0; i < iq.size(); ++i) {
        const float scale = 1.0f / static_cast<float>(1u << (mix(i / 32) % 4));
        iq[i] = f32_to_bf16(e2m1_to_f32(static_cast<uint8_t>(mix(i + 77) & 15u)) * scale);
    }
    p.iq = b.put(DType::bf16, {T, kHi, kDi}, iq);
    p.w = b.words(DType::bf16, {T, kHi}, 0x807F807Fu, 0x3F003F00u);
    p.w_scale = 1.0f / 64;
    p.keys = s.keys;
    p.rows = rows;
    p.sel = b.make(DType::i32, {T, kK});
    p.count = b.make(DType::i32, {T});
    p.N = s.rows;
    return p;
}

void decode_lines(Bench& b) {
    struct Case {
        int64_t slots, rows_each, context;
        int32_t ratio;
    };
    for (const Case& c : {Case{1, 1, 131072, 2}, Case{1, 1, 131072, 1}, Case{1, 1, 1048576, 2},
                          Case{1, 1, 1048576, 1}, Case{1, 6, 131072, 1}, Case{1, 6, 1048576, 1},
                          Case{16, 1, 131072, 1}, Case{16, 4, 131072, 1}}) {
        const std::string name =
            std::to_string(c.slots) + " slot x " + std::to_string(c.rows_each) + " rows, context " +
            std::to_string(c.context >> 10) + "K, ratio " + std::to_string(c.ratio);
        if (!b.wanted("decode " + name)) {
            continue;
        }
        // Two sets of slots in turn, so that keys of one call are not left in L2 by the last.
        const int64_t sets = c.slots == 1 ? 4 : 2;
        const int64_t N = c.context / c.ratio;
        const State s = make_state(b, c.slots * sets, N, c.ratio);
        std::vector<AttnSparse> attn;
        std::vector<IndexSelect> select;
        std::vector<IndexScore> score;
        const auto attn_fn = b.bind<AttnSparse>(Regime::decode);
        const auto select_fn = b.bind<IndexSelect>(Regime::decode);
        const auto score_fn = b.bind<IndexScore>(Regime::decode);
        for (int64_t i = 0; i < sets; ++i) {
            const Rows rows = end_rows(b, s, i * c.slots, c.slots, c.rows_each, c.ratio);
            attn.push_back(attention(b, s, rows));
            b.give_scratch(attn_fn, attn.back());
            select.push_back(selection(b, s, rows));
            b.give_scratch(select_fn, select.back());
            IndexScore p;
            p.iq = select.back().iq;
            p.w = select.back().w;
            p.w_scale = select.back().w_scale;
            p.keys = s.keys;
            p.rows = rows;
            p.out = b.make(DType::f32, {rows.T, N});
            b.give_scratch(score_fn, p);
            score.push_back(p);
        }
        const Rows& rows = attn[0].rows;
        const double key_bytes = static_cast<double>(c.slots * N) * 68;
        const double key_flop = static_cast<double>(rows.T * N) * kHi * kDi * 2;
        const auto at = [&](int i) { return static_cast<size_t>(i) % static_cast<size_t>(sets); };
        double us = b.time(16, [&](int i) { must(attn_fn(attn[at(i)], *b.stream)); });
        b.line("decode attn.sparse " + name, us, attention_bytes(rows), attention_flop(rows));
        us = b.time(16, [&](int i) { must(score_fn(score[at(i)], *b.stream)); });
        b.line("decode index.score " + name, us, key_bytes + static_cast<double>(rows.T * N) * 4,
               key_flop);
        us = b.time(16, [&](int i) { must(select_fn(select[at(i)], *b.stream)); });
        b.line("decode index.select " + name, us, key_bytes, key_flop);
        us = b.time(16, [&](int i) {
            must(select_fn(select[at(i)], *b.stream));
            must(attn_fn(attn[at(i)], *b.stream));
        });
        b.line("decode select + attn " + name, us, key_bytes + attention_bytes(rows),
               key_flop + attention_flop(rows));
        b.drop();
    }
}

void prefill_lines(Bench& b) {
    if (!b.wanted("prefill")) {
        return;
    }
    const int64_t N = 65536;
    const State s = make_state(b, 1, N, 1);
    const Rows rows = end_rows(b, s, 0, 1, 2048, 1);
    AttnSparse p = attention(b, s, rows);
    const auto fn = b.bind<AttnSparse>(Regime::prefill);
    b.give_scratch(fn, p);
    double us = b.time(4, [&](int) { must(fn(p, *b.stream)); });
    b.line("prefill attn.sparse 2048 rows", us, attention_bytes(rows), attention_flop(rows));
    const Rows tile = end_rows(b, s, 0, 1, 256, 1);
    IndexSelect q = selection(b, s, tile);
    const auto select_fn = b.bind<IndexSelect>(Regime::prefill);
    b.give_scratch(select_fn, q);
    us = b.time(4, [&](int) { must(select_fn(q, *b.stream)); });
    b.line("prefill index.select 256 rows of 64K keys", us, static_cast<double>(N) * 68,
           static_cast<double>(256 * N) * kHi * kDi * 2);
    b.drop();
}

void token_lines(Bench& b) {
    for (int64_t M : {1, 6, 64}) {
        struct Case {
            const char* name;
            float temperature, top_p;
            int32_t top_k;
        };
        for (const Case& c : {Case{"greedy", 0, 1, 0}, Case{"temperature", 1, 1, 0},
                              Case{"top_p", 1, 0.95f, 0}, Case{"top_k, top_p", 1, 0.95f, 50}}) {
            const std::string name =
                "sample.draw " + std::string(c.name) + ", M " + std::to_string(M);
            if (!b.wanted(name)) {
                continue;
            }
            SampleDraw p;
            p.logits = b.floats({M, kV}, 3);
            std::vector<SampleParams> params(static_cast<size_t>(M));
            for (size_t i = 0; i < params.size(); ++i) {
                params[i].temperature = c.temperature;
                params[i].top_p = c.top_p;
                params[i].top_k = c.top_k;
                params[i].seed = i + 1;
            }
            p.params = b.structs(params);
            p.token = b.make(DType::i32, {M});
            const auto fn = b.bind<SampleDraw>(Regime::decode);
            b.give_scratch(fn, p);
            const double us = b.time(16, [&](int) { must(fn(p, *b.stream)); });
            b.line(name, us, static_cast<double>(M * kV) * 4);
            b.drop();
        }
    }
    for (int64_t S : {1, 8, 16}) {
        const std::string name = "draft.step, S " + std::to_string(S);
        if (!b.wanted(name)) {
            continue;
        }
        std::vector<DraftStep> steps;
        const auto fn = b.bind<DraftStep>(Regime::decode);
        for (int set = 0; set < 4; ++set) {
            DraftStep p;
            p.base = b.floats({S, kV}, 3);
            p.prev = b.put(DType::i32, {S}, std::vector<int32_t>(static_cast<size_t>(S), 5));
            p.embed = b.words(DType::bf16, {1024, 256}, 0x807F807Fu, 0x3C003C00u);
            p.head = b.words(DType::bf16, {kV, 256}, 0x807F807Fu, 0x3C003C00u);
            std::vector<SegInfo> seg;
            for (int32_t i = 0; i < S; ++i) {
                seg.push_back({i, i * 5, 5, 100, {0, 0}, i * 5, 0});
            }
            p.rows.seg = b.structs(seg);
            p.rows.S = S;
            p.rows.row = b.make(DType::u8, {0, static_cast<int64_t>(sizeof(RowInfo))});
            p.best = b.make(DType::u8, {S, static_cast<int64_t>(sizeof(DraftBest))});
            b.give_scratch(fn, p);
            steps.push_back(p);
        }
        const double us =
            b.time(16, [&](int i) { must(fn(steps[static_cast<size_t>(i) % 4], *b.stream)); });
        b.line(name, us, static_cast<double>(kV) * (512 + static_cast<double>(S) * 4));
        b.drop();
    }
}

int run(const char* plugin, const char* only) {
    Bench b;
    b.only = only;
    const auto loaded = LoadedPlugin::load(plugin);
    must(loaded.status());
    const Component* component = loaded->find(PluginKind::compute);
    OptionSet options(*component);
    auto created = create_component(*component, b.host, options);
    must(created.status());
    b.object = std::move(*created);
    b.device = facet_of<Device>(b.object.get());
    b.table = facet_of<OpTable>(b.object.get());
    must(b.device->create_stream({.name = "bench"}, b.stream.out()));
    b.native = static_cast<cudaStream_t>(b.stream->native());

    const int64_t bytes = int64_t{4} << 30;
    const TensorView big = b.make(DType::u8, {bytes});
    const TensorView out = b.make(DType::u32, {4});
    const double us = b.time(4, [&](int) {
        read_all<<<132 * 8, 512, 0, b.native>>>(big.as<const uint4>(), bytes / 16,
                                                out.as<uint32_t>());
    });
    b.drop();
    b.bandwidth = static_cast<double>(bytes) / (us * 1e-6);
    std::printf("%s, read bandwidth %.0f GB/s\n", b.device->info().name, b.bandwidth * 1e-9);
    decode_lines(b);
    prefill_lines(b);
    token_lines(b);
    return b.device->fault_count() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tenon::testing

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s plugins/cuda.so [word]\n", argv[0]);
        return 2;
    }
    return tenon::testing::run(argv[1], argc > 2 ? argv[2] : "");
}
