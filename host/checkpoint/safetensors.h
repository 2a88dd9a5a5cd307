// SPDX-License-Identifier: MIT
// The header of a safetensors file: names, types, shapes and byte ranges, all checked before use.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "tenon/weights.h"

namespace tenon {

/// One entry of a header; `offset` counts from the start of the file.
struct TensorEntry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

/// A dense view of an entry's values, which begin at `data` (borrowed).
TensorView view_of(const TensorEntry& entry, void* data);
/// What a WeightSource tells of an entry; name and `file` are borrowed.
TensorInfo info_of(const TensorEntry& entry, StrView file, uint64_t index);
/// errors  invalid_argument: bytes [offset, offset + bytes) are not all inside the entry
Status check_range(const TensorEntry& entry, uint64_t offset, uint64_t bytes);

/// Parses the header of a file of `file_bytes` bytes that begins with `head` (at least the header).
///
/// path    for messages
/// errors  invalid_argument: what is wrong, where, found against expected
///
/// Nothing is read beyond `head`. Holes between tensors are fine, overlaps are not.
Result<std::vector<TensorEntry>> parse_safetensors(const std::string& path,
                                                   Span<const uint8_t> head, uint64_t file_bytes);

/// The type that a header calls `name` ("BF16"); false: none is called so.
bool safetensors_dtype(const std::string& name, DType* out);

struct TensorOut {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    const void* data = nullptr;  ///< for write_safetensors
};

/// Writes a file whose tensors are known beforehand and whose bytes come piece by piece. They go to
/// `path`.partial, which takes the file's name in `close` and is removed if that is never reached;
/// what is no regular file (a pipe, /dev/null) is written in place.
class SafetensorsWriter {
  public:
    SafetensorsWriter() = default;
    ~SafetensorsWriter();
    SafetensorsWriter(const SafetensorsWriter&) = delete;
    SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

    /// Writes the header; once. errors  io
    Status open(const std::string& path, const std::vector<TensorOut>& tensors);
    /// The next bytes, in the order of the tensors. errors  io
    Status append(const void* data, uint64_t bytes);
    /// All bytes have been given. errors  io
    Status close();

  private:
    Status checked() const;

    std::string path_, target_;
    std::string partial_;  ///< while it exists
    std::ofstream file_;
    uint64_t expected_ = 0, written_ = 0;
};

/// Writes whole tensors at once (verb `inspect`, tests).
Status write_safetensors(const std::string& path, const std::vector<TensorOut>& tensors);

}  // namespace tenon
