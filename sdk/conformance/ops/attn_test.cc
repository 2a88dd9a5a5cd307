// SPDX-License-Identifier: MIT
// attn.sparse: window edges, selection, sinks, block mode, isolation of slots, and independence of
// placement.
#include "attn_world.h"

namespace tenon::testing {
namespace {

class OpsAttention : public AttnWorld {
  protected:
    /// Row invariance of calls of up to `most` rows in the geometry `g`.
    void expect_invariant(int most);
    /// A call of one segment: rows pos0..pos0+n-1 of `slot`, history in the ring, optional
    /// selections.
    struct Call {
        int32_t slot = 1, pos0 = 0, n = 1;
        std::vector<std::vector<int32_t>> sel;
        std::vector<float> sink;
        AttnMode mode = AttnMode::causal;
        int32_t win_lo[2] = {0, 0};
        int32_t half = 0;
        int32_t comp_rows = 0;
        float q_scale = 1;
    };

    AttnSparse prepare(const Call& c) {
        AttnSparse p;
        Random random(static_cast<uint64_t>(c.pos0) + 17);
        p.q = bf16({c.n, g.H, g.D}, random.bells(c.n * g.H * g.D, c.q_scale));
        std::vector<std::pair<int32_t, int32_t>> at;
        for (int32_t i = 0; i < c.n; ++i) {
            at.push_back({c.slot, c.pos0 + i});
        }
        p.kv = this_calls_kv(at);
        p.ring = make_ring(0x7F);  // NaN codes wherever nothing was stored
        for (int32_t s = 0; s < g.slots; ++s) {
            const int32_t first = std::max(0, c.pos0 - g.R);
            if (c.pos0 > first) {
                fill_ring(p.ring, s, first, c.pos0);
            }
        }
        if (!c.sel.empty()) {
            p.comp = make_pages(c.comp_rows);
            for (int32_t s = 0; s < g.slots; ++s) {
                fill_pages(p.comp, s, c.comp_rows);
            }
            std::vector<int32_t> sel;
            std::vector<int32_t> count;
            for (const auto& row : c.sel) {
                sel.insert(sel.end(), row.begin(), row.end());
                sel.insert(sel.end(), static_cast<size_t>(g.K) - row.size(), -1);
                count.push_back(static_cast<int32_t>(row.size()));
            }
            p.sel = i32({c.n, g.K}, sel);
            p.count = i32({c.n}, count);
        }
        p.sink = f32({g.H},
                     c.sink.empty() ? std::vector<float>(static_cast<size_t>(g.H), 0.5f) : c.sink);
        p.scale = g.scale;
        p.window = g.window;
        p.half = c.half;
        p.mode = c.mode;
        std::vector<RowInfo> row;
        for (int32_t i = 0; i < c.n; ++i) {
            row.push_back({c.pos0 + i, c.slot, 0, 0});
        }
        p.rows = rows(row, {SegInfo{c.slot, 0, c.n, c.pos0, {c.win_lo[0], c.win_lo[1]}, 0, 0}});
        p.out = filled(DType::bf16, {c.n, g.H, g.D}, 0xFF);
        return p;
    }

    std::vector<std::vector<float>> keys_of(const Call& c, int32_t i) {
        std::vector<std::vector<float>> keys;
        const int32_t low = c.win_lo[c.half];
        if (c.mode == AttnMode::causal) {
            const int32_t pos = c.pos0 + i;
            for (int32_t p = std::max(low, pos - g.window + 1); p <= pos; ++p) {
                keys.push_back(quantised(RowFormat::q8, raw_kv(c.slot, p)));
            }
        } else {
            for (int32_t p = std::max({low, 0, c.pos0 - g.window}); p < c.pos0 + c.n; ++p) {
                keys.push_back(quantised(RowFormat::q8, raw_kv(c.slot, p)));
            }
        }
        if (!c.sel.empty()) {
            for (int32_t r : c.sel[static_cast<size_t>(i)]) {
                keys.push_back(quantised(RowFormat::q4e, raw_comp(c.slot, r)));
            }
        }
        return keys;
    }

    void check(const Call& c) {
        const AttnSparse p = prepare(c);
        run(p);
        EXPECT_EQ(device().fault_count(), 0u);
        const std::vector<float> q = floats(p.q);
        const std::vector<float> out = floats(p.out);
        const std::vector<float> sink = floats(p.sink);
        for (int32_t i = 0; i < c.n; ++i) {
            const auto keys = keys_of(c, i);
            for (int64_t h = 0; h < g.H; ++h) {
                const size_t at = static_cast<size_t>((i * g.H + h) * g.D);
                expect_row(out, at,
                           answer({q.begin() + static_cast<long>(at),
                                   q.begin() + static_cast<long>(at) + static_cast<long>(g.D)},
                                  keys, sink[static_cast<size_t>(h)]),
                           "pos0 " + std::to_string(c.pos0) + ", row " + std::to_string(i) +
                               ", head " + std::to_string(h));
            }
        }
    }
};

TEST_P(OpsAttention, Window_edges_from_every_place_of_the_ring) {
    for (RowFormat f : {RowFormat::bf16, RowFormat::q8}) {
        g.ring = f;
        for (int32_t pos0 : {0, 1, 30, 31, 32, 33, 47, 48, 49, 95, 96, 97}) {
            for (int32_t n : {1, 2, 5, 16}) {
                Call c;
                c.pos0 = pos0;
                c.n = n;
                check(c);
            }
        }
    }
}

TEST_P(OpsAttention, A_chunk_takes_its_own_rows_from_kv_and_older_ones_from_the_ring) {
    Call c;
    c.pos0 = 40;
    c.n = 100;
    check(c);
}

TEST_P(OpsAttention, Win_lo_cuts_the_window_of_its_half_only) {
    Call c;
    c.pos0 = 50;
    c.n = 3;
    c.win_lo[1] = 45;
    c.half = 1;
    check(c);
    c.half = 0;
    check(c);
    c.win_lo[1] = 51;  // inside this call
    c.half = 1;
    c.n = 1;
    const AttnSparse p = prepare(c);
    run(p);
    for (float x : floats(p.out)) {
        ASSERT_EQ(x, 0.0f) << "no key gives zeros";
    }
}

TEST_P(OpsAttention, Selected_rows_count_even_when_the_window_has_the_token) {
    g.K = 12;
    for (RowFormat f : {RowFormat::bf16, RowFormat::q4e}) {
        g.comp = f;
        Call c;
        c.pos0 = 40;
        c.n = 3;
        c.comp_rows = 20;
        c.sel = {{0, 3, 19}, {}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19}};
        check(c);
    }
}

TEST_P(OpsAttention, Long_lists_cross_chunk_borders) {
    g.K = 512;
    g.D = 32;
    g.window = 128;
    g.R = 144;
    Call c;
    c.pos0 = 1300;
    c.n = 2;
    c.comp_rows = 640;
    std::vector<int32_t> all;
    for (int32_t i = 0; i < 512; ++i) {
        all.push_back(i + i / 8);
    }
    c.sel = {all, std::vector<int32_t>(all.begin(), all.begin() + 65)};
    check(c);
}

TEST_P(OpsAttention, Sinks_of_all_sizes) {
    for (float sink : {30.0f, -30.0f, -INFINITY}) {
        Call c;
        c.pos0 = 7;
        c.n = 2;
        c.sink = {sink, 0.0f};
        check(c);
    }
}

TEST_P(OpsAttention, One_key_and_a_huge_logit) {
    Call c;
    c.sink = {-INFINITY, 1.0f};
    check(c);  // position 0: one key; without a sink the output is the key
    const AttnSparse p = prepare(c);
    run(p);
    const std::vector<float> key = quantised(RowFormat::q8, raw_kv(1, 0));
    const std::vector<float> out = floats(p.out);
    for (size_t i = 0; i < key.size(); ++i) {
        EXPECT_EQ(out[i], key[i]);
    }
    c.pos0 = 20;
    c.q_scale = 4000;  // logits of thousands
    check(c);
}

TEST_P(OpsAttention, Block_mode_sees_later_rows_causal_does_not) {
    Call c;
    c.pos0 = 35;
    c.n = 5;
    c.mode = AttnMode::block;
    check(c);
    const AttnSparse block = prepare(c);
    run(block);
    c.mode = AttnMode::causal;
    const AttnSparse causal = prepare(c);
    run(causal);
    // Change the last row's kv: block rows all move, causal rows before it do not.
    std::vector<float> kv = floats(block.kv);
    for (int64_t i = 0; i < g.D; ++i) {
        kv[static_cast<size_t>(4 * g.D + i)] = 2.0f;
    }
    AttnSparse moved = block;
    moved.kv = bf16({5, g.D}, kv);
    moved.out = zeros(DType::bf16, {5, g.H, g.D});
    run(moved);
    AttnSparse still = causal;
    still.kv = moved.kv;
    still.out = zeros(DType::bf16, {5, g.H, g.D});
    run(still);
    const auto b0 = floats(block.out);
    const auto b1 = floats(moved.out);
    const auto c0 = floats(causal.out);
    const auto c1 = floats(still.out);
    const auto row = static_cast<size_t>(g.H * g.D);
    EXPECT_FALSE(std::equal(b0.begin(), b0.begin() + static_cast<long>(row), b1.begin()));
    EXPECT_TRUE(std::equal(c0.begin(), c0.begin() + static_cast<long>(4 * row), c1.begin()));
    c.pos0 = 0;  // nothing in the ring yet
    c.mode = AttnMode::block;
    check(c);
}

TEST_P(OpsAttention, Slots_with_equal_positions_do_not_leak_and_dead_rows_are_zero) {
    // Two slots at the same positions in one call, a dead row between, against each alone.
    const Ring ring = make_ring(0x7F);
    for (int32_t s = 0; s < 3; ++s) {
        fill_ring(ring, s, 0, 20);
    }
    Random random(5);
    const std::vector<float> q = random.bells(3 * g.H * g.D);
    AttnSparse p;
    p.q = bf16({3, g.H, g.D}, q);
    p.kv = this_calls_kv({{0, 20}, {-1, 0}, {2, 20}});
    p.ring = ring;
    p.sink = f32({g.H}, std::vector<float>(static_cast<size_t>(g.H), 0.0f));
    p.scale = g.scale;
    p.window = g.window;
    p.rows = rows({{20, 0, 0, 0}, {}, {20, 2, 1, 0}},
                  {SegInfo{0, 0, 1, 20, {0, 0}, 0, 0}, SegInfo{2, 2, 1, 20, {0, 0}, 0, 0}});
    p.out = filled(DType::bf16, {3, g.H, g.D}, 0xFF);
    run(p);
    const std::vector<float> out = floats(p.out);
    for (int64_t i = 0; i < g.H * g.D; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(g.H * g.D + i)], 0.0f);
    }
    for (size_t t : {size_t{0}, size_t{2}}) {
        std::vector<std::vector<float>> keys;
        for (int32_t pos = 0; pos <= 20; ++pos) {
            keys.push_back(quantised(RowFormat::q8, raw_kv(static_cast<int32_t>(t), pos)));
        }
        const std::vector<float> qv = floats(p.q);
        for (int64_t h = 0; h < g.H; ++h) {
            const auto at = static_cast<long>((static_cast<int64_t>(t) * g.H + h) * g.D);
            expect_row(
                out, static_cast<size_t>(at),
                answer({qv.begin() + at, qv.begin() + at + static_cast<long>(g.D)}, keys, 0.0f),
                "slot " + std::to_string(t));
        }
    }
}

TEST_P(OpsAttention, A_missing_page_is_counted_and_skipped) {
    g.K = 4;
    Call c;
    c.pos0 = 10;
    c.comp_rows = 8;
    c.sel = {{1, 2, 6}};
    AttnSparse p = prepare(c);
    std::vector<int32_t> table = get<int32_t>(p.comp.table);
    const auto width = static_cast<size_t>(p.comp.table.shape[1]);
    table[width + 1] = -1;  // rows 4..7 of slot 1
    p.comp.table = i32({g.slots, static_cast<int64_t>(width)}, table);
    const uint64_t before = device().fault_count();
    run(p);
    EXPECT_GT(device().fault_count(), before);
    c.sel = {{1, 2}};
    const AttnSparse without = prepare(c);
    run(without);
    EXPECT_EQ(bytes(p.out), bytes(without.out));
}

// Row r: slot r at a position of its own, selection of its own; one segment a row.
void OpsAttention::expect_invariant(int most) {
    g.slots = 140;
    g.comp = RowFormat::q4e;
    const auto run_rows = [&](const std::vector<int>& list, const Variation& v) {
        const auto T = static_cast<int64_t>(list.size());
        AttnSparse p;
        const int32_t shift = v.ring_turned ? g.R * 5 : 0;
        std::vector<float> q;
        std::vector<std::pair<int32_t, int32_t>> at;
        std::vector<RowInfo> row;
        std::vector<SegInfo> seg;
        std::vector<int32_t> sel;
        std::vector<int32_t> count;
        p.ring = make_ring(v.other_slots ? 0x33 : 0);
        p.comp = make_pages(96, v.permuted_pages ? 99 : 0, v.wide_table ? 2 : 1);
        for (int r : list) {
            Random random(static_cast<uint64_t>(r + 10));
            const int32_t pos = 3 + (r < 0 ? 0 : r) % 90;
            const auto t = static_cast<int32_t>(row.size());
            const std::vector<float> qr = random.bells(g.H * g.D, r == kHugeRow ? 1e4f : 1.0f);
            q.insert(q.end(), qr.begin(), qr.end());
            std::vector<int32_t> mine;
            const int32_t selected = static_cast<int32_t>(random.below(g.K + 1));
            for (int32_t i = 0; i < selected; ++i) {
                mine.push_back(i + i / 3);
            }
            count.push_back(selected);
            mine.resize(static_cast<size_t>(g.K), -1);
            sel.insert(sel.end(), mine.begin(), mine.end());
            if (r == kDeadRow) {
                row.push_back({});
                at.push_back({-1, 0});
                continue;
            }
            const int32_t slot = r < 0 ? 130 + t % 10 : r;
            // Huge rows may share a slot number; only the first of a slot gets a segment, others
            // are dead.
            const bool taken = std::any_of(seg.begin(), seg.end(),
                                           [&](const SegInfo& s) { return s.slot == slot; });
            if (taken) {
                row.push_back({});
                at.push_back({-1, 0});
                continue;
            }
            at.push_back({slot, pos});
            row.push_back({pos + shift, slot, static_cast<int32_t>(seg.size()), 0});
            seg.push_back({slot, t, 1, pos + shift, {shift, 0}, 0, 0});
            fill_ring(p.ring, slot, std::max(0, pos - g.window), pos, shift);
            fill_pages(p.comp, slot, 96);
        }
        p.q = bf16({T, g.H, g.D}, q);
        p.kv = this_calls_kv(at);
        p.sel = i32({T, g.K}, sel);
        p.count = i32({T}, count);
        p.sink = f32({g.H}, Random(77).bells(g.H, 3));
        p.scale = g.scale;
        p.window = g.window;
        p.rows = rows(row, seg);
        p.out = filled(DType::bf16, {T, g.H, g.D}, 0xFF);
        run(p);
        const std::vector<uint8_t> out = bytes(p.out);
        const auto stride = static_cast<long>(g.H * g.D * 2);
        std::vector<std::vector<uint8_t>> result;
        for (int64_t t = 0; t < T; ++t) {
            result.emplace_back(out.begin() + t * stride, out.begin() + (t + 1) * stride);
        }
        return result;
    };
    expect_row_invariant(run_rows, most);
}

TEST_P(OpsAttention, Rows_are_invariant) {
    g.H = 3;
    g.D = 64;
    g.K = 70;
    g.window = 96;  // longer than a chunk of 64 keys
    g.R = 112;
    expect_invariant(33);
}

TEST_P(OpsAttention, Rows_of_many_wide_heads_are_invariant) {
    g.H = 40;
    g.D = 512;
    g.K = 140;
    g.window = 128;
    g.R = 144;
    expect_invariant(17);
}

TEST_P(OpsAttention, Packed_and_bf16_state_give_equal_bits) {
    for (const bool many : {false, true}) {
        g = {};
        g.K = 8;
        if (many) {
            g.H = 40;
            g.D = 512;
        }
        Call c;
        c.pos0 = 70;
        c.n = 4;
        c.comp_rows = 30;
        c.sel = {{0, 29}, {3, 4, 5}, {}, {1, 2, 3, 4, 5, 6, 7, 8}};
        const AttnSparse packed = prepare(c);
        run(packed);
        g.ring = RowFormat::bf16;
        g.comp = RowFormat::bf16;
        const AttnSparse wide = prepare(c);
        run(wide);
        EXPECT_EQ(bytes(packed.out), bytes(wide.out));
    }
}

TENON_INSTANTIATE_OPS(OpsAttention);

}  // namespace
}  // namespace tenon::testing
