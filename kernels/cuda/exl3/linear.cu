// SPDX-License-Identifier: MIT
// Cuts rows into launches, plans them and picks the rate. A plan changes speed, never bits.
#include "linear.h"

#include <algorithm>
#include <utility>

#include "device_state.h"
#include "dispatch.cuh"
#include "exact_wide.cuh"
#include "smem.h"

namespace tenon::exl3::cuda {

int shared_most() {
    return std::min(kSharedMost, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

int shared_alone() {
    return std::min(shared_most(),
                    device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 + 1024);
}

namespace {

// Shared memory of the thread block that needs most.
template <class Total>
int most_bytes(const LinearCall& call, const ExactPlan& plan, const Total& total) {
    int most = 0;
    for (int j = 0; j < call.job_count; ++j) {
        for (int r = 0; r < plan.ranges; ++r) {
            const ExactRange& range = plan.range[r];
            const int list = call.jobs[j].blocks * range.length;
            most = std::max(most, total((list + range.places - 1) / range.places, range.length));
        }
    }
    return most;
}

int room_of(const LinearCall& call) {
    return std::min(kMostPlaces, device_attribute(cudaDevAttrMultiProcessorCount) / call.job_count);
}

/// Column blocks of the smallest and the largest job.
std::pair<int, int> column_blocks(const LinearCall& call) {
    const auto [least, most] =
        std::minmax_element(call.jobs, call.jobs + call.job_count,
                            [](const Job& a, const Job& b) { return a.blocks < b.blocks; });
    return {least->blocks, most->blocks};
}

// Cuts k into equal ranges with equal shares of the multiprocessors. False: not into so many.
bool cut_k(const LinearCall& call, int ranges, int warps, ExactPlan* p) {
    const int units_k = call.k / kUnit;
    const int length = units_k / ranges;
    const int room = room_of(call) / ranges;
    if (room == 0 || (ranges > 1 && (units_k % ranges != 0 || length < warps))) {
        return false;
    }
    // A thread block without a unit for each of its warps would only cost time; none may be without
    // any.
    const auto [least, blocks] = column_blocks(call);
    int places = std::min({room, (blocks * length + warps - 1) / warps, least * length});
    // Nearly as many that share no column block are faster.
    for (int fewer = places; 20 * fewer >= 19 * places; --fewer) {
        if (blocks % fewer == 0) {
            places = fewer;
            break;
        }
    }
    p->ranges = ranges;
    p->places = ranges * places;
    for (int r = 0; r < ranges; ++r) {
        p->range[r] = {r * length, length, places};
    }
    return true;
}

}  // namespace

int exact_bytes(const LinearCall& call, int rows, const ExactPlan& plan) {
    return most_bytes(call, plan, [&](int count, int length) {
        return exact_layout(call.twice_k, exact_n8_blocks(rows), rows, count, length, plan).total;
    });
}

int wide_bytes(const LinearCall& call, int rows, const ExactPlan& plan) {
    return most_bytes(call, plan, [&](int count, int length) {
        return wide_layout(call.twice_k, rows, count, length, plan).total;
    });
}

ExactPlan choose_exact_plan(const LinearCall& call, int rows) {
    ExactPlan p;
    p.rotated = rotates_first(call, rows);
    // With more ranges every column block has sums to share, for which a weight of its own has no
    // room.
    const int most_ranges = p.rotated || column_blocks(call).second <= kMostPlaces ? 8 : 1;
    for (const int stages : {2, 1}) {
        for (int ranges = 1; ranges <= most_ranges; ranges *= 2) {
            if (!cut_k(call, ranges, kExactSplits, &p)) {
                break;
            }
            p.stages = stages;
            for (p.slots = 2; p.slots >= 1; --p.slots) {
                if (exact_bytes(call, rows, p) <= shared_most()) {
                    return p;
                }
            }
        }
    }
    return {};
}

ExactPlan choose_wide_plan(const LinearCall& call, int rows) {
    ExactPlan p;
    p.rotated = true;
    for (int ranges = 1; ranges <= kMostRanges; ++ranges) {
        if (!cut_k(call, ranges, kWideGroups, &p)) {
            continue;
        }
        for (p.stages = kMostStages; p.stages >= 3; --p.stages) {
            for (p.slots = 2; p.slots >= 1; --p.slots) {
                if (wide_bytes(call, rows, p) <= shared_most()) {
                    return p;
                }
            }
        }
    }
    return {};
}

namespace {

// Rows of a launch of the exact kernel for which some plan fits: devices with less shared memory
// than an H200 take long inputs in smaller passes. 0: not even one; that depends on the weight and
// the device alone.
int exact_rows(const LinearCall& call) {
    if (choose_exact_plan(call, 1).ranges == 0) {
        return 0;
    }
    for (const int rows : {kRowsExact, kRowsExact / 2, kRowsFused, kRowsFused / 2}) {
        if (choose_exact_plan(call, rows).ranges > 0) {
            return rows;
        }
    }
    return 1;
}

// Of the shared sums of a pass.
int64_t bytes_to_clear(const LinearCall& call, int rows, const ExactPlan& plan) {
    int64_t sums = 0;
    for (int j = 0; j < call.job_count; ++j) {
        const int blocks = call.jobs[j].blocks;
        sums += plan.ranges == 1 ? shared_sums_of(blocks) : blocks;
    }
    return sums * rows * kBlock * 8;
}

}  // namespace

bool rotates_first(const LinearCall& call, int rows) {
    return rotated_first(call.k, rows) ||
           std::any_of(call.jobs, call.jobs + call.job_count,
                       [](const Job& job) { return job.sums == nullptr; });
}

cudaError_t linear(const LinearCall& call, cudaStream_t stream) {
    if (call.rows <= 0 || (call.job_count == 0 && call.experts.blocks == 0)) {
        return cudaSuccess;
    }
    const bool may_be_exact =
        call.code == Code::mul1 && call.job_count > 0 && !call.sliced && call.k <= kMostExactK;
    const int most_exact = may_be_exact ? exact_rows(call) : 0;
    const bool exact = most_exact > 0;
    int64_t slice = 0;
    for (int s = 0; s < call.slices; ++s) {
        slice = std::max(
            slice, slice_begin(call.k, call.slices, s + 1) - slice_begin(call.k, call.slices, s));
    }
    const bool wide = exact && has_wide() && wide_pays(call.k, call.rows) &&
                      choose_wide_plan(call, std::min(call.rows, kRowsWide)).ranges > 0;
    int most = wide ? kRowsWide
               : exact
                   ? most_exact
                   : rows_that_fit(call.code, call.twice_k, static_cast<int>(slice), shared_most());
    if (!exact && call.job_count > 0 &&
        call.jobs[call.job_count - 1].block_end * call.slices >
            device_attribute(cudaDevAttrMultiProcessorCount)) {
        // Sixteen rows leave room for one block a multiprocessor: two passes are faster then.
        most = std::min(most, kMaxRows / 2);
    }
    if (most < 1) {
        return cudaErrorInvalidValue;
    }
    cudaError_t status = cudaSuccess;
    // An expert may be chosen in several slots of a row.
    const int all = call.job_count > 0 ? call.rows : call.rows * std::max(call.experts.k, 1);
    int rows = 0;
    for (int row0 = 0; row0 < all && status == cudaSuccess; row0 += rows) {
        rows = std::min(most, all - row0);
        const bool here = wide && (wide_pays(call.k, rows) || rows > most_exact);
        // Sums of up to four rows lie apart for each warp, so four may need more memory than eight.
        while (exact && !here && rows > 1 && choose_exact_plan(call, rows).ranges == 0) {
            --rows;
        }
        const bool known = dispatch(call.twice_k, call.code, [&](auto rate, auto) {
            constexpr int kRate = decltype(rate)::value;
            if (exact && (here || rotates_first(call, rows))) {
                status = rotate_rows(call, row0, rows,
                                     bytes_to_clear(call, rows,
                                                    here ? choose_wide_plan(call, rows)
                                                         : choose_exact_plan(call, rows)),
                                     stream);
                if (status != cudaSuccess) {
                    return;
                }
            }
            if (here) {
                status = launch_wide<kRate>(call, row0, rows, stream);
                return;
            }
            status = exact ? launch_exact<kRate>(call, row0, rows, stream)
                           : launch_rate<kRate>(call, row0, rows, static_cast<int>(slice), stream);
        });
        status = known ? status : cudaErrorInvalidValue;
    }
    return status;
}

}  // namespace tenon::exl3::cuda
