// SPDX-License-Identifier: MIT
// Sizes of captured work.
#include "decode_graphs.h"

namespace tenon::dsv41 {

namespace {

std::vector<int64_t> up_to(std::initializer_list<int64_t> steps, int64_t most) {
    std::vector<int64_t> out;
    for (const int64_t n : steps) {
        if (n < most) {
            out.push_back(n);
        }
    }
    out.push_back(most);
    return out;
}

}  // namespace

std::vector<int64_t> row_capacities(int64_t most) {
    return up_to({1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48}, most);
}

std::vector<int64_t> stream_capacities(int64_t slots) {
    return up_to({1, 2, 4, 8, 16, 32}, slots);
}

void DecodeGraphs::init(GraphCapture* capture, Stream* stream, GraphSizes sizes) {
    capture_ = capture;
    stream_ = stream;
    sizes_ = std::move(sizes);
    graphs_.resize(drafts(sizes_.streams.size()));
}

void DecodeGraphs::drop() {
    graphs_.clear();
    capture_ = nullptr;
    ready_ = false;
}

}  // namespace tenon::dsv41
