// SPDX-License-Identifier: MIT
// Which kind of pinned memory a GPU gets; needs no GPU.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tenon::cuda
