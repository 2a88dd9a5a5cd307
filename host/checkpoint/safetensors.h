// SPDX-License-Identifier: MIT
// The header of a safetensors file: names, types, shapes and byte ranges, all checked before use.
#pragma once

#include <string>
#include <vector>

#include "tenon/tensor.h"

namespace tenon {

/// One entry of a header; `offset` counts from the start of the file.
struct TensorEntry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

/// Parses the header of a file of `file_bytes` bytes that begins with `head` (at least the header).
///
/// path    for messages
/// errors  invalid_argument: what is wrong, where, found against expected. Nothing is read beyond
/// `head`.
Result<std::vector<TensorEntry>> parse_safetensors(const std::string& path,
                                                   Span<const uint8_t> head, uint64_t file_bytes);

/// Writes f32 or i32 tensors as a safetensors file (verbs `score` and `inspect`).
struct TensorOut {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    const void* data = nullptr;
};
Status write_safetensors(const std::string& path, const std::vector<TensorOut>& tensors);

}  // namespace tenon
