// SPDX-License-Identifier: MIT
// Argument checks of the quant facets.
#include "check.h"

namespace tenon::packed {

namespace {

bool is_float_row(DType t) {
    return t == DType::bf16 || t == DType::f32;
}

Status check_rows(const std::string& name, StrView field, const TensorView& v, int rank,
                  int64_t rows, const int64_t* tail) {
    std::string want = "[" + (rows < 0 ? std::string("T") : std::to_string(rows));
    bool good = v.rank == rank && (rows < 0 || v.shape[0] == rows);
    for (int i = 1; i < rank; ++i) {
        want += ", " + std::to_string(tail[i - 1]);
        good = good && v.shape[i] == tail[i - 1];
    }
    want += "]";
    if (!good || !is_float_row(v.dtype)) {
        return error(Code::invalid_argument, "linear {}: {} is {}, expected bf16 or f32{}", name,
                     field, describe(v), want);
    }
    if (v.elements() == 0) {
        return {};
    }
    if (v.null()) {
        return error(Code::invalid_argument, "linear {}: {} is null", name, field);
    }
    if (v.stride[rank - 1] != 1 && v.shape[rank - 1] != 1) {
        return error(Code::invalid_argument, "linear {}: {} has innermost stride {}, expected 1",
                     name, field, v.stride[rank - 1]);
    }
    return {};
}

void drop_group(TensorView* v) {
    if (v->rank == 3 && v->shape[1] == 1) {
        v->rank = 2;
        v->shape[1] = v->shape[2];
        v->stride[1] = v->stride[2];
    }
}

}  // namespace

Status check_linear(const std::string& name, int64_t groups, int64_t in, int64_t out,
                    LinearArgs* args) {
    if (groups == 1) {  // one group of a cut block-diagonal weight may keep its group dimension
        drop_group(&args->x);
        drop_group(&args->y);
    }
    const int rank = groups == 1 ? 2 : 3;
    const int64_t x_tail[] = {groups == 1 ? in : groups, in};
    const int64_t y_tail[] = {groups == 1 ? out : groups, out};
    TENON_TRY(check_rows(name, "x", args->x, rank, -1, x_tail));
    return check_rows(name, "y", args->y, rank, args->x.shape[0], y_tail);
}

Status check_group(const std::string& name, int64_t in, Span<const int64_t> outs,
                   const TensorView& x, Span<const TensorView> ys) {
    if (ys.size != outs.size) {
        return error(Code::invalid_argument, "linear {}: {} outputs, expected {}", name, ys.size,
                     outs.size);
    }
    const int64_t x_tail[] = {in};
    TENON_TRY(check_rows(name, "x", x, 2, -1, x_tail));
    for (uint64_t i = 0; i < ys.size; ++i) {
        const int64_t y_tail[] = {outs[i]};
        TENON_TRY(check_rows(name, "y", ys[i], 2, x.shape[0], y_tail));
    }
    return {};
}

Status check_dequantize(const std::string& name, int64_t out, int64_t in, int64_t row0,
                        const TensorView& dst) {
    if (dst.dtype != DType::f32 || dst.rank != 2 || dst.shape[1] != in) {
        return error(Code::invalid_argument, "dequantize {}: dst is {}, expected f32[rows, {}]",
                     name, describe(dst), in);
    }
    if (row0 < 0 || dst.shape[0] > out - row0) {
        return error(Code::invalid_argument, "dequantize {}: rows [{}, {} + {}) of {}", name, row0,
                     row0, dst.shape[0], out);
    }
    return {};
}

Status check_experts(const std::string& name, int64_t hidden, const ExpertsArgs& args) {
    const int64_t rows = args.x.shape[0];
    if (args.x.dtype != DType::bf16 || args.x.rank != 2 || args.x.shape[1] != hidden) {
        return error(Code::invalid_argument, "experts {}: x is {}, expected bf16[T, {}]", name,
                     describe(args.x), hidden);
    }
    if (args.ids.dtype != DType::i32 || args.ids.rank != 2 || args.ids.shape[0] != rows ||
        !args.ids.dense()) {
        return error(Code::invalid_argument, "experts {}: ids is {}, expected dense i32[{}, k]",
                     name, describe(args.ids), rows);
    }
    if (args.weights.dtype != DType::f32 || args.weights.rank != 2 ||
        args.weights.shape[0] != rows || args.weights.shape[1] != args.ids.shape[1] ||
        !args.weights.dense()) {
        return error(Code::invalid_argument,
                     "experts {}: weights is {}, expected dense f32[{}, {}]", name,
                     describe(args.weights), rows, args.ids.shape[1]);
    }
    if (args.out.dtype != DType::f32 || args.out.rank != 2 || args.out.shape[0] != rows ||
        args.out.shape[1] != hidden) {
        return error(Code::invalid_argument, "experts {}: out is {}, expected f32[{}, {}]", name,
                     describe(args.out), rows, hidden);
    }
    if (rows == 0) {
        return {};
    }
    for (const auto& [field, view] : {std::pair{"x", args.x}, std::pair{"out", args.out}}) {
        if (view.null() || (view.stride[1] != 1 && view.shape[1] != 1)) {
            return error(Code::invalid_argument,
                         "experts {}: {} is null or has an innermost stride other than 1", name,
                         field);
        }
    }
    return {};
}

}  // namespace tenon::packed
