// SPDX-License-Identifier: MIT
// The loop structure around Matrix::stage and Matrix::block (see multiply.h).
#include "multiply.h"

#include <algorithm>

#include "tenon/numeric.h"

namespace tenon::packed {

namespace {

// Below this many multiplications per call a wake-up of the pool is not repaid.
constexpr int64_t kInlineWork = 48 * 1024;
// Staged elements from which staging is shared between threads.
constexpr int64_t kInlineStage = 32 * 1024;

struct Layout {
    std::byte* staged[kMaxProducts];  // of the products there are
    std::byte* worker = nullptr;      // first worker's part
    int64_t worker_bytes = 0;
    int64_t y_bytes = 0;
    int64_t used = 0;
};

Layout lay_out(Span<const Product> products, int64_t rows, int32_t workers, void* scratch) {
    Layout l;
    const int64_t chunk = std::min(rows, kRowChunk);
    Arena arena(scratch);
    int64_t work = 0;
    for (uint64_t i = 0; i < products.size; ++i) {
        const Product& p = products[i];
        work = std::max(work, p.matrix->work_bytes());
        const auto from = static_cast<uint64_t>(p.staged_by);
        l.staged[i] =
            from == i ? arena.take<std::byte>(chunk * p.matrix->staged_bytes()) : l.staged[from];
    }
    l.y_bytes = round_up(chunk * kBlock * static_cast<int64_t>(sizeof(float)), 64);
    l.worker_bytes = l.y_bytes + round_up(work, 64);
    l.worker = arena.take<std::byte>(l.worker_bytes * workers);
    l.used = arena.used();
    return l;
}

void store_rows(const Product& p, int64_t block, const float* y, int64_t row0, int64_t rows) {
    const int64_t col0 = block * kBlock;
    const int64_t cols = std::min(kBlock, p.matrix->out() - col0);
    for (int64_t r = 0; r < rows; ++r) {
        const float* src = y + r * kBlock;
        const int64_t at = (row0 + r) * p.y_stride + col0;
        if (p.y_dtype == DType::f32) {
            std::copy_n(src, cols, static_cast<float*>(p.y) + at);
        } else {
            uint16_t* dst = static_cast<uint16_t*>(p.y) + at;
            for (int64_t c = 0; c < cols; ++c) {
                dst[c] = f32_to_bf16(src[c]);
            }
        }
    }
}

}  // namespace

int64_t multiply_scratch(Span<const Product> products, int64_t rows, int32_t workers) {
    return rows <= 0 ? 0 : lay_out(products, rows, workers, nullptr).used;
}

ParallelFor* pool_for(ParallelFor* pool, int64_t multiplications) {
    return multiplications < kInlineWork ? nullptr : pool;
}

void multiply(Span<const Product> products, int64_t rows, void* scratch, ParallelFor* pool) {
    if (rows <= 0) {
        return;
    }
    const Layout l = lay_out(products, rows, workers_of(pool), scratch);
    int64_t first_task[kMaxProducts + 1];
    first_task[0] = 0;
    int64_t weights = 0;
    for (uint64_t i = 0; i < products.size; ++i) {
        const Matrix& m = *products[i].matrix;
        first_task[i + 1] = first_task[i] + m.blocks();
        weights += m.blocks() * kBlock * m.in();
    }
    const int64_t tasks = first_task[products.size];

    for (int64_t row0 = 0; row0 < rows; row0 += kRowChunk) {
        const int64_t count = std::min(kRowChunk, rows - row0);
        for (uint64_t i = 0; i < products.size; ++i) {
            const Product& p = products[i];
            if (static_cast<uint64_t>(p.staged_by) != i) {
                continue;
            }
            ParallelFor* stage_pool = count * p.matrix->in() < kInlineStage ? nullptr : pool;
            const RowsIn x = p.x.from(row0);
            parallel_for(stage_pool, count, 1, [&](int64_t begin, int64_t end, int32_t) {
                p.matrix->stage(x.from(begin), end - begin,
                                l.staged[i] + begin * p.matrix->staged_bytes());
            });
        }
        parallel_for(pool_for(pool, weights * count), tasks, 1,
                     [&](int64_t begin, int64_t end, int32_t worker) {
                         std::byte* mine = l.worker + worker * l.worker_bytes;
                         auto* y = reinterpret_cast<float*>(mine);
                         uint64_t i = 0;
                         for (int64_t task = begin; task < end; ++task) {
                             while (task >= first_task[i + 1]) {
                                 ++i;
                             }
                             const int64_t block = task - first_task[i];
                             products[i].matrix->block(block, l.staged[i], count, y,
                                                       mine + l.y_bytes);
                             store_rows(products[i], block, y, row0, count);
                         }
                     });
    }
}

Status check_scratch(StrView op, const TensorView& scratch, int64_t needed) {
    if (needed == 0) {
        return {};
    }
    const int64_t found = scratch.null() || !scratch.dense() ? 0 : scratch.bytes();
    if (found < needed) {
        return error(Code::invalid_argument, "{}: scratch has {} bytes, expected at least {}", op,
                     found, needed);
    }
    if (reinterpret_cast<uintptr_t>(scratch.data) % 64 != 0) {
        return error(Code::invalid_argument, "{}: scratch is not 64-byte aligned", op);
    }
    return {};
}

}  // namespace tenon::packed
