// SPDX-License-Identifier: MIT
// The RowTable and RowStore that all read backends share: checks, tickets, waiting. A plugin only
// chooses its backends.
#pragma once

#include "plugins/storage_common/read_lane.h"

#include <array>
#include <functional>

namespace tenon::storage {

/// The host's series of a table's counters.
void register_metrics(Host& host, LaneTable& table);
RowTableStats stats_of(const LaneTable& table);

/// errors  invalid_argument: the file ends before the last row
Status check_length(const RowTableDesc& desc, const RowLayout& layout, uint64_t file_bytes);
/// errors  invalid_argument: too many rows, a wrong dst, an id out of range (names the first)
Status check_batch(const LaneTable& table, const RowBatch& batch);

/// One open table. Thread: the engine thread; different tables may be used by different threads.
class LaneRowTable final : public Implements<LaneRowTable, RowTable> {
  public:
    /// Opens the file, checks that it holds the rows, attaches to the lane.
    static Result<Ref<RowTable>> open(Host& host, const std::string& component,
                                      const RowTableDesc& desc, Access access,
                                      std::shared_ptr<ReadLane> lane);
    ~LaneRowTable();

    RowTableInfo info() noexcept override;
    RowTableStats stats() noexcept override;
    Status fetch(const RowBatch& batch, Ticket* out) noexcept override;
    Status wait(Ticket ticket, int64_t timeout_us, Span<uint64_t> failed) noexcept override;
    bool done(Ticket ticket) noexcept override;
    void cancel(Ticket ticket) noexcept override;

  private:
    LaneRowTable(Host& host, std::shared_ptr<ReadLane> lane);
    TicketSlot* find(Ticket ticket);
    void end(TicketSlot& slot);

    Host& host_;
    // Shared with the store: a table that outlives it still has its thread.
    std::shared_ptr<ReadLane> lane_;
    LaneTable table_;
    std::vector<std::unique_ptr<TicketSlot>> slots_;
    std::vector<Ticket> open_;  // by slot; 0: free
    uint64_t sequence_ = 0;
    bool attached_ = false;
};

/// Opens tables on lanes that come up when first asked for. Thread: main, while a model loads.
class LaneRowStore final : public Implements<LaneRowStore, RowStore> {
  public:
    using StartLane = std::function<Result<std::shared_ptr<ReadLane>>(int32_t lane)>;

    /// lanes         how many threads there may be; a table's `lane` is taken modulo it
    /// memory_bytes  tables up to this size are read whole at open instead (MemoryRowTable)
    LaneRowStore(Host& host, std::string component, Access access, int32_t lanes, StartLane start,
                 uint64_t memory_bytes = 0)
        : host_(host),
          component_(std::move(component)),
          access_(access),
          lane_count_(lanes),
          start_lane_(std::move(start)),
          memory_bytes_(memory_bytes) {}
    ~LaneRowStore() = default;

    Status open(const RowTableDesc& desc, RowTable** out) noexcept override;

  private:
    Host& host_;
    const std::string component_;
    const Access access_;
    const int32_t lane_count_;
    const StartLane start_lane_;
    const uint64_t memory_bytes_;
    std::array<std::shared_ptr<ReadLane>, 4> lanes_;
};

}  // namespace tenon::storage
