// SPDX-License-Identifier: MIT
// The quant facets (tenon/quant.h) on the CPU, over any format's Matrix: weight, group, experts.
#pragma once

#include <memory>

#include "multiply.h"
#include "tenon/quant.h"

namespace tenon::packed {

/// The pool that a quant weight uses: the device's, or null (inline) if it offers none.
inline ParallelFor* pool_of(Device* device) {
    return facet_of<ParallelFor>(device);
}

/// Checks that a request names a CPU device; quant plugins look at this before they make a Matrix.
Status check_device(StrView format, StrView base, Device* device);

/// True if the device asks for reference arithmetic (compute `cpu`, option simd = "reference").
bool wants_reference(Device& device);

/// Makes a weight of its groups (one matrix: not block diagonal). `info` describes the loaded part.
///
/// name     for messages
/// groups   all of one shape, at least one, at most kMaxProducts
QuantWeight* make_weight(std::string name, const QuantInfo& info,
                         std::vector<std::unique_ptr<Matrix>> groups, ParallelFor* pool);

/// Makes a group of matrices that read the same x; at most kMaxProducts.
QuantGroup* make_group(std::string name, std::vector<std::unique_ptr<Matrix>> members,
                       ParallelFor* pool);

/// One expert; all three null if this rank does not hold it.
struct ExpertMatrices {
    std::unique_ptr<Matrix> w1, w3, w2;
};

struct ExpertsDesc {
    std::string name;  ///< for messages
    int64_t hidden = 0;
    int64_t intermediate = 0;             ///< of this rank
    bool reference = false;               ///< no SIMD
    bool whole_width = true;              ///< down products are complete here and round to bf16
    std::vector<ExpertMatrices> experts;  ///< by expert id
    ExpertMatrices shared;                ///< all null: none on this rank
};
QuantExperts* make_experts(ExpertsDesc desc, ParallelFor* pool);

/// The part of `total` units (blocks, groups, experts) that belongs to a rank.
struct Cut {
    int64_t first = 0;
    int64_t count = 0;
};
Cut cut_units(int64_t total, const Shard& shard);

/// errors  invalid_argument: rank or world out of range
Status check_shard(StrView name, const Shard& shard);

}  // namespace tenon::packed
