// SPDX-License-Identifier: MIT
// Pieces are read by any thread but each takes its slot in their order, so the one that the caller
// waits for always has a slot.
#include "weight_pipe.h"

#include <algorithm>

#include "tenon/plugin.h"

namespace tenon::quant {

namespace {

constexpr int64_t kBlock = 4096;           // of O_DIRECT
constexpr int64_t kLeastSlot = 256 << 10;  // shorter reads do not reach a disk's rate
constexpr int64_t kMergedGap = 64 << 10;   // read over gaps up to this: cheaper than a request
constexpr size_t kCopies = 2;              // slots that may wait for their copy
constexpr int64_t kCopyTimeoutUs = 120'000'000;  // only ends a hang

constexpr int64_t whole_blocks(int64_t bytes) {
    return (bytes + kBlock - 1) / kBlock * kBlock;
}

int64_t span_of(const PipeJob& job) {
    return (job.rows - 1) * job.pitch + job.row_bytes;
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
        static_cast<void>(device_.synchronize(stream_));  // they read the ring
    }
}

Status WeightPipe::add(const PipeJob& asked) {
    PipeJob job = asked;
    if (job.rows == 1) {
        job.pitch = job.row_bytes;
    }
    TensorInfo info;
    TENON_TRY(job.source->find(job.tensor, &info));
    if (job.offset < 0 || job.rows < 1 || job.row_bytes < 1 || job.pitch < job.row_bytes ||
        static_cast<uint64_t>(job.offset + span_of(job)) > info.bytes) {
        return error(Code::invalid_argument,
                     "{}: {} rows of {} bytes, {} apart from byte {}, do not lie in its {} bytes",
                     job.tensor, job.rows, job.row_bytes, job.pitch, job.offset, info.bytes);
    }
    jobs_.push_back(std::move(job));
    infos_.push_back(info);
    return {};
}

// One piece; the read is widened to whole blocks of the file within the tensor.
void WeightPipe::push(size_t index, int64_t offset, int64_t rows, int64_t row_bytes, int64_t pitch,
                      int64_t to) {
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
    p.to = to;
    pieces_.push_back(p);
}

// Bytes in a row; all pieces but the last end with a block of the file.
void WeightPipe::cut_run(size_t index, int64_t offset, int64_t bytes, int64_t to) {
    while (bytes > 0) {
        const int64_t phase = (static_cast<int64_t>(infos_[index].offset) + offset) % kBlock;
        const int64_t now = std::min(bytes, options_.slot_bytes - phase);
        push(index, offset, 1, now, now, to);
        offset += now;
        to += now;
        bytes -= now;
    }
}

void WeightPipe::cut(size_t index) {
    const PipeJob& job = jobs_[index];
    if (job.pitch == job.row_bytes) {
        cut_run(index, job.offset, job.rows * job.row_bytes, 0);
        return;
    }
    // Rows of one read; a row may begin anywhere in a block.
    const int64_t room = options_.slot_bytes - kBlock - job.row_bytes;
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
    options_.slot_bytes = std::min(
        options_.slot_bytes, std::max(kLeastSlot, whole_blocks(total / (4 * options_.slots))));
    for (size_t i = 0; i < jobs_.size(); ++i) {
        cut(i);
    }
    const size_t slots = std::min(pieces_.size(), static_cast<size_t>(options_.slots));
    if (slots == 0) {
        return {};
    }
    TENON_TRY(device_.allocate({.bytes = static_cast<int64_t>(slots) * options_.slot_bytes,
                                .alignment = kBlock,
                                .kind = BufferKind::pinned,
                                .tag = "weight ring"},
                               ring_.out()));
    for (size_t i = 0; i < slots; ++i) {
        free_.push_back(slots - 1 - i);
        Ref<Event> event;
        Status made = device_.create_event(event.out());
        if (made.ok()) {
            events_.push_back(std::move(event));
        } else if (made.code() != Code::unsupported) {
            return made;
        }
    }
    const size_t readers = std::min(slots, static_cast<size_t>(options_.readers));
    for (size_t i = 0; i < readers; ++i) {
        readers_.emplace_back([this] { read_pieces(); });
    }
    return {};
}

void WeightPipe::read_pieces() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock,
                      [&] { return stopped_ || next_read_ == pieces_.size() || !free_.empty(); });
        if (stopped_ || next_read_ == pieces_.size()) {
            return;
        }
        Piece& p = pieces_[next_read_++];
        p.slot = free_.back();
        free_.pop_back();
        const PipeJob& job = jobs_[p.job];
        auto* to = static_cast<uint8_t*>(ring_->data()) +
                   static_cast<int64_t>(p.slot) * options_.slot_bytes + p.read_to;
        lock.unlock();
        Status status = job.source->read(job.tensor, p.read_at, p.read_bytes, to);
        lock.lock();
        p.ready = status.ok();
        if (!status.ok() && failed_.ok()) {
            failed_ = std::move(status);
            stopped_ = true;
        }
        changed_.notify_all();
    }
}

// Leaves at most `kept` slots to their copies.
Status WeightPipe::reclaim(size_t kept) {
    while (copying_.size() > kept) {
        const size_t slot = copying_.front();
        TENON_TRY(events_.empty() ? device_.synchronize(stream_)
                                  : events_[slot]->wait(kCopyTimeoutUs));
        copying_.pop_front();
        {
            const std::lock_guard lock(mutex_);
            free_.push_back(slot);
        }
        changed_.notify_all();
    }
    return {};
}

Status WeightPipe::enqueue(const Piece& p) {
    auto* from = static_cast<uint8_t*>(ring_->data()) +
                 static_cast<int64_t>(p.slot) * options_.slot_bytes + p.first;
    TensorView source = make_view(from, DType::u8, {p.rows, p.row_bytes}, ring_->place());
    source.stride[0] = p.pitch;
    copying_.push_back(p.slot);
    TENON_TRY(device_.copy(make_view(static_cast<uint8_t*>(jobs_[p.job].to) + p.to, DType::u8,
                                     {p.rows, p.row_bytes}, Place::device),
                           source, stream_));
    return events_.empty() ? Status() : device_.record(*events_[p.slot], stream_);
}

Status WeightPipe::next() {
    const size_t slots =
        std::min(pieces_.size(), static_cast<size_t>(options_.slots));  // of the ring
    for (; next_piece_ < pieces_.size() && pieces_[next_piece_].job == next_job_; ++next_piece_) {
        const Piece& p = pieces_[next_piece_];
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return p.ready || stopped_; });
            if (!p.ready) {
                return failed_.ok() ? error(Code::internal, "{}: was not read", jobs_[p.job].tensor)
                                    : std::move(failed_);
            }
        }
        TENON_TRY(enqueue(p));
        TENON_TRY(reclaim(std::min(kCopies, slots - 1)));
    }
    ++next_job_;
    return {};
}

}  // namespace tenon::quant
