// SPDX-License-Identifier: MIT
// Fused ops of attention, selection and drafts against their parts, where a provider has them.
#include <cmath>
#include <numeric>

#include "attn_world.h"
#include "tenon/ops/draft.h"
#include "tenon/ops/index.h"
#include "tenon/ops/rope.h"

namespace tenon::testing {
namespace {

class OpsTokenFusion : public AttnWorld {
  protected:
    // Keys of any content: two slots of `rows` compressed rows.
    Pages random_keys(int32_t rows, int32_t ratio, uint64_t seed) {
        Pages p;
        p.rows_per_page = 64;
        p.ratio = ratio;
        p.width = 128;
        p.format = RowFormat::q4u;
        p.scales_at = 64 * 64;
        const int32_t each = (rows + 63) / 64;
        const int64_t page_bytes = 64 * 68;
        Random random(seed);
        std::vector<uint8_t> pool(static_cast<size_t>(2 * each * page_bytes));
        for (uint8_t& x : pool) {
            x = static_cast<uint8_t>(random.word());
        }
        for (int64_t page = 0; page < 2 * each; ++page) {
            for (int64_t i = 0; i < 64 * 4; ++i) {
                pool[static_cast<size_t>(page * page_bytes + 4096 + i)] =
                    static_cast<uint8_t>(124 + random.below(6));
            }
        }
        p.pool = u8({2 * each, page_bytes}, pool);
        std::vector<int32_t> table(static_cast<size_t>(2 * each));
        std::iota(table.begin(), table.end(), 0);
        random.shuffle(table);
        p.table = i32({2, each}, table);
        return p;
    }
    // Values of the q4u grid; `spread` powers of two between groups.
    std::vector<float> queries(int64_t groups, Random& random, int64_t spread) {
        std::vector<float> out;
        for (int64_t k = 0; k < groups; ++k) {
            const float scale = std::ldexp(1.0f, -static_cast<int>(random.below(spread)));
            for (int i = 0; i < 32; ++i) {
                out.push_back(e2m1_to_f32(static_cast<uint8_t>(random.word())) * scale);
            }
        }
        return out;
    }

    struct Choice {
        std::vector<int32_t> sel, count, blocks, block_count;
        bool operator==(const Choice&) const = default;
    };
    IndexSelect call(int32_t slot, int32_t pos0, int32_t n, int32_t N, const Pages& keys,
                     int64_t spread = 4) {
        const int64_t Hi = 6, K = 40;
        Random random(77);
        IndexSelect p;
        p.iq = bf16({n, Hi, 128}, queries(n * Hi * 4, random, spread));
        p.w = bf16({n, Hi}, random.bells(n * Hi));
        p.w_scale = 0.125f;
        p.keys = keys;
        p.rows = one_segment(slot, pos0, n);
        p.N = N;
        p.sel = filled(DType::i32, {n, K}, 0x11);
        p.count = filled(DType::i32, {n}, 0x11);
        return p;
    }
    Choice fused(const IndexSelect& p) {
        run(p);
        Choice c{get<int32_t>(p.sel), get<int32_t>(p.count), {}, {}};
        if (!p.blocks.null()) {
            c.blocks = get<int32_t>(p.blocks);
            c.block_count = get<int32_t>(p.block_count);
        }
        return c;
    }
    Choice parts(const IndexSelect& p) {
        const int64_t T = p.rows.T;
        const int64_t N = p.cand.null() ? p.N : std::min<int64_t>(p.N, p.cand.shape[1] * p.block);
        IndexScore s;
        s.iq = p.iq;
        s.w = p.w;
        s.w_scale = p.w_scale;
        s.keys = p.keys;
        s.rows = p.rows;
        s.cand = p.cand;
        s.block = p.block;
        s.out = filled(DType::f32, {T, N}, 0xFF);
        run(s);
        Choice c;
        if (!p.blocks.null()) {
            IndexBlocks b;
            b.scores = s.out;
            b.rows = p.rows;
            b.ratio = p.keys.ratio;
            b.block = p.block;
            b.cand = filled(DType::i32, {T, p.blocks.shape[1]}, 0x22);
            b.count = filled(DType::i32, {T}, 0x22);
            run(b);
            c.blocks = get<int32_t>(b.cand);
            c.block_count = get<int32_t>(b.count);
        }
        IndexTopk k;
        k.scores = s.out;
        k.rows = p.rows;
        k.ratio = p.keys.ratio;
        k.cand = p.cand;
        k.block = p.block;
        k.sel = filled(DType::i32, {T, p.sel.shape[1]}, 0x22);
        k.count = filled(DType::i32, {T}, 0x22);
        run(k);
        c.sel = get<int32_t>(k.sel);
        c.count = get<int32_t>(k.count);
        return c;
    }
};

TEST_P(OpsTokenFusion, Sparse_turn_is_turn_attention_turn) {
    for (Regime regime : {Regime::decode, Regime::prefill}) {
        if (!offered<AttnSparseTurn>(regime)) {
            GTEST_SKIP() << "attn.sparse_turn is not offered";
        }
        g.H = 5;
        g.D = 128;
        g.K = 70;
        const int32_t n = 3, pos0 = 40, slot = 1;
        Random random(3);
        const Ring ring = make_ring(0x7F);
        fill_ring(ring, slot, 0, pos0);
        const Pages comp = make_pages(96);
        fill_pages(comp, slot, 96);
        std::vector<int32_t> sel(static_cast<size_t>(n * g.K), -1);
        for (int32_t i = 0; i < 70; ++i) {
            sel[static_cast<size_t>(i)] = i;
            sel[static_cast<size_t>(70 + i)] = i + i / 4;
        }
        AttnSparseTurn f;
        f.q = bf16({n, g.H, g.D}, random.bells(n * g.H * g.D));
        f.kv = this_calls_kv({{slot, pos0}, {slot, pos0 + 1}, {slot, pos0 + 2}});
        f.ring = ring;
        f.comp = comp;
        f.sel = i32({n, g.K}, sel);
        f.count = i32({n}, {70, 65, 0});
        f.sink = f32({g.H}, random.bells(g.H));
        f.scale = g.scale;
        f.window = g.window;
        f.rows = one_segment(slot, pos0, n);
        std::vector<float> cs(static_cast<size_t>(n) * 64);
        for (int32_t t = 0; t < n; ++t) {
            for (int32_t j = 0; j < 32; ++j) {
                const float angle = static_cast<float>(pos0 + t) / static_cast<float>(1 + j);
                cs[static_cast<size_t>(t * 64 + j)] = std::cos(angle);
                cs[static_cast<size_t>(t * 64 + 32 + j)] = std::sin(angle);
            }
        }
        f.cs = f32({n, 64}, cs);
        f.out = filled(DType::bf16, {n, g.H, g.D}, 0xFF);
        run(f, regime);
        const RopeTurn there{f.q, f.cs, false, zeros(DType::bf16, {n, g.H, g.D})};
        run(there, regime);
        AttnSparse s;
        s.q = there.out;
        s.kv = f.kv;
        s.ring = f.ring;
        s.comp = f.comp;
        s.sel = f.sel;
        s.count = f.count;
        s.sink = f.sink;
        s.scale = f.scale;
        s.window = f.window;
        s.rows = f.rows;
        s.out = zeros(DType::bf16, {n, g.H, g.D});
        run(s, regime);
        const RopeTurn back{s.out, f.cs, true, zeros(DType::bf16, {n, g.H, g.D})};
        run(back, regime);
        EXPECT_EQ(bytes(f.out), bytes(back.out));
    }
}

TEST_P(OpsTokenFusion, Select_is_score_blocks_topk) {
    if (!offered<IndexSelect>()) {
        GTEST_SKIP() << "index.select is not offered";
    }
    for (int32_t ratio : {1, 2}) {
        // Fewer rows than K, some hundreds, and enough for the path of long rows.
        for (int32_t rows : {30, 700, 40000}) {
            const Pages keys = random_keys(rows, ratio, static_cast<uint64_t>(rows));
            for (int32_t n : {1, 6}) {
                const IndexSelect p = call(1, rows * ratio - n, n, rows + 4 - rows % 4, keys);
                EXPECT_EQ(fused(p), parts(p)) << rows << " rows, ratio " << ratio << ", T " << n;
                IndexSelect b = p;
                b.block = 8;
                b.blocks = filled(DType::i32, {n, 50}, 0x11);
                b.block_count = filled(DType::i32, {n}, 0x11);
                EXPECT_EQ(fused(b), parts(b)) << rows << " rows with blocks, T " << n;
                IndexSelect c = p;
                c.block = 8;
                std::vector<int32_t> cand;
                for (int32_t t = 0; t < n; ++t) {
                    for (int32_t i = 0; i < 50; ++i) {
                        cand.push_back(i < 45 ? i * (rows / 8 + 1) / 45 : -1);
                    }
                }
                c.cand = i32({n, 50}, cand);
                c.N = 400;
                EXPECT_EQ(fused(c), parts(c)) << rows << " rows inside candidates, T " << n;
            }
        }
    }
}

TEST_P(OpsTokenFusion, Select_bears_scales_far_apart) {
    if (!offered<IndexSelect>()) {
        GTEST_SKIP() << "index.select is not offered";
    }
    const Pages keys = random_keys(900, 1, 5);
    const IndexSelect p = call(0, 880, 4, 900, keys, 30);
    EXPECT_EQ(fused(p), parts(p));
    // The scores themselves, in double.
    IndexScore s;
    s.iq = p.iq;
    s.w = p.w;
    s.w_scale = p.w_scale;
    s.keys = p.keys;
    s.rows = p.rows;
    s.out = filled(DType::f32, {4, 900}, 0xFF);
    run(s);
    const std::vector<float> got = floats(s.out);
    const std::vector<float> q = floats(p.iq);
    const std::vector<float> w = floats(p.w);
    const std::vector<uint8_t> pool = bytes(keys.pool);
    const std::vector<int32_t> table = get<int32_t>(keys.table);
    const int64_t Hi = p.iq.shape[1];
    for (int64_t t = 0; t < 4; ++t) {
        for (int64_t j = 0; j < 881 + t; ++j) {
            const size_t page = static_cast<size_t>(table[static_cast<size_t>(j / 64)]) * 64 * 68;
            double sum = 0;
            double size = 0;
            for (int64_t h = 0; h < Hi; ++h) {
                double dot = 0;
                double magnitude = 0;
                for (int64_t i = 0; i < 128; ++i) {
                    const uint8_t code = pool[page + static_cast<size_t>(j % 64 * 64 + i / 2)];
                    const uint8_t scale =
                        pool[page + static_cast<size_t>(4096 + j % 64 * 4 + i / 32)];
                    const double v =
                        static_cast<double>(q[static_cast<size_t>((t * Hi + h) * 128 + i)]) *
                        e2m1_to_f32(static_cast<uint8_t>(code >> (4 * (i & 1)) & 15)) *
                        e8m0_to_f32(scale);
                    dot += v;
                    magnitude += std::fabs(v);
                }
                const double wh =
                    static_cast<double>(w[static_cast<size_t>(t * Hi + h)]) * p.w_scale;
                sum += wh * std::max(dot, 0.0);
                size += std::fabs(wh) * magnitude;
            }
            ASSERT_NEAR(got[static_cast<size_t>(t * 900 + j)], sum, size * 0x1p-20)
                << t << ", " << j;
        }
    }
}

TEST_P(OpsTokenFusion, Markov_is_steps_and_picks) {
    if (!offered<DraftMarkov>()) {
        GTEST_SKIP() << "draft.markov is not offered";
    }
    const int64_t V = 1000, r = 64, S = 11, B = 5;
    Random random(9);
    DraftMarkov m;
    m.base = f32({S, B, V}, random.bells(S * B * V));
    std::vector<int32_t> first;
    std::vector<SampleParams> params;
    std::vector<SegInfo> seg;
    for (int32_t s = 0; s < S; ++s) {
        first.push_back(s * 7);
        SampleParams q;
        q.temperature = s % 2 == 0 ? 0.0f : 0.8f;
        q.seed = random.word();
        params.push_back(q);
        seg.push_back({s == 4 ? -1 : s, s * 5, 5, 50 + s, {0, 0}, s * 5, 0});
    }
    m.first = i32({S}, first);
    m.embed = bf16({V, r}, random.bells(V * r, 0.5f));
    m.head = bf16({V, r}, random.bells(V * r, 0.5f));
    m.params = structs(params);
    m.rows = rows({}, seg);
    m.token = filled(DType::i32, {S, B}, 0x11);
    run(m);
    std::vector<int32_t> want(static_cast<size_t>(S * B));
    std::vector<int32_t> prev = first;
    for (int64_t i = 0; i < B; ++i) {
        DraftStep d;
        d.base = m.base;
        d.base.rank = 2;
        d.base.shape[1] = V;
        d.base.stride[1] = 1;
        d.base.data = static_cast<float*>(m.base.data) + i * V;
        d.prev = i32({S}, prev);
        d.embed = m.embed;
        d.head = m.head;
        d.params = m.params;
        d.rows = m.rows;
        d.step = static_cast<int32_t>(i);
        d.best = zeros(DType::u8, {S, sizeof(DraftBest)});
        run(d);
        const auto best = get<DraftBest>(d.best);
        for (int64_t s = 0; s < S; ++s) {
            prev[static_cast<size_t>(s)] = best[static_cast<size_t>(s)].id;
            want[static_cast<size_t>(s * B + i)] = prev[static_cast<size_t>(s)];
        }
    }
    EXPECT_EQ(get<int32_t>(m.token), want);
}

TENON_INSTANTIATE_OPS(OpsTokenFusion);

}  // namespace
}  // namespace tenon::testing
