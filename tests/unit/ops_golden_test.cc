// SPDX-License-Identifier: MIT
// Ops against golden/dsv41/ops.safetensors; tolerances are the table of its README.
#include <cmath>

#include "tenon/ops/attn.h"
#include "tenon/ops/compress.h"
#include "tenon/ops/engram.h"
#include "tenon/ops/index.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/route.h"
#include "tenon/testing/op_fixture.h"
#include "tenon/testing/safetensors.h"

namespace tenon::testing {
namespace {

const Safetensors& golden() {
    static const Safetensors file =
        Safetensors::open(TENON_FIXTURES "/golden/dsv41/ops.safetensors");
    return file;
}

class OpsGolden : public OpTest {
  protected:
    TensorView from(const std::string& name) { return upload(golden().tensor(name)); }
    std::vector<float> want(const std::string& name) { return floats(from(name)); }

    /// bf16 results: at most one unit in the last place, on at most `share` of the elements.
    void expect_bf16(const TensorView& got, const std::string& name, double share) {
        const std::vector<float> a = floats(got);
        const std::vector<float> b = want(name);
        ASSERT_EQ(a.size(), b.size());
        size_t off = 0;
        for (size_t i = 0; i < a.size(); ++i) {
            const int64_t d = bf16_ulps(a[i], b[i]);
            EXPECT_LE(d, 1) << name << " at " << i << ": " << a[i] << ", expected " << b[i];
            off += d != 0;
        }
        EXPECT_LE(static_cast<double>(off), share * static_cast<double>(a.size())) << name;
    }
    void expect_near(const std::vector<float>& a, const std::string& name, float tolerance) {
        const std::vector<float> b = want(name);
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i) {
            EXPECT_NEAR(a[i], b[i], tolerance) << name << " at " << i;
        }
    }
};

TEST_P(OpsGolden, Number_formats_decode_every_code) {
    const std::vector<float> e2m1 = want("e2m1.table");
    for (size_t i = 0; i < e2m1.size(); ++i) {
        EXPECT_EQ(e2m1_to_f32(static_cast<uint8_t>(i)), e2m1[i]) << i;
    }
    const std::vector<float> e4m3 = want("e4m3.table");
    const std::vector<float> e8m0 = want("e8m0.table");
    for (size_t i = 0; i < 256; ++i) {
        const float a = e4m3_to_f32(static_cast<uint8_t>(i));
        const float b = e8m0_to_f32(static_cast<uint8_t>(i));
        EXPECT_TRUE(a == e4m3[i] || (std::isnan(a) && std::isnan(e4m3[i]))) << i;
        EXPECT_TRUE(b == e8m0[i] || (std::isnan(b) && std::isnan(e8m0[i]))) << i;
    }
}

TEST_P(OpsGolden, Quantisers_give_the_golden_values) {
    const TensorView x = from("quant.x");
    const std::pair<RowFormat, const char*> cases[] = {
        {RowFormat::q8, "quant.q8"}, {RowFormat::q4u, "quant.q4u"}, {RowFormat::q4e, "quant.q4e"}};
    for (const auto& c : cases) {
        KvqQuantize p{.x = x, .format = c.first};
        p.values = zeros(DType::bf16, {19, 64});
        p.codes = zeros(DType::u8, {19, code_bytes(c.first, 64)});
        p.scales = zeros(DType::u8, {19, scale_bytes(c.first, 64)});
        run(p);
        EXPECT_EQ(bytes(p.values), bytes(from(c.second))) << c.second;

        KvqDequantize d{p.codes, p.scales, c.first, zeros(DType::bf16, {19, 64})};
        run(d);
        EXPECT_EQ(bytes(d.out), bytes(p.values)) << c.second << " through the packed form";
    }
}

TEST_P(OpsGolden, Norm_rounds_once) {
    NormRms p{from("rmsnorm.x"), from("rmsnorm.weight"), zeros(DType::bf16, {4, 256}), 1e-20f};
    run(p);
    expect_bf16(p.out, "rmsnorm.y", 0.01);
}

TEST_P(OpsGolden, Mhc_gives_coefficients_and_streams) {
    MhcMix mix;
    mix.h = from("mhc.h");
    mix.fn = from("mhc.fn");
    mix.scale = from("mhc.scale");
    mix.base = from("mhc.base");
    mix.pre = zeros(DType::f32, {5, 4});
    mix.post = zeros(DType::f32, {5, 4});
    mix.comb = zeros(DType::f32, {5, 4, 4});
    run(mix);
    expect_near(floats(mix.pre), "mhc.pre", 2e-6f);
    expect_near(floats(mix.post), "mhc.post", 2e-6f);
    expect_near(floats(mix.comb), "mhc.comb", 2e-6f);

    MhcCollapse collapse{mix.h, from("mhc.pre"), zeros(DType::bf16, {5, 64})};
    run(collapse);
    expect_bf16(collapse.out, "mhc.collapse", 0.01);

    MhcExpand expand{from("mhc.y"), mix.h, from("mhc.post"), from("mhc.comb"),
                     zeros(DType::bf16, {5, 4, 64})};
    run(expand);
    expect_bf16(expand.out, "mhc.expand", 0.01);
}

TEST_P(OpsGolden, Sinkhorn_agrees_for_flat_and_steep_logits) {
    // base carries the logits, fn is zero: A = base[8..24].
    const std::vector<float> logits = want("sinkhorn.logits");
    const std::vector<float> comb = want("sinkhorn.comb");
    for (size_t i = 0; i < 6; ++i) {
        std::vector<float> base(8, 0.0f);
        base.insert(base.end(), logits.begin() + static_cast<long>(16 * i),
                    logits.begin() + static_cast<long>(16 * (i + 1)));
        MhcMix mix;
        mix.h = zeros(DType::bf16, {1, 4, 64});
        mix.fn = zeros(DType::f32, {24, 256});
        mix.scale = f32({3}, {1, 1, 1});
        mix.base = f32({24}, base);
        mix.pre = zeros(DType::f32, {1, 4});
        mix.post = zeros(DType::f32, {1, 4});
        mix.comb = zeros(DType::f32, {1, 4, 4});
        run(mix);
        const std::vector<float> got = floats(mix.comb);
        for (size_t j = 0; j < 16; ++j) {
            EXPECT_NEAR(got[j], comb[16 * i + j], 2e-6f) << i << ", " << j;
        }
    }
}

TEST_P(OpsGolden, Rope_turns_and_turns_back) {
    const std::vector<int32_t> positions = get<int32_t>(from("rope.positions"));
    std::vector<RowInfo> row;
    std::vector<SegInfo> seg;
    for (size_t t = 0; t < positions.size(); ++t) {
        const auto i = static_cast<int32_t>(t);
        row.push_back({positions[t], i, i, 0});
        seg.push_back({i, i, 1, positions[t], {0, 0}, 0, 0});
    }
    for (const std::string kind : {"rope.main", "rope.compress"}) {
        RopeAngles angles;
        angles.rows = rows(row, seg);
        angles.freq = golden().tensor(kind + ".freq");
        angles.cs = zeros(DType::f32, {9, 64});
        run(angles);
        const std::vector<float> cs = floats(angles.cs);
        const std::vector<float> cosine = want(kind + ".cos");
        const std::vector<float> sine = want(kind + ".sin");
        for (size_t t = 0; t < 9; ++t) {
            for (size_t i = 0; i < 32; ++i) {
                EXPECT_NEAR(cs[t * 64 + i], cosine[t * 32 + i], 1e-6f) << kind << t << ", " << i;
                EXPECT_NEAR(cs[t * 64 + 32 + i], sine[t * 32 + i], 1e-6f) << kind << t << ", " << i;
            }
        }
        RopeTurn turn{from("rope.x"), angles.cs, false, zeros(DType::bf16, {9, 2, 96})};
        run(turn);
        expect_bf16(turn.out, kind + ".y", 0.01);
        RopeTurn back{from("rope.x"), angles.cs, true, zeros(DType::bf16, {9, 2, 96})};
        run(back);
        expect_bf16(back.out, kind + ".inverse", 0.01);
    }
}

TEST_P(OpsGolden, Attention_with_sink_over_chosen_rows) {
    // The seven keys are compressed rows of one bf16 page; win_lo beyond every position hides the
    // window.
    const std::vector<uint8_t> keys = bytes(from("sink.keys"));
    const std::vector<uint8_t> allowed = bytes(from("sink.allowed"));
    std::vector<int32_t> sel(4 * 7, -1);
    std::vector<int32_t> count(4, 0);
    for (size_t t = 0; t < 4; ++t) {
        for (size_t k = 0; k < 7; ++k) {
            if (allowed[t * 7 + k] != 0) {
                sel[t * 7 + static_cast<size_t>(count[t]++)] = static_cast<int32_t>(k);
            }
        }
    }
    AttnSparse p;
    p.q = from("sink.q");
    p.kv = filled(DType::bf16, {4, 32}, 0xFF);
    p.ring = {filled(DType::bf16, {1, 16, 32}, 0xFF), {}, 16, 32, RowFormat::bf16};
    std::vector<uint8_t> pool = keys;
    pool.resize(8 * 64, 0xFF);
    p.comp = {u8({1, 512}, pool), i32({1, 1}, {0}), 0, 0, 8, 1, 32, RowFormat::bf16};
    p.sel = i32({4, 7}, sel);
    p.count = i32({4}, count);
    p.sink = from("sink.sink");
    p.scale = 1.0f / std::sqrt(32.0f);
    p.window = 8;
    std::vector<RowInfo> row;
    for (int32_t t = 0; t < 4; ++t) {
        row.push_back({20 + t, 0, 0, 0});
    }
    p.rows = rows(row, {SegInfo{0, 0, 4, 20, {1000, 1000}, 0, 0}});
    p.out = zeros(DType::bf16, {4, 3, 32});
    run(p);
    expect_bf16(p.out, "sink.o", 1.0);
}

TEST_P(OpsGolden, Pooling_of_pairs) {
    CompressPool p;
    p.a = from("pool.a");
    p.s = from("pool.s");
    p.rows = one_segment(0, 0, 6);
    p.raw = zeros(DType::f32, {1, 64, 2, 48});
    p.out = filled(DType::bf16, {6, 48}, 0xFF);
    run(p);
    const std::vector<float> got = floats(p.out);
    const std::vector<float> latent = want("pool.latent");
    for (size_t t = 0; t < 6; ++t) {
        for (size_t i = 0; i < 48; ++i) {
            const float expected = t % 2 == 1 ? latent[t / 2 * 48 + i] : 0.0f;
            EXPECT_LE(bf16_ulps(got[t * 48 + i], expected), 1) << t << ", " << i;
        }
    }
}

TEST_P(OpsGolden, Candidate_blocks) {
    const std::vector<int32_t> visible = get<int32_t>(from("candidates.visible"));
    const std::vector<uint8_t> mask = bytes(from("candidates.mask"));
    std::vector<RowInfo> row;
    std::vector<SegInfo> seg;
    for (size_t t = 0; t < visible.size(); ++t) {
        const auto i = static_cast<int32_t>(t);
        row.push_back({visible[t] - 1, i, i, 0});
        seg.push_back({i, i, 1, visible[t] - 1, {0, 0}, 0, 0});
    }
    IndexBlocks p;
    p.scores = zeros(DType::f32, {5, 92});  // rows of whole 16 bytes
    p.scores.shape[1] = 90;
    p.scores.stride[0] = 92;
    write(p.scores, golden().tensor("candidates.scores").data);
    p.rows = rows(row, seg);
    p.ratio = 1;
    p.block = 8;
    p.cand = zeros(DType::i32, {5, 4});
    p.count = zeros(DType::i32, {5});
    run(p);
    const std::vector<int32_t> cand = get<int32_t>(p.cand);
    for (size_t t = 0; t < 5; ++t) {
        for (int32_t j = 0; j < visible[t]; ++j) {
            const auto first = cand.begin() + static_cast<long>(4 * t);
            const bool kept = std::find(first, first + 4, j / 8) != first + 4;
            EXPECT_EQ(kept, mask[t * 90 + static_cast<size_t>(j)] != 0) << t << ", " << j;
        }
    }
}

TEST_P(OpsGolden, Router_chooses_and_weighs) {
    RouteTopk p;
    p.logits = from("router.logits");
    p.bias = from("router.bias");
    p.k = 6;
    p.scale = 1.5f;
    p.rows = one_segment(0, 0, 8);
    p.ids = zeros(DType::i32, {8, 6});
    p.weights = zeros(DType::f32, {8, 6});
    run(p);
    const std::vector<int32_t> ids = get<int32_t>(p.ids);
    const std::vector<float> weights = floats(p.weights);
    const std::vector<int32_t> experts = get<int32_t>(from("router.experts"));
    const std::vector<float> wanted = want("router.weights");
    for (size_t t = 0; t < 8; ++t) {
        for (size_t i = 0; i < 6; ++i) {
            const auto first = experts.begin() + static_cast<long>(6 * t);
            const auto at = std::find(first, first + 6, ids[t * 6 + i]) - first;
            ASSERT_LT(at, 6) << "row " << t << " chose " << ids[t * 6 + i];
            EXPECT_NEAR(weights[t * 6 + i], wanted[t * 6 + static_cast<size_t>(at)], 1e-6f);
        }
        EXPECT_TRUE(std::is_sorted(ids.begin() + static_cast<long>(6 * t),
                                   ids.begin() + static_cast<long>(6 * t + 6)));
    }
}

TEST_P(OpsGolden, Engram_rows_and_gate) {
    EngramDecode d;
    d.values = from("rows.weight");
    d.values.rank = 3;
    d.values.shape[1] = 1;
    d.values.shape[2] = 64;
    d.values.stride[1] = 64;
    d.values.stride[2] = 1;
    d.scales = from("rows.scale_u8");
    d.scales.rank = 3;
    d.scales.shape[1] = 1;
    d.scales.shape[2] = 2;
    d.scales.stride[1] = 2;
    d.scales.stride[2] = 1;
    d.rows = one_segment(0, 0, 5);
    d.out = zeros(DType::bf16, {5, 64});
    run(d);
    EXPECT_EQ(floats(d.out), want("rows.value"));

    EngramGate g;
    g.kv = from("engram.gate.kv");
    g.h = from("engram.gate.h");
    g.q_weight = from("engram.gate.q_weight");
    g.k_weight = from("engram.gate.k_weight");
    g.rows = one_segment(0, 0, 6);
    run(g);
    expect_bf16(g.h, "engram.gate.y", 1.0);
}

TENON_INSTANTIATE_OPS(OpsGolden);

}  // namespace
}  // namespace tenon::testing
