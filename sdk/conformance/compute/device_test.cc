// SPDX-License-Identifier: MIT
// What a device owes the host: zeroed and aligned memory, ordered copies, events, honest refusals,
// a well-formed op table.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "tenon/compute.h"
#include "tenon/testing/op_fixture.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {
namespace {

class ComputeDevice : public OpTest {};

TEST_P(ComputeDevice, Memory_is_zeroed_and_aligned) {
    for (const BufferKind kind : {BufferKind::device, BufferKind::pinned, BufferKind::host}) {
        for (int64_t bytes : {int64_t{1}, int64_t{4097}, int64_t{3} << 20}) {
            Ref<Buffer> b;
            TENON_ASSERT_OK(device().allocate(
                {.bytes = bytes, .alignment = 512, .kind = kind, .tag = "test"}, b.out()));
            EXPECT_GE(b->bytes(), bytes);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 512, 0u);
            std::vector<uint8_t> host(static_cast<size_t>(bytes), 0xEE);
            TENON_ASSERT_OK(device().copy(make_view(host.data(), DType::u8, {bytes}),
                                          make_view(b->data(), DType::u8, {bytes}, b->place()),
                                          stream()));
            TENON_ASSERT_OK(device().synchronize(stream()));
            EXPECT_EQ(std::count(host.begin(), host.end(), uint8_t{0}), bytes);
        }
    }
}

TEST_P(ComputeDevice, What_does_not_fit_is_refused_by_tag) {
    Ref<Buffer> b;
    TENON_EXPECT_ERROR(
        device().allocate({.bytes = int64_t{1} << 52, .tag = "state.pages"}, b.out()),
        Code::does_not_fit, "state.pages");
    EXPECT_FALSE(b);
}

TEST_P(ComputeDevice, Copies_are_ordered_on_their_stream) {
    const TensorView a = i32({1000}, std::vector<int32_t>(1000, 7));
    const TensorView b = zeros(DType::i32, {1000});
    const TensorView c = zeros(DType::i32, {1000});
    TENON_ASSERT_OK(device().copy(b, a, stream()));
    TENON_ASSERT_OK(device().copy(c, b, stream()));
    TENON_ASSERT_OK(device().fill_zero(b, stream()));
    TENON_ASSERT_OK(device().synchronize(stream()));
    EXPECT_EQ(get<int32_t>(c), std::vector<int32_t>(1000, 7));
    EXPECT_EQ(get<int32_t>(b), std::vector<int32_t>(1000, 0));
    TENON_EXPECT_ERROR(device().copy(b, zeros(DType::i32, {999}), stream()), Code::invalid_argument,
                       "999");
}

TEST_P(ComputeDevice, Events_complete_after_their_stream) {
    Ref<Event> event;
    TENON_ASSERT_OK(device().create_event(event.out()));
    Ref<Stream> side;
    TENON_ASSERT_OK(device().create_stream({.name = "side"}, side.out()));
    const TensorView a = i32({1 << 16}, std::vector<int32_t>(1 << 16, 3));
    const TensorView b = zeros(DType::i32, {1 << 16});
    TENON_ASSERT_OK(device().copy(b, a, *side));
    TENON_ASSERT_OK(device().record(*event, *side));
    TENON_ASSERT_OK(device().wait(stream(), *event));
    TENON_ASSERT_OK(event->wait(10'000'000));
    EXPECT_TRUE(event->done());
    EXPECT_EQ(get<int32_t>(b), std::vector<int32_t>(1 << 16, 3));
}

TEST_P(ComputeDevice, Starts_without_faults_and_describes_itself) {
    EXPECT_EQ(device().fault_count(), 0u);
    const DeviceInfo info = device().info();
    EXPECT_GT(std::strlen(info.name), 0u);
    EXPECT_GT(std::strlen(info.arch), 0u);
    EXPECT_GT(info.bytes_total, 0);
    EXPECT_LE(info.bytes_free, info.bytes_total);
}

TEST_P(ComputeDevice, Op_table_names_each_op_once_and_completely) {
    std::set<std::string> seen;
    for (const OpEntry& e : table().ops()) {
        const std::string id = format("{}/{}", e.id.name, e.id.version);
        EXPECT_NE(e.call, nullptr) << id;
        EXPECT_GT(e.id.version, 0u) << id;
        EXPECT_NE(e.traits.regimes & 3u, 0u) << id;
        for (uint32_t regime = 0; regime < 2; ++regime) {
            if ((e.traits.regimes >> regime & 1u) != 0) {
                EXPECT_TRUE(seen.insert(format("{} {}", id, regime)).second) << id << " twice";
                EXPECT_GE(e.traits.rows_max[regime], regime == 0 ? 64 : 4096) << id;
            }
        }
    }
    EXPECT_FALSE(seen.empty());
    EXPECT_FALSE(table().provider().empty());
}

TENON_INSTANTIATE_OPS(ComputeDevice);

}  // namespace
}  // namespace tenon::testing
