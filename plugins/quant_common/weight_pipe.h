// SPDX-License-Identifier: MIT
// Brings ranges of tensors from the checkpoint into device memory through a ring of pinned slots.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tenon/compute.h"
#include "tenon/weights.h"

namespace tenon::quant {

/// Rows of a tensor that become dense in device memory.
struct PipeJob {
    WeightSource* source = nullptr;
    std::string tensor;
    int64_t offset = 0;     ///< of the first row, in the tensor
    int64_t rows = 1;       ///< at least 1
    int64_t row_bytes = 0;  ///< at least 1
    int64_t pitch = 0;      ///< from row to row in the tensor, ≥ row_bytes; ignored for one row
    void* to = nullptr;     ///< [rows, row_bytes]; jobs may share it: the stream orders them
};

struct PipeOptions {
    int32_t readers = 4;
    int32_t slots = 8;
    int64_t slot_bytes = 8 << 20;  ///< at most; whole blocks of 4 KiB
};

/// One load. Reader threads run ahead of the caller as far as the ring goes (at most 64 MiB of
/// pinned memory, a quarter of what is loaded if that is less, until the pipe goes); copies are
/// enqueued by the caller alone, in the order of the jobs. Thread: the one that loads; device,
/// stream, sources and targets outlive the pipe.
class WeightPipe {
  public:
    WeightPipe(Device& device, Stream& stream, const PipeOptions& options = {});
    /// Ends the readers and waits for the copies that were enqueued.
    ~WeightPipe();
    WeightPipe(const WeightPipe&) = delete;
    WeightPipe& operator=(const WeightPipe&) = delete;

    /// Before `start`. errors  not_found; invalid_argument: the rows do not lie in the tensor
    Status add(const PipeJob& job);
    /// Once. errors  does_not_fit: the ring
    Status start();
    /// Enqueues the copies of the next job and returns when all are on the stream; nothing waits
    /// for the stream but a slot that is needed again. errors  of the reads (io) or the device
    Status next();

  private:
    /// What one slot holds: `rows` rows `pitch` apart, or one run of bytes. The first byte lies in
    /// the slot as in the file modulo a block, so that a direct read needs no copy.
    struct Piece {
        size_t job = 0;
        uint64_t read_at = 0, read_bytes = 0;  ///< in the tensor
        int64_t read_to = 0, first = 0;        ///< in the slot: of that, and of the first row
        int64_t rows = 1, row_bytes = 0, pitch = 0;
        int64_t to = 0;  ///< in the job's target
        size_t slot = 0;
        bool ready = false;  // guarded by mutex_
    };
    void cut(size_t index);
    void cut_run(size_t index, int64_t offset, int64_t bytes, int64_t to);
    void push(size_t index, int64_t offset, int64_t rows, int64_t row_bytes, int64_t pitch,
              int64_t to);
    void read_pieces();
    Status enqueue(const Piece& piece);
    Status reclaim(size_t kept);

    Device& device_;
    Stream& stream_;
    PipeOptions options_;
    std::vector<PipeJob> jobs_;
    std::vector<TensorInfo> infos_;  ///< of their tensors
    std::vector<Piece> pieces_;      ///< in the order of jobs and rows
    Ref<Buffer> ring_;
    std::vector<Ref<Event>> events_;  ///< a slot's copy is done; empty: the device has none
    std::deque<size_t> copying_;      ///< slots, oldest first
    size_t next_job_ = 0, next_piece_ = 0;

    std::mutex mutex_;  // guards what follows and Piece::ready, Piece::slot
    std::condition_variable changed_;
    std::vector<size_t> free_;  ///< slots
    size_t next_read_ = 0;
    bool stopped_ = false;
    Status failed_;
    std::vector<std::thread> readers_;  // the caller's
};

}  // namespace tenon::quant
