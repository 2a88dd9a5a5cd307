// SPDX-License-Identifier: MIT
// Row stores: rows by id from big read-only tables on disk (Engram). The model computes ids, the
// store reads.
#pragma once

#include "tenon/object.h"
#include "tenon/tensor.h"

namespace tenon {

/// Where the rows of one table lie in one file. Row r starts at
/// `offset + (r / rows_per_page) * page_bytes + (r % rows_per_page) * row_bytes`;
/// `rows_per_page = 0` means one contiguous array.
struct RowTableDesc {
    uint32_t struct_size = sizeof(RowTableDesc);
    StrView name;  ///< for messages: "layers.1.engram.embed.weight"
    StrView path;
    uint64_t offset = 0;
    int64_t rows = 0;
    int64_t row_bytes = 0;
    int64_t rows_per_page = 0;
    int64_t page_bytes = 0;
    int64_t max_batch = 0;    ///< most ids of one fetch, at least 1
    int32_t max_tickets = 4;  ///< most fetches open at once, at least 1
    int32_t lane = 0;  ///< read ring to use, 0 … 3 (`engram.lanes`); stores without rings ignore it
};

struct RowTableInfo {
    uint32_t struct_size = sizeof(RowTableInfo);
    int32_t max_tickets = 0;
    int64_t rows = 0;
    int64_t row_bytes = 0;
    bool direct = false;   ///< O_DIRECT in use
    char engine[24] = {};  ///< "io_uring", "threads", "mmap", "memory"
};

/// Counters since open. Thread: any.
struct RowTableStats {
    uint32_t struct_size = sizeof(RowTableStats);
    uint64_t rows = 0;         ///< asked, without -1
    uint64_t unique_rows = 0;  ///< after duplicates were merged
    uint64_t reads = 0;        ///< issued to the kernel
    uint64_t read_bytes = 0;
    uint64_t failed_rows = 0;
    uint64_t retries = 0;
};

using Ticket = uint64_t;

struct RowBatch {
    Span<const int64_t>
        ids;         ///< host; 0 <= id < rows, or -1: leave that row of dst alone; repeats allowed
    TensorView dst;  ///< u8 [N, row_bytes], rows may be strided; host or pinned; valid until done
};

/// One open table. Thread: main while the model loads, then the engine thread; `stats` any.
class RowTable : public Object {
  public:
    static constexpr const char* kFacet = "storage.row_table/1";
    virtual RowTableInfo info() noexcept = 0;
    virtual RowTableStats stats() noexcept = 0;
    /// Starts reading; returns before the data is there. N = 0 is allowed. `ids` is copied.
    /// errors  invalid_argument: an id out of range (names the first), N > max_batch;
    ///         unavailable: too many tickets open
    virtual Status fetch(const RowBatch& batch, Ticket* out) noexcept = 0;
    /// Waits for a ticket and ends it. `failed`: ceil(N / 64) words, one bit a row, set for rows
    /// whose read failed (their dst is undefined); a failed row never fails the batch. May be
    /// empty. errors  deadline: not done within `timeout_us`, the ticket stays open; not_found: no
    /// such ticket
    virtual Status wait(Ticket ticket, int64_t timeout_us, Span<uint64_t> failed) noexcept = 0;
    virtual bool done(Ticket ticket) noexcept = 0;  ///< `wait` would not block
    /// Gives the ticket up; dst may be written until the call returns, never after.
    virtual void cancel(Ticket ticket) noexcept = 0;
};

class RowStore : public Object {
  public:
    static constexpr const char* kFacet = "storage.row_store/1";
    /// errors  io: path, errno text; invalid_argument: file shorter than the rows need (found,
    /// expected)
    virtual Status open(const RowTableDesc& desc, RowTable** out) noexcept = 0;
};

}  // namespace tenon
