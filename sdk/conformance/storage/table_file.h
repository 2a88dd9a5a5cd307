// SPDX-License-Identifier: MIT
// Table files whose every byte follows from row id and column, and fetches against them.
#pragma once

#include "tenon/storage.h"
#include "tenon/testing/plugin_fixture.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace tenon::testing {

constexpr uint8_t kFiller = 0xEE;     // bytes of the file that belong to no row
constexpr uint8_t kUntouched = 0xA5;  // bytes of dst before a fetch
constexpr int64_t kWaitUs = 30'000'000;

/// Byte `column` of row `id`; rows differ in every column that tests look at.
inline uint8_t row_byte(int64_t id, int64_t column) {
    const auto mixed = (static_cast<uint64_t>(id) * 2654435761u) ^
                       (static_cast<uint64_t>(id) >> 7) ^ (static_cast<uint64_t>(column) * 97u);
    return static_cast<uint8_t>(mixed ^ (mixed >> 11));
}

struct TableSpec {
    int64_t rows = 1000;
    int64_t row_bytes = 264;
    int64_t rows_per_page = 0;
    int64_t page_bytes = 0;
    uint64_t offset = 0;
    int64_t max_batch = 256;
    int32_t max_tickets = 4;
    int32_t lane = 0;

    uint64_t begin_of(int64_t id) const {
        return rows_per_page == 0 ? offset + static_cast<uint64_t>(id * row_bytes)
                                  : offset + static_cast<uint64_t>(id / rows_per_page * page_bytes +
                                                                   id % rows_per_page * row_bytes);
    }
    uint64_t end_of(int64_t id) const { return begin_of(id) + static_cast<uint64_t>(row_bytes); }
    uint64_t file_bytes() const { return rows == 0 ? offset : end_of(rows - 1); }
};

/// Writes the rows, and nothing behind the last one, so that reads at the end of the file are met.
inline void write_table(const std::filesystem::path& file, const TableSpec& spec) {
    std::string bytes(spec.file_bytes(), static_cast<char>(kFiller));
    for (int64_t id = 0; id < spec.rows; ++id) {
        const uint64_t at = spec.begin_of(id);
        for (int64_t c = 0; c < spec.row_bytes; ++c) {
            bytes[at + static_cast<uint64_t>(c)] = static_cast<char>(row_byte(id, c));
        }
    }
    std::ofstream out(file, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(out.good()) << file;
}

/// The description of a table; `path` outlives it.
inline RowTableDesc describe_table(const std::string& path, const TableSpec& spec) {
    RowTableDesc desc;
    desc.name = "layers.1.engram.test";
    desc.path = path;
    desc.offset = spec.offset;
    desc.rows = spec.rows;
    desc.row_bytes = spec.row_bytes;
    desc.rows_per_page = spec.rows_per_page;
    desc.page_bytes = spec.page_bytes;
    desc.max_batch = spec.max_batch;
    desc.max_tickets = spec.max_tickets;
    desc.lane = spec.lane;
    return desc;
}

/// Destination rows, strided, with untouched bytes before, between and behind them.
class Rows {
  public:
    Rows(std::vector<int64_t> ids, int64_t row_bytes, int64_t gap = 0)
        : ids_(std::move(ids)),
          row_bytes_(row_bytes),
          stride_(row_bytes + gap),
          memory_(static_cast<size_t>(kMargin * 2 + stride_ * static_cast<int64_t>(ids_.size())),
                  kUntouched) {}

    RowBatch batch() {
        RowBatch out;
        out.ids = ids_;
        out.dst = make_view(memory_.data() + kMargin, DType::u8, {count(), row_bytes_});
        out.dst.stride[0] = stride_;
        return out;
    }
    int64_t count() const { return static_cast<int64_t>(ids_.size()); }
    std::vector<int64_t>& ids() { return ids_; }
    std::vector<uint8_t>& memory() { return memory_; }
    std::vector<uint64_t> words() const { return std::vector<uint64_t>((ids_.size() + 63) / 64); }

    /// Every row of `ids` has its bytes (rows of -1 and failed ones excepted) and nothing else
    /// changed.
    void expect_right(const std::vector<uint64_t>& failed = {}) const {
        std::vector<uint8_t> expected(memory_.size(), kUntouched);
        std::vector<uint8_t> actual = memory_;
        for (size_t i = 0; i < ids_.size(); ++i) {
            const size_t at = kMargin + i * static_cast<size_t>(stride_);
            const bool is_failed = !failed.empty() && ((failed[i / 64] >> (i % 64)) & 1) != 0;
            for (int64_t c = 0; c < row_bytes_; ++c) {
                const size_t k = at + static_cast<size_t>(c);
                if (is_failed) {
                    actual[k] = kUntouched;  // undefined by contract
                } else if (ids_[i] >= 0) {
                    expected[k] = row_byte(ids_[i], c);
                }
            }
            if (!is_failed) {
                const bool same =
                    std::equal(expected.begin() + static_cast<std::ptrdiff_t>(at),
                               expected.begin() + static_cast<std::ptrdiff_t>(at) + row_bytes_,
                               actual.begin() + static_cast<std::ptrdiff_t>(at));
                ASSERT_TRUE(same) << "row " << i << " (id " << ids_[i] << ") has wrong bytes";
            }
        }
        ASSERT_TRUE(expected == actual) << "bytes outside the rows were written";
    }

  private:
    static constexpr int64_t kMargin = 64;
    std::vector<int64_t> ids_;
    int64_t row_bytes_;
    int64_t stride_;
    std::vector<uint8_t> memory_;
};

inline std::vector<int64_t> random_ids(std::mt19937_64& random, int64_t count, int64_t rows) {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (int64_t& id : ids) {
        id = static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
    }
    return ids;
}

inline std::vector<int64_t> all_ids(int64_t rows) {
    std::vector<int64_t> ids(static_cast<size_t>(rows));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

/// Expects that a fetch is refused with that code and `text` in the message, and gives no ticket.
inline void expect_refusal(RowTable& table, const RowBatch& batch, Code code,
                           const std::string& text) {
    constexpr Ticket kUnwritten = 12345;
    Ticket ticket = kUnwritten;
    const Status status = table.fetch(batch, &ticket);
    EXPECT_STREQ(code_name(status.code()), code_name(code)) << status.message().view();
    EXPECT_NE(status.message().str().find(text), std::string::npos) << status.message().view();
    EXPECT_EQ(ticket, kUnwritten) << "written only on success";
    if (status.ok()) {
        table.cancel(ticket);  // its destination is about to go
    }
}

/// Fetches and waits; expects that no row failed and every byte is right.
inline void expect_fetch(RowTable& table, Rows& rows) {
    Ticket ticket = 0;
    TENON_ASSERT_OK(table.fetch(rows.batch(), &ticket));
    std::vector<uint64_t> failed = rows.words();
    TENON_ASSERT_OK(table.wait(ticket, kWaitUs, failed));
    ASSERT_EQ(failed, rows.words());
    rows.expect_right();
}

}  // namespace tenon::testing
