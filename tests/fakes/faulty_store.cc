// SPDX-License-Identifier: MIT
// A row store that breaks one rule of tenon/storage.h, chosen by the option `fault`: the suite must
// notice each.
#include "faulty.h"

#include "plugins/storage_common/row_table.h"
#include "plugins/storage_common/threads_backend.h"

#include <algorithm>
#include <map>

#include <unistd.h>

namespace tenon::testing {
namespace {

class FaultyTable final : public Implements<FaultyTable, RowTable> {
  public:
    FaultyTable(Ref<RowTable> inner, std::string fault)
        : inner_(std::move(inner)), fault_(std::move(fault)) {}
    ~FaultyTable() = default;

    RowTableInfo info() noexcept override { return inner_->info(); }
    RowTableStats stats() noexcept override { return inner_->stats(); }
    bool done(Ticket ticket) noexcept override { return inner_->done(ticket); }

    Status fetch(const RowBatch& batch, Ticket* out) noexcept override {
        return guard([&]() -> Status {
            finish_deferred();
            ids_.assign(batch.ids.begin(), batch.ids.end());
            const int64_t rows = inner_->info().rows;
            for (int64_t& id : ids_) {
                if (fault_ == "accepts_any_id") {
                    id = std::clamp<int64_t>(id, -1, rows - 1);
                }
                if (fault_ == "wrong_offset" && id > 0) {
                    --id;
                }
            }
            RowBatch changed = batch;
            changed.ids = ids_;
            TENON_TRY(inner_->fetch(changed, out));
            batches_[*out] = {ids_, batch.dst};
            return {};
        });
    }

    Status wait(Ticket ticket, int64_t timeout_us, Span<uint64_t> failed) noexcept override {
        return guard([&]() -> Status {
            if (fault_ == "keeps_ticket" && ended_ != 0 && ticket == ended_) {
                return {};
            }
            TENON_TRY(inner_->wait(ticket, timeout_us, failed));
            ended_ = ticket;
            if (fault_ == "loses_failures") {
                std::fill(failed.begin(), failed.end(), 0);
            }
            spoil(batches_[ticket].first, batches_[ticket].second);
            return {};
        });
    }

    void cancel(Ticket ticket) noexcept override {
        if (fault_ == "writes_late") {
            deferred_ = ticket;
        } else {
            inner_->cancel(ticket);
        }
    }

  private:
    void spoil(const std::vector<int64_t>& ids, const TensorView& dst) {
        const auto n = static_cast<int64_t>(ids.size());
        if (n == 0) {
            return;
        }
        const int64_t row_bytes = inner_->info().row_bytes;
        if (fault_ == "swaps_rows" && n > 1) {
            std::swap_ranges(dst.row<uint8_t>(0), dst.row<uint8_t>(0) + row_bytes,
                             dst.row<uint8_t>(1));
        }
        if (fault_ == "touches_gap" && n > 1 && dst.stride[0] > row_bytes) {
            dst.row<uint8_t>(0)[row_bytes] = 1;
        }
        for (int64_t i = 0; fault_ == "clears_minus_one" && i < n; ++i) {
            if (ids[static_cast<size_t>(i)] < 0) {
                std::fill_n(dst.row<uint8_t>(i), row_bytes, uint8_t{0});
            }
        }
    }

    void finish_deferred() {
        if (deferred_ != 0) {
            static_cast<void>(inner_->wait(std::exchange(deferred_, 0), 10'000'000, {}));
        }
    }

    Ref<RowTable> inner_;
    const std::string fault_;
    std::vector<int64_t> ids_;
    std::map<Ticket, std::pair<std::vector<int64_t>, TensorView>> batches_;
    Ticket ended_ = 0;
    Ticket deferred_ = 0;
};

class FaultyStore final : public Implements<FaultyStore, RowStore> {
  public:
    FaultyStore(Host& host, std::string fault) : host_(host), fault_(std::move(fault)) {}
    ~FaultyStore() = default;

    Status open(const RowTableDesc& desc, RowTable** out) noexcept override {
        return guard([&]() -> Status {
            if (fault_ == "leaks_descriptor") {
                static_cast<void>(!::dup(0));
            }
            if (fault_ == "leaks_memory") {
                leaked = new char[4096];
            }
            TENON_ASSIGN(auto lane, storage::ReadLane::start(
                                        host_, "faulty", "faulty_lane",
                                        std::make_unique<storage::ThreadsBackend>(host_, 2)));
            auto table =
                storage::LaneRowTable::open(host_, "faulty", desc, storage::Access::buffered, lane);
            TENON_TRY(table.take_status());
            *out = new FaultyTable(std::move(*table), fault_);
            return {};
        });
    }

  private:
    static inline char* volatile leaked = nullptr;
    Host& host_;
    const std::string fault_;
};

constexpr OptionSpec kOptions[] = {
    fault_option("none|swaps_rows|clears_minus_one|touches_gap|loses_failures|keeps_ticket|"
                 "writes_late|accepts_any_id|wrong_offset|leaks_descriptor|leaks_memory")};

constexpr Component kComponents[] = {
    faulty_component<FaultyStore>(PluginKind::storage, "faulty_store", kOptions)};

}  // namespace
}  // namespace tenon::testing

TENON_PLUGIN("faulty_store", "0.1.0", "Breaks one rule of row stores", "MIT", experimental,
             tenon::testing::kComponents)
