// SPDX-License-Identifier: MIT
// What follows from the facts of a GPU: its kind of pinned memory, the size of its clusters; needs
// no GPU.
#include <gtest/gtest.h>

#include <array>

#include "kernels/cuda/device/clusters.h"
#include "kernels/cuda/device/probe.h"

namespace tenon::cuda {
namespace {

TEST(Pinned, Is_registered_where_memory_is_shared_and_kernels_can_use_it) {
    struct {
        bool unified, maps;
        const char* wanted;
        Pinned expected;
    } const cases[] = {{false, true, "auto", Pinned::allocated},
                       {true, true, "auto", Pinned::registered},
                       {true, false, "auto", Pinned::allocated},
                       {true, true, "allocated", Pinned::allocated},
                       {false, true, "registered", Pinned::registered}};
    for (const auto& c : cases) {
        GpuFacts facts;
        facts.unified_memory = c.unified;
        facts.maps_registered = c.maps;
        const Result<Pinned> got = choose_pinned(facts, c.wanted);
        ASSERT_TRUE(got.ok()) << got.status().message().str();
        EXPECT_EQ(*got, c.expected) << c.unified << c.maps << c.wanted;
    }
}

TEST(Pinned, Refuses_what_cannot_be) {
    GpuFacts facts;
    facts.name = "a GPU";
    const Result<Pinned> registered = choose_pinned(facts, "registered");
    EXPECT_EQ(registered.status().code(), Code::unavailable);
    EXPECT_NE(registered.status().message().str().find("kernels on a GPU cannot use"),
              std::string::npos);
    EXPECT_EQ(choose_pinned(facts, "locked").status().code(), Code::invalid_argument);
}

TEST(Clusters, Are_as_large_as_the_device_has_room_for_and_at_most_what_is_wanted) {
    const GpuFacts facts;
    for (const auto& [found, wanted, expected] :
         {std::array{16, 16, 16}, {16, 8, 8}, {12, 16, 12}, {8, 16, 8}, {10, 9, 9}}) {
        const Result<int> got = choose_cluster(facts, found, wanted);
        ASSERT_TRUE(got.ok()) << got.status().message().str();
        EXPECT_EQ(*got, expected) << found << " of " << wanted;
    }
}

TEST(Clusters, Are_refused_where_eight_blocks_do_not_run_together) {
    GpuFacts facts;
    facts.name = "a slice";
    const Result<int> got = choose_cluster(facts, 7, 16);
    EXPECT_EQ(got.status().code(), Code::unavailable);
    EXPECT_NE(got.status().message().str().find("a slice runs clusters of at most 7 blocks"),
              std::string::npos);
}

}  // namespace
}  // namespace tenon::cuda
