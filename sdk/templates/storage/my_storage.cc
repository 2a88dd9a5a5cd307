// SPDX-License-Identifier: MIT
// A row store that reads each row with pread on one thread, and tries a failed row a second time.
#include "tenon/plugin.h"
#include "tenon/storage.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tenon::my_storage {
namespace {

constexpr const char* kName = "my_storage";

// What a profile may write in [engram] beside `plugin = "my_storage"`. The host checks types and
// ranges.
constexpr OptionSpec kOptions[] = {
    {.key = "attempts",
     .type = OptionType::integer,
     .default_value = "2",
     .help = "how often a row is read before it counts as failed",
     .min = 1,
     .max = 10},
};

/// The arithmetic of RowTableDesc, checked once so that it cannot overflow later.
struct Layout {
    int64_t offset, row_bytes, rows_per_page, page_bytes;

    int64_t begin_of(int64_t id) const {
        return offset + id / rows_per_page * page_bytes + id % rows_per_page * row_bytes;
    }
};

Result<Layout> make_layout(const RowTableDesc& d) {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    const bool paged = d.rows_per_page != 0;
    int64_t used = 0;
    int64_t end = 0;
    if (d.rows < 0 || d.row_bytes < 1 || d.rows_per_page < 0 || d.max_batch < 1 ||
        d.max_tickets < 1 || d.offset > static_cast<uint64_t>(kMax)) {
        return error(Code::invalid_argument,
                     "{}: rows = {}, row_bytes = {}, rows_per_page = {}, max_batch = {}, "
                     "max_tickets = {}, offset = {}: one is out of range",
                     d.name, d.rows, d.row_bytes, d.rows_per_page, d.max_batch, d.max_tickets,
                     d.offset);
    }
    if (paged &&
        (__builtin_mul_overflow(d.rows_per_page, d.row_bytes, &used) || used > d.page_bytes)) {
        return error(Code::invalid_argument, "{}: page_bytes = {} cannot hold {} rows of {} bytes",
                     d.name, d.page_bytes, d.rows_per_page, d.row_bytes);
    }
    const int64_t units = paged ? d.rows / d.rows_per_page + 1 : d.rows;
    if (__builtin_mul_overflow(units, paged ? d.page_bytes : d.row_bytes, &end) ||
        __builtin_add_overflow(end, static_cast<int64_t>(d.offset), &end)) {
        return error(Code::invalid_argument, "{}: {} rows of {} bytes exceed any file", d.name,
                     d.rows, d.row_bytes);
    }
    return Layout{static_cast<int64_t>(d.offset), d.row_bytes, paged ? d.rows_per_page : kMax,
                  paged ? d.page_bytes : 0};
}

/// Owns a descriptor.
class File {
  public:
    explicit File(int fd) : fd_(fd) {}
    File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    int fd() const { return fd_; }

  private:
    int fd_;
};

/// One fetch. The table's thread fills it, the engine thread starts and ends it.
struct Request {
    Ticket ticket = 0;  // 0: free
    bool done = false;
    std::vector<int64_t> ids;
    TensorView dst;
    std::vector<uint64_t> failed;
};

class Table final : public Implements<Table, RowTable> {
  public:
    Table(Host& host, const RowTableDesc& desc, const Layout& layout, File file, int64_t attempts)
        : host_(host),
          name_(desc.name.str()),
          layout_(layout),
          rows_(desc.rows),
          max_batch_(desc.max_batch),
          attempts_(attempts),
          file_(std::move(file)),
          requests_(static_cast<size_t>(desc.max_tickets)) {
        for (Request& request : requests_) {
            // Everything that a fetch needs is allocated here: fetches run in the engine's loop.
            request.ids.reserve(static_cast<size_t>(max_batch_));
            request.failed.reserve(static_cast<size_t>((max_batch_ + 63) / 64));
        }
        thread_ = std::thread([this] { work(); });
    }
    ~Table() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    RowTableInfo info() noexcept override {
        RowTableInfo info;
        info.max_tickets = static_cast<int32_t>(requests_.size());
        info.rows = rows_;
        info.row_bytes = layout_.row_bytes;
        set_text(info.engine, kName);
        return info;
    }

    RowTableStats stats() noexcept override {
        const std::lock_guard lock(mutex_);
        return stats_;
    }

    Status fetch(const RowBatch& batch, Ticket* out) noexcept override {
        return guard([&]() -> Status {
            TENON_TRY(check(batch));
            const std::lock_guard lock(mutex_);
            for (Request& request : requests_) {
                if (request.ticket == 0) {
                    request.ids.assign(batch.ids.begin(), batch.ids.end());
                    request.dst = batch.dst;
                    request.failed.assign((batch.ids.size + 63) / 64, 0);
                    request.done = batch.ids.empty();
                    request.ticket = *out = ++last_ticket_;
                    changed_.notify_all();
                    return {};
                }
            }
            return error(Code::unavailable, "{}: all {} tickets are open", name_, requests_.size());
        });
    }

    Status wait(Ticket ticket, int64_t timeout_us, Span<uint64_t> failed) noexcept override {
        return guard([&]() -> Status {
            std::unique_lock lock(mutex_);
            Request* request = find(ticket);
            if (request == nullptr) {
                return error(Code::not_found, "{}: ticket {} is not open", name_, ticket);
            }
            if (!failed.empty() && failed.size < request->failed.size()) {
                return error(Code::invalid_argument, "{}: {} failed words, expected {}", name_,
                             failed.size, request->failed.size());
            }
            const auto patience =
                std::chrono::microseconds(std::clamp<int64_t>(timeout_us, 0, int64_t{1} << 50));
            if (!changed_.wait_for(lock, patience, [&] { return request->done; })) {
                return error(Code::deadline, "{}: not read within {} us", name_, timeout_us);
            }
            if (!failed.empty()) {
                std::fill(failed.begin(), failed.end(), 0);
                std::copy(request->failed.begin(), request->failed.end(), failed.begin());
            }
            request->ticket = 0;
            return {};
        });
    }

    bool done(Ticket ticket) noexcept override {
        const std::lock_guard lock(mutex_);
        const Request* request = find(ticket);
        return request != nullptr && request->done;
    }

    void cancel(Ticket ticket) noexcept override {
        const std::lock_guard lock(mutex_);
        if (Request* request = find(ticket)) {
            request->ticket = 0;  // the thread looks before it copies the next row
        }
    }

  private:
    Status check(const RowBatch& batch) const {
        const auto n = static_cast<int64_t>(batch.ids.size);
        const TensorView& dst = batch.dst;
        if (n > max_batch_) {
            return error(Code::invalid_argument, "{}: {} ids, at most {}", name_, n, max_batch_);
        }
        if (n > 0 &&
            (dst.null() || dst.rank != 2 || dtype_bytes(dst.dtype) != 1 ||
             dst.place == Place::device || dst.shape[0] != n || dst.shape[1] != layout_.row_bytes ||
             dst.stride[1] != 1 || (n > 1 && dst.stride[0] < layout_.row_bytes))) {
            return error(Code::invalid_argument, "{}: dst is {}, expected host u8[{}, {}]", name_,
                         describe(dst), n, layout_.row_bytes);
        }
        for (const int64_t id : batch.ids) {
            if (id < -1 || id >= rows_) {
                return error(Code::invalid_argument, "{}: id {} is out of range -1 … {}", name_, id,
                             rows_ - 1);
            }
        }
        return {};
    }

    Request* find(Ticket ticket) {
        for (Request& request : requests_) {
            if (ticket != 0 && request.ticket == ticket) {
                return &request;
            }
        }
        return nullptr;
    }

    /// The oldest request that is not done.
    Request* next() {
        Request* oldest = nullptr;
        for (Request& request : requests_) {
            if (request.ticket != 0 && !request.done &&
                (oldest == nullptr || request.ticket < oldest->ticket)) {
                oldest = &request;
            }
        }
        return oldest;
    }

    // ---- The table's thread ----

    void work() {
        host_.register_thread("my_storage_reader");
        std::vector<char> row(static_cast<size_t>(layout_.row_bytes));
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [&] { return stopping_ || next() != nullptr; });
            if (stopping_) {
                return;
            }
            serve(*next(), row.data(), lock);
        }
    }

    /// Reads without the lock, copies with it: after `cancel` returns nothing is written to dst.
    void serve(Request& request, char* row, std::unique_lock<std::mutex>& lock) {
        const Ticket ticket = request.ticket;
        for (size_t i = 0; i < request.ids.size(); ++i) {
            const int64_t id = request.ids[i];
            if (id < 0) {
                continue;
            }
            lock.unlock();
            int64_t tries = 0;
            bool ok = false;
            while (!ok && tries < attempts_) {
                ok = read_row(id, row);
                ++tries;
            }
            lock.lock();
            stats_.reads += static_cast<uint64_t>(tries);
            stats_.read_bytes += static_cast<uint64_t>(tries * layout_.row_bytes);
            stats_.retries += static_cast<uint64_t>(tries - 1);
            if (request.ticket != ticket || stopping_) {
                return;
            }
            ++stats_.rows;
            ++stats_.unique_rows;
            if (ok) {
                std::memcpy(request.dst.row<char>(static_cast<int64_t>(i)), row,
                            static_cast<size_t>(layout_.row_bytes));
            } else {
                request.failed[i / 64] |= uint64_t{1} << (i % 64);
                ++stats_.failed_rows;
                host_.log(LogLevel::warn, kName,
                          format("read failed table={} id={} offset={}", name_, id,
                                 layout_.begin_of(id)));
            }
        }
        request.done = true;
        changed_.notify_all();
    }

    bool read_row(int64_t id, char* row) const {
        int64_t got = 0;
        while (got < layout_.row_bytes) {
            const ssize_t n =
                ::pread(file_.fd(), row + got, static_cast<size_t>(layout_.row_bytes - got),
                        layout_.begin_of(id) + got);
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n <= 0) {
                return false;
            }
            got += n;
        }
        return true;
    }

    Host& host_;
    const std::string name_;
    const Layout layout_;
    const int64_t rows_;
    const int64_t max_batch_;
    const int64_t attempts_;
    const File file_;

    std::mutex mutex_;  // guards everything below except thread_
    std::condition_variable changed_;
    std::vector<Request> requests_;
    RowTableStats stats_;
    Ticket last_ticket_ = 0;
    bool stopping_ = false;

    std::thread thread_;
};

class Store final : public Implements<Store, RowStore> {
  public:
    Store(Host& host, int64_t attempts) : host_(host), attempts_(attempts) {}
    ~Store() = default;

    Status open(const RowTableDesc& desc, RowTable** out) noexcept override {
        return guard([&]() -> Status {
            TENON_ASSIGN(const Layout layout, make_layout(desc));
            const std::string path = desc.path.str();
            // O_NONBLOCK: a named pipe must not block the start; regular files ignore it.
            File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
            struct stat facts {};
            if (file.fd() < 0 || ::fstat(file.fd(), &facts) != 0) {
                return error(Code::io, "{}: {}: {}", desc.name, path, std::strerror(errno));
            }
            if (!S_ISREG(facts.st_mode)) {
                return error(Code::invalid_argument, "{}: {}: not a regular file", desc.name, path);
            }
            const int64_t needed =
                desc.rows == 0 ? 0 : layout.begin_of(desc.rows - 1) + layout.row_bytes;
            if (facts.st_size < needed) {
                return error(Code::invalid_argument, "{}: {}: {} bytes, its rows need {}",
                             desc.name, path, facts.st_size, needed);
            }
            *out = new Table(host_, desc, layout, std::move(file), attempts_);
            return {};
        });
    }

  private:
    Host& host_;
    const int64_t attempts_;
};

/// Usable here? Cheap and without side effects; `plugin = "auto"` takes the highest score.
Status probe(const ProbeEnv&, ProbeResult* result) noexcept {
    result->score = 10;
    set_text(result->reason, "reads with pread");
    return {};
}

Status create(Host& host, const Options& options, Object** out) noexcept {
    return guard([&] {
        const OptionValue* attempts = options.find("attempts");
        *out = new Store(host, attempts != nullptr && attempts->is_set ? attempts->integer : 2);
    });
}

constexpr Component kComponents[] = {{.struct_size = sizeof(Component),
                                      .kind = PluginKind::storage,
                                      .name = kName,
                                      .summary = "rows by pread, one thread a table",
                                      .options = {kOptions, std::size(kOptions)},
                                      .needs = {},
                                      .probe = &probe,
                                      .create = &create}};

}  // namespace
}  // namespace tenon::my_storage

TENON_PLUGIN("my_storage", "0.1.0", "Row store that reads with pread", "MIT", stable,
             tenon::my_storage::kComponents)
