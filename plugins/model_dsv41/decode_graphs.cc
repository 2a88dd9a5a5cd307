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

/// Calls of one pass by parts (ops.md 5.3), an EXL3 product in one launch.
constexpr int64_t kLayerCalls = 37;
constexpr int64_t kIndexCalls = 7;
constexpr int64_t kSourceCalls = 10;
constexpr int64_t kEngramCalls = 3;
constexpr int64_t kSamplingCalls = 24;  ///< digest, head, draw, verify, copies, main_proj
constexpr int64_t kAbsorbCalls = 4;     ///< of a draft stage
constexpr int64_t kDraftCalls = 32;     ///< rows, angles, head, Markov steps, confidence

/// Measured on an H200 (docs/measurements.md): 2.6 to 3.1 kB a kernel; fused work has fewer kernels
/// with larger states.
constexpr int64_t kCallBytes = 4 << 10;

}  // namespace

GraphSizes graph_sizes(const ModelConfig& c, int64_t step_rows, int64_t slots, int64_t context,
                       bool with_drafts) {
    GraphSizes sizes;
    sizes.rows = up_to({1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48}, step_rows);
    if (with_drafts) {
        sizes.streams = up_to({1, 2, 4, 8, 16, 32}, slots);
    }
    for (size_t layer = 1; layer < static_cast<size_t>(c.layers); ++layer) {
        sizes.stretches += c.layer[layer].engram >= 0 ? 1 : 0;
    }
    // Below these bounds less has to be launched: nothing is scored, and no candidates are chosen.
    if (!c.kv_sources.empty()) {
        for (const int64_t rows : {int64_t{c.index_topk},
                                   int64_t{c.candidate_blocks} * std::max(c.candidate_block, 0)}) {
            const int64_t least = sizes.visible.empty() ? 0 : sizes.visible.back();
            if (rows > least && rows < context) {
                sizes.visible.push_back(rows);
            }
        }
    }
    sizes.visible.push_back(context);
    return sizes;
}

int64_t graph_bytes(const ModelConfig& c, const GraphSizes& sizes) {
    int64_t pass = 0;
    for (int32_t layer = 0; layer < c.layers; ++layer) {
        const LayerKind& kind = c.layer[static_cast<size_t>(layer)];
        pass += kLayerCalls + (kind.owns_index ? kIndexCalls : 0) +
                (kind.owns_kv ? kSourceCalls : 0) + (kind.engram >= 0 ? kEngramCalls : 0);
    }
    const auto rows = static_cast<int64_t>(sizes.rows.size());
    const auto visible = static_cast<int64_t>(sizes.visible.size());
    const bool drafts = !sizes.streams.empty();
    const int64_t stages = drafts ? c.draft.stages : 0;
    int64_t calls = rows * visible * pass;
    calls += rows * (kSamplingCalls + kAbsorbCalls * stages);
    calls += static_cast<int64_t>(sizes.streams.size()) * (kDraftCalls + kLayerCalls * stages);
    return calls * kCallBytes;
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
