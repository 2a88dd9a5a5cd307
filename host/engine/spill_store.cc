// SPDX-License-Identifier: MIT
// Scan at start, writes and reads of single files, and what is removed.
#include "host/engine/spill_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <tuple>

namespace tenon::engine {
namespace {

namespace fs = std::filesystem;

Metric* series(Host& host, MetricKind kind, StrView name, StrView help, StrView labels = {}) {
    MetricDesc desc;
    desc.kind = kind;
    desc.name = name;
    desc.help = help;
    desc.labels = labels;
    return host.metric(desc);
}

Metric* removals(Host& host, StrView reason) {
    return series(host, MetricKind::counter, "kv_spill_removed_files_total",
                  "Spill files removed, by reason", reason);
}

SpillFile facts_of(const SpillHeader& h) {
    SpillFile f;
    f.lookup = h.lookup;
    f.digest = h.digest;
    f.parent = h.parent;
    f.at = h.at;
    f.parent_at = h.parent_at;
    f.bytes = h.file_bytes();
    f.first_page = h.first_page;
    f.pages = h.pages;
    f.origin = h.origin;
    f.prompt_class = (h.flags & SpillHeader::kPromptClass) != 0;
    f.is_private = (h.flags & SpillHeader::kPrivate) != 0;
    return f;
}

bool ends_with(const std::string& text, std::string_view end) {
    return text.size() >= end.size() &&
           text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

SpillStore::SpillStore(SpillStoreConfig config, Host& host, int lock)
    : config_(std::move(config)), host_(host), lock_(lock) {
    constexpr MetricKind kCounter = MetricKind::counter;
    written_ = series(host, kCounter, "kv_spill_written_bytes_total", "Bytes of finished files");
    read_ = series(host, kCounter, "kv_spill_read_bytes_total", "Bytes of pages and snapshots");
    files_ = series(host, MetricKind::gauge, "kv_spill_files", "Files that can be read back");
    foreign_ = removals(host, "reason=foreign");
    damaged_ = removals(host, "reason=damaged");
    budget_ = removals(host, "reason=budget");
    parked_ = removals(host, "reason=parked");
}

SpillStore::~SpillStore() {
    if (lock_ >= 0) {
        ::close(lock_);
    }
}

Result<std::unique_ptr<SpillStore>> SpillStore::open(SpillStoreConfig config, Host& host) {
    const std::string& dir = config.dir;
    struct stat st {};
    if (::stat(dir.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) {
        return error(Code::invalid_argument,
                     "kv_spill.dir: {}: no such folder; make it, or leave the key out", dir);
    }
    const std::string lock_path = dir + "/lock";
    const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0) {
        return error(Code::invalid_argument, "kv_spill.dir: {}: cannot be written: {}", dir,
                     std::strerror(errno));
    }
    std::unique_ptr<SpillStore> store(new SpillStore(std::move(config), host, lock));
    if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
        return error(Code::invalid_argument,
                     "kv_spill.dir: {}: another process uses it; each needs a folder of its own",
                     store->config_.dir);
    }
    store->scan();
    return store;
}

std::string SpillStore::path_of(const SpillFile& file) const {
    return config_.dir + "/" + spill_file_name(file.lookup, file.at);
}

bool SpillStore::remove(const std::string& path, Metric* reason) {
    if (::unlink(path.c_str()) != 0) {
        return false;
    }
    reason->add(1);
    return true;
}

void SpillStore::log_once(std::atomic<bool>& said, LogLevel level, const std::string& line) {
    if (!said.exchange(true)) {
        host_.log(level, "kv_spill", line);
    }
}

void SpillStore::scan() {
    struct Found {
        SpillFile file;
        fs::file_time_type used;
    };
    std::vector<Found> all;
    int64_t foreign = 0;
    int64_t torn = 0;
    int64_t parked = 0;
    std::error_code ec;
    for (const fs::directory_entry& entry : fs::directory_iterator(config_.dir, ec)) {
        const std::string path = entry.path().string();
        if (ends_with(path, ".tnkv.tmp")) {
            torn += remove(path, damaged_) ? 1 : 0;
            continue;
        }
        if (!ends_with(path, ".tnkv")) {
            continue;
        }
        SpillHeader h;
        const Status status = read_spill_header(path, config_.key, &h);
        const bool fits = status.ok() && h.page_bytes == config_.page_bytes &&
                          h.snapshot_bytes == config_.snapshot_bytes && h.rank == config_.rank &&
                          h.world == config_.world;
        const bool named = fits && path == path_of(facts_of(h));
        // A whole header with another key is another model's; everything else is damage.
        const bool other = !fits && h.magic == SpillHeader::kMagic && h.hash == h.compute_hash() &&
                           (h.key != config_.key || status.ok());
        if (fits && named && (h.flags & SpillHeader::kPrivate) != 0) {
            parked += remove(path, parked_) ? 1 : 0;
        } else if (fits && named) {
            all.push_back({facts_of(h), entry.last_write_time(ec)});
        } else if (other) {
            foreign += remove(path, foreign_) ? 1 : 0;
        } else {
            torn += remove(path, damaged_) ? 1 : 0;
        }
    }
    std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
        return std::tie(a.used, a.file.at, a.file.lookup) <
               std::tie(b.used, b.file.at, b.file.lookup);
    });
    for (size_t i = 0; i < all.size(); ++i) {
        all[i].file.used = i + 1;
    }
    // Parents first; a file whose parent is missing can never be read back.
    std::set<SpillDigest> known;
    std::vector<bool> taken(all.size(), false);
    for (bool grown = true; grown;) {
        grown = false;
        for (size_t i = 0; i < all.size(); ++i) {
            const SpillFile& f = all[i].file;
            if (!taken[i] && (f.parent_at == 0 || known.count(f.parent) > 0)) {
                taken[i] = grown = true;
                known.insert(f.digest);
                found_.push_back(f);
            }
        }
    }
    int64_t bytes = 0;
    for (size_t i = 0; i < all.size(); ++i) {
        torn += !taken[i] && remove(path_of(all[i].file), damaged_) ? 1 : 0;
        bytes += taken[i] ? all[i].file.bytes : 0;
    }
    files_->set(static_cast<double>(found_.size()));
    host_.log(LogLevel::info, "kv_spill",
              format("scanned files={} bytes={} removed_foreign={} removed_damaged={} "
                     "removed_parked={}",
                     found_.size(), bytes, foreign, torn, parked));
}

bool SpillStore::write(const SpillCommand& c, SpillEvent* answer) {
    *answer = SpillEvent();
    answer->job = c.job;
    if (c.kind == SpillCommandKind::remove) {
        if (remove(path_of(c.file), c.file.is_private ? parked_ : budget_)) {
            files_->add(-1);
        }
        return false;
    }
    if (c.kind == SpillCommandKind::write_abort) {
        writer_.abandon();
        write_failed_ = true;
        answer->kind = SpillEventKind::write_failed;
        return true;
    }
    const bool begins = c.kind == SpillCommandKind::write_begin;
    write_failed_ = write_failed_ && !begins;
    if (write_failed_) {
        // The failure was told; a piece still has to free its staging.
        answer->kind = SpillEventKind::piece_written;
        return c.kind == SpillCommandKind::write_piece;
    }
    const Status status = no_writes_ ? error(Code::io, "{}: writing is off", config_.dir)
                                     : guard([&] { return run_write(c, answer); });
    if (status.ok()) {
        return !begins;
    }
    write_failed_ = true;
    writer_.abandon();
    if (!no_writes_) {
        no_writes_ = true;
        log_once(said_write_, LogLevel::error,
                 format("{}; nothing more is written", status.message()));
    }
    answer->kind = SpillEventKind::write_failed;
    answer->no_writes = true;
    return true;
}

Status SpillStore::run_write(const SpillCommand& c, SpillEvent* answer) {
    if (c.kind == SpillCommandKind::write_begin) {
        SpillHeader h;
        h.key = config_.key;
        h.parent = c.file.parent_at > 0 ? c.file.parent : spill_root(config_.key, c.salt, c.owner);
        h.digest = spill_digest(h.parent, c.symbols);
        h.lookup = c.file.lookup;
        h.rank = config_.rank;
        h.world = config_.world;
        h.at = c.file.at;
        h.parent_at = c.file.parent_at;
        h.page_bytes = config_.page_bytes;
        h.snapshot_bytes = config_.snapshot_bytes;
        h.first_page = c.file.first_page;
        h.pages = c.file.pages;
        h.origin = c.file.origin;
        h.flags = (c.file.prompt_class ? uint32_t{SpillHeader::kPromptClass} : 0) |
                  (c.file.is_private ? uint32_t{SpillHeader::kPrivate} : 0);
        writing_ = h.digest;
        return writer_.begin(config_.dir, h, c.symbols);
    }
    if (c.kind == SpillCommandKind::write_piece) {
        answer->kind = SpillEventKind::piece_written;
        return writer_.append(c.from);
    }
    TENON_TRY(writer_.finish());
    answer->kind = SpillEventKind::stored;
    answer->digest = writing_;
    written_->add(static_cast<double>(c.file.bytes));
    files_->add(1);
    return {};
}

bool SpillStore::read(const SpillCommand& c, SpillEvent* answer) {
    *answer = SpillEvent();
    answer->job = c.job;
    answer->link = c.link;
    if (c.kind == SpillCommandKind::load_begin) {
        reader_.close();
        open_link_ = -1;
        expected_.clear();
        SpillDigest digest = spill_root(config_.key, c.salt, c.owner);
        for (const SpillFile& f : c.chain) {
            digest =
                spill_digest(digest, c.symbols.subspan(static_cast<uint64_t>(f.parent_at),
                                                       static_cast<uint64_t>(f.at - f.parent_at)));
            expected_.push_back(digest);
        }
        return false;
    }
    const Status status = guard([&] { return run_read(c); });
    if (status.ok()) {
        answer->kind = SpillEventKind::piece_read;
        read_->add(static_cast<double>(c.to.size));
        return true;
    }
    answer->kind = SpillEventKind::read_failed;
    reader_.close();
    open_link_ = -1;
    if (status.code() == Code::unsupported) {
        return true;  // another sequence with the same hash; its file is good
    }
    const std::string path = path_of(c.chain[static_cast<uint64_t>(c.link)]);
    answer->is_gone = true;
    if (remove(path, damaged_) || status.code() == Code::not_found) {
        files_->add(-1);
    }
    log_once(said_read_, LogLevel::warn, format("{}; removed, a miss", status.message()));
    return true;
}

Status SpillStore::run_read(const SpillCommand& c) {
    const SpillFile& file = c.chain[static_cast<uint64_t>(c.link)];
    if (open_link_ != c.link) {
        open_link_ = -1;
        const std::string path = path_of(file);
        TENON_TRY(reader_.open(path, config_.key));
        const SpillHeader& h = reader_.header();
        if (h.digest != expected_[static_cast<size_t>(c.link)]) {
            return error(Code::unsupported, "{}: another sequence", path);
        }
        if (h.page_bytes != config_.page_bytes || h.snapshot_bytes != config_.snapshot_bytes ||
            h.at != file.at || h.parent_at != file.parent_at || h.first_page != file.first_page ||
            h.pages != file.pages) {
            return error(Code::invalid_argument, "{}: changed since it was found", path);
        }
        open_link_ = c.link;
        ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // the order of use, for the next start
    }
    const int64_t pages = c.pages * config_.page_bytes;
    const int64_t snapshot = c.snapshot ? config_.snapshot_bytes : 0;
    if (c.page < 0 || c.page + c.pages > reader_.header().pages ||
        static_cast<int64_t>(c.to.size) != pages + snapshot) {
        return error(Code::internal, "piece of pages {} + {} of {}", c.page, c.pages,
                     reader_.header().pages);
    }
    TENON_TRY(
        reader_.read(reader_.page_offset(c.page), c.to.subspan(0, static_cast<uint64_t>(pages))));
    return c.snapshot ? reader_.read(reader_.snapshot_offset(),
                                     c.to.subspan(static_cast<uint64_t>(pages),
                                                  static_cast<uint64_t>(snapshot)))
                      : Status();
}

}  // namespace tenon::engine
