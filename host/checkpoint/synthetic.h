// SPDX-License-Identifier: MIT
// Weights that are described instead of stored: names, types, shapes and a distribution each, for
// measurements at a geometry whose checkpoint is not at hand.
#pragma once

#include <string>

#include "tenon/weights.h"

namespace tenon {

/// File of a model folder that takes the place of its weights.
constexpr const char* kSyntheticFile = "synthetic.json";

/// Reads `path`: {"tensors": [{"name", "dtype", "shape", "fill"}, …]}.
///
/// name    may hold ranges, "layers.{0..39}.ffn.experts.{0..383}.w1.trellis": one tensor each
/// dtype   as in safetensors; shape: numbers, [] is a scalar
/// fill    "bits": random bits; "normal S": standard deviation S; "signs S": +S or -S; "value V"
///         (the last three for F32, F16, BF16; I32 takes "value V")
/// errors  not_found, io; invalid_argument: entry, field, found against expected
///
/// Values come from a fixed generator: the same file gives the same bytes. Tensors of one type and
/// fill share 16 MiB of memory, whatever their number and size, each from a place of its own.
Status open_synthetic(const std::string& path, WeightSource** out);

}  // namespace tenon
