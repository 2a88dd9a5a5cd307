// SPDX-License-Identifier: MIT
// A model directory on disk as tenon::Checkpoint: configuration text, small files, and all its
// tensors.
#pragma once

#include <string>
#include <vector>

#include "tenon/weights.h"

namespace tenon {

struct CheckpointOptions {
    std::string dir;
    /// Further safetensors files whose tensors are added; a name that exists already is an error.
    std::vector<std::string> extra_tensors;
    /// false: a directory without weights is fine (tokenizer-only use).
    bool need_weights = true;
    /// Take weights that synthetic.json describes; without this such a folder is refused.
    bool synthetic = false;
};

/// With `model.safetensors.index.json` its shards are read, else `model.safetensors` alone; other
/// files only if named in `extra_tensors`. With `synthetic` nothing but synthetic.json is read.
///
/// errors  not_found: no directory, or no weights; io; invalid_argument: malformed config, index or
///         shard (file, tensor, found, expected)
Status open_checkpoint(const CheckpointOptions& options, Checkpoint** out);

}  // namespace tenon
