// SPDX-License-Identifier: MIT
// Optional fused ops against the parts that their headers name, on one provider. Absent ones skip.
#include <cmath>

#include "tenon/ops/attn.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/window.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

class OpsFusion : public OpTest {
  protected:
    /// Everything that a seam reads.
    struct Site {
        TensorView y, h, post, comb, pre, fn, scale, base, weight;
    };
    Site site(int64_t T, int64_t d, uint64_t seed) {
        Random random(seed);
        Site s;
        s.y = f32({T, d}, random.bells(T * d));
        s.h = bf16({T, 4, d}, random.bells(T * 4 * d));
        s.post = f32({T, 4}, random.bells(T * 4));
        s.comb = f32({T, 4, 4}, random.bells(T * 16, 0.4f));
        s.pre = f32({T, 4}, random.bells(T * 4));
        s.fn = f32({24, 4 * d}, random.bells(24 * 4 * d, 0.02f));
        s.scale = f32({3}, {1, 0.5f, 2});
        s.base = f32({24}, random.bells(24));
        s.weight = bf16({d}, random.bells(d));
        return s;
    }
    /// The parts of a seam: new h, x, pre, post, comb.
    struct Parts {
        TensorView h, x, pre, post, comb;
    };
    Parts parts(const Site& s, bool expands, Regime regime) {
        const int64_t T = s.h.shape[0];
        const int64_t d = s.h.shape[2];
        Parts out;
        out.h = s.h;
        if (expands) {
            out.h = zeros(DType::bf16, {T, 4, d});
            run(MhcExpand{s.y, s.h, s.post, s.comb, out.h}, regime);
        }
        MhcMix m;
        m.h = out.h;
        m.fn = s.fn;
        m.scale = s.scale;
        m.base = s.base;
        m.pre = out.pre = zeros(DType::f32, {T, 4});
        m.post = out.post = zeros(DType::f32, {T, 4});
        m.comb = out.comb = zeros(DType::f32, {T, 4, 4});
        run(m, regime);
        out.x = zeros(DType::bf16, {T, d});
        run(MhcCollapse{out.h, s.pre, out.x}, regime);
        run(NormRms{out.x, s.weight, out.x, 1e-20f}, regime);
        return out;
    }
    void expect_near(const TensorView& a, const TensorView& b, double tolerance, const char* what) {
        const std::vector<float> x = floats(a);
        const std::vector<float> y = floats(b);
        double most = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            most = std::max(most, std::fabs(static_cast<double>(x[i]) - y[i]));
        }
        EXPECT_LE(most, tolerance) << what;
    }
    void expect_ulp(const TensorView& a, const TensorView& b, const char* what) {
        const std::vector<float> x = floats(a);
        const std::vector<float> y = floats(b);
        int64_t most = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            most = std::max(most, bf16_ulps(x[i], y[i]));
        }
        EXPECT_LE(most, 1) << what;
    }
};

TEST_P(OpsFusion, Seam_equals_expand_mix_collapse_norm) {
    for (const Regime regime : {Regime::decode, Regime::prefill}) {
        if (!offered<MhcSeam>(regime)) {
            GTEST_SKIP() << "this provider has no mhc.seam";
        }
        for (const auto& [T, d] : {std::pair<int64_t, int64_t>{1, 5120}, {11, 5120}, {3, 176}}) {
            const Site s = site(T, d, 131);
            const Parts want = parts(s, true, regime);
            MhcSeam p;
            p.y = s.y;
            p.h = s.h;
            p.post_in = s.post;
            p.comb_in = s.comb;
            p.fn = s.fn;
            p.scale = s.scale;
            p.base = s.base;
            p.pre_in = s.pre;
            p.norm_weight = s.weight;
            p.out = s.h;  // in place, as the model calls it
            p.x = zeros(DType::bf16, {T, d});
            p.pre = s.pre;
            p.post = s.post;
            p.comb = s.comb;
            run(p, regime);
            EXPECT_EQ(bytes(p.out), bytes(want.h)) << "the streams have the parts' bits";
            expect_ulp(p.x, want.x, "x");
            expect_near(p.pre, want.pre, 1e-5, "pre");
            expect_near(p.post, want.post, 1e-5, "post");
            expect_near(p.comb, want.comb, 1e-5, "comb");
        }
    }
}

TEST_P(OpsFusion, Seam_adds_ranks_in_order) {
    if (!offered<MhcSeam>(Regime::decode) || !offered<MhcReduceExpand>(Regime::decode)) {
        GTEST_SKIP() << "this provider has no mhc.seam or no mhc.reduce_expand";
    }
    const int64_t T = 3, d = 320;
    Random random(132);
    const std::vector<float> ranks = random.bells(2 * T * d);
    std::vector<float> sum;
    for (size_t i = 0; i < static_cast<size_t>(T * d); ++i) {
        sum.push_back(ranks[i] + ranks[static_cast<size_t>(T * d) + i]);
    }
    Site s = site(T, d, 133);
    s.y = f32({T, d}, sum);
    const Parts want = parts(s, true, Regime::decode);
    const TensorView two = f32({2, T, d}, ranks);
    MhcReduceExpand e{two, s.h, s.post, s.comb, zeros(DType::bf16, {T, 4, d})};
    run(e);
    EXPECT_EQ(bytes(e.out), bytes(want.h));
    MhcSeam p;
    p.parts = two;
    p.h = s.h;
    p.post_in = s.post;
    p.comb_in = s.comb;
    p.fn = s.fn;
    p.scale = s.scale;
    p.base = s.base;
    p.pre_in = s.pre;
    p.norm_weight = s.weight;
    p.out = zeros(DType::bf16, {T, 4, d});
    p.x = zeros(DType::bf16, {T, d});
    p.pre = zeros(DType::f32, {T, 4});
    p.post = zeros(DType::f32, {T, 4});
    p.comb = zeros(DType::f32, {T, 4, 4});
    run(p);
    EXPECT_EQ(bytes(p.out), bytes(want.h));
}

TEST_P(OpsFusion, Layer_start_equals_mix_collapse_norm) {
    for (const Regime regime : {Regime::decode, Regime::prefill}) {
        if (!offered<MhcMixCollapseNorm>(regime)) {
            GTEST_SKIP() << "this provider has no mhc.mix_collapse_norm";
        }
        const int64_t T = 9, d = 5120;
        const Site s = site(T, d, 134);
        const Parts want = parts(s, false, regime);
        MhcMixCollapseNorm p;
        p.h = s.h;
        p.fn = s.fn;
        p.scale = s.scale;
        p.base = s.base;
        p.pre_in = s.pre;
        p.norm_weight = s.weight;
        p.x = zeros(DType::bf16, {T, d});
        p.pre = zeros(DType::f32, {T, 4});
        p.post = zeros(DType::f32, {T, 4});
        p.comb = zeros(DType::f32, {T, 4, 4});
        run(p, regime);
        expect_ulp(p.x, want.x, "x");
        expect_near(p.pre, want.pre, 1e-5, "pre");
        expect_near(p.post, want.post, 1e-5, "post");
        expect_near(p.comb, want.comb, 1e-5, "comb");
        if (offered<MhcCollapseNorm>(regime)) {
            MhcCollapseNorm c{s.h, s.pre, s.weight, 1e-20f, zeros(DType::bf16, {T, d})};
            run(c, regime);
            expect_ulp(c.x, want.x, "collapse_norm");
        }
    }
}

TEST_P(OpsFusion, Seam_rows_are_invariant) {
    for (const Regime regime : {Regime::decode, Regime::prefill}) {
        if (!offered<MhcSeam>(regime)) {
            GTEST_SKIP() << "this provider has no mhc.seam";
        }
        const int64_t d = 320;
        const Site all = site(129, d, 135);
        expect_row_invariant(
            [&](const std::vector<int>& list, const Variation&) {
                const auto T = static_cast<int64_t>(list.size());
                // A row's inputs are those of its number; padding and huge rows take others'.
                std::vector<int32_t> index;
                for (const int r : list) {
                    index.push_back(r >= 0 ? r : 100 - r);
                }
                const TensorView at = i32({T}, index);
                const auto pick = [&](const TensorView& from) {
                    TensorView to = zeros(from.dtype, {T, from.elements() / from.shape[0]});
                    TensorView flat =
                        make_view(from.data, from.dtype, {from.shape[0], to.shape[1]}, from.place);
                    run(RowsGather{flat, at, to});
                    return to;
                };
                const auto shaped = [](TensorView v, std::initializer_list<int64_t> shape) {
                    return make_view(v.data, v.dtype, shape, v.place);
                };
                MhcSeam p;
                p.y = pick(all.y);
                p.h = shaped(pick(all.h), {T, 4, d});
                p.post_in = pick(all.post);
                p.comb_in = shaped(pick(all.comb), {T, 4, 4});
                p.pre_in = pick(all.pre);
                p.fn = all.fn;
                p.scale = all.scale;
                p.base = all.base;
                p.norm_weight = all.weight;
                p.out = p.h;
                p.x = zeros(DType::bf16, {T, d});
                p.pre = zeros(DType::f32, {T, 4});
                p.post = zeros(DType::f32, {T, 4});
                p.comb = zeros(DType::f32, {T, 4, 4});
                run(p, regime);
                std::vector<std::vector<uint8_t>> rows(static_cast<size_t>(T));
                for (const TensorView& v : {p.out, p.x, p.pre, p.post, p.comb}) {
                    const std::vector<uint8_t> b = bytes(v);
                    const size_t n = b.size() / rows.size();
                    for (size_t t = 0; t < rows.size(); ++t) {
                        rows[t].insert(rows[t].end(), b.begin() + static_cast<long>(t * n),
                                       b.begin() + static_cast<long>((t + 1) * n));
                    }
                }
                return rows;
            },
            65);
    }
}

TEST_P(OpsFusion, Query_and_key_value_rows_equal_their_parts) {
    if (!offered<AttnQkvPrep>(Regime::decode)) {
        GTEST_SKIP() << "this provider has no attn.qkv_prep";
    }
    for (const RowFormat format : {RowFormat::q8, RowFormat::bf16}) {
        const int64_t T = 40, r = 1280, D = 512, R = 64;
        const int32_t ring_rows = 32;
        Random random(136);
        const auto make_ring = [&] {
            Ring ring;
            ring.R = ring_rows;
            ring.width = static_cast<int32_t>(D);
            ring.format = format;
            ring.codes =
                filled(format == RowFormat::q8 ? DType::u8 : DType::bf16, {2, ring_rows, D}, 0x55);
            if (format == RowFormat::q8) {
                ring.scales = filled(DType::u8, {2, ring_rows, D / 32}, 0x55);
            }
            return ring;
        };
        // Two dead rows, then more rows than the ring keeps.
        std::vector<RowInfo> row(2);
        for (int32_t i = 0; i < 38; ++i) {
            row.push_back({70 + i, 1, 0, 0});
        }
        const auto qa_values = random.bells(T * r);
        const auto kv_values = random.bells(T * D);
        AttnQkvPrep p;
        p.qa_raw = bf16({T, r}, qa_values);
        p.qa_weight = bf16({r}, random.bells(r));
        p.qa = zeros(DType::bf16, {T, r});
        p.kv_raw = bf16({T, D}, kv_values);
        p.kv_weight = f32({D}, random.bells(D));
        p.kv = zeros(DType::bf16, {T, D});
        p.cs = f32({T, R}, random.bells(T * R));
        p.rows = rows(row, {SegInfo{1, 2, 38, 70, {0, 0}, 0, 0}});
        p.ring = make_ring();
        run(p);
        AttnQkvPrep in_place = p;
        in_place.qa = in_place.qa_raw = bf16({T, r}, qa_values);
        in_place.kv = in_place.kv_raw = bf16({T, D}, kv_values);
        in_place.ring = make_ring();
        run(in_place);
        EXPECT_EQ(bytes(in_place.qa), bytes(p.qa));
        EXPECT_EQ(bytes(in_place.kv), bytes(p.kv));
        EXPECT_EQ(bytes(in_place.ring.codes), bytes(p.ring.codes));
        const TensorView qa = zeros(DType::bf16, {T, r});
        const TensorView kv = zeros(DType::bf16, {T, D});
        run(NormRms{p.qa_raw, p.qa_weight, qa, p.eps});
        run(NormRms{p.kv_raw, p.kv_weight, kv, p.eps});
        run(RopeTurn{kv, p.cs, false, kv});
        KvqQuantize q;
        q.x = kv;
        q.format = RowFormat::q8;
        q.values = kv;
        run(q);
        WindowStore w{kv, p.rows, make_ring()};
        run(w);
        EXPECT_EQ(bytes(p.qa), bytes(qa));
        EXPECT_EQ(bytes(p.kv), bytes(kv));
        EXPECT_EQ(bytes(p.ring.codes), bytes(w.ring.codes));
        if (format == RowFormat::q8) {
            EXPECT_EQ(bytes(p.ring.scales), bytes(w.ring.scales));
        }
        EXPECT_EQ(device().fault_count(), 0u);
    }
}

TENON_INSTANTIATE_OPS(OpsFusion);

}  // namespace
}  // namespace tenon::testing
