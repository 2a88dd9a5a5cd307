// SPDX-License-Identifier: MIT
// Graphs and flags of devices that have them: one captured graph serves every position and slot,
// padded rows write nothing, and a stream waits for a word of the host.
#include <atomic>

#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/window.h"
#include "tenon/testing/op_fixture.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {
namespace {

class OpsGraph : public OpTest {
  protected:
    void SetUp() override {
        OpTest::SetUp();
        if (!IsSkipped() && facet<GraphCapture>() == nullptr) {
            GTEST_SKIP() << "the device has no " << GraphCapture::kFacet;
        }
    }
    void write_rows(const Rows& r, const std::vector<RowInfo>& row,
                    const std::vector<SegInfo>& seg) {
        write(r.row, row.data());
        write(r.seg, seg.data());
    }
};

TEST_P(OpsGraph, One_graph_serves_all_positions_and_slots) {
    Random random(121);
    const int64_t D = 128;
    std::vector<float> freq(32);
    for (int i = 0; i < 32; ++i) {
        freq[static_cast<size_t>(i)] = 1.0f / static_cast<float>(1 << (i / 3));
    }
    const Rows step = rows(std::vector<RowInfo>(4), std::vector<SegInfo>(2));
    RopeAngles angles{step, make_view(freq.data(), DType::f32, {32}), 1,
                      zeros(DType::f32, {4, 64})};
    NormRms norm{bf16({4, D}, random.bells(4 * D)), bf16({D}, random.bells(D)),
                 zeros(DType::bf16, {4, D}), 1e-20f};
    RopeTurn turn{norm.out, angles.cs, false, norm.out};
    WindowStore store{norm.out, step, {}};
    store.ring = {filled(DType::u8, {4, 32, D}, 0xAA), filled(DType::u8, {4, 32, D / 32}, 0xAA), 32,
                  static_cast<int32_t>(D), RowFormat::q8};
    const auto f1 = bind<RopeAngles>();
    const auto f2 = bind<NormRms>();
    const auto f3 = bind<RopeTurn>();
    const auto f4 = bind<WindowStore>();
    const auto enqueue = [&] {
        TENON_ASSERT_OK(f1(angles, stream()));
        TENON_ASSERT_OK(f2(norm, stream()));
        TENON_ASSERT_OK(f3(turn, stream()));
        TENON_ASSERT_OK(f4(store, stream()));
    };
    Ref<GraphCapture::Graph> graph;
    TENON_ASSERT_OK(facet<GraphCapture>()->begin(stream()));
    enqueue();
    TENON_ASSERT_OK(facet<GraphCapture>()->end(stream(), graph.out()));
    std::vector<uint8_t> canary = bytes(store.ring.codes);
    EXPECT_EQ(canary, std::vector<uint8_t>(canary.size(), 0xAA)) << "capturing runs nothing";

    for (const int32_t pos : {0, 127, 5000, 1'000'000}) {
        const int32_t slot = pos % 3;
        // Two live rows, a dead row and a dead segment of padding.
        const std::vector<RowInfo> row = {{pos, slot, 0, 0}, {pos + 1, slot, 0, 0}, {}, {}};
        const std::vector<SegInfo> seg = {{slot, 0, 2, pos, {0, 0}, 0, 0}, {}};
        write_rows(step, row, seg);
        write(store.ring.codes, std::vector<uint8_t>(4 * 32 * 128, 0xAA).data());
        enqueue();
        TENON_ASSERT_OK(device().synchronize(stream()));
        const std::vector<uint8_t> eager[3] = {bytes(angles.cs), bytes(norm.out),
                                               bytes(store.ring.codes)};
        write(store.ring.codes, std::vector<uint8_t>(4 * 32 * 128, 0xAA).data());
        TENON_ASSERT_OK(graph->launch(stream()));
        TENON_ASSERT_OK(device().synchronize(stream()));
        EXPECT_EQ(bytes(angles.cs), eager[0]) << pos;
        EXPECT_EQ(bytes(norm.out), eager[1]) << pos;
        EXPECT_EQ(bytes(store.ring.codes), eager[2]) << pos;
        for (int64_t place = 0; place < 4 * 32; ++place) {
            const bool mine =
                place / 32 == slot && (place % 32 == pos % 32 || place % 32 == (pos + 1) % 32);
            if (!mine) {
                ASSERT_EQ(eager[2][static_cast<size_t>(place * 128)], 0xAA)
                    << "padding wrote place " << place;
            }
        }
    }
    EXPECT_EQ(device().fault_count(), 0u);
}

TEST_P(OpsGraph, A_stream_waits_for_a_word_of_the_host) {
    auto* flags = facet<StreamFlags>();
    if (flags == nullptr) {
        GTEST_SKIP() << "the device has no " << StreamFlags::kFacet;
    }
    Ref<Buffer> pinned;
    TENON_ASSERT_OK(
        device().allocate({.bytes = 256, .kind = BufferKind::pinned, .tag = "flag"}, pinned.out()));
    auto* word = static_cast<uint32_t*>(pinned->data());
    Ref<Event> event;
    TENON_ASSERT_OK(device().create_event(event.out()));
    for (const bool captured : {false, true}) {
        std::atomic_ref<uint32_t>(*word).store(4);
        if (captured) {
            Ref<GraphCapture::Graph> graph;
            TENON_ASSERT_OK(facet<GraphCapture>()->begin(stream()));
            TENON_ASSERT_OK(flags->wait_flag(stream(), word, 5));
            TENON_ASSERT_OK(facet<GraphCapture>()->end(stream(), graph.out()));
            TENON_ASSERT_OK(graph->launch(stream()));
        } else {
            TENON_ASSERT_OK(flags->wait_flag(stream(), word, 5));
        }
        TENON_ASSERT_OK(device().record(*event, stream()));
        TENON_EXPECT_ERROR(event->wait(20'000), Code::deadline, "20000");
        EXPECT_FALSE(event->done());
        std::atomic_ref<uint32_t>(*word).store(5);
        TENON_ASSERT_OK(event->wait(10'000'000));
        EXPECT_TRUE(event->done());
    }
}

TENON_INSTANTIATE_OPS(OpsGraph);

}  // namespace
}  // namespace tenon::testing
