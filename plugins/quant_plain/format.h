// SPDX-License-Identifier: MIT
// The QuantFormat of ordinary checkpoints.
#pragma once

#include "tenon/quant.h"

namespace tenon::plain {

/// activation_quant  inputs of FP8 and FP4 weights are rounded to E4M3 first (docs/dsv41.md 3.3),
/// where
///                   the request allows it
QuantFormat* make_format(bool activation_quant);

}  // namespace tenon::plain
