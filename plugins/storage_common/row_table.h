// SPDX-License-Identifier: MIT
// The RowTable and RowStore that all read backends share: checks, tickets, waiting. A plugin only
// chooses its backends.
#pragma once

#include "plugins/storage_common/read_lane.h"

#include <array>
#include <functional>

namespace tenon::storage {

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
    Status check_batch(const RowBatch& batch) const;
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

/// Opens tables on lanes that come up when first asked for. Thread: the engine thread.
class LaneRowStore final : public Implements<LaneRowStore, RowStore> {
  public:
    using StartLane = std::function<Result<std::shared_ptr<ReadLane>>(int32_t lane)>;

    /// lanes  how many threads there may be; a table's `lane` is taken modulo it
    LaneRowStore(Host& host, std::string component, Access access, int32_t lanes, StartLane start)
        : host_(host),
          component_(std::move(component)),
          access_(access),
          lane_count_(lanes),
          start_lane_(std::move(start)) {}
    ~LaneRowStore() = default;

    Status open(const RowTableDesc& desc, RowTable** out) noexcept override;

  private:
    Host& host_;
    const std::string component_;
    const Access access_;
    const int32_t lane_count_;
    const StartLane start_lane_;
    std::array<std::shared_ptr<ReadLane>, 4> lanes_;
};

}  // namespace tenon::storage
