// SPDX-License-Identifier: MIT
// Argument checks of ops, shared by all compute plugins: one comparison each when all is well, a
// message with op, field, found and expected when not.
#pragma once

#include "tenon/ops/state.h"

namespace tenon::kernels {

constexpr uint32_t bit(DType t) {
    return 1u << static_cast<uint32_t>(t);
}
constexpr uint32_t kBf16 = bit(DType::bf16);
constexpr uint32_t kF32 = bit(DType::f32);
constexpr uint32_t kFloats = kBf16 | kF32;
constexpr uint32_t kI32 = bit(DType::i32);
constexpr uint32_t kU8 = bit(DType::u8);
constexpr uint32_t kAnyType = 0x1FFF;
constexpr int64_t kAny = -1;

/// Collects the first problem of a call. All checks return *this so that they chain.
class Check {
  public:
    explicit Check(const char* op) : op_(op) {}

    /// Shape (kAny = any extent), element type, alignment of 16; every dimension dense.
    Check& dense(const char* field, const TensorView& v, uint32_t types,
                 std::initializer_list<int64_t> shape) {
        if (!(fits(v, types, shape) && v.dense() && aligned(v))) {
            report(field, v, types, shape, 1);
        }
        return *this;
    }
    /// As dense, but rows (dimension 0) may be strided; rows of 64 bytes and more by multiples of
    /// 16 bytes.
    Check& strided(const char* field, const TensorView& v, uint32_t types,
                   std::initializer_list<int64_t> shape) {
        if (!(fits(v, types, shape) && rows_dense(v) && aligned(v))) {
            report(field, v, types, shape, 2);
        }
        return *this;
    }
    /// One dimension, any positive stride, natural alignment (columns of small index arrays).
    Check& column(const char* field, const TensorView& v, uint32_t types, int64_t n) {
        if (!(v.rank == 1 && (types & bit(v.dtype)) != 0 && v.shape[0] == n &&
              (n <= 1 || v.stride[0] > 0) && (n == 0 || v.data != nullptr) &&
              reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(dtype_bytes(v.dtype)) ==
                  0)) {
            report(field, v, types, {n}, 3);
        }
        return *this;
    }
    /// Rows of a small array (dimension 0 strided freely), natural alignment.
    Check& loose(const char* field, const TensorView& v, uint32_t types,
                 std::initializer_list<int64_t> shape) {
        if (!(fits(v, types, shape) && inner_dense(v) &&
              reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(dtype_bytes(v.dtype)) ==
                  0)) {
            report(field, v, types, shape, 3);
        }
        return *this;
    }
    /// u8 views with any outer strides on multiples of `alignment` bytes (Engram records).
    Check& bytes_strided(const char* field, const TensorView& v, uint32_t types,
                         std::initializer_list<int64_t> shape, int64_t alignment);
    template <class E>
    Check& structs(const char* field, const TensorView& v, int64_t n) {
        return dense(field, v, kU8, {n, static_cast<int64_t>(sizeof(E))});
    }
    Check& rows(const Rows& r, int64_t T) {
        if (r.T != T) {
            number("rows.T", r.T, T);
        }
        return structs<RowInfo>("rows.row", r.row, r.T).structs<SegInfo>("rows.seg", r.seg, r.S);
    }
    /// The ring as a whole; `width` is the row width that the op's other fields imply.
    Check& ring(const Ring& r, int64_t width) {
        const bool packed = r.format == RowFormat::q8;
        if (!(r.width == width && r.R >= 1 && (packed || r.format == RowFormat::bf16) &&
              fits(r.codes, packed ? kU8 : kBf16, {kAny, r.R, width}) && r.codes.dense() &&
              aligned(r.codes) &&
              (!packed || (fits(r.scales, kU8, {r.codes.shape[0], r.R, width / 32}) &&
                           r.scales.dense() && aligned(r.scales))))) {
            bad_ring(r, width);
        }
        return *this;
    }
    Check& pages(const char* field, const Pages& p, int64_t width) {
        if (!(p.width == width && p.ratio >= 1 && p.rows_per_page >= 1 &&
              fits(p.pool, kU8, {kAny, kAny}) && p.pool.dense() && aligned(p.pool) &&
              fits(p.table, kI32, {kAny, kAny}) && p.table.dense() && p.codes_at >= 0 &&
              p.scales_at >= 0 &&
              p.codes_at + p.rows_per_page * code_bytes(p.format, width) <= p.pool.shape[1] &&
              p.scales_at + p.rows_per_page * scale_bytes(p.format, width) <= p.pool.shape[1])) {
            bad_pages(field, p, width);
        }
        return *this;
    }
    /// "field is found, expected expected".
    Check& number(const char* field, int64_t found, int64_t expected);
    Check& at_least(const char* field, int64_t found, int64_t least);
    Check& in_range(const char* field, int64_t found, int64_t low, int64_t high) {
        if (found < low || found > high) {
            range(field, found, low, high);
        }
        return *this;
    }
    Check& multiple(const char* field, int64_t found, int64_t of) {
        if (found % of != 0) {
            not_multiple(field, found, of);
        }
        return *this;
    }
    Check& finite(const char* field, float value);
    /// Two views must not share a byte.
    Check& disjoint(const char* a_field, const TensorView& a, const char* b_field,
                    const TensorView& b) {
        if (overlap(a, b)) {
            overlaps(a_field, b_field, false);
        }
        return *this;
    }
    /// Exactly the same view, or disjoint.
    Check& in_place(const char* a_field, const TensorView& a, const char* b_field,
                    const TensorView& b) {
        if (overlap(a, b) && !same(a, b)) {
            overlaps(a_field, b_field, true);
        }
        return *this;
    }
    Check& scratch(const TensorView& v, int64_t needed) {
        if (needed > 0 && (v.dtype != DType::u8 || v.data == nullptr || !v.dense() ||
                           v.bytes() < needed || reinterpret_cast<uintptr_t>(v.data) % 256 != 0)) {
            bad_scratch(v, needed);
        }
        return *this;
    }
    Check& unsupported(bool bad, const char* field, const char* why);

    bool ok() const { return status_.ok(); }
    Status take() { return std::move(status_); }

  private:
    static bool fits(const TensorView& v, uint32_t types, std::initializer_list<int64_t> shape) {
        if (v.rank != shape.size() || (types & bit(v.dtype)) == 0) {
            return false;
        }
        int i = 0;
        bool empty = false;
        for (int64_t n : shape) {
            if (v.shape[i] != n && n != kAny) {
                return false;
            }
            empty = empty || v.shape[i] == 0;
            ++i;
        }
        return v.data != nullptr || empty;
    }
    static bool aligned(const TensorView& v) {
        return reinterpret_cast<uintptr_t>(v.data) % 16 == 0;
    }
    static bool inner_dense(const TensorView& v) {
        int64_t want = 1;
        for (int i = v.rank - 1; i >= 1; --i) {
            if (v.shape[i] != 1 && v.stride[i] != want) {
                return false;
            }
            want *= v.shape[i];
        }
        return v.shape[0] <= 1 || v.stride[0] >= want;
    }
    static bool rows_dense(const TensorView& v) {
        if (!inner_dense(v)) {
            return false;
        }
        int64_t row = dtype_bytes(v.dtype);
        for (int i = 1; i < v.rank; ++i) {
            row *= v.shape[i];
        }
        return v.shape[0] <= 1 || row < 64 || v.stride[0] * dtype_bytes(v.dtype) % 16 == 0;
    }
    static bool overlap(const TensorView& a, const TensorView& b);
    static bool same(const TensorView& a, const TensorView& b);
    void report(const char* field, const TensorView& v, uint32_t types,
                std::initializer_list<int64_t> shape, int layout);
    void bad_ring(const Ring& r, int64_t width);
    void bad_pages(const char* field, const Pages& p, int64_t width);
    void range(const char* field, int64_t found, int64_t low, int64_t high);
    void not_multiple(const char* field, int64_t found, int64_t of);
    void overlaps(const char* a, const char* b, bool in_place);
    void bad_scratch(const TensorView& v, int64_t needed);

    const char* op_;
    Status status_;
};

/// Rows in dimension 0, at least rank 1; 0 for a null rank-0 view.
inline int64_t rows_of(const TensorView& v) {
    return v.rank > 0 ? v.shape[0] : 0;
}
inline int64_t dim(const TensorView& v, int i) {
    return i < v.rank ? v.shape[i] : 0;
}

}  // namespace tenon::kernels
