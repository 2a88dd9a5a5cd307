// SPDX-License-Identifier: MIT
// Times of single ops at the real model's geometry on a compute plugin:
//   tenon-op-times PLUGIN.so [ROWS]...
// A graph of 64 calls is replayed where the device has graphs (so that launches overlap as in a
// captured pass), else the calls are enqueued. Prints microseconds a call, the bytes that the call
// must move, and their rate. Weights rotate over copies larger than the L2 cache.
#include <chrono>
#include <cstdio>

#include "tenon/ops/attn.h"
#include "tenon/ops/compress.h"
#include "tenon/ops/embed.h"
#include "tenon/ops/engram.h"
#include "tenon/ops/index.h"
#include "tenon/ops/linear.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/route.h"
#include "tenon/testing/op_fixture.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {
namespace {

constexpr int kCalls = 64;
constexpr int kReplays = 20;
constexpr int64_t kWidth = 5120;
constexpr int64_t kCopies = 32;

class Times {
  public:
    Times(OpBench& bench, int64_t T)
        : b_(bench), T_(T), regime_(T <= 64 ? Regime::decode : Regime::prefill) {}

    /// `make(i)`: parameters of call i. `bytes`: what one call must move.
    template <class Make>
    void time(const char* what, int64_t bytes, Make&& make) {
        using P = decltype(make(0));
        OpBinder binder({&b_.table()});
        OpFn<P> fn;
        if (!binder.bind_optional(&fn, regime_)) {
            std::printf("%-28s T=%-5lld not offered\n", what, static_cast<long long>(T_));
            return;
        }
        P first = make(0);
        TensorView scratch;
        if constexpr (requires { first.scratch; }) {
            scratch = b_.zeros(DType::u8, {std::max<int64_t>(fn.scratch(first), 256)});
        }
        const auto calls = [&] {
            for (int i = 0; i < kCalls; ++i) {
                P p = make(i);
                if constexpr (requires { p.scratch; }) {
                    p.scratch = scratch;
                }
                check(fn(p, b_.stream()), what);
            }
        };
        calls();
        check(b_.device().synchronize(b_.stream()), what);
        auto* graphs = b_.facet<GraphCapture>();
        Ref<GraphCapture::Graph> graph;
        if (graphs != nullptr && fn.traits.graph_safe) {
            check(graphs->begin(b_.stream()), what);
            calls();
            check(graphs->end(b_.stream(), graph.out()), what);
            check(graph->launch(b_.stream()), what);
            check(b_.device().synchronize(b_.stream()), what);
        }
        const auto began = std::chrono::steady_clock::now();
        for (int i = 0; i < kReplays; ++i) {
            if (graph) {
                check(graph->launch(b_.stream()), what);
            } else {
                calls();
            }
        }
        check(b_.device().synchronize(b_.stream()), what);
        const std::chrono::duration<double, std::micro> spent =
            std::chrono::steady_clock::now() - began;
        const double us = spent.count() / (kCalls * kReplays);
        std::printf("%-28s T=%-5lld %9.2f us %10.1f KB %8.1f GB/s%s\n", what,
                    static_cast<long long>(T_), us, static_cast<double>(bytes) / 1e3,
                    static_cast<double>(bytes) / us / 1e3, graph ? "" : " (no graph)");
    }

    void all();

  private:
    static void check(const Status& s, const char* what) {
        if (!s.ok()) {
            std::fprintf(stderr, "%s: %s\n", what, s.message().str().c_str());
            std::exit(1);
        }
    }
    TensorView part(const TensorView& of, int64_t i, int64_t n) {
        return of.rows(i % kCopies * n, n);
    }

    OpBench& b_;
    int64_t T_;
    Regime regime_;
};

void Times::all() {
    const int64_t T = T_;
    const int64_t d = kWidth;
    const int64_t row = d * 2;
    const Rows rows = b_.one_segment(0, 1000, static_cast<int32_t>(T));
    const TensorView h = b_.zeros(DType::bf16, {T, 4, d});
    const TensorView x = b_.zeros(DType::bf16, {T, d});
    const TensorView y = b_.zeros(DType::f32, {T, d});
    const TensorView pre = b_.zeros(DType::f32, {T, 4});
    const TensorView post = b_.zeros(DType::f32, {T, 4});
    const TensorView comb = b_.zeros(DType::f32, {T, 4, 4});
    const TensorView fn = b_.zeros(DType::f32, {24 * kCopies, 4 * d});
    const TensorView scale = b_.zeros(DType::f32, {3});
    const TensorView base = b_.zeros(DType::f32, {24});
    const TensorView weight = b_.zeros(DType::bf16, {d});
    const int64_t fn_bytes = 24 * 4 * d * 4;
    const auto mix_of = [&](int i) {
        MhcMix m;
        m.h = h;
        m.fn = part(fn, i, 24);
        m.scale = scale;
        m.base = base;
        m.pre = pre;
        m.post = post;
        m.comb = comb;
        return m;
    };
    time("mhc.mix", fn_bytes + T * 4 * row, mix_of);
    time("mhc.collapse", T * 5 * row, [&](int) { return MhcCollapse{h, pre, x}; });
    time("mhc.expand", T * 10 * row, [&](int) { return MhcExpand{y, h, post, comb, h}; });
    time("mhc.seam", fn_bytes + T * 11 * row, [&](int i) {
        MhcSeam s;
        s.y = y;
        s.h = h;
        s.post_in = post;
        s.comb_in = comb;
        s.fn = part(fn, i, 24);
        s.scale = scale;
        s.base = base;
        s.pre_in = pre;
        s.norm_weight = weight;
        s.out = h;
        s.x = x;
        s.pre = pre;
        s.post = post;
        s.comb = comb;
        return s;
    });
    time("norm.rms 5120", T * 2 * row, [&](int) { return NormRms{x, weight, x, 1e-20f}; });
    const TensorView gate = b_.zeros(DType::bf16, {384 * kCopies, d});
    const TensorView logits = b_.zeros(DType::f32, {T, 384});
    time("linear.plain gate 384x5120", 384 * row + T * row, [&](int i) {
        LinearPlain p;
        p.x = x;
        p.w = part(gate, i, 384);
        p.y = logits;
        return p;
    });
    time("linear.plain 32x5120", 32 * row + T * row, [&](int i) {
        LinearPlain p;
        p.x = x;
        p.w = part(gate, i, 32);
        p.y = make_view(logits.data, DType::f32, {T, 32}, logits.place);
        return p;
    });
    const TensorView bias = b_.zeros(DType::f32, {384});
    const TensorView ids = b_.zeros(DType::i32, {T, 6});
    const TensorView weights = b_.zeros(DType::f32, {T, 6});
    time("route.topk 384, 6", T * 384 * 4, [&](int) {
        RouteTopk p;
        p.logits = logits;
        p.bias = bias;
        p.k = 6;
        p.scale = 1.5f;
        p.rows = rows;
        p.ids = ids;
        p.weights = weights;
        return p;
    });
    time("route.gate_topk 384x5120, 6", 384 * row + T * row, [&](int i) {
        RouteGateTopk p;
        p.x = x;
        p.gate = part(gate, i, 384);
        p.bias = bias;
        p.k = 6;
        p.scale = 1.5f;
        p.rows = rows;
        p.ids = ids;
        p.weights = weights;
        return p;
    });
    std::vector<float> freq(32, 0.5f);
    const TensorView cs = b_.zeros(DType::f32, {T, 64});
    time("rope.angles", T * 64 * 4, [&](int) {
        return RopeAngles{rows, make_view(freq.data(), DType::f32, {32}), 1, cs};
    });
    const TensorView q = b_.zeros(DType::bf16, {T, 64, 512});
    time("rope.turn 64 heads", T * 64 * 64 * 4, [&](int) { return RopeTurn{q, cs, false, q}; });
    const TensorView qa = b_.zeros(DType::bf16, {2 * T, 1280});
    const TensorView kv = b_.zeros(DType::bf16, {2 * T, 512});
    AttnQkvPrep prep;
    prep.qa_raw = qa.rows(0, T);
    prep.qa_weight = b_.zeros(DType::bf16, {1280});
    prep.qa = qa.rows(T, T);
    prep.kv_raw = kv.rows(0, T);
    prep.kv_weight = b_.zeros(DType::bf16, {512});
    prep.kv = kv.rows(T, T);
    prep.cs = cs;
    prep.rows = rows;
    prep.ring = {b_.zeros(DType::u8, {1, 144, 512}), b_.zeros(DType::u8, {1, 144, 16}), 144, 512,
                 RowFormat::q8};
    time("attn.qkv_prep", T * (1280 + 512) * 4, [&](int) { return prep; });
    const auto pages = [&](RowFormat format, int32_t width) {
        Pages p;
        p.rows_per_page = 4096;
        p.ratio = 2;
        p.width = width;
        p.format = format;
        p.scales_at = 4096 * code_bytes(format, width);
        p.pool = b_.zeros(DType::u8, {1, 4096 * (code_bytes(format, width) + 64)});
        p.table = b_.zeros(DType::i32, {1, 1});
        return p;
    };
    CompressPool pool;
    pool.a = b_.zeros(DType::f32, {T, 512});
    pool.s = b_.zeros(DType::f32, {T, 512});
    pool.rows = rows;
    pool.raw = b_.zeros(DType::f32, {1, kRawPositions, 2, 512});
    pool.out = kv.rows(0, T);
    time("compress.pool", T * 512 * 10, [&](int) { return pool; });
    CompressEmit emit;
    emit.a = pool.a;
    emit.s = pool.s;
    emit.raw = pool.raw;
    emit.norm_weight = prep.kv_weight;
    emit.cs = cs;
    emit.rows = rows;
    emit.comp = pages(RowFormat::q4e, 512);
    emit.latent = kv.rows(0, T);
    time("compress.emit", T * 512 * 10, [&](int) { return emit; });
    IndexKeyEmit key;
    key.k_raw = b_.zeros(DType::bf16, {T, 128});
    key.norm_weight = b_.zeros(DType::bf16, {128});
    key.cs = cs;
    key.rows = rows;
    key.keys = pages(RowFormat::q4u, 128);
    time("index.key_emit", T * 128 * 3, [&](int) { return key; });
    IndexQueryPrep query;
    query.iq = b_.zeros(DType::bf16, {T, 32, 128});
    query.cs = cs;
    query.x = x;
    query.w = b_.zeros(DType::bf16, {T, 32});
    time("index.query_prep 32 heads", 32 * row + T * (row + 32 * 128 * 4), [&](int i) {
        query.weights_proj = part(gate, i, 32);
        return query;
    });
    EngramGate g;
    g.kv = b_.zeros(DType::f32, {T, 5 * d});
    g.h = h;
    g.q_weight = b_.zeros(DType::bf16, {4, d});
    g.k_weight = b_.zeros(DType::bf16, {4, d});
    g.rows = rows;
    time("engram.gate", T * (5 * d * 4 + 8 * row), [&](int) { return g; });
}

}  // namespace
}  // namespace tenon::testing

namespace tenon::testing {
// The fixture's providers are not used here.
std::vector<OpProvider> op_providers() {
    return {};
}
std::optional<OpProvider> op_oracle() {
    return std::nullopt;
}
}  // namespace tenon::testing

int main(int argc, char** argv) {
    using namespace tenon;
    namespace tt = tenon::testing;
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s PLUGIN.so [ROWS]...\n", argv[0]);
        return 2;
    }
    auto plugin = tt::LoadedPlugin::load(argv[1]);
    if (!plugin.ok()) {
        std::fprintf(stderr, "%s\n", plugin.status().message().str().c_str());
        return 3;
    }
    const Component* component = plugin->find(PluginKind::compute);
    tt::TestHost host;
    std::vector<int64_t> sizes;
    for (int i = 2; i < argc; ++i) {
        sizes.push_back(std::atoll(argv[i]));
    }
    for (const int64_t T : sizes.empty() ? std::vector<int64_t>{1, 6, 2048} : sizes) {
        tt::OpBench bench;
        const Status started = bench.start(
            {"device", [&](Object** out) -> Status {
                 tt::OptionSet options(*component);
                 TENON_ASSIGN(auto object, tt::create_component(*component, host, options));
                 *out = object.detach();
                 return {};
             }});
        if (!started.ok()) {
            std::fprintf(stderr, "%s\n", started.message().str().c_str());
            return 5;
        }
        const DeviceInfo info = bench.device().info();
        std::printf("%s, %s\n", info.name, info.arch);
        tt::Times(bench, T).all();
    }
    return 0;
}
