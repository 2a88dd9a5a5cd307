// SPDX-License-Identifier: MIT
// What the planner asks the spill threads for, and what they answer: plain values.
#pragma once

#include "host/engine/spill_format.h"

namespace tenon::engine {

/// Commands that may wait or run at once, of both threads together (engine.md 6).
constexpr int32_t kSpillJobs = 64;

/// Facts of one spilled cut.
struct SpillFile {
    SpillLookup lookup{};
    SpillDigest digest{}, parent{};
    int64_t at = 0, parent_at = 0;
    int64_t bytes = 0;  ///< of the file
    int32_t first_page = 0, pages = 0;
    uint64_t used = 0;  ///< place in the order of use, of files found at the start
    uint32_t origin = 0;
    bool prompt_class = true;
    bool is_private = false;  ///< of one parked reply: worthless in another process
};

enum class SpillCommandKind : uint32_t {
    write_begin,  ///< `file`, `symbols` of [parent_at, at), salt, owner
    write_piece,  ///< appends `from`
    write_end,    ///< answers `stored`
    write_abort,  ///< answers `write_failed` for job 0
    remove,       ///< `file`; answers nothing
    load_begin,   ///< `chain` from the first cut to the one that is wanted, `symbols` of [0, at)
    read_piece,   ///< pages [page, page + pages) of chain[link], or its snapshot, into `to`
};

/// Spans live until the answer that ends their use: a piece's own, `stored` or a failure for what
/// is written, the last piece's for what is loaded.
struct SpillCommand {
    SpillCommandKind kind = SpillCommandKind::remove;
    uint64_t job = 0;
    SpillFile file;
    uint64_t salt = 0, owner = 0;
    Span<const int32_t> symbols;
    Span<const SpillFile> chain;
    int32_t link = 0, page = 0, pages = 0;
    bool snapshot = false;     ///< read_piece: the snapshot follows the pages
    int64_t bytes = 0;         ///< pieces: of the job's staging area
    Span<const uint8_t> from;  ///< set by whoever knows the areas
    Span<uint8_t> to;
};

enum class SpillEventKind : uint32_t {
    piece_written,
    stored,
    write_failed,  ///< of the file that is being written; its later pieces are dropped
    piece_read,
    read_failed,
};

/// Answers, in the order of the commands of each thread.
struct SpillEvent {
    SpillEventKind kind = SpillEventKind::stored;
    uint64_t job = 0;
    int32_t link = 0;        ///< read_failed: which file of the chain
    bool is_gone = false;    ///< read_failed: that file does not exist any more
    bool no_writes = false;  ///< write_failed: nothing more can be written in this process
    SpillDigest digest{};    ///< stored
};

}  // namespace tenon::engine
