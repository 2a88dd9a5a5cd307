// SPDX-License-Identifier: MIT
// Opens the Engram tables of this rank and fetches the rows of row groups into pinned staging.
#pragma once

#include <atomic>
#include <memory>

#include "config.h"
#include "engram_hash.h"
#include "forward.h"
#include "packed_rows.h"
#include "tenon/host.h"
#include "unique_file.h"

namespace tenon::dsv41 {

enum class EngramLayout { automatic, official, packed };

struct EngramOptions {
    EngramLayout layout = EngramLayout::automatic;
    bool self_test = true;
    std::vector<int64_t> regions;  ///< rows of each group that may be staged at the same time
    int64_t early_slots = 0;       ///< slots that rows are read ahead for
};

/// Rows of one position as the hash names them: ids[table][column], this rank's columns only.
/// Thread: the engine thread; `abort` from any.
class EngramReader {
  public:
    /// Positions per slot whose rows may be read ahead of their step (engine.md 1.7).
    static constexpr int64_t kEarlyPositions = 32;

    /// tables  the directory of packed tables; its weights hold the official ones
    /// errors  not_found: neither form is there; io: the self-test read other bytes than the source
    /// holds
    Status open(const ModelConfig& config, RankShape ranks, Checkpoint& tables, RowStore& store,
                Device& device, Host* host, const EngramOptions& options);

    /// Bytes of pinned staging for the memory plan.
    static int64_t staging_bytes(const ModelConfig& config, RankShape ranks,
                                 const EngramOptions& options);

    bool is_open() const { return hash_ != nullptr; }
    const EngramHash& hash() const { return *hash_; }
    void set_pad_class(int32_t pad) { pad_class_ = pad; }

    /// One run of consecutive positions of a slot inside a group.
    struct Run {
        uint32_t slot = 0;
        int64_t position = 0;
        int64_t row0 = 0, count = 0;
        /// classes of `history()` positions before, then of the run; EngramHash::kDead where there
        /// is none
        std::span<const int32_t> classes;
        bool early = false;  ///< look into what was read ahead
    };
    /// Starts fetching a group's rows into `region`; rows that were read ahead are copied instead,
    /// or lie there already.
    Status start(int32_t region, int64_t rows, Span<const Run> runs);
    /// Reads the rows of positions that are likely to come, at most `kEarlyPositions` back.
    Status read_ahead(const Run& run);
    void forget_slot(uint32_t slot);
    /// Starts reading what the next group of `region` probably begins with, from its row 0 on. The
    /// group takes the rows over if it begins with the same classes, so a wrong guess costs a read.
    Status prefetch(int32_t region, const Run& run);
    int64_t rows_taken_over() const { return rows_taken_over_; }

    /// Waits for one table of a region. `row_failed[t]` is set for rows without valid data; their
    /// records are zeros, which leaves the streams as they are.
    Status wait(int32_t region, int32_t table, int64_t timeout_us, Span<uint8_t> row_failed,
                TensorView* values, TensorView* scales);
    /// Where `wait` finds the records of the first `rows` rows of a region, without any waiting.
    void staged(int32_t region, int32_t table, int64_t rows, TensorView* values,
                TensorView* scales) const;
    /// Row ids of the last group started in a region, [rows, tables, columns], for tests.
    Span<const int64_t> ids(int32_t region) const;
    int64_t rows(int32_t region) const { return regions_[static_cast<size_t>(region)].rows; }
    int64_t columns() const { return columns_; }
    int64_t wait_us() const { return wait_us_; }

    /// Gives up everything that is in flight.
    void drain();
    void abort() { aborted_.store(true, std::memory_order_relaxed); }
    ~EngramReader() { drain(); }

  private:
    struct Table {
        Ref<RowTable> values;   ///< or whole records
        Ref<RowTable> scales;   ///< null if packed
        int64_t first_row = 0;  ///< official id of the table's row 0
    };
    struct Pending {
        Ticket ticket[2] = {};
        bool open[2] = {};
    };
    struct Region {
        uint8_t* data = nullptr;   ///< [tables][capacity, columns, record]
        int64_t capacity = 0;      ///< rows
        std::vector<int64_t> ids;  ///< [rows, tables, columns]
        std::vector<Pending> pending;
        int64_t rows = 0;
        // Read ahead of the group, into the rows that it will have.
        std::vector<Pending> ahead;
        std::vector<int32_t> ahead_classes;  ///< history and rows
        int64_t ahead_rows = 0;              ///< 0: nothing
        bool taken_over = false;             ///< by the group that was started last
    };
    struct Early {
        std::vector<int64_t> position;  ///< [kEarlyPositions], -1: nothing
        std::vector<int64_t> ids;       ///< [kEarlyPositions, tables, columns]
        std::vector<uint8_t> failed;
        std::vector<Pending> pending;  ///< one fetch per table at a time
        uint8_t* data = nullptr;       ///< [tables][kEarlyPositions, columns, record]
    };

    Status open_table(int64_t table, Checkpoint& tables, RowStore& store,
                      const EngramOptions& options);
    Status open_packed(int64_t table, const std::string& path, RowStore& store);
    Status open_official(int64_t table, WeightSource& source, RowStore& store);
    Status self_test_official(int64_t table, WeightSource& source);
    Status self_test_packed(int64_t table, const PackedHeader& header, const std::string& path);
    Status fetch_probes(int64_t table, const std::vector<int64_t>& rows,
                        std::vector<uint8_t>* records);
    Status fetch(Table& table, const int64_t* ids, int64_t count, uint8_t* data, Pending* pending);
    Status finish(Table& table, Pending* pending, int64_t count, int64_t timeout_us,
                  bool* any_failed);
    Status settle(Early* early);
    int64_t take_over(Region* region, int64_t rows, Span<const Run> runs);
    Status finish_ahead(int32_t table, Region* region, int64_t timeout_us, bool* any_failed);
    void mark_failed(Region* region, int32_t table, int64_t rows, Span<uint8_t> row_failed);
    void cancel(std::vector<Pending>* list);
    uint8_t* table_data(const Region& region, int64_t table) const;

    const ModelConfig* config_ = nullptr;
    RankShape ranks_;
    std::unique_ptr<EngramHash> hash_;
    EngramLayout layout_ = EngramLayout::official;
    std::vector<Table> tables_;
    std::vector<EngramSlice> slices_;
    int64_t columns_ = 0;
    int64_t record_bytes_ = 0;
    int32_t pad_class_ = 0;
    Ref<Buffer> staging_;
    std::vector<Region> regions_;
    std::vector<Early> early_;
    std::vector<int64_t> scratch_ids_;  ///< all columns of a run
    std::vector<int64_t> fetch_ids_;    ///< ids of one table in the order of the staging rows
    std::vector<uint64_t> failed_, failed_scales_;
    int64_t wait_us_ = 0;
    int64_t rows_taken_over_ = 0;
    Host* host_ = nullptr;
    std::atomic<bool> aborted_{false};
};

}  // namespace tenon::dsv41
