// SPDX-License-Identifier: MIT
// Compressor pooling, index scores, candidate blocks and top-k.
#include <cmath>
#include <numeric>

#include "tenon/ops/cache.h"
#include "tenon/ops/compress.h"
#include "tenon/ops/index.h"
#include "tenon/ops/kvq.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

constexpr float kMinusInf = -INFINITY;

class OpsPool : public OpTest {
  protected:
    static constexpr int64_t kD = 16;
    std::vector<float> a_of(int32_t pos) {
        return Random(static_cast<uint64_t>(pos) + 100).bells(kD);
    }
    std::vector<float> s_of(int32_t pos) {
        return Random(static_cast<uint64_t>(pos) + 9000).bells(kD, 2);
    }
    std::vector<float> latent(int32_t odd) {
        std::vector<float> out;
        for (size_t i = 0; i < kD; ++i) {
            const double s0 = s_of(odd - 1)[i];
            const double s1 = s_of(odd)[i];
            const double p0 = 1 / (1 + std::exp(s1 - s0));
            out.push_back(static_cast<float>(a_of(odd - 1)[i] * p0 + a_of(odd)[i] * (1 - p0)));
        }
        return out;
    }
    CompressPool call(int32_t slot, int32_t pos0, int32_t n, const TensorView& raw) {
        std::vector<float> a;
        std::vector<float> s;
        for (int32_t i = 0; i < n; ++i) {
            const auto ai = a_of(pos0 + i);
            const auto si = s_of(pos0 + i);
            a.insert(a.end(), ai.begin(), ai.end());
            s.insert(s.end(), si.begin(), si.end());
        }
        return {f32({n, kD}, a), f32({n, kD}, s), one_segment(slot, pos0, n), raw,
                filled(DType::bf16, {n, kD}, 0xFF)};
    }
    void expect_latents(const CompressPool& p, int32_t pos0, int32_t n) {
        const std::vector<float> out = floats(p.out);
        for (int32_t i = 0; i < n; ++i) {
            const int32_t pos = pos0 + i;
            const std::vector<float> want =
                pos % 2 == 1 ? latent(pos) : std::vector<float>(static_cast<size_t>(kD), 0.0f);
            for (size_t c = 0; c < kD; ++c) {
                const float got = out[static_cast<size_t>(i * kD) + c];
                // f32 steps: a few parts in 2^24 of the two terms, then one rounding to bf16.
                const float size =
                    std::fabs(a_of(pos)[c]) + (pos > 0 ? std::fabs(a_of(pos - 1)[c]) : 0.0f);
                ASSERT_NEAR(got, want[c], std::fabs(want[c]) * 0x1p-8f + size * 0x1p-20f)
                    << "position " << pos;
            }
        }
    }
};

TEST_P(OpsPool, Pairs_across_calls_of_any_length) {
    for (int32_t first : {1, 2, 33, 65, 201}) {
        for (int32_t second : {1, 2, 3, 64}) {
            const TensorView raw = filled(DType::f32, {2, kRawPositions, 2, kD}, 0xFF);
            const CompressPool a = call(1, 0, first, raw);
            run(a);
            expect_latents(a, 0, first);
            const CompressPool b = call(1, first, second, raw);
            run(b);
            expect_latents(b, first, second);
        }
    }
}

TEST_P(OpsPool, The_open_pair_is_read_before_its_place_is_overwritten) {
    // 64 rows from an odd position: the last row of the call lands on (pos0 - 1) % 64.
    const TensorView raw = zeros(DType::f32, {1, kRawPositions, 2, kD});
    run(call(0, 0, 7, raw));
    const CompressPool b = call(0, 7, 64, raw);
    run(b);
    expect_latents(b, 7, 64);
}

TEST_P(OpsPool, Only_the_last_rows_of_each_segment_are_kept) {
    const TensorView raw = filled(DType::f32, {2, kRawPositions, 2, kD}, 0);
    run(call(1, 0, 40, raw));
    const std::vector<float> kept = floats(raw);
    for (int32_t at = 0; at < 64; ++at) {
        const bool stored = at >= 8 && at < 40;
        const size_t base = static_cast<size_t>((64 + at) * 2 * kD);
        for (size_t c = 0; c < kD; ++c) {
            EXPECT_EQ(kept[base + c], stored ? a_of(at)[c] : 0.0f);
            EXPECT_EQ(kept[base + kD + c], stored ? s_of(at)[c] : 0.0f);
            EXPECT_EQ(kept[static_cast<size_t>(at * 2 * kD) + c], 0.0f) << "slot 0 is untouched";
        }
    }
}

TEST_P(OpsPool, A_rejected_row_leaves_no_trace) {
    // Six rows of a verify window, none accepted; the window is run again with other content.
    const TensorView raw = zeros(DType::f32, {1, kRawPositions, 2, kD});
    run(call(0, 0, 9, raw));
    CompressPool wrong = call(0, 9, 6, raw);
    wrong.a = f32({6, kD}, std::vector<float>(6 * kD, 1e9f));
    wrong.s = f32({6, kD}, std::vector<float>(6 * kD, -7.0f));
    run(wrong);
    const CompressPool right = call(0, 9, 3, raw);
    run(right);
    expect_latents(right, 9, 3);
}

TEST_P(OpsPool, Rows_are_invariant) {
    const auto run_rows = [&](const std::vector<int>& list, const Variation& v) {
        const auto T = static_cast<int64_t>(list.size());
        CompressPool p;
        std::vector<float> a;
        std::vector<float> s;
        std::vector<RowInfo> row;
        std::vector<SegInfo> seg;
        for (int r : list) {
            const auto t = static_cast<int32_t>(row.size());
            const bool live = r >= 0;
            const int32_t pos = 2 * (live ? r : 0) + 1;
            const auto ar =
                r == kHugeRow ? std::vector<float>(static_cast<size_t>(kD), 1e30f) : a_of(pos);
            a.insert(a.end(), ar.begin(), ar.end());
            const auto sr = s_of(pos);
            s.insert(s.end(), sr.begin(), sr.end());
            if (!live) {
                row.push_back({});
                continue;
            }
            row.push_back({pos, r, static_cast<int32_t>(seg.size()), 0});
            seg.push_back({r, t, 1, pos, {0, 0}, 0, 0});
        }
        std::vector<float> raw(static_cast<size_t>(140 * kRawPositions * 2 * kD),
                               v.other_slots ? 7.0f : 0.0f);
        for (int r : list) {
            for (size_t c = 0; r >= 0 && c < kD; ++c) {
                const size_t at =
                    (static_cast<size_t>(r) * 64 + static_cast<size_t>(2 * r % 64)) * 2 * kD;
                raw[at + c] = a_of(2 * r)[c];
                raw[at + kD + c] = s_of(2 * r)[c];
            }
        }
        p.a = f32({T, kD}, a);
        p.s = f32({T, kD}, s);
        p.raw = f32({140, kRawPositions, 2, kD}, raw);
        p.rows = rows(row, seg);
        p.out = filled(DType::bf16, {T, kD}, 0xFF);
        run(p);
        std::vector<std::vector<uint8_t>> out;
        const std::vector<uint8_t> all = bytes(p.out);
        for (int64_t t = 0; t < T; ++t) {
            out.emplace_back(all.begin() + t * 2 * kD, all.begin() + (t + 1) * 2 * kD);
        }
        return out;
    };
    expect_row_invariant(run_rows, 65);
}

class OpsIndex : public OpTest {
  protected:
    int64_t Hi = 4;
    static constexpr int64_t Di = 128;
    int32_t rows_per_page = 8;
    bool uneven = false;  // groups of a key differ by up to 2^12, some are zero

    std::vector<float> q4u(const std::vector<float>& x) {
        const auto n = static_cast<int64_t>(x.size());
        KvqQuantize p{
            .x = bf16({1, n}, x), .format = RowFormat::q4u, .values = zeros(DType::bf16, {1, n})};
        run(p);
        return floats(p.values);
    }
    std::vector<float> key(int32_t slot, int32_t g) {
        Random random(static_cast<uint64_t>(slot) * 77777 + static_cast<uint64_t>(g));
        std::vector<float> k = random.bells(Di);
        if (uneven && g % 3 != 0) {
            stretch(k, random);
        }
        return k;
    }
    /// Scales every group of 32 columns by its own power of 2^octaves, or by zero.
    void stretch(std::vector<float>& x, Random& random, int octaves = 1) {
        for (size_t from = 0; from < x.size(); from += 32) {
            const auto by = static_cast<int>(random.below(14));
            const float scale = by == 13 ? 0.0f : std::ldexp(1.0f, (by - 6) * octaves);
            for (size_t i = from; i < from + 32; ++i) {
                x[i] *= scale;
            }
        }
    }
    Pages make_keys(int32_t ratio, int32_t slots, int32_t n, RowFormat format = RowFormat::q4u,
                    uint64_t order = 0, int32_t table_factor = 1) {
        Pages p;
        p.rows_per_page = rows_per_page;
        p.ratio = ratio;
        p.width = Di;
        p.format = format;
        p.scales_at = rows_per_page * code_bytes(format, Di);
        const int64_t page_bytes = p.scales_at + 256;
        const int32_t each = (n + rows_per_page - 1) / rows_per_page;
        std::vector<int32_t> ids(static_cast<size_t>(each * slots));
        std::iota(ids.begin(), ids.end(), 0);
        if (order != 0) {
            Random(order).shuffle(ids);
        }
        const int64_t width = int64_t{each} * table_factor;
        std::vector<int32_t> table(static_cast<size_t>(slots * width), -1);
        for (int32_t s = 0; s < slots; ++s) {
            for (int32_t i = 0; i < each; ++i) {
                table[static_cast<size_t>(s * width + i)] = ids[static_cast<size_t>(s * each + i)];
            }
        }
        p.pool = filled(DType::u8, {each * slots, page_bytes}, 0xFF);
        p.table = i32({slots, width}, table);
        return p;
    }
    void fill_keys(const Pages& p, int32_t slot, int32_t first, int32_t last) {
        std::vector<float> x;
        std::vector<RowInfo> row;
        for (int32_t i = first; i < last; ++i) {
            const auto k = key(slot, i);
            x.insert(x.end(), k.begin(), k.end());
            row.push_back({i * p.ratio + p.ratio - 1, slot, 0, 0});
        }
        CacheStore c{bf16({last - first, Di}, x), OpTest::rows(row, {}), p, RowFormat::q4u};
        run(c);
    }
    /// Score of ops.md 3.6 in double.
    double score(const std::vector<float>& q, const std::vector<float>& w, float w_scale,
                 const std::vector<float>& k, double* size) {
        double acc = 0;
        *size = 0;
        for (size_t h = 0; h < static_cast<size_t>(Hi); ++h) {
            double dot = 0;
            double magnitude = 0;
            for (size_t i = 0; i < static_cast<size_t>(Di); ++i) {
                const double v = static_cast<double>(q[h * static_cast<size_t>(Di) + i]) * k[i];
                dot += v;
                magnitude += std::fabs(v);
            }
            acc += static_cast<double>(w[h]) * w_scale * std::max(dot, 0.0);
            *size += std::fabs(static_cast<double>(w[h]) * w_scale) * magnitude;
        }
        return acc;
    }
};

TEST_P(OpsIndex, Scores_and_visibility_within_one_call) {
    for (int64_t heads : {1, 4, 6, 32}) {
        Hi = heads;
        for (int32_t ratio : {1, 2}) {
            const int32_t pos0 = 37;
            const int32_t n = 9;
            const int32_t stored = (pos0 + n) / ratio;
            const Pages keys = make_keys(ratio, 2, stored + 4);
            fill_keys(keys, 1, 0, stored);
            Random random(31);
            IndexScore p;
            std::vector<float> iq;
            for (int64_t i = 0; i < n * Hi; ++i) {
                const auto q = q4u(random.bells(Di));
                iq.insert(iq.end(), q.begin(), q.end());
            }
            p.iq = bf16({n, Hi, Di}, iq);
            p.w = bf16({n, Hi}, random.bells(n * Hi));
            p.w_scale = 1.0f / 64;
            p.keys = keys;
            p.rows = one_segment(1, pos0, n);
            p.out = filled(DType::f32, {n, 48}, 0xFF);
            run(p);
            EXPECT_EQ(device().fault_count(), 0u);
            const std::vector<float> out = floats(p.out);
            const std::vector<float> w = floats(p.w);
            for (int32_t t = 0; t < n; ++t) {
                const int32_t visible = (pos0 + t + 1) / ratio;
                for (int32_t j = 0; j < 48; ++j) {
                    const float got = out[static_cast<size_t>(t * 48 + j)];
                    if (j >= visible) {
                        ASSERT_EQ(got, kMinusInf)
                            << "row " << t << ", key " << j << ", ratio " << ratio;
                        continue;
                    }
                    double size = 0;
                    const auto q0 = iq.begin() + static_cast<long>(t * Hi * Di);
                    const double want = score({q0, q0 + static_cast<long>(Hi * Di)},
                                              {w.begin() + static_cast<long>(t * Hi),
                                               w.begin() + static_cast<long>((t + 1) * Hi)},
                                              p.w_scale, q4u(key(1, j)), &size);
                    ASSERT_NEAR(got, want, size * 0x1p-20) << "row " << t << ", key " << j;
                }
            }
        }
    }
}

TEST_P(OpsIndex, The_rows_of_a_page_and_the_scales_of_groups_do_not_matter) {
    // Even and uneven scales take different ways to the same sums where pages hold whole tiles.
    struct Case {
        int64_t heads;
        int32_t n;
        bool keys, queries;
    };
    for (const Case& c :
         {Case{32, 1, false, false}, Case{32, 6, false, false}, Case{32, 9, true, false},
          Case{32, 3, false, true}, Case{6, 2, true, true}, Case{64, 5, true, true}}) {
        Hi = c.heads;
        uneven = c.keys;
        const int32_t pos0 = 301;
        const int32_t stored = pos0 + c.n;
        const int32_t width = 320;
        Random random(36);
        std::vector<float> iq;
        for (int64_t i = 0; i < c.n * Hi; ++i) {
            std::vector<float> x = random.bells(Di);
            if (c.queries && i / Hi != 1) {  // row 1 stays even, row 2 differs by up to 2^24
                stretch(x, random, i / Hi == 2 ? 2 : 1);
            }
            const auto q = q4u(x);
            iq.insert(iq.end(), q.begin(), q.end());
        }
        IndexScore p;
        p.iq = bf16({c.n, Hi, Di}, iq);
        p.w = bf16({c.n, Hi}, random.bells(c.n * Hi));
        p.w_scale = 1.0f / 64;
        p.rows = one_segment(1, pos0, c.n);
        std::vector<uint8_t> first;
        for (int32_t rows : {8, 32, 64}) {
            rows_per_page = rows;
            p.keys = make_keys(1, 2, stored, RowFormat::q4u, static_cast<uint64_t>(rows));
            fill_keys(p.keys, 1, 0, stored);
            p.out = filled(DType::f32, {c.n, width}, 0xFF);
            run(p);
            if (first.empty()) {
                first = bytes(p.out);
            }
            EXPECT_EQ(bytes(p.out), first) << c.heads << " heads, " << rows << " rows a page";
        }
        const std::vector<float> out = floats(p.out);
        const std::vector<float> w = floats(p.w);
        for (int32_t t = 0; t < c.n; ++t) {
            const auto q0 = iq.begin() + static_cast<long>(t * Hi * Di);
            const std::vector<float> q(q0, q0 + static_cast<long>(Hi * Di));
            const auto w0 = w.begin() + static_cast<long>(t * Hi);
            for (int32_t j = 0; j <= pos0 + t; j += 7) {
                double size = 0;
                const double want =
                    score(q, {w0, w0 + static_cast<long>(Hi)}, p.w_scale, q4u(key(1, j)), &size);
                ASSERT_NEAR(out[static_cast<size_t>(t * (width) + j)], want, size * 0x1p-20)
                    << c.heads << " heads, row " << t << ", key " << j;
            }
        }
    }
    uneven = false;
    rows_per_page = 8;
}

TEST_P(OpsIndex, Candidates_are_the_rows_own_and_columns_follow_them) {
    const int32_t n = 2;
    const Pages keys = make_keys(1, 1, 64);
    fill_keys(keys, 0, 0, 50);
    Random random(32);
    IndexScore p;
    std::vector<float> iq;
    for (int64_t i = 0; i < n * Hi; ++i) {
        const auto q = q4u(random.bells(Di));
        iq.insert(iq.end(), q.begin(), q.end());
    }
    p.iq = bf16({n, Hi, Di}, iq);
    p.w = bf16({n, Hi}, random.bells(n * Hi));
    p.keys = keys;
    p.rows = one_segment(0, 44, n);
    p.out = zeros(DType::f32, {n, 64});
    run(p);
    const std::vector<float> all = floats(p.out);
    IndexScore c = p;
    c.cand = i32({n, 4}, {0, 5, -1, 11, 2, 3, 11, -1});
    c.block = 4;
    c.out = filled(DType::f32, {n, 16}, 0xFF);
    run(c);
    const std::vector<float> some = floats(c.out);
    const std::vector<int32_t> cand = get<int32_t>(c.cand);
    for (int32_t t = 0; t < n; ++t) {
        for (int32_t j = 0; j < 16; ++j) {
            const int32_t block = cand[static_cast<size_t>(t * 4 + j / 4)];
            const int32_t row = block * 4 + j % 4;
            const float want = block < 0 ? kMinusInf : all[static_cast<size_t>(t * 64 + row)];
            ASSERT_EQ(some[static_cast<size_t>(t * 16 + j)], want) << t << ", " << j;
        }
    }
}

TEST_P(OpsIndex, Packed_and_bf16_keys_give_equal_bits) {
    Random random(33);
    std::vector<float> iq;
    for (int64_t i = 0; i < 3 * Hi; ++i) {
        const auto q = q4u(random.bells(Di));
        iq.insert(iq.end(), q.begin(), q.end());
    }
    IndexScore p;
    p.iq = bf16({3, Hi, Di}, iq);
    p.w = bf16({3, Hi}, random.bells(3 * Hi));
    p.rows = one_segment(0, 60, 3);
    p.keys = make_keys(2, 1, 40);
    fill_keys(p.keys, 0, 0, 31);
    p.out = zeros(DType::f32, {3, 32});
    run(p);
    IndexScore q = p;
    q.keys = make_keys(2, 1, 40, RowFormat::bf16);
    fill_keys(q.keys, 0, 0, 31);
    q.out = zeros(DType::f32, {3, 32});
    run(q);
    EXPECT_EQ(bytes(p.out), bytes(q.out));
}

TEST_P(OpsIndex, Rows_are_invariant) {
    const int32_t slots = 70;
    const auto run_rows = [&](const std::vector<int>& list, const Variation& v) {
        const auto T = static_cast<int64_t>(list.size());
        IndexScore p;
        p.keys =
            make_keys(2, slots, 24, RowFormat::q4u, v.permuted_pages ? 5 : 0, v.wide_table ? 2 : 1);
        std::vector<float> iq;
        std::vector<float> w;
        std::vector<RowInfo> row;
        std::vector<SegInfo> seg;
        for (int r : list) {
            Random random(static_cast<uint64_t>(r + 50));
            for (int64_t h = 0; h < Hi; ++h) {
                const auto q = q4u(random.bells(Di, r == kHugeRow ? 1e6f : 1.0f));
                iq.insert(iq.end(), q.begin(), q.end());
            }
            const auto wr = random.bells(Hi);
            w.insert(w.end(), wr.begin(), wr.end());
            const auto t = static_cast<int32_t>(row.size());
            if (r < 0) {
                row.push_back({});
                continue;
            }
            const int32_t pos = 5 + r % 40;
            row.push_back({pos, r, static_cast<int32_t>(seg.size()), 0});
            seg.push_back({r, t, 1, pos, {0, 0}, 0, 0});
            fill_keys(p.keys, r, 0, 24);
        }
        p.iq = bf16({T, Hi, Di}, iq);
        p.w = bf16({T, Hi}, w);
        p.rows = rows(row, seg);
        p.out = filled(DType::f32, {T, 24}, 0xFF);
        run(p);
        std::vector<std::vector<uint8_t>> out;
        const auto all = bytes(p.out);
        for (int64_t t = 0; t < T; ++t) {
            out.emplace_back(all.begin() + t * 96, all.begin() + (t + 1) * 96);
        }
        return out;
    };
    expect_row_invariant(run_rows, 33);
}

TEST_P(OpsIndex, A_chunk_gives_each_row_the_bits_it_has_alone) {
    // 40 rows of one slot in one call against 40 calls: tiles of keys must not depend on the other
    // rows.
    const Pages keys = make_keys(2, 1, 200);
    fill_keys(keys, 0, 0, 180);
    Random random(34);
    std::vector<float> iq;
    for (int64_t i = 0; i < 40 * Hi; ++i) {
        const auto q = q4u(random.bells(Di));
        iq.insert(iq.end(), q.begin(), q.end());
    }
    const std::vector<float> w = random.bells(40 * Hi);
    IndexScore p;
    p.iq = bf16({40, Hi, Di}, iq);
    p.w = bf16({40, Hi}, w);
    p.keys = keys;
    p.rows = one_segment(0, 310, 40);
    p.out = zeros(DType::f32, {40, 180});
    run(p);
    const auto all = bytes(p.out);
    for (int32_t t = 0; t < 40; ++t) {
        IndexScore one = p;
        one.iq = bf16({1, Hi, Di}, {iq.begin() + static_cast<long>(t * Hi * Di),
                                    iq.begin() + static_cast<long>((t + 1) * Hi * Di)});
        one.w = bf16({1, Hi}, {w.begin() + static_cast<long>(t * Hi),
                               w.begin() + static_cast<long>((t + 1) * Hi)});
        one.rows = one_segment(0, 310 + t, 1);
        one.out = zeros(DType::f32, {1, 180});
        run(one);
        const auto alone = bytes(one.out);
        ASSERT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + t * 720)) << "row " << t;
    }
}

/// Reference selection by a stable sort.
std::vector<int32_t> sorted_choice(const std::vector<float>& score, int64_t visible, int64_t k) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < visible; ++i) {
        if (score[static_cast<size_t>(i)] > kMinusInf) {
            ids.push_back(static_cast<int32_t>(i));
        }
    }
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
        return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
    });
    ids.resize(std::min(ids.size(), static_cast<size_t>(k)));
    std::sort(ids.begin(), ids.end());
    return ids;
}

class OpsTopk : public OpTest {
  protected:
    void expect_choice(const std::vector<float>& score, int32_t pos, int32_t ratio, int64_t K) {
        const auto N = static_cast<int64_t>(score.size());
        IndexTopk p;
        p.scores = f32({1, N}, score);
        p.rows = one_segment(0, pos, 1);
        p.ratio = ratio;
        p.sel = filled(DType::i32, {1, K}, 0x11);
        p.count = filled(DType::i32, {1}, 0x11);
        run(p);
        const int64_t visible = (pos + 1) / ratio;
        std::vector<int32_t> want = sorted_choice(score, std::min(visible, N), K);
        if (visible <= K) {
            want.resize(static_cast<size_t>(visible));
            std::iota(want.begin(), want.end(), 0);
        }
        EXPECT_EQ(get<int32_t>(p.count)[0], static_cast<int32_t>(want.size()));
        want.resize(static_cast<size_t>(K), -1);
        EXPECT_EQ(get<int32_t>(p.sel), want) << "pos " << pos;
    }
};

TEST_P(OpsTopk, Equals_a_stable_sort_for_many_scores) {
    Random random(41);
    for (int round = 0; round < 30; ++round) {
        std::vector<float> score;
        const bool coarse = round % 2 == 0;  // many exact ties
        for (int i = 0; i < 2000; ++i) {
            score.push_back(coarse ? static_cast<float>(random.below(9)) : random.bell());
        }
        expect_choice(score, static_cast<int32_t>(1000 + random.below(999)), 1, 512);
    }
}

TEST_P(OpsTopk, Edges_of_visibility) {
    Random random(42);
    for (int32_t visible : {0, 1, 511, 512, 513, 4096}) {
        std::vector<float> score = random.bells(4096);
        if (visible > 512) {
            for (size_t i = static_cast<size_t>(visible); i < score.size(); ++i) {
                score[i] = 1e30f;  // stale rows beyond visible, which must not be chosen
            }
        } else {
            score.assign(score.size(), NAN);  // not read at all
        }
        expect_choice(score, visible * 2 - 1 + (visible == 0 ? 1 : 0), 2, 512);
        expect_choice(score, visible * 2, 2, 512);
    }
}

TEST_P(OpsTopk, Zeros_of_both_signs_tie_and_ties_at_the_last_place_go_to_the_lower_row) {
    std::vector<float> score(100, 0.0f);
    for (size_t i = 0; i < 100; i += 3) {
        score[i] = -0.0f;
    }
    expect_choice(score, 99, 1, 32);
    score[70] = 1;
    score[71] = -1;
    expect_choice(score, 99, 1, 32);
}

TEST_P(OpsTopk, Nan_and_minus_infinity_are_never_chosen) {
    std::vector<float> score(64, kMinusInf);
    score[5] = NAN;
    score[6] = -3;
    score[60] = 2;
    IndexTopk p;
    p.scores = f32({1, 64}, score);
    p.rows = one_segment(0, 63, 1);
    p.sel = zeros(DType::i32, {1, 8});
    p.count = zeros(DType::i32, {1});
    run(p);
    EXPECT_EQ(get<int32_t>(p.count)[0], 2);
    EXPECT_EQ(get<int32_t>(p.sel), (std::vector<int32_t>{6, 60, -1, -1, -1, -1, -1, -1}));
}

TEST_P(OpsTopk, A_million_rows) {
    Random random(43);
    std::vector<float> score;
    for (int i = 0; i < (1 << 20); ++i) {
        score.push_back(static_cast<float>(random.below(50000)));
    }
    expect_choice(score, (1 << 20) - 1, 1, 512);
}

TEST_P(OpsTopk, Inside_candidates_ids_are_rows_and_dead_rows_are_empty) {
    Random random(44);
    const int32_t block = 4;
    const std::vector<int32_t> cand = {1, 4, 7, 9, 12, -1};  // rows 4-7, 16-19, 28-31, 36-39, 48-51
    std::vector<float> score = random.bells(24);
    score[23] = score[22] = score[21] = score[20] = kMinusInf;  // of the -1
    IndexTopk p;
    std::vector<float> both = score;
    both.insert(both.end(), score.begin(), score.end());
    p.scores = f32({2, 24}, both);
    p.rows = rows({{48, 0, 0, 0}, {}}, {SegInfo{0, 0, 1, 48, {0, 0}, 0, 0}});  // 49 visible
    std::vector<int32_t> two = cand;
    two.insert(two.end(), cand.begin(), cand.end());
    p.cand = i32({2, 6}, two);
    p.block = block;
    p.sel = filled(DType::i32, {2, 5}, 0x11);
    p.count = filled(DType::i32, {2}, 0x11);
    run(p);
    std::vector<float> by_row(64, kMinusInf);
    for (size_t c = 0; c < 6; ++c) {
        for (int32_t i = 0; i < block && cand[c] >= 0; ++i) {
            const int32_t row = cand[c] * block + i;
            if (row < 49) {
                by_row[static_cast<size_t>(row)] = score[c * 4 + static_cast<size_t>(i)];
            }
        }
    }
    std::vector<int32_t> want = sorted_choice(by_row, 49, 5);
    want.resize(10, -1);
    EXPECT_EQ(get<int32_t>(p.sel), want);
    EXPECT_EQ(get<int32_t>(p.count), (std::vector<int32_t>{5, 0}));
}

TEST_P(OpsTopk, Blocks_keep_the_newest_even_with_the_worst_score) {
    // 11 visible rows, blocks of 4, two kept: blocks 0, 1, 2 (partial).
    std::vector<float> score = {1, 2, 3, 4, 9, 0, 0, 0, -50, -60, -70, 1e9f};
    IndexBlocks p;
    p.scores = f32({1, 12}, score);
    p.rows = one_segment(0, 10, 1);
    p.block = 4;
    p.cand = zeros(DType::i32, {1, 2});
    p.count = zeros(DType::i32, {1});
    run(p);
    EXPECT_EQ(get<int32_t>(p.cand), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(get<int32_t>(p.count)[0], 2);
    // Three blocks fit: the identity, scores not read.
    p.scores = f32({1, 12}, std::vector<float>(12, NAN));
    p.cand = filled(DType::i32, {1, 4}, 0x11);
    run(p);
    EXPECT_EQ(get<int32_t>(p.cand), (std::vector<int32_t>{0, 1, 2, -1}));
    // Visible 0: nothing.
    p.rows = rows({RowInfo{}}, {});
    run(p);
    EXPECT_EQ(get<int32_t>(p.cand), (std::vector<int32_t>{-1, -1, -1, -1}));
    EXPECT_EQ(get<int32_t>(p.count)[0], 0);
}

TEST_P(OpsTopk, Blocks_break_ties_to_the_lower_block) {
    std::vector<float> score(64, 1.0f);
    IndexBlocks p;
    p.scores = f32({1, 64}, score);
    p.rows = one_segment(0, 63, 1);
    p.block = 8;
    p.cand = zeros(DType::i32, {1, 3});
    p.count = zeros(DType::i32, {1});
    run(p);
    EXPECT_EQ(get<int32_t>(p.cand), (std::vector<int32_t>{0, 1, 7}));
}

TENON_INSTANTIATE_OPS(OpsPool);
TENON_INSTANTIATE_OPS(OpsIndex);
TENON_INSTANTIATE_OPS(OpsTopk);

}  // namespace
}  // namespace tenon::testing
