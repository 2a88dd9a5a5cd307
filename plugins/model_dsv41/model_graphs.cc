// SPDX-License-Identifier: MIT
// Decode work from graphs: captured for every padded size at warm-up, replayed with the step's
// inputs (engine.md 2.5). The results have the bits of eager work, since no row depends on the rows
// beside it.
#include "model.h"

namespace tenon::dsv41 {

void Dsv41Model::init_graphs() {
    auto* capture = facet_of<GraphCapture>(device_);
    // What travels between ranks would have to be captured with the rest.
    if (capture == nullptr || parts_.ranks.world > 1) {
        return;
    }
    if (!ops_[0].unsafe_in_graphs.empty()) {
        host_->log(
            LogLevel::info, "dsv41",
            format("decode runs without graphs: {} may not be captured", ops_[0].unsafe_in_graphs));
        return;
    }
    graphs_.init(capture, stream_.get(),
                 graph_sizes(parts_.config, parts_.info.max_step_rows, parts_.shape.slots,
                             parts_.shape.context_tokens, parts_.with_drafts));
}

/// The window group padded with dead rows and segments to a capacity.
RowGroup Dsv41Model::padded_windows(int64_t rows) const {
    const auto slots = static_cast<int64_t>(windows_.size());
    RowGroup g;
    g.regime = Regime::decode;
    g.ids = inputs_.ids.device.rows(0, rows);
    g.rows = {inputs_.row.device.rows(0, rows), inputs_.seg.device, rows, slots};
    g.tail = g.rows;
    return g;
}

/// Run once as it is, so that everything it needs is loaded; captured; and launched once, which
/// brings the graph to the device. All rows are dead: nothing but scratch changes.
Status Dsv41Model::capture(size_t number, const std::function<Status()>& enqueue) {
    TENON_TRY(enqueue());
    TENON_TRY(graphs_.capture(number, enqueue));
    return graphs_.launch(number);
}

Status Dsv41Model::capture_graphs() {
    if (!graphs_.exist() || graphs_.ready()) {
        return {};
    }
    const GraphSizes& sizes = graphs_.sizes();
    const int64_t start = host_->now_us();
    const int64_t free = device_->info().bytes_free;
    const int64_t needed = graph_bytes(parts_.config, sizes);
    if (free < needed) {
        host_->log(
            LogLevel::warn, "dsv41",
            format("decode runs without graphs: they take up to {} MiB of the device, {} MiB "
                   "are left; lower engine.step_rows, model.slots or model.context_tokens",
                   needed >> 20, free >> 20));
        graphs_.drop();
        return {};
    }
    forward_.set_tracer(nullptr);
    active_region_ = kWindowRegion;
    const auto all = [&]() -> Status {
        take_inputs();
        TENON_TRY(window_block_.upload(*device_, *stream_));
        for (size_t r = 0; r < sizes.rows.size(); ++r) {
            window_group_ = padded_windows(sizes.rows[r]);
            for (size_t v = 0; v < sizes.visible.size(); ++v) {
                window_group_.visible_end = sizes.visible[v];
                for (int32_t s = 0; s < sizes.stretches; ++s) {
                    TENON_TRY(capture(graphs_.backbone(s, r, v),
                                      [&] { return forward_.stretch(s, window_group_, this); }));
                }
            }
            TENON_TRY(
                capture(graphs_.sampling(r), [&] { return enqueue_sampling(window_group_); }));
        }
        for (size_t n = 0; n < sizes.streams.size(); ++n) {
            TENON_TRY(capture(graphs_.drafts(n), [&] {
                Rows window = padded_windows(sizes.rows.back()).rows;
                window.S = sizes.streams[n];
                window.seg = window.seg.rows(0, window.S);
                return draft_pass(window, inputs_.draft_params.device.rows(0, window.S));
            }));
        }
        return device_->synchronize(*stream_);
    };
    capturing_ = true;
    const Status captured = guard(all);
    capturing_ = false;
    if (!captured.ok()) {
        host_->log(LogLevel::warn, "dsv41",
                   format("decode runs without graphs: {}", captured.message()));
        graphs_.drop();
        return device_->synchronize(*stream_);
    }
    graphs_.set_ready();
    host_->log(LogLevel::info, "dsv41",
               format("graphs captured count={} rows={} ms={} device_bytes={} planned={}",
                      graphs_.count(), sizes.rows.back(), (host_->now_us() - start) / 1000,
                      free - device_->info().bytes_free, needed));
    return {};
}

Status Dsv41Model::replay_backbone() {
    const GraphSizes& sizes = graphs_.sizes();
    const size_t rows = DecodeGraphs::index_of(sizes.rows, window_group_.rows.T);
    const size_t visible = DecodeGraphs::index_of(sizes.visible, window_group_.visible_end);
    for (int32_t s = 0; s < sizes.stretches; ++s) {
        const int32_t table = forward_.stretch_table(s);
        if (table >= 0) {
            TensorView values;
            TensorView scales;
            TENON_TRY(rows_of(table, &values, &scales));
        }
        TENON_TRY(graphs_.launch(graphs_.backbone(s, rows, visible)));
    }
    return {};
}

/// Digest, logits of all rows, draw without filters of the request's own, verification, taps.
Status Dsv41Model::enqueue_sampling(const RowGroup& g) {
    const OpSet& o = ops_[static_cast<size_t>(Regime::decode)];
    const int64_t m = g.rows.T;
    TENON_TRY(forward_.digest(g, probe_.device.rows(0, 1)));
    TENON_TRY(forward_.head(g, TensorView(), m));
    SampleDraw draw;
    draw.logits = act_.logits.rows(0, m);
    draw.params = inputs_.params.device.rows(0, m);
    draw.forbid = forbid_;
    draw.token = drawn_.device.rows(0, m);
    draw.scratch = act_.scratch;
    TENON_TRY(o.sample_draw(draw, *stream_));
    const TensorView decision = decision_.device.rows(0, g.rows.S);
    TENON_TRY(o.spec_verify(
        SpecVerify{draw.token, g.ids, g.rows, inputs_.limits.device.rows(0, g.rows.S), decision},
        *stream_));
    TENON_TRY(device_->copy(decision_.host.rows(0, g.rows.S), decision, *stream_));
    TENON_TRY(device_->copy(probe_.host, probe_.device, *stream_));
    return parts_.with_drafts ? forward_.absorb(g) : Status();
}

Status Dsv41Model::replay_sampling() {
    const size_t rows = DecodeGraphs::index_of(graphs_.sizes().rows, window_group_.rows.T);
    return graphs_.launch(graphs_.sampling(rows));
}

Status Dsv41Model::replay_drafts() {
    return graphs_.launch(
        graphs_.drafts(DecodeGraphs::index_of(graphs_.sizes().streams, step_.windows)));
}

}  // namespace tenon::dsv41
