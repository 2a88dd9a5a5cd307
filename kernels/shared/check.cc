// SPDX-License-Identifier: MIT
// The failing side of op argument checks.
#include "kernels/shared/check.h"

namespace tenon::kernels {

namespace {

std::string type_names(uint32_t types) {
    if (types == kAnyType) {
        return "any type";
    }
    std::string out;
    for (uint32_t i = 0; i < 13; ++i) {
        if ((types >> i & 1u) != 0) {
            out += (out.empty() ? "" : " or ") + std::string(dtype_name(static_cast<DType>(i)));
        }
    }
    return out;
}

std::string shape_text(std::initializer_list<int64_t> shape) {
    std::string out = "[";
    for (int64_t n : shape) {
        out += (out.size() > 1 ? ", " : "") + (n == kAny ? std::string("*") : std::to_string(n));
    }
    return out + ']';
}

// First and one past the last byte that a view covers.
struct Extent {
    uintptr_t first = 0;
    uintptr_t last = 0;
};

Extent extent(const TensorView& v) {
    if (v.data == nullptr || v.elements() <= 0) {
        return {};
    }
    int64_t far = 0;
    for (int i = 0; i < v.rank; ++i) {
        far += (v.shape[i] - 1) * v.stride[i];
    }
    const auto first = reinterpret_cast<uintptr_t>(v.data);
    return {first, first + static_cast<uintptr_t>((far + 1) * dtype_bytes(v.dtype))};
}

}  // namespace

bool Check::overlap(const TensorView& a, const TensorView& b) {
    if (a.data == nullptr || b.data == nullptr) {
        return false;
    }
    const Extent x = extent(a);
    const Extent y = extent(b);
    if (x.first >= y.last || y.first >= x.last) {
        return false;
    }
    // Column blocks of one matrix interleave without sharing a byte.
    const bool strided = a.rank >= 2 && b.rank >= 2 && a.shape[0] > 1 && b.shape[0] > 1 &&
                         a.stride[0] * dtype_bytes(a.dtype) == b.stride[0] * dtype_bytes(b.dtype);
    if (strided) {
        const auto pitch = static_cast<uintptr_t>(a.stride[0] * dtype_bytes(a.dtype));
        const uintptr_t row_a = extent(a.rows(0, 1)).last - x.first;
        const uintptr_t row_b = extent(b.rows(0, 1)).last - y.first;
        if (x.first < y.first) {
            const uintptr_t gap = (y.first - x.first) % pitch;
            return gap < row_a || gap + row_b > pitch;
        }
        const uintptr_t gap = (x.first - y.first) % pitch;
        return gap < row_b || gap + row_a > pitch;
    }
    return true;
}

bool Check::same(const TensorView& a, const TensorView& b) {
    if (a.data != b.data || a.dtype != b.dtype || a.elements() != b.elements()) {
        return false;
    }
    const int64_t row_a = a.rank > 0 && a.shape[0] > 1 ? a.stride[0] : 0;
    const int64_t row_b = b.rank > 0 && b.shape[0] > 1 ? b.stride[0] : 0;
    return row_a == row_b;
}

void Check::report(const char* field, const TensorView& v, uint32_t types,
                   std::initializer_list<int64_t> shape, int layout) {
    if (!status_.ok()) {
        return;
    }
    const bool shape_fits = fits(v, types, shape);
    if (!shape_fits && v.data == nullptr && v.elements() > 0 && v.rank == shape.size()) {
        status_ = error(Code::invalid_argument, "{}: {} is {} without data, expected {} {}", op_,
                        field, describe(v), type_names(types), shape_text(shape));
    } else if (!shape_fits) {
        status_ = error(Code::invalid_argument, "{}: {} is {}, expected {} {}", op_, field,
                        describe(v), type_names(types), shape_text(shape));
    } else if (layout != 3 && !aligned(v)) {
        status_ =
            error(Code::invalid_argument, "{}: {} starts at {} mod 16, expected 16-byte alignment",
                  op_, field, reinterpret_cast<uintptr_t>(v.data) % 16);
    } else {
        status_ = error(Code::invalid_argument, "{}: {} is {} with row stride {}, expected {}", op_,
                        field, describe(v), v.rank > 0 ? v.stride[0] : 0,
                        layout == 1   ? "dense"
                        : layout == 2 ? "dense rows at strides of whole 16 bytes"
                                      : "natural alignment and dense inner dimensions");
    }
}

Check& Check::bytes_strided(const char* field, const TensorView& v, uint32_t types,
                            std::initializer_list<int64_t> shape, int64_t alignment) {
    if (!fits(v, types, shape)) {
        report(field, v, types, shape, 3);
        return *this;
    }
    bool good = reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(alignment) == 0 &&
                (v.shape[v.rank - 1] <= 1 || v.stride[v.rank - 1] == 1);
    for (int i = 0; i + 1 < v.rank; ++i) {
        good = good && (v.shape[i] <= 1 || v.stride[i] % alignment == 0);
    }
    if (!good && status_.ok()) {
        status_ = error(Code::invalid_argument,
                        "{}: {} is {} at {} mod {}, expected base and strides on multiples of {} "
                        "bytes and dense last dimension",
                        op_, field, describe(v),
                        reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(alignment),
                        alignment, alignment);
    }
    return *this;
}

void Check::bad_ring(const Ring& r, int64_t width) {
    const bool packed = r.format == RowFormat::q8;
    unsupported(!packed && r.format != RowFormat::bf16, "ring.format", "a ring holds bf16 or q8");
    number("ring.width", r.width, width);
    at_least("ring.R", r.R, 1);
    dense("ring.codes", r.codes, packed ? kU8 : kBf16, {kAny, r.R, width});
    if (packed) {
        dense("ring.scales", r.scales, kU8, {dim(r.codes, 0), r.R, width / 32});
    }
}

void Check::bad_pages(const char* field, const Pages& p, int64_t width) {
    const std::string name(field);
    number((name + ".width").c_str(), p.width, width);
    at_least((name + ".ratio").c_str(), p.ratio, 1);
    at_least((name + ".rows_per_page").c_str(), p.rows_per_page, 1);
    dense((name + ".pool").c_str(), p.pool, kU8, {kAny, kAny});
    dense((name + ".table").c_str(), p.table, kI32, {kAny, kAny});
    if (status_.ok()) {
        status_ =
            error(Code::invalid_argument,
                  "{}: {} planes at {} and {} with {} rows of {} and {} bytes, expected inside "
                  "a page of {} bytes",
                  op_, field, p.codes_at, p.scales_at, p.rows_per_page, code_bytes(p.format, width),
                  scale_bytes(p.format, width), p.pool.shape[1]);
    }
}

Check& Check::number(const char* field, int64_t found, int64_t expected) {
    if (found != expected && status_.ok()) {
        status_ =
            error(Code::invalid_argument, "{}: {} is {}, expected {}", op_, field, found, expected);
    }
    return *this;
}

Check& Check::at_least(const char* field, int64_t found, int64_t least) {
    if (found < least && status_.ok()) {
        status_ = error(Code::invalid_argument, "{}: {} is {}, expected at least {}", op_, field,
                        found, least);
    }
    return *this;
}

Check& Check::finite(const char* field, float value) {
    if (!(value - value == 0.0f) && status_.ok()) {
        status_ = error(Code::invalid_argument, "{}: {} is {}, expected a finite number", op_,
                        field, value);
    }
    return *this;
}

Check& Check::unsupported(bool bad, const char* field, const char* why) {
    if (bad && status_.ok()) {
        status_ = error(Code::unsupported, "{}: {}: {}", op_, field, why);
    }
    return *this;
}

void Check::range(const char* field, int64_t found, int64_t low, int64_t high) {
    if (status_.ok()) {
        status_ = error(Code::invalid_argument, "{}: {} is {}, expected {} to {}", op_, field,
                        found, low, high);
    }
}

void Check::not_multiple(const char* field, int64_t found, int64_t of) {
    if (status_.ok()) {
        status_ = error(Code::invalid_argument, "{}: {} is {}, expected a multiple of {}", op_,
                        field, found, of);
    }
}

void Check::overlaps(const char* a, const char* b, bool in_place) {
    if (status_.ok()) {
        status_ = error(Code::invalid_argument, "{}: {} overlaps {}, expected {}", op_, a, b,
                        in_place ? "exactly the same view or disjoint memory" : "disjoint memory");
    }
}

void Check::bad_scratch(const TensorView& v, int64_t needed) {
    if (status_.ok()) {
        status_ = error(
            Code::invalid_argument,
            "{}: scratch is {} at {} mod 256, expected at least {} dense u8, 256-byte aligned", op_,
            describe(v), reinterpret_cast<uintptr_t>(v.data) % 256, needed);
    }
}

}  // namespace tenon::kernels
