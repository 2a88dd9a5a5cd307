// SPDX-License-Identifier: MIT
// The folder of spill files: what lies in it at the start, and one command after the other.
#pragma once

#include <atomic>
#include <memory>

#include "host/engine/spill_jobs.h"
#include "tenon/host.h"

namespace tenon::engine {

struct SpillStoreConfig {
    std::string dir;
    SpillDigest key{};
    int64_t page_bytes = 0, snapshot_bytes = 0;  ///< of one page, of a full snapshot
    int32_t rank = 0, world = 1;
};

/// `open` and `found`: the main thread. Then writing and reading may each have one thread.
///
/// Errors never reach a request: whatever cannot be written or read is a miss (engine.md 7).
class SpillStore {
  public:
    /// Takes the folder for this process and removes what is of no use in it: unfinished and
    /// damaged files, those of another model or format, those of replies that were parked, those
    /// whose parent is missing. Files with other names are left alone.
    /// errors  invalid_argument: no such folder, not writable, or another process has it
    static Result<std::unique_ptr<SpillStore>> open(SpillStoreConfig config, Host& host);
    ~SpillStore();

    /// Usable files, parents before children.
    Span<const SpillFile> found() const { return found_; }

    /// Kinds write_* and remove. True: there is an answer.
    bool write(const SpillCommand& command, SpillEvent* answer);
    /// Kinds load_begin and read_piece.
    bool read(const SpillCommand& command, SpillEvent* answer);

  private:
    SpillStore(SpillStoreConfig config, Host& host, int lock);
    void scan();
    std::string path_of(const SpillFile& file) const;
    bool remove(const std::string& path, Metric* reason);
    Status run_write(const SpillCommand& command, SpillEvent* answer);
    Status run_read(const SpillCommand& command);
    void log_once(std::atomic<bool>& said, LogLevel level, const std::string& line);

    const SpillStoreConfig config_;
    Host& host_;
    int lock_;
    std::vector<SpillFile> found_;

    // Writing.
    SpillWriter writer_;
    SpillDigest writing_{};
    bool write_failed_ = false;  // the open file is given up; its pieces are dropped
    bool no_writes_ = false;

    // Reading.
    SpillReader reader_;
    std::vector<SpillDigest> expected_;  // by link of the chain that is loaded
    int32_t open_link_ = -1;

    std::atomic<bool> said_write_{false}, said_read_{false};
    Metric *written_, *read_, *files_;
    Metric *foreign_, *damaged_, *budget_, *parked_;
};

}  // namespace tenon::engine
