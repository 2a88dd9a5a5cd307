// SPDX-License-Identifier: MIT
// What every op owes its caller: T = 0 is legal, bad shapes, types, alignment and scratch are
// refused with a message that names op, field, found and expected.
#include "tenon/ops/attn.h"
#include "tenon/ops/cache.h"
#include "tenon/ops/compress.h"
#include "tenon/ops/draft.h"
#include "tenon/ops/embed.h"
#include "tenon/ops/engram.h"
#include "tenon/ops/index.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/linear.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/pages.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/route.h"
#include "tenon/ops/window.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

class OpsArguments : public OpTest {
  protected:
    TensorView empty(DType t, std::vector<int64_t> shape) {
        TensorView v = zeros(t, {});
        v = {};
        v.dtype = t;
        v.rank = static_cast<uint16_t>(shape.size());
        int64_t stride = 1;
        for (int i = v.rank - 1; i >= 0; --i) {
            v.shape[i] = shape[static_cast<size_t>(i)];
            v.stride[i] = stride;
            stride *= v.shape[i];
        }
        return v;
    }
    Rows none() {
        Rows r;
        r.row = empty(DType::u8, {0, sizeof(RowInfo)});
        r.seg = empty(DType::u8, {0, sizeof(SegInfo)});
        return r;
    }
    Pages pages(int64_t width, RowFormat f) {
        Pages p;
        p.pool = zeros(DType::u8, {1, 8192});
        p.table = i32({1, 1}, {0});
        p.rows_per_page = 4;
        p.scales_at = 4096;
        p.width = static_cast<int32_t>(width);
        p.format = f;
        return p;
    }
};

TEST_P(OpsArguments, Empty_calls_do_nothing) {
    const DType b = DType::bf16;
    const DType f = DType::f32;
    const DType i = DType::i32;
    run(RowsGather{zeros(f, {3, 4}), empty(i, {0}), empty(f, {0, 4})});
    run(RowsScatter{empty(f, {0, 4}), empty(i, {0}), zeros(f, {3, 4})});
    run(EmbedGather{empty(i, {0}), zeros(b, {3, 64}), {}, {}, empty(b, {0, 4, 64}), {}});
    run(NormRms{empty(b, {0, 64}), zeros(b, {64}), empty(b, {0, 64}), 1e-20f});
    MhcMix m;
    m.h = empty(b, {0, 4, 64});
    m.fn = zeros(f, {24, 256});
    m.scale = zeros(f, {3});
    m.base = zeros(f, {24});
    m.pre = empty(f, {0, 4});
    m.post = empty(f, {0, 4});
    m.comb = empty(f, {0, 4, 4});
    run(m);
    run(MhcCollapse{m.h, m.pre, empty(b, {0, 64})});
    run(MhcExpand{empty(f, {0, 64}), m.h, m.post, m.comb, m.h});
    run(MhcMean{m.h, empty(b, {0, 64})});
    LinearPlain l;
    l.x = empty(b, {0, 64});
    l.w = zeros(b, {8, 64});
    l.y = empty(f, {0, 8});
    run(l);
    RouteTopk r;
    r.logits = empty(f, {0, 8});
    r.bias = zeros(f, {8});
    r.k = 2;
    r.rows = none();
    r.ids = empty(i, {0, 2});
    r.weights = empty(f, {0, 2});
    run(r);
    RopeAngles a;
    alignas(64) static const float freq[32] = {};
    a.rows = none();
    a.freq = make_view(static_cast<const void*>(freq), f, {32});
    a.cs = empty(f, {0, 64});
    run(a);
    run(RopeTurn{empty(b, {0, 2, 64}), a.cs, false, empty(b, {0, 2, 64})});
    run(KvqQuantize{empty(b, {0, 64}), RowFormat::q8, empty(b, {0, 64}), {}, {}});
    Ring ring;
    ring.codes = zeros(DType::u8, {1, 16, 64});
    ring.scales = zeros(DType::u8, {1, 16, 2});
    ring.R = 16;
    ring.width = 64;
    ring.format = RowFormat::q8;
    run(WindowStore{empty(b, {0, 64}), none(), ring});
    run(CacheStore{empty(b, {0, 64}), none(), pages(64, RowFormat::q4e), RowFormat::q4e});
    run(CompressPool{empty(f, {0, 64}), empty(f, {0, 64}), none(), zeros(f, {1, 64, 2, 64}),
                     empty(b, {0, 64})});
    IndexScore s;
    s.iq = empty(b, {0, 4, 128});
    s.w = empty(b, {0, 4});
    s.keys = pages(128, RowFormat::q4u);
    s.rows = none();
    s.out = empty(f, {0, 16});
    run(s);
    IndexTopk t;
    t.scores = s.out;
    t.rows = none();
    t.sel = empty(i, {0, 8});
    t.count = empty(i, {0});
    run(t);
    IndexBlocks k;
    k.scores = s.out;
    k.rows = none();
    k.cand = empty(i, {0, 8});
    k.count = empty(i, {0});
    run(k);
    AttnSparse n;
    n.q = empty(b, {0, 2, 64});
    n.kv = empty(b, {0, 64});
    n.ring = ring;
    n.sink = zeros(f, {2});
    n.rows = none();
    n.out = empty(b, {0, 2, 64});
    run(n);
    EngramDecode e;
    e.values = empty(DType::u8, {0, 2, 64});
    e.scales = empty(DType::u8, {0, 2, 2});
    e.rows = none();
    e.out = empty(b, {0, 128});
    run(e);
    EngramGate g;
    g.kv = empty(f, {0, 320});
    g.h = m.h;
    g.q_weight = zeros(b, {4, 64});
    g.k_weight = zeros(b, {4, 64});
    g.rows = none();
    run(g);
    SampleDraw d;
    d.logits = empty(f, {0, 64});
    d.params = empty(DType::u8, {0, sizeof(SampleParams)});
    d.token = empty(i, {0});
    run(d);
    SpecVerify v;
    v.drawn = empty(i, {0});
    v.ids = empty(i, {0});
    v.rows = none();
    v.limits = empty(DType::u8, {0, sizeof(VerifyLimits)});
    v.decision = empty(DType::u8, {0, sizeof(VerifyDecision)});
    run(v);
    DraftStep w;
    w.base = empty(f, {0, 64});
    w.prev = empty(i, {0});
    w.embed = zeros(b, {64, 32});
    w.head = zeros(b, {64, 32});
    w.rows = none();
    w.best = empty(DType::u8, {0, sizeof(DraftBest)});
    run(w);
    run(PagesPack{zeros(DType::u8, {2, 64}), empty(i, {0}), empty(DType::u8, {0, 64})});
}

TEST_P(OpsArguments, Wrong_shapes_and_types_are_named) {
    NormRms p{zeros(DType::bf16, {2, 64}), zeros(DType::bf16, {32}), zeros(DType::bf16, {2, 64}),
              1e-20f};
    refused(p, "weight is bf16[32]");
    p.weight = zeros(DType::i32, {64});
    refused(p, "weight is i32[64]");
    p.weight = zeros(DType::bf16, {64});
    p.out = zeros(DType::bf16, {3, 64});
    refused(p, "out is bf16[3, 64]");
    p.out = {};
    p.out.dtype = DType::bf16;
    p.out.rank = 2;
    p.out.shape[0] = 2;
    p.out.shape[1] = 64;
    p.out.stride[0] = 64;
    p.out.stride[1] = 1;
    refused(p, "without data");
    p.out = zeros(DType::bf16, {2, 64});
    p.eps = NAN;
    refused(p, "eps");
}

TEST_P(OpsArguments, Misaligned_data_and_odd_strides_are_refused) {
    const TensorView big = zeros(DType::bf16, {4, 80});
    NormRms p{big, zeros(DType::bf16, {64}), zeros(DType::bf16, {2, 64}), 1e-20f};
    p.x.shape[0] = 2;
    p.x.shape[1] = 64;
    p.x.data = static_cast<char*>(big.data) + 2;
    refused(p, "16-byte alignment");
    p.x.data = big.data;
    p.x.stride[0] = 68;
    refused(p, "row stride 68");
    p.x.stride[0] = 72;
    run(p);
    p.x.stride[0] = 32;  // rows overlap
    refused(p, "row stride 32");
}

TEST_P(OpsArguments, Partial_overlap_is_refused_and_exact_aliasing_is_not) {
    const TensorView x = zeros(DType::bf16, {3, 64});
    NormRms p{x.rows(0, 2), zeros(DType::bf16, {64}), x.rows(1, 2), 1e-20f};
    refused(p, "overlaps");
    p.out = x.rows(0, 2);
    run(p);
    // Interleaved columns of one matrix share rows but no byte.
    const TensorView wide = zeros(DType::bf16, {2, 128});
    TensorView left = wide;
    left.shape[1] = 64;
    TensorView right = left;
    right.data = static_cast<char*>(wide.data) + 128;
    run(NormRms{left, p.weight, right, 1e-20f});
    MhcCollapse c{zeros(DType::bf16, {2, 4, 64}), zeros(DType::f32, {2, 4}), {}};
    c.out = make_view(c.h.data, DType::bf16, {2, 64}, c.h.place);
    refused(c, "overlaps");
}

TEST_P(OpsArguments, Scratch_one_byte_short_is_refused) {
    SampleDraw p;
    p.logits = zeros(DType::f32, {2, 1000});
    p.params = structs(std::vector<SampleParams>(2));
    p.token = zeros(DType::i32, {2});
    const OpFn<SampleDraw> fn = bind<SampleDraw>();
    const int64_t needed = fn.scratch(p);
    if (needed == 0) {
        GTEST_SKIP() << "this provider's sample.draw needs no scratch";
    }
    SampleDraw shapes = p;
    shapes.logits.data = nullptr;
    shapes.params.data = nullptr;
    shapes.token.data = nullptr;
    EXPECT_EQ(fn.scratch(shapes), needed) << "a function of shapes alone";
    p.scratch = zeros(DType::u8, {needed - 1});
    refused(p, "scratch");
    p.scratch = zeros(DType::u8, {needed + 16});
    p.scratch.data = static_cast<char*>(p.scratch.data) + 16;
    p.scratch.shape[0] = needed;
    refused(p, "256");
    p.scratch = zeros(DType::u8, {needed});
    run(p);
}

TEST_P(OpsArguments, State_descriptors_are_checked) {
    Ring ring;
    ring.codes = zeros(DType::u8, {1, 16, 64});
    ring.scales = zeros(DType::u8, {1, 16, 1});
    ring.R = 16;
    ring.width = 64;
    ring.format = RowFormat::q8;
    WindowStore w{zeros(DType::bf16, {1, 64}), one_segment(0, 0, 1), ring};
    refused(w, "ring.scales is u8[1, 16, 1], expected u8 [1, 16, 2]");
    w.ring.scales = zeros(DType::u8, {1, 16, 2});
    run(w);
    w.ring.format = RowFormat::q4e;
    refused(w, "ring.format", Code::unsupported);
    CacheStore c{zeros(DType::bf16, {1, 64}), one_segment(0, 0, 1), pages(64, RowFormat::q4e),
                 RowFormat::q4e};
    run(c);
    c.pages.scales_at = 8190;
    refused(c, "pages planes at 0 and 8190");
    c.pages.scales_at = 4096;
    c.quantiser = RowFormat::q4u;
    refused(c, "quantiser", Code::unsupported);
    c.rows.T = 2;
    refused(c, "bf16[1, 64]");
}

TEST_P(OpsArguments, Inconsistent_tables_are_counted_not_followed) {
    const uint64_t before = device().fault_count();
    Ring ring;
    ring.codes = filled(DType::bf16, {2, 16, 64}, 0x11);
    ring.R = 16;
    ring.width = 64;
    WindowStore w{zeros(DType::bf16, {2, 64}), {}, ring};
    // A slot outside the ring, and rows outside the call.
    w.rows = rows({{0, 5, 0, 0}, {0, 1, 1, 0}},
                  {SegInfo{5, 0, 1, 0, {0, 0}, 0, 0}, SegInfo{1, 1, 7, 0, {0, 0}, 0, 0}});
    run(w);
    EXPECT_EQ(device().fault_count(), before + 2);
    for (uint8_t b : bytes(ring.codes)) {
        ASSERT_EQ(b, 0x11);
    }
}

TENON_INSTANTIATE_OPS(OpsArguments);

}  // namespace
}  // namespace tenon::testing
