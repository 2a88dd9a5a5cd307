// SPDX-License-Identifier: MIT
// Multiplies one or several matrices in one go: cuts rows into chunks and output blocks into tasks
// for the thread pool.
#pragma once

#include <new>

#include "matrix.h"

namespace tenon::packed {

/// One product of a call. `staged_by` is the index of the product whose staged rows this one reads:
/// its own index, or an earlier one with the same x.
struct Product {
    const Matrix* matrix = nullptr;
    RowsIn x;
    void* y = nullptr;
    DType y_dtype = DType::bf16;  ///< bf16 (rounded once from f32) or f32
    int64_t y_stride = 0;
    int32_t staged_by = 0;
};

/// Most products of one call (groups of a block-diagonal weight, members of a group).
constexpr int64_t kMaxProducts = 64;

/// The products of one call, on the stack; only those that are added cost anything.
class ProductList {
  public:
    void add(const Matrix* matrix, int32_t staged_by) {
        auto* p = new (storage_ + count_++ * sizeof(Product)) Product;
        p->matrix = matrix;
        p->staged_by = staged_by;
    }
    Span<Product> view() { return {std::launder(reinterpret_cast<Product*>(storage_)), count_}; }

  private:
    alignas(Product) std::byte storage_[kMaxProducts * sizeof(Product)];
    uint64_t count_ = 0;
};

/// Scratch of `multiply`; pure function of the matrices, rows and workers.
int64_t multiply_scratch(Span<const Product> products, int64_t rows, int32_t workers);

/// y_i = x_i W_i^T for all products. No allocation; bits do not depend on rows, workers or
/// partition.
void multiply(Span<const Product> products, int64_t rows, void* scratch, ParallelFor* pool);

/// Workers of a pool that may be null.
inline int32_t workers_of(ParallelFor* pool) {
    return pool == nullptr ? 1 : pool->workers();
}

/// Runs small jobs on the calling thread: waking the pool costs more than `weights` multiplications
/// of this size take.
ParallelFor* pool_for(ParallelFor* pool, int64_t multiplications);

/// The scratch that an op was given: a dense, 64-byte aligned u8 view of at least `needed` bytes.
Status check_scratch(StrView op, const TensorView& scratch, int64_t needed);

}  // namespace tenon::packed
