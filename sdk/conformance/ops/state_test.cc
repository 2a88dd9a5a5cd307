// SPDX-License-Identifier: MIT
// Records of a slot's state, page copies, packing, and indices beyond 2^31.
#include "tenon/ops/state.h"
#include "tenon/ops/cache.h"
#include "tenon/ops/pages.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

class OpsState : public OpTest {
  protected:
    Ring ring(int32_t R, RowFormat f, uint8_t fill) {
        Ring r;
        r.R = R;
        r.width = 32;
        r.format = f;
        r.codes = filled(f == RowFormat::bf16 ? DType::bf16 : DType::u8, {3, R, 32}, fill);
        if (f == RowFormat::q8) {
            r.scales = filled(DType::u8, {3, R, 1}, fill);
        }
        return r;
    }
    static uint8_t mark(int64_t pos, int64_t byte) {
        return static_cast<uint8_t>(pos * 7 + byte * 3 + 1);
    }
    /// Bytes that name their position.
    void stamp(const Ring& r, int32_t slot, int32_t first, int32_t last) {
        const int64_t cb = code_bytes(r.format, r.width);
        std::vector<uint8_t> codes = bytes(r.codes);
        std::vector<uint8_t> scales = r.scales.null() ? std::vector<uint8_t>{} : bytes(r.scales);
        for (int32_t pos = first; pos < last; ++pos) {
            const int64_t row = slot * r.R + pos % r.R;
            for (int64_t b = 0; b < cb; ++b) {
                codes[static_cast<size_t>(row * cb + b)] = mark(pos, b);
            }
            if (!scales.empty()) {
                scales[static_cast<size_t>(row)] = mark(pos, 99);
            }
        }
        write(r.codes, codes.data());
        if (!scales.empty()) {
            write(r.scales, scales.data());
        }
    }
};

TEST_P(OpsState, A_record_moves_between_slots_and_ring_sizes) {
    for (int32_t length : {0, 3, 15, 16, 47, 60}) {
        const Ring from[2] = {ring(24, RowFormat::q8, 0), ring(24, RowFormat::bf16, 0)};
        const Ring to[2] = {ring(40, RowFormat::q8, 0xEE), ring(40, RowFormat::bf16, 0xEE)};
        for (const Ring& r : from) {
            stamp(r, 1, std::max(0, length - 16), length);
        }
        std::vector<float> raw(static_cast<size_t>(3 * 64 * 2 * 4));
        for (size_t i = 0; i < raw.size(); ++i) {
            raw[i] = static_cast<float>(i);
        }
        const TensorView raw_from[1] = {f32({3, 64, 2, 4}, raw)};
        const TensorView raw_to[1] = {filled(DType::f32, {3, 64, 2, 4}, 0)};
        StateSave s;
        s.slot = 1;
        s.length = length;
        s.positions = 16;
        s.rings = from;
        s.raws = raw_from;
        const int64_t size = state_record_bytes(16, s.rings, s.raws);
        EXPECT_EQ(size, 16 * (33 + 64) + 32);
        s.record = filled(DType::u8, {size}, 0xFF);
        run(s);
        StateLoad l;
        l.slot = 2;
        l.length = length;
        l.positions = 16;
        l.rings = to;
        l.raws = raw_to;
        l.record = s.record;
        run(l);
        for (const Ring& r : to) {
            const int64_t cb = code_bytes(r.format, r.width);
            const std::vector<uint8_t> codes = bytes(r.codes);
            for (int32_t pos = std::max(0, length - 16); pos < length; ++pos) {
                const int64_t row = 2 * r.R + pos % r.R;
                for (int64_t b = 0; b < cb; ++b) {
                    ASSERT_EQ(codes[static_cast<size_t>(row * cb + b)], mark(pos, b))
                        << "length " << length << ", position " << pos;
                }
            }
            for (int64_t i = 0; i < 2 * r.R * cb; ++i) {
                ASSERT_EQ(codes[static_cast<size_t>(i)], 0xEE) << "other slots are untouched";
            }
            if (length < 16) {
                ASSERT_EQ(codes[static_cast<size_t>((2 * r.R + length) * cb)], 0xEE)
                    << "places of positions that never were stay";
            }
        }
        const std::vector<float> moved = floats(raw_to[0]);
        for (size_t i = 0; i < 8; ++i) {
            const auto from_at = static_cast<size_t>((64 + (length + 63) % 64) * 8) + i;
            const auto to_at = static_cast<size_t>((128 + (length + 63) % 64) * 8) + i;
            EXPECT_EQ(moved[to_at], length % 2 == 1 ? raw[from_at] : 0.0f) << "length " << length;
        }
    }
}

TEST_P(OpsState, A_record_too_small_is_refused) {
    const Ring r[1] = {ring(24, RowFormat::q8, 0)};
    StateSave s;
    s.length = 5;
    s.positions = 16;
    s.rings = r;
    s.record = zeros(DType::u8, {16 * 33 - 1});
    refused(s, "record");
    s.record = zeros(DType::u8, {16 * 33});
    s.positions = 25;
    refused(s, "R");
    s.positions = 16;
    s.slot = 3;
    refused(s, "slot");
}

class OpsPages : public OpTest {};

TEST_P(OpsPages, A_partial_copy_takes_complete_groups_of_every_plane) {
    // 8 tokens a page; plane 0: ratio 1, 4 bytes a row; plane 1: ratio 2, 8 bytes a row; 16 bytes
    // of padding.
    std::vector<uint8_t> pool(4 * 80);
    for (size_t i = 0; i < pool.size(); ++i) {
        pool[i] = static_cast<uint8_t>(i % 251);
    }
    const PagePlane planes[2] = {{0, 4, 1, 0}, {48, 8, 2, 0}};
    PagesCopy p;
    p.pool = u8({4, 80}, pool);
    p.src = i32({2}, {0, 1});
    p.dst = i32({2}, {2, 3});
    p.tokens = i32({2}, {5, 8});
    p.planes = planes;
    p.page_tokens = 8;
    run(p);
    const std::vector<uint8_t> got = bytes(p.pool);
    for (size_t i = 0; i < 80; ++i) {
        const bool copied = i < 5 * 4 || (i >= 48 && i < 48 + 2 * 8);
        EXPECT_EQ(got[160 + i], copied ? pool[i] : pool[160 + i]) << "byte " << i;
        EXPECT_EQ(got[240 + i], pool[80 + i]) << "256 of 256 copies the whole record";
        EXPECT_EQ(got[i], pool[i]);
    }
}

TEST_P(OpsPages, After_a_copy_a_write_does_not_reach_the_other_slot) {
    Random random(81);
    const int64_t page_bytes = 4 * 64;
    Pages pages;
    pages.pool = zeros(DType::u8, {3, page_bytes});
    pages.table = i32({2, 1}, {0, 0});  // both slots share page 0
    pages.rows_per_page = 4;
    pages.width = 32;
    const PagePlane plane[1] = {{0, 64, 1, 0}};
    CacheStore s{bf16({2, 32}, random.bells(64)), one_segment(0, 0, 2), pages, RowFormat::q4e};
    run(s);
    const std::vector<uint8_t> shared = bytes(pages.pool);
    PagesCopy c;
    c.pool = pages.pool;
    c.src = i32({1}, {0});
    c.dst = i32({1}, {2});
    c.tokens = i32({1}, {2});
    c.planes = plane;
    c.page_tokens = 4;
    run(c);
    pages.table = i32({2, 1}, {0, 2});
    CacheStore w{bf16({2, 32}, random.bells(64)), one_segment(1, 2, 2), pages, RowFormat::q4e};
    run(w);
    const std::vector<uint8_t> after = bytes(pages.pool);
    EXPECT_TRUE(std::equal(after.begin(), after.begin() + page_bytes, shared.begin()));
    EXPECT_TRUE(std::equal(after.begin() + 2 * page_bytes, after.begin() + 2 * page_bytes + 128,
                           shared.begin()));
    EXPECT_NE(after[static_cast<size_t>(2 * page_bytes + 128)], 0);
}

TEST_P(OpsPages, Pack_and_unpack_are_inverse) {
    Random random(82);
    std::vector<uint8_t> pool(5 * 64);
    for (uint8_t& b : pool) {
        b = static_cast<uint8_t>(random.below(256));
    }
    PagesPack p{u8({5, 64}, pool), i32({3}, {4, 0, 2}), filled(DType::u8, {3, 64}, 0)};
    run(p);
    const std::vector<uint8_t> records = bytes(p.records);
    EXPECT_TRUE(std::equal(records.begin(), records.begin() + 64, pool.begin() + 256));
    PagesUnpack u{filled(DType::u8, {5, 64}, 0xAB), i32({3}, {1, 3, 0}), p.records};
    run(u);
    const std::vector<uint8_t> back = bytes(u.pool);
    EXPECT_TRUE(std::equal(back.begin() + 64, back.begin() + 128, pool.begin() + 256));
    EXPECT_TRUE(std::equal(back.begin() + 192, back.begin() + 256, pool.begin()));
    EXPECT_TRUE(std::equal(back.begin(), back.begin() + 64, pool.begin() + 128));
    EXPECT_EQ(back[128], 0xAB);
    const uint64_t before = device().fault_count();
    PagesPack bad{p.pool, i32({2}, {-1, 5}), zeros(DType::u8, {2, 64})};
    run(bad);
    EXPECT_EQ(device().fault_count(), before + 2)
        << "page ids outside the pool are skipped and counted";
}

TEST_P(OpsPages, Pools_beyond_four_gibibytes) {
    // Anonymous memory is only backed where it is touched, so this needs address space, not memory.
    const int64_t page_bytes = int64_t{1} << 20;
    const int64_t pages = 4500;
    if (!on_cpu() || device().info().bytes_free < pages * page_bytes) {
        GTEST_SKIP() << "needs a CPU device with " << pages * page_bytes << " free bytes";
    }
    TensorView pool = zeros(DType::u8, {pages, page_bytes});
    ASSERT_NE(pool.data, nullptr);
    Pages p;
    p.pool = pool;
    p.table = i32({1, 1}, {static_cast<int32_t>(pages - 1)});
    p.rows_per_page = 16;
    p.width = 32;
    p.codes_at = page_bytes - 16 * 64;
    Random random(83);
    CacheStore s{bf16({1, 32}, random.bells(32)), one_segment(0, 15, 1), p, RowFormat::q4u};
    run(s);
    EXPECT_EQ(device().fault_count(), 0u);
    const auto* last = static_cast<const uint8_t*>(pool.data) + pages * page_bytes - 64;
    EXPECT_TRUE(std::any_of(last, last + 64, [](uint8_t b) { return b != 0; }));
}

TENON_INSTANTIATE_OPS(OpsState);
TENON_INSTANTIATE_OPS(OpsPages);

}  // namespace
}  // namespace tenon::testing
