// SPDX-License-Identifier: MIT
// The lane's thread: orders in, reads out, rows copied, tickets finished.
#include "plugins/storage_common/read_lane.h"

#include "plugins/storage_common/signals.h"

#include <algorithm>
#include <cerrno>

namespace tenon::storage {
namespace {

// Reads of one ticket before the next has its turn: a small fetch of a decode step is not held up
// by the thousands of reads of a prompt chunk.
constexpr int kReadsPerTurn = 8;

void mark_failed(TicketSlot& slot, const ReadRange& range, int error_number) {
    for (int64_t i = range.first; i < range.first + range.count; ++i) {
        const RowRef& ref = slot.refs[static_cast<size_t>(i)];
        const auto row = static_cast<uint64_t>(ref.row);
        uint64_t& word = slot.failed[row / 64];
        const uint64_t bit = uint64_t{1} << (row % 64);
        if ((word & bit) != 0) {
            continue;
        }
        word |= bit;
        if (slot.failed_rows++ == 0) {
            slot.first_failed_id = ref.id;
            slot.first_errno = error_number;
        }
    }
}

/// Copies the rows that the completed bytes cover; returns the refs that lack some, if any.
ReadRange copy_rows(TicketSlot& slot, const ReadRange& range, const Completion& completion) {
    const RowLayout& layout = slot.table.layout;
    const uint64_t valid_end =
        range.begin + static_cast<uint64_t>(std::max<int64_t>(completion.result, 0));
    auto* dst = static_cast<std::byte*>(slot.dst.data);
    for (int64_t i = range.first; i < range.first + range.count; ++i) {
        const RowRef& ref = slot.refs[static_cast<size_t>(i)];
        const uint64_t row_begin = layout.begin_of(ref.id);
        const uint64_t from = std::max(row_begin, range.begin);
        const uint64_t to = std::min(row_begin + layout.row_bytes, range.end);
        if (to > valid_end) {
            // Refs ascend, so every later one lacks bytes too.
            return {range.begin, range.end, i, range.first + range.count - i};
        }
        std::memcpy(dst + ref.row * slot.dst.stride[0] + (from - row_begin),
                    completion.data + (from - range.begin), to - from);
    }
    return {};
}

}  // namespace

TicketSlot::TicketSlot(LaneTable& of_table)
    : table(of_table),
      refs(static_cast<size_t>(of_table.max_batch)),
      failed(static_cast<size_t>((of_table.max_batch + 63) / 64)) {}

Result<std::shared_ptr<ReadLane>> ReadLane::start(Host& host, std::string component,
                                                  std::string thread_name,
                                                  std::unique_ptr<ReadBackend> backend) {
    std::shared_ptr<ReadLane> lane(new ReadLane(host, std::move(component), std::move(backend)));
    {
        const SignalsBlocked blocked;
        ReadLane* self = lane.get();
        lane->thread_ = std::thread([self, name = std::move(thread_name)] { self->run(name); });
    }
    std::unique_lock lock(lane->mutex_);
    lane->changed_.wait(lock, [&] { return lane->started_; });
    if (!lane->start_status_.ok()) {
        return std::move(lane->start_status_);
    }
    return Result<std::shared_ptr<ReadLane>>(std::move(lane));
}

ReadLane::ReadLane(Host& host, std::string component, std::unique_ptr<ReadBackend> backend)
    : host_(host), component_(std::move(component)), backend_(std::move(backend)) {
    engine_ = backend_->engine();
    depth_ = backend_->depth();
    const auto depth = static_cast<size_t>(depth_);
    reads_.resize(depth);
    idle_reads_.reserve(depth);
    retries_.reserve(depth);
    completions_.reserve(depth);
}

ReadLane::~ReadLane() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake();
    if (thread_.joinable()) {
        thread_.join();
    }
}

Status ReadLane::attach(LaneTable& table) {
    Request request;
    request.table = &table;
    perform(request);
    return std::move(request.status);
}

void ReadLane::detach(LaneTable& table) {
    Request request;
    request.detach = true;
    request.table = &table;
    perform(request);
}

void ReadLane::perform(Request& request) {
    {
        const std::lock_guard lock(mutex_);
        request.next = std::exchange(requests_, &request);
    }
    wake();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return request.done; });
}

void ReadLane::enqueue(TicketSlot& slot) {
    const std::lock_guard lock(mutex_);
    if (slot.on_lane) {
        return;  // left over from a cancelled ticket: the lane meets the new one there
    }
    slot.on_lane = true;
    slot.next = nullptr;
    (incoming_ == nullptr ? incoming_ : incoming_last_->next) = &slot;
    incoming_last_ = &slot;
}

void ReadLane::wake() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_orders_, true)) {
        return;  // an earlier wake is still unanswered
    }
    if (backend_ != nullptr) {
        backend_->wake();
    }
    changed_.notify_all();
}

// ---- The lane's thread ----

void ReadLane::run(const std::string& thread_name) {
    if (!start_backend()) {
        return;
    }
    host_.register_thread(thread_name);
    while (take_orders()) {
        issue();
        wait_for_work();
    }
    // The ring ends on the thread that issued to it.
    const std::lock_guard lock(mutex_);
    backend_.reset();
}

bool ReadLane::start_backend() {
    Status status = backend_->start(reads_);
    for (size_t i = 0; i < reads_.size(); ++i) {
        reads_[i].index = static_cast<int32_t>(i);
        idle_reads_.push_back(&reads_[i]);
    }
    const bool ok = status.ok();
    const std::lock_guard lock(mutex_);
    if (!ok) {
        backend_.reset();
    }
    start_status_ = std::move(status);
    started_ = true;
    changed_.notify_all();
    return ok;
}

bool ReadLane::take_orders() {
    const std::lock_guard lock(mutex_);
    has_orders_ = false;
    for (TicketSlot* slot = incoming_; slot != nullptr; slot = slot->next) {
        active_.push_back(slot);  // within the capacity that `attach` made
    }
    incoming_ = incoming_last_ = nullptr;
    for (Request** link = &requests_; *link != nullptr;) {
        Request& request = **link;
        Request* next = request.next;
        if (serve(request)) {
            *link = next;
            request.done = true;  // from here on it may be gone
            changed_.notify_all();
        } else {
            link = &request.next;
        }
    }
    return !stopping_;
}

bool ReadLane::serve(Request& request) {
    if (request.detach) {
        return do_detach(*request.table);
    }
    request.status = guard([&] { do_attach(*request.table); });
    return true;
}

void ReadLane::do_attach(LaneTable& table) {
    active_.reserve(most_active_ + static_cast<size_t>(table.max_tickets));
    if (scratch_.size() < static_cast<size_t>(table.max_batch)) {
        scratch_.resize(static_cast<size_t>(table.max_batch));
    }
    most_active_ += static_cast<size_t>(table.max_tickets);
    if (!broken_) {
        backend_->attach(table.file);
    }
}

/// The table cancelled all its tickets, so its slots only have to leave the lists.
bool ReadLane::do_detach(LaneTable& table) {
    std::erase_if(active_, [&](TicketSlot* slot) { return &slot->table == &table; });
    std::erase_if(retries_, [&](const Segment& s) { return &s.slot->table == &table; });
    if (table.reads_under_way > 0) {
        return false;
    }
    most_active_ -= static_cast<size_t>(table.max_tickets);
    if (!broken_) {
        backend_->detach(table.file);
    }
    return true;
}

void ReadLane::wait_for_work() {
    if (broken_) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return has_orders_ || stopping_; });
        return;
    }
    completions_.clear();
    const Status status = backend_->wait(&completions_);
    for (const Completion& completion : completions_) {
        complete(completion);
    }
    if (!status.ok()) {
        break_down(status);
    }
}

void ReadLane::issue() {
    issue_retries();
    while (!idle_reads_.empty() && !active_.empty()) {
        if (turn_ >= active_.size()) {
            turn_ = 0;
        }
        TicketSlot& slot = *active_[turn_];
        const std::lock_guard lock(slot.mutex);
        if (slot.state == TicketSlot::State::queued) {
            plan(slot);
        }
        if (broken_ && slot.state == TicketSlot::State::reading) {
            fail_whole(slot);
        } else if (slot.state == TicketSlot::State::reading) {
            ReadRange range;
            for (int n = 0; n < kReadsPerTurn && !idle_reads_.empty() && slot.planner.next(&range);
                 ++n) {
                issue_read(slot, range, 0);
            }
            if (!slot.planner.exhausted()) {
                ++turn_;
                continue;
            }
        }
        remove_active(turn_);
    }
}

void ReadLane::issue_retries() {
    while (!retries_.empty() && !idle_reads_.empty()) {
        Segment& segment = retries_.back();
        TicketSlot& slot = *segment.slot;
        const std::lock_guard lock(slot.mutex);
        ReadRange range;
        if (slot.ticket != segment.ticket || slot.state != TicketSlot::State::reading) {
            retries_.pop_back();
            continue;
        }
        if (next_single(slot.table.layout, slot.refs, &segment.rest, &range)) {
            issue_read(slot, range, 1);
        }
        if (segment.rest.count == 0) {
            --slot.pending;  // never the last: the read just issued is pending
            retries_.pop_back();
        }
    }
}

void ReadLane::plan(TicketSlot& slot) {
    slot.state = TicketSlot::State::reading;
    if (broken_) {
        return;
    }
    const std::span<RowRef> refs(slot.refs.data(), static_cast<size_t>(slot.wanted));
    sort_by_id(refs, scratch_);
    slot.table.rows.add(refs.size());
    slot.table.unique_rows.add(static_cast<uint64_t>(count_unique(refs)));
    slot.planner = ReadPlanner(slot.table.layout, refs, backend_->max_read_bytes());
}

void ReadLane::issue_read(TicketSlot& slot, const ReadRange& range, int32_t attempt) {
    Read& read = *idle_reads_.back();
    idle_reads_.pop_back();
    read.file = &slot.table.file;
    read.range = range;
    read.owner = &slot;
    read.generation = slot.ticket;
    read.attempt = attempt;
    ++slot.pending;
    ++slot.table.reads_under_way;
    slot.table.reads.add(1);
    slot.table.read_bytes.add(range.end - range.begin);
    if (attempt > 0) {
        slot.table.retries.add(1);
    }
    backend_->queue(read);
}

/// The slot's mutex is held: a fetch that comes later finds `on_lane` false and enqueues again.
void ReadLane::remove_active(size_t index) {
    TicketSlot* slot = active_[index];
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));
    const std::lock_guard lock(mutex_);
    slot->on_lane = false;
}

void ReadLane::complete(const Completion& completion) {
    Read& read = *completion.read;
    auto& slot = *static_cast<TicketSlot*>(read.owner);
    const std::lock_guard lock(slot.mutex);
    --slot.table.reads_under_way;
    read.owner = nullptr;
    idle_reads_.push_back(&read);
    if (slot.ticket != read.generation || slot.state != TicketSlot::State::reading) {
        return;  // cancelled: its rows belong to nobody
    }
    const ReadRange uncovered = copy_rows(slot, read.range, completion);
    if (uncovered.count > 0) {
        if (read.attempt == 0) {
            retries_.push_back({&slot, slot.ticket, uncovered});
            return;
        }
        mark_failed(slot, uncovered,
                    completion.result < 0 ? static_cast<int>(-completion.result) : 0);
    }
    --slot.pending;
    if (slot.pending == 0 && slot.planner.exhausted()) {
        finish(slot);
    }
}

void ReadLane::finish(TicketSlot& slot) {
    LaneTable& table = slot.table;
    table.failed_rows.add(static_cast<uint64_t>(slot.failed_rows));
    table.fetch_seconds->observe(static_cast<double>(host_.now_us() - slot.started_us) * 1e-6);
    if (slot.failed_rows > 0) {
        host_.log(LogLevel::warn, component_,
                  format("read failed table={} rows={} first_id={} offset={} reason=\"{}\"",
                         table.name, slot.failed_rows, slot.first_failed_id,
                         table.layout.begin_of(slot.first_failed_id),
                         slot.first_errno == 0 ? "the file ends before the row"
                                               : errno_text(slot.first_errno)));
    }
    slot.state = TicketSlot::State::done;
    slot.done_ticket.store(slot.ticket, std::memory_order_release);
    slot.finished.notify_all();
}

void ReadLane::fail_whole(TicketSlot& slot) {
    mark_failed(slot, {.begin = 0, .end = 0, .first = 0, .count = slot.wanted}, EIO);
    finish(slot);
}

/// Reads under way never complete: their tickets end with every row failed, and so do later ones.
void ReadLane::break_down(const Status& status) {
    host_.log(LogLevel::error, component_,
              format("reading stopped engine={} reason=\"{}\"; every later fetch fails", engine_,
                     status.message()));
    broken_ = true;
    const auto fail = [this](TicketSlot& slot, uint64_t ticket) {
        if (slot.ticket == ticket && slot.state == TicketSlot::State::reading) {
            fail_whole(slot);
        }
    };
    for (Read& read : reads_) {
        if (auto* slot = static_cast<TicketSlot*>(std::exchange(read.owner, nullptr))) {
            const std::lock_guard lock(slot->mutex);
            --slot->table.reads_under_way;
            idle_reads_.push_back(&read);
            fail(*slot, read.generation);
        }
    }
    for (const Segment& segment : retries_) {
        const std::lock_guard lock(segment.slot->mutex);
        fail(*segment.slot, segment.ticket);
    }
    retries_.clear();
}

}  // namespace tenon::storage
