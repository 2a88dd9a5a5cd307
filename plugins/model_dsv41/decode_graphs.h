// SPDX-License-Identifier: MIT
// Captured decode work by padded size (engine.md 2.5): which graph serves a group, and where it is
// kept.
#pragma once

#include <algorithm>
#include <vector>

#include "config.h"
#include "tenon/compute.h"

namespace tenon::dsv41 {

/// Capacities, each list ascending; a group takes the smallest that holds it.
struct GraphSizes {
    std::vector<int64_t> rows;  ///< of a decode group
    std::vector<int64_t>
        visible;  ///< highest position + 1: bounds what is scanned, not what is seen
    std::vector<int64_t> streams;  ///< of a draft pass
    int32_t stretches = 1;         ///< of the backbone
};

/// Row capacities up to `step_rows`, stream capacities up to `slots`, bounds of visible positions
/// up to `context` (engine.md 2.5).
GraphSizes graph_sizes(const ModelConfig& config, int64_t step_rows, int64_t slots, int64_t context,
                       bool with_drafts);

/// Device bytes that all these graphs take once they are ready, as the memory plan counts them: the
/// calls of the parts (ops.md 5.3; fused ops are fewer) times what a call of a graph was measured
/// to take.
int64_t graph_bytes(const ModelConfig& config, const GraphSizes& sizes);

/// Thread: the engine thread.
class DecodeGraphs {
  public:
    using Graph = GraphCapture::Graph;

    void init(GraphCapture* capture, Stream* stream, GraphSizes sizes);
    /// The device can capture.
    bool exist() const { return capture_ != nullptr; }
    /// Everything is captured.
    bool ready() const { return ready_; }
    void set_ready() { ready_ = true; }
    /// Gives up all graphs; work runs eagerly from now on.
    void drop();
    int64_t count() const { return static_cast<int64_t>(graphs_.size()); }

    const GraphSizes& sizes() const { return sizes_; }
    static size_t index_of(const std::vector<int64_t>& capacities, int64_t n) {
        const auto found = std::lower_bound(capacities.begin(), capacities.end(), n);
        return static_cast<size_t>(found - capacities.begin());
    }

    /// Numbers of graphs: backbone stretches by rows and visible positions, sampling by rows, draft
    /// passes by streams.
    size_t backbone(int32_t stretch, size_t rows, size_t visible) const {
        return (static_cast<size_t>(stretch) * sizes_.rows.size() + rows) * sizes_.visible.size() +
               visible;
    }
    size_t sampling(size_t rows) const { return backbone(sizes_.stretches, 0, 0) + rows; }
    size_t drafts(size_t streams) const { return sampling(sizes_.rows.size()) + streams; }

    /// Captures what `enqueue` puts on the stream.
    template <class F>
    Status capture(size_t number, F&& enqueue) {
        TENON_TRY(capture_->begin(*stream_));
        Status enqueued = guard(enqueue);  // a capture that was begun must be ended
        Ref<Graph> graph;
        Status ended = capture_->end(*stream_, graph.out());
        TENON_TRY(std::move(enqueued));
        TENON_TRY(std::move(ended));
        graphs_[number] = std::move(graph);
        return {};
    }
    Status launch(size_t number) { return graphs_[number]->launch(*stream_); }

  private:
    GraphCapture* capture_ = nullptr;
    Stream* stream_ = nullptr;
    GraphSizes sizes_;
    std::vector<Ref<Graph>> graphs_;
    bool ready_ = false;
};

}  // namespace tenon::dsv41
