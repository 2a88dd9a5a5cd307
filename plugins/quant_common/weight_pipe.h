// SPDX-License-Identifier: MIT
// Brings ranges of tensors from the checkpoint into device memory through a ring of pinned memory.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tenon/compute.h"
#include "tenon/weights.h"

namespace tenon::quant {

/// Rows of a tensor and where they go in device memory.
struct PipeJob {
    /// Looks at `count` bytes of the job on their way; `at` counts in its dense rows. A run ends
    /// with a row or a multiple of 16 bytes behind the row's (without gaps: the job's) begin. Any
    /// thread, several at once.
    using Check = std::function<Status(const uint8_t* bytes, int64_t count, int64_t at)>;

    WeightSource* source = nullptr;
    std::string tensor;
    int64_t offset = 0;     ///< of the first row, in the tensor
    int64_t rows = 1;       ///< at least 1
    int64_t row_bytes = 0;  ///< at least 1
    int64_t pitch = 0;      ///< from row to row in the tensor, ≥ row_bytes; ignored for one row
    void* to = nullptr;     ///< jobs may share it: the stream orders them
    int64_t to_pitch = 0;   ///< from row to row in `to`, ≥ row_bytes; 0: dense
    Check check;            ///< or empty
};

/// What a load holds at most beside the weights; the memory plan counts one of each for a model.
constexpr int64_t kRingBytes = 64 << 20;
constexpr int64_t kStagingBytes = 32 << 20;  ///< for kernels that order what was read
/// Tag of the ring: all that a pipe reads from it, it has written.
constexpr const char* kRingTag = "weight ring";

struct PipeOptions {
    int32_t readers = 4;
    int64_t ring_bytes = kRingBytes;  ///< at most; whole blocks of 4 KiB, at least two pieces
    int64_t piece_bytes = 8 << 20;    ///< of one read, at most; whole blocks of 4 KiB, at least two
    /// Of one read, and of the device for what was enqueued; then the load fails.
    int64_t timeout_us = 120'000'000;
    /// A pipe that goes waits this long for a read that missed its time; then it goes without.
    int64_t grace_us = 1'000'000;
};

/// One load. Reader threads run ahead of the caller as far as the ring goes (at most a quarter of
/// what is loaded); copies are enqueued by the caller alone, in the order of the jobs. Thread: the
/// one that loads; device, stream, sources and targets outlive the pipe.
class WeightPipe {
  public:
    WeightPipe(Device& device, Stream& stream, const PipeOptions& options = {});
    /// Ends the readers, each after its read, and waits for the copies that were enqueued. What a
    /// read or the device does not end within its time still uses the ring, which is never freed
    /// then. A reader left behind so (style.md 7) is in `WeightSource::read` and looks at nothing
    /// afterwards but what it shares with other readers: of a source it must need no more than that
    /// (the host's needs only the open file, which the call holds).
    ~WeightPipe();
    WeightPipe(const WeightPipe&) = delete;
    WeightPipe& operator=(const WeightPipe&) = delete;

    /// Before `start`. errors  not_found; invalid_argument: the rows do not lie in the tensor
    Status add(const PipeJob& job);
    /// Once. errors  invalid_argument: pieces or ring too small; does_not_fit: the ring
    Status start();
    /// Enqueues the copies of the next job and returns when all are on the stream; nothing waits
    /// for the stream but ring memory that is needed again. errors  of the reads (io), of a check,
    /// or the device; deadline: a read or the device takes longer than `timeout_us`
    Status next();
    /// Waits for all that was put on the stream. errors  device, deadline
    Status drain();
    /// The device has missed a deadline: waiting for it would not end.
    bool hung() const { return hung_; }

  private:
    /// What one read brings: `rows` rows `pitch` apart, or one run of bytes. The first byte lies in
    /// the ring as in the file modulo a block, so that a direct read needs no copy.
    struct Piece {
        size_t job = 0;
        uint64_t read_at = 0, read_bytes = 0;  ///< in the tensor
        int64_t read_to = 0, first = 0;        ///< in its memory: of that, and of the first row
        int64_t rows = 1, row_bytes = 0, pitch = 0;
        int64_t at = 0;  ///< in the job's dense rows
        int64_t begin =
            0;  ///< of its memory, counted without wrapping; guarded by the readers' mutex
        bool ready = false;  // guarded by the readers' mutex
    };
    struct Copying {
        int64_t begin = 0, end = 0;  ///< as Piece::begin
        Ref<Event> event;            ///< null: the device has none
    };
    void cut(size_t index);
    void cut_run(size_t index, int64_t offset, int64_t bytes, int64_t at);
    void push(size_t index, int64_t offset, int64_t rows, int64_t row_bytes, int64_t pitch,
              int64_t at);
    void end_readers();
    Status await(size_t index);
    Status enqueue(const Piece& piece);
    Status mark(Ref<Event>* out);
    Status wait(Event& event);
    Status reclaim_one();
    Status reclaim_some();

    Device& device_;
    Stream& stream_;
    PipeOptions options_;
    /// Shared with the readers: one whose read never ends outlives the pipe.
    struct Readers;
    std::shared_ptr<Readers> shared_;
    Ref<Buffer> ring_;
    std::deque<Copying> copying_;     ///< oldest first
    std::vector<Ref<Event>> events_;  ///< to be used again
    bool has_events_ = true;
    bool hung_ = false;  ///< the device has missed a deadline
    bool lost_ = false;  ///< a reader was left behind
    size_t next_job_ = 0, next_piece_ = 0;
    std::vector<std::thread> threads_;
};

}  // namespace tenon::quant
