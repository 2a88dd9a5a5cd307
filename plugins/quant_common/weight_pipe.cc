// SPDX-License-Identifier: MIT
// Pieces are read by any thread but each takes its memory in their order, and copies end in that
// order too, so the ring needs no more than its two ends.
#include "weight_pipe.h"

#include <algorithm>
#include <chrono>

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

}  // namespace

WeightPipe::WeightPipe(Device& device, Stream& stream, const PipeOptions& options)
    : device_(device), stream_(stream), options_(options) {}

WeightPipe::~WeightPipe() {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : readers_) {
        t.join();
    }
    if (!copying_.empty()) {
        static_cast<void>(drain());
    }
    if (hung_) {
        static_cast<void>(ring_.detach());  // copies read it, and freeing it would wait for them
    }
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
    jobs_.push_back(std::move(job));
    infos_.push_back(info);
    return {};
}

// One piece; the read is widened to whole blocks of the file within the tensor.
void WeightPipe::push(size_t index, int64_t offset, int64_t rows, int64_t row_bytes, int64_t pitch,
                      int64_t at) {
    const auto tensor = static_cast<int64_t>(infos_[index].offset);
    const auto tensor_end = tensor + static_cast<int64_t>(infos_[index].bytes);
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
    pieces_.push_back(p);
}

// Bytes in a row. All pieces but the last end with a block of the file where elements do, else the
// block is read twice.
void WeightPipe::cut_run(size_t index, int64_t offset, int64_t bytes, int64_t at) {
    while (bytes > 0) {
        const int64_t phase = (static_cast<int64_t>(infos_[index].offset) + offset) % kBlock;
        int64_t now = options_.piece_bytes - phase;
        now = now < bytes ? now / kUnit * kUnit : bytes;
        push(index, offset, 1, now, now, at);
        offset += now;
        at += now;
        bytes -= now;
    }
}

void WeightPipe::cut(size_t index) {
    const PipeJob& job = jobs_[index];
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
    int64_t total = 0;
    for (const PipeJob& job : jobs_) {
        total += job.rows * job.row_bytes;
    }
    // A small load gets a small ring: pinning takes longer than reading.
    options_.piece_bytes =
        std::min({options_.piece_bytes, options_.ring_bytes / 2 / kBlock * kBlock,
                  std::max(kLeastPiece, whole_blocks(total / 32))});
    for (size_t i = 0; i < jobs_.size(); ++i) {
        cut(i);
    }
    if (pieces_.empty()) {
        return {};
    }
    for (const Piece& p : pieces_) {
        ring_bytes_ += whole_blocks(p.read_to + static_cast<int64_t>(p.read_bytes));
    }
    ring_bytes_ = std::min({ring_bytes_, options_.ring_bytes, 8 * options_.piece_bytes});
    TENON_TRY(device_.allocate({.bytes = ring_bytes_,
                                .alignment = kBlock,
                                .kind = BufferKind::pinned,
                                .tag = "weight ring"},
                               ring_.out()));
    const size_t readers = std::min(pieces_.size(), static_cast<size_t>(options_.readers));
    for (size_t i = 0; i < readers; ++i) {
        readers_.emplace_back([this] { read_pieces(); });
    }
    return {};
}

// Memory for a piece behind that of the one before, if there is room. With mutex_ held.
bool WeightPipe::take(Piece* p) {
    const int64_t bytes = whole_blocks(p->read_to + static_cast<int64_t>(p->read_bytes));
    const int64_t left = ring_bytes_ - head_ % ring_bytes_;
    const int64_t begin = bytes <= left ? head_ : head_ + left;
    if (begin + bytes - tail_ > ring_bytes_) {
        return false;
    }
    p->begin = begin;
    head_ = begin + bytes;
    return true;
}

uint8_t* WeightPipe::memory_of(const Piece& p) const {
    return static_cast<uint8_t*>(ring_->data()) + p.begin % ring_bytes_;
}

void WeightPipe::read_pieces() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] {
            return stopped_ || next_read_ == pieces_.size() || take(&pieces_[next_read_]);
        });
        if (stopped_ || next_read_ == pieces_.size()) {
            return;
        }
        Piece& p = pieces_[next_read_++];
        lock.unlock();
        Status status = read(p);
        lock.lock();
        p.ready = status.ok();
        if (!status.ok() && failed_.ok()) {
            failed_ = std::move(status);
            stopped_ = true;
        }
        changed_.notify_all();
    }
}

Status WeightPipe::read(const Piece& p) {
    const PipeJob& job = jobs_[p.job];
    TENON_TRY(job.source->read(job.tensor, p.read_at, p.read_bytes, memory_of(p) + p.read_to));
    for (int64_t r = 0; job.check && r < p.rows; ++r) {
        TENON_TRY(
            job.check(memory_of(p) + p.first + r * p.pitch, p.row_bytes, p.at + r * p.row_bytes));
    }
    return {};
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
        const std::lock_guard lock(mutex_);
        tail_ = oldest.end;
    }
    changed_.notify_all();
    copying_.pop_front();
    return {};
}

// Frees what has been copied, and waits only if a quarter of the ring has not.
Status WeightPipe::reclaim_some() {
    while (!copying_.empty()) {
        const bool full = copying_.back().end - copying_.front().begin > ring_bytes_ / 4 ||
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
    const Piece& p = pieces_[index];
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::microseconds(options_.timeout_us);
    std::unique_lock lock(mutex_);
    while (!p.ready && !stopped_) {
        if (next_read_ <= index && !copying_.empty()) {
            lock.unlock();
            TENON_TRY(reclaim_one());
            lock.lock();
        } else if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && !p.ready &&
                   !stopped_) {
            stopped_ = true;
            failed_ =
                error(Code::deadline, "{}: {} bytes at {} were not read within {} ms",
                      jobs_[p.job].tensor, p.read_bytes, p.read_at, options_.timeout_us / 1000);
            changed_.notify_all();
        }
    }
    if (p.ready) {
        return {};
    }
    return failed_.ok() ? error(Code::internal, "{}: was not read", jobs_[p.job].tensor)
                        : std::move(failed_);
}

Status WeightPipe::enqueue(const Piece& p) {
    const PipeJob& job = jobs_[p.job];
    const int64_t to =
        is_dense(job) ? p.at : p.at / job.row_bytes * job.to_pitch + p.at % job.row_bytes;
    TensorView source =
        make_view(memory_of(p) + p.first, DType::u8, {p.rows, p.row_bytes}, ring_->place());
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
    for (; next_piece_ < pieces_.size() && pieces_[next_piece_].job == next_job_; ++next_piece_) {
        TENON_TRY(await(next_piece_));
        TENON_TRY(enqueue(pieces_[next_piece_]));
        TENON_TRY(reclaim_some());
    }
    ++next_job_;
    return {};
}

}  // namespace tenon::quant
