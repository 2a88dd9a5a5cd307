// SPDX-License-Identifier: MIT
// Timing of single calls and of all products of a name.
#include "host/cli/op_families.h"

#include <algorithm>

#include "host/cli/bench_math.h"

namespace tenon::cli {

namespace {

/// What takes longer is measured once a run; shorter work is repeated to that length.
constexpr int64_t kLongUs = 500;
constexpr int64_t kMostRepeats = 32;
/// Work that has taken this long is not run again.
constexpr int64_t kEnoughUs = 100'000;

}  // namespace

template <class F>
Status OpFamilies::time(Stream& stream, F&& work, double* us) {
    auto* graphs = facet_of<GraphCapture>(device_);
    Ref<GraphCapture::Graph> graph;
    std::vector<double> all;
    int64_t repeats = 1;
    const auto enqueue = [&]() -> Status {
        for (int64_t r = 0; r < repeats; ++r) {
            TENON_TRY(work());
        }
        return {};
    };
    TENON_TRY(device_->synchronize(stream));
    int64_t total = 0;
    for (int i = 0; i <= runs_ && (i < 2 || total < kEnoughUs); ++i) {
        const int64_t begin = host_.now_us();
        TENON_TRY(graph ? graph->launch(stream) : enqueue());
        TENON_TRY(device_->synchronize(stream));
        const int64_t spent = host_.now_us() - begin;
        total += spent;
        if (i > 0) {
            all.push_back(static_cast<double>(spent) / static_cast<double>(repeats));
            continue;
        }
        repeats = std::clamp<int64_t>(kLongUs / std::max<int64_t>(spent, 1), 1, kMostRepeats);
        if (graphs != nullptr) {  // else short kernels take as long as their launches
            TENON_TRY(graphs->begin(stream));
            Status enqueued = guard(enqueue);
            Status ended = graphs->end(stream, graph.out());
            TENON_TRY(std::move(enqueued));
            TENON_TRY(std::move(ended));
        }
    }
    *us = median(all);
    return {};
}

size_t OpFamilies::family_of(StrView name) {
    const auto found = std::find_if(families_.begin(), families_.end(),
                                    [&](const OpFamily& f) { return StrView(f.name) == name; });
    if (found == families_.end()) {
        families_.push_back({name.str()});
        return families_.size() - 1;
    }
    return static_cast<size_t>(found - families_.begin());
}

Status OpFamilies::take(TappedCall call) noexcept {
    return guard([&]() -> Status {
        const size_t index = family_of(call.name);
        OpFamily& family = families_[index];
        ++family.calls;
        if (call.bytes > 0) {
            family.bytes += static_cast<double>(call.bytes);
            products_.push_back({index, call.stream, call.run});
            return call.run();
        }
        double us = 0;
        TENON_TRY(time(*call.stream, call.run, &us));
        family.us += us;
        return {};
    });
}

void OpFamilies::start(Device& device) {
    families_.clear();
    products_.clear();
    device_ = &device;
}

Status OpFamilies::finish(std::vector<OpFamily>* out) {
    const auto all = [&]() -> Status {
        for (size_t i = 0; i < families_.size(); ++i) {
            const auto mine = [i](const Product& p) { return p.family == i; };
            const auto first = std::find_if(products_.begin(), products_.end(), mine);
            if (first == products_.end()) {
                continue;
            }
            const auto work = [&]() -> Status {
                for (const Product& p : products_) {
                    if (mine(p)) {
                        TENON_TRY_CTX(p.run(), "{}", families_[i].name);
                    }
                }
                return {};
            };
            TENON_TRY(time(*first->stream, work, &families_[i].us));
        }
        return {};
    };
    Status status = all();
    device_ = nullptr;
    TENON_TRY(std::move(status));
    std::sort(families_.begin(), families_.end(),
              [](const OpFamily& a, const OpFamily& b) { return a.us > b.us; });
    *out = std::move(families_);
    families_.clear();
    products_.clear();
    return {};
}

}  // namespace tenon::cli
