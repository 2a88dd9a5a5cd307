// SPDX-License-Identifier: MIT
// Pieces are read by any thread but each takes its memory in their order, and copies end in that
// order too, so the ring needs no more than its two ends.
#include "weight_pipe.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "tenon/plugin.h"

namespace tenon::quant {

namespace {

constexpr int64_t kBlock = 4096;            // of O_DIRECT
constexpr int64_t kLeastPiece = 256 << 10;  // shorter reads do not reach a disk's rate
constexpr int64_t kMergedGap = 64 << 10;    // read over gaps up to this: cheaper than a request
constexpr int64_t kUnit = 16;               // no element of a tensor is longer
constexpr size_t kMostCopies = 64;          // that nobody has waited for

constexpr int64_t whole_blocks(int64_t bytes) {
    return (bytes + kBlock - 1) / kBlock * kBlock;
}

int64_t span_of(const PipeJob& job) {
    return (job.rows - 1) * job.pitch + job.row_bytes;
}

bool is_dense(const PipeJob& job) {
    return job.pitch == job.row_bytes && job.to_pitch == job.row_bytes;
}

std::chrono::steady_clock::time_point in_us(int64_t us) {
    return std::chrono::steady_clock::now() + std::chrono::microseconds(us);
}

}  // namespace

/// Jobs and pieces do not change once readers run.
struct WeightPipe::Readers {
    std::vector<PipeJob> jobs;
    std::vector<TensorInfo> infos;   ///< of their tensors; texts are the source's
    std::vector<std::string> files;  ///< that hold them
    std::vector<Piece> pieces;       ///< in the order of jobs and rows
    uint8_t* ring = nullptr;
    int64_t ring_bytes = 0;

    std::mutex mutex;  // guards what follows and Piece::ready, Piece::begin
    std::condition_variable changed;
    int64_t head = 0, tail = 0;  ///< memory in use, counted without wrapping
    size_t next_read = 0;
    size_t running = 0;    ///< readers
    size_t in_source = 0;  ///< of them, those that are in WeightSource::read
    bool stopped = false;
    bool late = false;  ///< a read has missed its deadline
    Status failed;

    bool take(Piece* piece);
    void run();
    Status read(const Piece& piece, std::unique_lock<std::mutex>& lock);
    uint8_t* memory_of(const Piece& piece) const { return ring + piece.begin % ring_bytes; }
};

WeightPipe::WeightPipe(Device& device, Stream& stream, const PipeOptions& options)
    : device_(device), stream_(stream), options_(options), shared_(std::make_shared<Readers>()) {}

WeightPipe::~WeightPipe() {
    end_readers();
    if (!copying_.empty()) {
        static_cast<void>(drain());
    }
    if (hung_ || lost_) {
        static_cast<void>(ring_.detach());  // copies or a read use it; freeing waits for copies
    }
}

void WeightPipe::end_readers() {
    Readers& r = *shared_;
    {
        std::unique_lock lock(r.mutex);
        r.stopped = true;
        r.changed.notify_all();
        const auto deadline = in_us(r.late ? options_.grace_us : options_.timeout_us);
        lost_ = !r.changed.wait_until(lock, deadline, [&] { return r.running == 0; });
        // A check is the caller's code and ends by itself.
        r.changed.wait(lock, [&] { return r.running == r.in_source; });
        lost_ = r.running != 0;
    }
    for (std::thread& t : threads_) {
        if (lost_) {
            t.detach();
        } else {
            t.join();
        }
    }
    threads_.clear();
}

Status WeightPipe::add(const PipeJob& asked) {
    PipeJob job = asked;
    if (job.rows == 1) {
        job.pitch = job.row_bytes;
        job.to_pitch = job.row_bytes;
    }
    job.to_pitch = job.to_pitch == 0 ? job.row_bytes : job.to_pitch;
    TensorInfo info;
    TENON_TRY(job.source->find(job.tensor, &info));
    if (job.offset < 0 || job.rows < 1 || job.row_bytes < 1 || job.pitch < job.row_bytes ||
        job.to_pitch < job.row_bytes ||
        static_cast<uint64_t>(job.offset + span_of(job)) > info.bytes) {
        return error(Code::invalid_argument,
                     "{}: {} rows of {} bytes, {} apart from byte {} and then {}, do not lie in "
                     "its {} bytes",
                     job.tensor, job.rows, job.row_bytes, job.pitch, job.offset, job.to_pitch,
                     info.bytes);
    }
    shared_->jobs.push_back(std::move(job));
    shared_->infos.push_back(info);
    shared_->files.push_back(info.file.str());
    return {};
}

// One piece; the read is widened to whole blocks of the file within the tensor.
void WeightPipe::push(size_t index, int64_t offset, int64_t rows, int64_t row_bytes, int64_t pitch,
                      int64_t at) {
    const TensorInfo& info = shared_->infos[index];
    const auto tensor = static_cast<int64_t>(info.offset);
    const auto tensor_end = tensor + static_cast<int64_t>(info.bytes);
    const int64_t first = tensor + offset;  // in the file
    const int64_t begin = std::max(tensor, first / kBlock * kBlock);
    const int64_t end = std::min(tensor_end, whole_blocks(first + (rows - 1) * pitch + row_bytes));
    Piece p;
    p.job = index;
    p.read_at = static_cast<uint64_t>(begin - tensor);
    p.read_bytes = static_cast<uint64_t>(end - begin);
    p.read_to = begin % kBlock;
    p.first = first % kBlock;
    p.rows = rows;
    p.row_bytes = row_bytes;
    p.pitch = pitch;
    p.at = at;
    shared_->pieces.push_back(p);
}

// Bytes in a row. All pieces but the last end with a block of the file where elements do, else the
// block is read twice.
void WeightPipe::cut_run(size_t index, int64_t offset, int64_t bytes, int64_t at) {
    while (bytes > 0) {
        const int64_t phase =
            (static_cast<int64_t>(shared_->infos[index].offset) + offset) % kBlock;
        int64_t now = options_.piece_bytes - phase;
        now = now < bytes ? now / kUnit * kUnit : bytes;
        push(index, offset, 1, now, now, at);
        offset += now;
        at += now;
        bytes -= now;
    }
}

void WeightPipe::cut(size_t index) {
    const PipeJob& job = shared_->jobs[index];
    if (is_dense(job)) {
        cut_run(index, job.offset, job.rows * job.row_bytes, 0);
        return;
    }
    // Rows of one read; a row may begin anywhere in a block.
    const int64_t room = options_.piece_bytes - kBlock - job.row_bytes;
    const bool merged = job.pitch - job.row_bytes <= kMergedGap && room >= 0;
    const int64_t at_once = merged ? 1 + room / job.pitch : 1;
    for (int64_t r = 0; r < job.rows; r += at_once) {
        const int64_t offset = job.offset + r * job.pitch;
        if (merged) {
            push(index, offset, std::min(at_once, job.rows - r), job.row_bytes, job.pitch,
                 r * job.row_bytes);
        } else {
            cut_run(index, offset, job.row_bytes, r * job.row_bytes);
        }
    }
}

Status WeightPipe::start() {
    // An element may begin in the last bytes of a block, and a piece takes whole elements.
    if (options_.piece_bytes < 2 * kBlock || options_.piece_bytes % kBlock != 0 ||
        options_.ring_bytes < 4 * kBlock || options_.ring_bytes % kBlock != 0 ||
        options_.readers < 1) {
        return error(Code::invalid_argument,
                     "weight ring: {} readers, pieces of {} bytes, a ring of {}; expected at least "
                     "one, {} and {}, in whole blocks of {}",
                     options_.readers, options_.piece_bytes, options_.ring_bytes, 2 * kBlock,
                     4 * kBlock, kBlock);
    }
    Readers& r = *shared_;
    int64_t total = 0;
    for (const PipeJob& job : r.jobs) {
        total += job.rows * job.row_bytes;
    }
    // A small load gets a small ring: pinning takes longer than reading.
    options_.piece_bytes =
        std::min({options_.piece_bytes, options_.ring_bytes / 2 / kBlock * kBlock,
                  std::max(kLeastPiece, whole_blocks(total / 32))});
    for (size_t i = 0; i < r.jobs.size(); ++i) {
        cut(i);
    }
    if (r.pieces.empty()) {
        return {};
    }
    for (const Piece& p : r.pieces) {
        r.ring_bytes += whole_blocks(p.read_to + static_cast<int64_t>(p.read_bytes));
    }
    r.ring_bytes = std::min({r.ring_bytes, options_.ring_bytes, 8 * options_.piece_bytes});
    TENON_TRY(device_.allocate(
        {.bytes = r.ring_bytes, .alignment = kBlock, .kind = BufferKind::pinned, .tag = kRingTag},
        ring_.out()));
    r.ring = static_cast<uint8_t*>(ring_->data());
    const size_t readers = std::min(r.pieces.size(), static_cast<size_t>(options_.readers));
    const std::lock_guard lock(r.mutex);
    for (size_t i = 0; i < readers; ++i) {
        threads_.emplace_back([shared = shared_] { shared->run(); });
        ++r.running;
    }
    return {};
}

// Memory for a piece behind that of the one before, if there is room. With mutex_ held.
bool WeightPipe::Readers::take(Piece* p) {
    const int64_t bytes = whole_blocks(p->read_to + static_cast<int64_t>(p->read_bytes));
    const int64_t left = ring_bytes - head % ring_bytes;
    const int64_t begin = bytes <= left ? head : head + left;
    if (begin + bytes - tail > ring_bytes) {
        return false;
    }
    p->begin = begin;
    head = begin + bytes;
    return true;
}

void WeightPipe::Readers::run() {
    std::unique_lock lock(mutex);
    for (;;) {
        changed.wait(lock, [&] {
            return stopped || next_read == pieces.size() || take(&pieces[next_read]);
        });
        if (stopped || next_read == pieces.size()) {
            break;
        }
        Piece& p = pieces[next_read++];
        Status status = read(p, lock);
        p.ready = status.ok() && !stopped;  // what came after the end was not checked
        if (!status.ok() && failed.ok()) {
            failed = std::move(status);
            stopped = true;
        }
        changed.notify_all();
    }
    --running;
    changed.notify_all();
}

// With the lock held before and after. Once the load has ended nothing but this object may be left.
Status WeightPipe::Readers::read(const Piece& p, std::unique_lock<std::mutex>& lock) {
    const PipeJob& job = jobs[p.job];
    uint8_t* const to = memory_of(p);
    ++in_source;
    lock.unlock();
    Status status = job.source->read(job.tensor, p.read_at, p.read_bytes, to + p.read_to);
    lock.lock();
    --in_source;
    if (stopped || !status.ok()) {
        return status;
    }
    lock.unlock();
    for (int64_t r = 0; job.check && status.ok() && r < p.rows; ++r) {
        status = job.check(to + p.first + r * p.pitch, p.row_bytes, p.at + r * p.row_bytes);
    }
    lock.lock();
    return status;
}

// A mark on the stream for what was enqueued; null if the device has no events.
Status WeightPipe::mark(Ref<Event>* out) {
    if (has_events_ && events_.empty()) {
        Ref<Event> event;
        Status made = device_.create_event(event.out());
        if (made.ok()) {
            events_.push_back(std::move(event));
        } else if (made.code() != Code::unsupported) {
            return made;
        }
        has_events_ = made.ok();
    }
    if (!has_events_) {
        return {};
    }
    *out = std::move(events_.back());
    events_.pop_back();
    return device_.record(**out, stream_);
}

Status WeightPipe::drain() {
    while (!copying_.empty()) {
        TENON_TRY(reclaim_one());
    }
    Ref<Event> event;  // kernels may have followed
    TENON_TRY(mark(&event));
    return event ? wait(*event) : device_.synchronize(stream_);
}

// A device that did not answer in time is not asked again.
Status WeightPipe::wait(Event& event) {
    if (hung_) {
        return error(Code::deadline, "the device does not answer");
    }
    Status status = event.wait(options_.timeout_us);
    hung_ = status.code() == Code::deadline;
    return status;
}

// Waits for the oldest copy; its memory is free then.
Status WeightPipe::reclaim_one() {
    Copying& oldest = copying_.front();
    if (oldest.event) {
        TENON_TRY(wait(*oldest.event));
        events_.push_back(std::move(oldest.event));
    } else {
        TENON_TRY(device_.synchronize(stream_));
    }
    {
        const std::lock_guard lock(shared_->mutex);
        shared_->tail = oldest.end;
    }
    shared_->changed.notify_all();
    copying_.pop_front();
    return {};
}

// Frees what has been copied, and waits only if a quarter of the ring has not.
Status WeightPipe::reclaim_some() {
    while (!copying_.empty()) {
        const bool full = copying_.back().end - copying_.front().begin > shared_->ring_bytes / 4 ||
                          copying_.size() > kMostCopies;
        if (!full && !(copying_.front().event && copying_.front().event->done())) {
            return {};
        }
        TENON_TRY(reclaim_one());
    }
    return {};
}

// Until a piece is in the ring. If no thread has found room for it yet, copies hold the room.
Status WeightPipe::await(size_t index) {
    Readers& r = *shared_;
    const Piece& p = r.pieces[index];
    const PipeJob& job = r.jobs[p.job];
    const auto deadline = in_us(options_.timeout_us);
    std::unique_lock lock(r.mutex);
    while (!p.ready && !r.stopped) {
        if (r.next_read <= index && !copying_.empty()) {
            lock.unlock();
            TENON_TRY(reclaim_one());
            lock.lock();
        } else if (r.changed.wait_until(lock, deadline) == std::cv_status::timeout && !p.ready &&
                   !r.stopped) {
            r.stopped = true;
            r.late = true;
            r.failed = error(
                Code::deadline,
                "{}: {} bytes at byte {} of {} were not read within {} ms; does its disk, or the "
                "machine that it lies on, still answer?",
                job.tensor, p.read_bytes, r.infos[p.job].offset + p.read_at, r.files[p.job],
                options_.timeout_us / 1000);
            r.changed.notify_all();
        }
    }
    if (p.ready) {
        return {};
    }
    return r.failed.ok() ? error(Code::internal, "{}: was not read", job.tensor)
                         : std::move(r.failed);
}

Status WeightPipe::enqueue(const Piece& p) {
    const PipeJob& job = shared_->jobs[p.job];
    const int64_t to =
        is_dense(job) ? p.at : p.at / job.row_bytes * job.to_pitch + p.at % job.row_bytes;
    TensorView source = make_view(shared_->memory_of(p) + p.first, DType::u8, {p.rows, p.row_bytes},
                                  ring_->place());
    TensorView target = make_view(static_cast<uint8_t*>(job.to) + to, DType::u8,
                                  {p.rows, p.row_bytes}, Place::device);
    source.stride[0] = p.pitch;
    target.stride[0] = p.rows == 1 ? p.row_bytes : job.to_pitch;
    copying_.push_back(
        {p.begin, p.begin + whole_blocks(p.read_to + static_cast<int64_t>(p.read_bytes)), {}});
    Status copied = device_.copy(target, source, stream_);
    Status marked = mark(&copying_.back().event);  // of what a failed copy left, too
    return copied.ok() ? std::move(marked) : std::move(copied);
}

Status WeightPipe::next() {
    const std::vector<Piece>& pieces = shared_->pieces;
    for (; next_piece_ < pieces.size() && pieces[next_piece_].job == next_job_; ++next_piece_) {
        TENON_TRY(await(next_piece_));
        TENON_TRY(enqueue(pieces[next_piece_]));
        TENON_TRY(reclaim_some());
    }
    ++next_job_;
    return {};
}

}  // namespace tenon::quant
