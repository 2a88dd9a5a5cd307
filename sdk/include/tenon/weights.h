// SPDX-License-Identifier: MIT
// Read access to a checkpoint: named tensors with their bytes, the configuration text, and small
// files.
#pragma once

#include "tenon/object.h"
#include "tenon/tensor.h"

namespace tenon {

/// One tensor of a checkpoint. `name` lives as long as the source.
struct TensorInfo {
    uint32_t struct_size = sizeof(TensorInfo);
    DType dtype = DType::f32;
    uint16_t rank = 0;
    int64_t shape[kMaxRank] = {};
    StrView name;
    StrView file;         ///< path of the file that holds it
    uint64_t offset = 0;  ///< of the first byte in `file`
    uint64_t bytes = 0;
    uint64_t index = 0;  ///< place in name order; set by `at` only
};

/// Named tensors, possibly decorated by overlays. Thread-safe for reading after it was opened.
class WeightSource : public Object {
  public:
    static constexpr const char* kFacet = "weights.source/1";
    virtual uint64_t count() noexcept = 0;
    /// The i-th tensor in name order.
    virtual TensorInfo at(uint64_t index) noexcept = 0;
    /// errors  not_found: no tensor of that name
    virtual Status find(StrView name, TensorInfo* out) noexcept = 0;
    /// A read-only dense view of the whole tensor in (mapped) host memory, valid as long as the
    /// source.
    virtual Status map(StrView name, TensorView* out) noexcept = 0;
    /// Copies bytes [offset, offset + bytes) of the tensor. May go past the page cache: then each
    /// call costs a disk access, so read megabytes at once. errors  io, invalid_argument
    virtual Status read(StrView name, uint64_t offset, uint64_t bytes, void* dst) noexcept = 0;
    /// SHA-256 of names, dtypes, shapes, offsets and each file's size and both ends; 32 bytes.
    virtual Span<const uint8_t> digest() noexcept = 0;
};

/// A model directory: config.json, tokenizer and weights. Owned by the host; outlives what is made
/// from it.
class Checkpoint : public Object {
  public:
    static constexpr const char* kFacet = "weights.checkpoint/1";
    virtual StrView dir() noexcept = 0;
    /// Text of config.json (valid JSON object); empty if the directory has none.
    virtual StrView config_json() noexcept = 0;
    /// Null if the directory holds no weights (tokenizer-only use).
    virtual WeightSource* weights() noexcept = 0;
    /// Reads a small file of the directory (at most 64 MiB); the view lives as long as the
    /// checkpoint. errors  not_found, io
    virtual Status file(StrView name, StrView* out) noexcept = 0;
};

}  // namespace tenon
