// SPDX-License-Identifier: MIT
// A small table, read whole when it is opened: a fetch is a copy on the caller's thread.
#pragma once

#include "plugins/storage_common/row_table.h"

namespace tenon::storage {

/// Thread: the engine thread. Tickets are done when `fetch` returns; a row cannot fail, and what
/// happens to the file after opening does not matter.
class MemoryRowTable final : public Implements<MemoryRowTable, RowTable> {
  public:
    /// errors  those of RowFile::open; io: the file cannot be read to the last row
    static Result<Ref<RowTable>> open(Host& host, const std::string& component,
                                      const RowTableDesc& desc);

    RowTableInfo info() noexcept override;
    RowTableStats stats() noexcept override;
    Status fetch(const RowBatch& batch, Ticket* out) noexcept override;
    Status wait(Ticket ticket, int64_t timeout_us, Span<uint64_t> failed) noexcept override;
    bool done(Ticket ticket) noexcept override;
    void cancel(Ticket ticket) noexcept override;

  private:
    struct Open {
        Ticket ticket = 0;  // 0: free
        int64_t rows = 0;
    };

    explicit MemoryRowTable(Host& host) : host_(host) {}
    Open* find(Ticket ticket);
    void copy(const RowBatch& batch);

    Host& host_;
    LaneTable table_;
    std::vector<std::byte> bytes_;  // from the first row on
    std::vector<Open> open_;
    std::vector<uint32_t> met_in_;  // by row: the last fetch that asked for it
    uint32_t fetches_ = 0;
    uint64_t sequence_ = 0;
};

}  // namespace tenon::storage
