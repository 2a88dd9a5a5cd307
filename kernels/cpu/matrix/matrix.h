// SPDX-License-Identifier: MIT
// What a quantisation format supplies for the CPU: a packed matrix that can stage rows and multiply
// one block of columns.
#pragma once

#include <cstddef>

#include "tenon/compute.h"

namespace tenon::packed {

/// Output columns of one block: the unit of work that threads share. An EXL3 output rotation is
/// this wide.
constexpr int64_t kBlock = 128;

/// Rows that are multiplied together; more rows decode the weight again, which costs a few percent.
constexpr int64_t kRowChunk = 256;

/// Rows of an input, optionally picked by index. Elements of a row are contiguous.
struct RowsIn {
    const void* data = nullptr;
    DType dtype = DType::bf16;  ///< bf16 or f32
    int64_t stride = 0;         ///< elements between rows
    const int32_t* index = nullptr;

    int64_t offset(int64_t row) const { return (index == nullptr ? row : index[row]) * stride; }
    const uint16_t* bf16_row(int64_t row) const {
        return static_cast<const uint16_t*>(data) + offset(row);
    }
    const float* f32_row(int64_t row) const {
        return static_cast<const float*>(data) + offset(row);
    }
    /// The same rows without the first `count`.
    RowsIn from(int64_t count) const {
        RowsIn r = *this;
        if (index != nullptr) {
            r.index += count;
        } else {
            r.data = static_cast<const char*>(data) + count * stride * dtype_bytes(dtype);
        }
        return r;
    }
};

/// y = x W^T for one matrix [out, in], in two steps: `stage` brings rows of x into the form that
/// the inner loop reads (rotated, quantised or just widened), `block` makes 128 output columns of
/// them.
///
/// Class I: a row's bits depend on that row alone. All calls are const, may run on any thread and
/// allocate nothing; memory comes from the caller (64-byte aligned).
class Matrix {
  public:
    Matrix(int64_t in_width, int64_t out_width) : in_(in_width), out_(out_width) {}
    virtual ~Matrix() = default;
    Matrix(const Matrix&) = delete;
    Matrix& operator=(const Matrix&) = delete;

    int64_t in() const { return in_; }
    int64_t out() const { return out_; }
    int64_t blocks() const { return (out_ + kBlock - 1) / kBlock; }

    /// Bytes of one staged row, a multiple of 64.
    virtual int64_t staged_bytes() const = 0;
    /// Bytes that one worker needs beside the staged rows and y.
    virtual int64_t work_bytes() const = 0;
    /// True if rows staged by this matrix can be used for `other`, same x.
    virtual bool stages_for(const Matrix& other) const = 0;
    virtual void stage(const RowsIn& x, int64_t rows, std::byte* staged) const = 0;
    /// y[r * kBlock + c] = column index * kBlock + c of row r, f32, everything applied. Columns
    /// beyond `out` are undefined but finite for finite x.
    virtual void block(int64_t index, const std::byte* staged, int64_t rows, float* y,
                       std::byte* work) const = 0;
    /// Exact weight of output rows [row0, row0 + rows), computed in double and rounded once.
    virtual void dequantize(int64_t row0, int64_t rows, float* dst, int64_t stride) const = 0;
    /// Memory that the matrix holds.
    virtual int64_t bytes() const = 0;

  private:
    int64_t in_;
    int64_t out_;
};

constexpr int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

/// Hands out aligned pieces of a caller's scratch. With a null base it only measures.
class Arena {
  public:
    explicit Arena(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}
    template <class T>
    T* take(int64_t count) {
        std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
        used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
        return reinterpret_cast<T*>(at);
    }
    int64_t used() const { return used_; }

  private:
    std::byte* base_;
    int64_t used_ = 0;
};

}  // namespace tenon::packed
