// SPDX-License-Identifier: MIT
// A row store of plain preads whose rows can be made to fail, and that counts what it was asked
// for.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tenon/storage.h"

namespace tenon::testing {

class FakeStore final : public RowStore {
  public:
    /// Rows [first, last] of every table whose name contains `table` fail from now on.
    void fail_rows(std::string table, int64_t first, int64_t last) {
        failing_ = {std::move(table), first, last};
    }
    void heal() { failing_ = {}; }
    /// Byte xor-ed into what is read, to simulate a wrong table.
    void damage(uint8_t mask) { damage_ = mask; }
    int64_t rows_read() const { return rows_read_; }
    /// Every fetch takes this long from its start; `wait` sleeps for what is left of it.
    void take_time(int64_t us) { latency_us_ = us; }
    int64_t waited_us() const { return waited_us_; }
    /// After `fetches` more fetches of tables whose name contains `table`, one fails as a whole.
    void fail_after(std::string table, int fetches) {
        failing_next_ = std::move(table);
        good_fetches_ = fetches;
    }
    /// Keeps the ids that tables of this name are asked for from now on.
    void watch(std::string table) {
        watched_name_ = std::move(table);
        watched_.clear();
    }
    const std::vector<int64_t>& watched() const { return watched_; }

    void* query(StrView facet) noexcept override {
        return facet == StrView(RowStore::kFacet) ? static_cast<RowStore*>(this) : nullptr;
    }
    void release() noexcept override {}
    Status open(const RowTableDesc& desc, RowTable** out) noexcept override {
        const int fd = ::open(desc.path.str().c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            return error(Code::io, "{}: cannot open", desc.path);
        }
        *out = new Table(*this, desc, fd);
        return {};
    }

  private:
    struct Failing {
        std::string table;
        int64_t first = 0, last = -1;
    };
    class Table final : public Implements<Table, RowTable> {
      public:
        Table(FakeStore& store, const RowTableDesc& desc, int fd)
            : store_(store), desc_(desc), name_(desc.name.str()), fd_(fd) {
            open_.resize(static_cast<size_t>(desc.max_tickets));
            for (Open& o : open_) {
                o.failed.resize(static_cast<size_t>((desc.max_batch + 63) / 64));
            }
        }
        ~Table() { ::close(fd_); }
        RowTableInfo info() noexcept override {
            RowTableInfo i;
            i.rows = desc_.rows;
            i.row_bytes = desc_.row_bytes;
            return i;
        }
        RowTableStats stats() noexcept override { return {}; }
        Status fetch(const RowBatch& batch, Ticket* out) noexcept override {
            const auto free = std::find_if(open_.begin(), open_.end(),
                                           [](const Open& o) { return o.ticket == 0; });
            if (static_cast<int64_t>(batch.ids.size) > desc_.max_batch || free == open_.end()) {
                return error(Code::invalid_argument, "{}: {} ids of {}, {} tickets", name_,
                             batch.ids.size, desc_.max_batch, open_.size());
            }
            std::vector<uint64_t>& failed = free->failed;
            std::fill(failed.begin(), failed.end(), 0);
            for (uint64_t i = 0; i < batch.ids.size; ++i) {
                const int64_t id = batch.ids[i];
                if (id < 0) {
                    continue;
                }
                if (id >= desc_.rows) {
                    return error(Code::invalid_argument, "{}: row {} of {}", name_, id, desc_.rows);
                }
                if (!store_.watched_name_.empty() &&
                    name_.find(store_.watched_name_) != std::string::npos) {
                    store_.watched_.push_back(id);
                }
                const Failing& f = store_.failing_;
                if (id >= f.first && id <= f.last && name_.find(f.table) != std::string::npos) {
                    failed[i / 64] |= uint64_t{1} << (i % 64);
                    continue;
                }
                const int64_t per = desc_.rows_per_page == 0 ? desc_.rows : desc_.rows_per_page;
                const auto at = static_cast<int64_t>(desc_.offset) + id / per * desc_.page_bytes +
                                id % per * desc_.row_bytes;
                auto* dst = batch.dst.row<uint8_t>(static_cast<int64_t>(i));
                if (::pread(fd_, dst, static_cast<size_t>(desc_.row_bytes), at) !=
                    desc_.row_bytes) {
                    failed[i / 64] |= uint64_t{1} << (i % 64);
                }
                dst[0] ^= store_.damage_;
                ++store_.rows_read_;
            }
            if (!store_.failing_next_.empty() &&
                name_.find(store_.failing_next_) != std::string::npos &&
                store_.good_fetches_-- == 0) {
                std::fill(failed.begin(), failed.end(), ~uint64_t{0});
                store_.failing_next_.clear();
            }
            free->due =
                std::chrono::steady_clock::now() + std::chrono::microseconds(store_.latency_us_);
            free->ticket = *out = ++next_;
            return {};
        }
        Status wait(Ticket ticket, int64_t, Span<uint64_t> failed) noexcept override {
            Open* o = find(ticket);
            if (o == nullptr) {
                return error(Code::not_found, "{}: no ticket {}", name_, ticket);
            }
            const auto left = o->due - std::chrono::steady_clock::now();
            if (left.count() > 0) {
                std::this_thread::sleep_until(o->due);
                store_.waited_us_ +=
                    std::chrono::duration_cast<std::chrono::microseconds>(left).count();
            }
            for (uint64_t i = 0; i < failed.size && i < o->failed.size(); ++i) {
                failed[i] = o->failed[i];
            }
            o->ticket = 0;
            return {};
        }
        bool done(Ticket) noexcept override { return true; }
        void cancel(Ticket ticket) noexcept override {
            if (Open* o = find(ticket)) {
                o->ticket = 0;
            }
        }

      private:
        struct Open {
            Ticket ticket = 0;
            std::chrono::steady_clock::time_point due;
            std::vector<uint64_t> failed;
        };
        Open* find(Ticket ticket) {
            for (Open& o : open_) {
                if (o.ticket == ticket) {
                    return &o;
                }
            }
            return nullptr;
        }
        FakeStore& store_;
        RowTableDesc desc_;
        std::string name_;
        int fd_;
        Ticket next_ = 0;
        std::vector<Open> open_;
    };

    Failing failing_;
    std::string watched_name_;
    std::vector<int64_t> watched_;
    uint8_t damage_ = 0;
    int64_t rows_read_ = 0, latency_us_ = 0, waited_us_ = 0;
    std::string failing_next_;
    int good_fetches_ = 0;
};

}  // namespace tenon::testing
