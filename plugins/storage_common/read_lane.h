// SPDX-License-Identifier: MIT
// One thread that serves fetches: plans reads, keeps the backend full, copies rows out, retries
// once, reports what failed.
#pragma once

#include "tenon/host.h"

#include "plugins/storage_common/read_backend.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tenon::storage {

class ReadLane;
struct TicketSlot;

/// What a lane must know of a table. The table owns it and outlives its attachment.
struct LaneTable {
    std::string name;
    RowLayout layout;
    RowFile file;
    int64_t max_batch = 0;
    int32_t max_tickets = 0;

    /// Counters since open (RowTableStats) and the host's series of the same facts. Thread: any.
    struct Counter {
        std::atomic<uint64_t> value{0};
        Metric* metric = nullptr;
        void add(uint64_t amount) {
            value.fetch_add(amount, std::memory_order_relaxed);
            metric->add(static_cast<double>(amount));
        }
    };
    Counter rows, unique_rows, reads, read_bytes, failed_rows, retries;
    Metric* fetch_seconds = nullptr;

    int64_t reads_under_way = 0;  // lane thread only
};

/// One fetch, from `RowTable::fetch` to the end of `wait` or `cancel`.
///
/// The caller's thread moves free → queued and done → free, the lane queued → reading → done.
struct TicketSlot {
    enum class State : uint8_t { free, queued, reading, done };

    explicit TicketSlot(LaneTable& of_table);

    LaneTable& table;
    std::mutex mutex;  // guards all members down to the next comment
    std::condition_variable finished;
    State state = State::free;
    uint64_t ticket = 0;  // also the generation: reads of an older one are dropped
    TensorView dst;
    int64_t batch_rows = 0;
    int64_t wanted = 0;            // refs in use
    std::vector<RowRef> refs;      // max_batch long, allocated once
    std::vector<uint64_t> failed;  // a bit for each row of the batch
    int64_t failed_rows = 0;
    int64_t first_failed_id = -1;
    int first_errno = 0;  // 0: the file ended early
    int64_t started_us = 0;
    ReadPlanner planner;
    int64_t pending = 0;  // reads under way and failed reads that wait for their second attempt

    std::atomic<uint64_t> done_ticket{
        0};  // `ticket` once it is done, so that polling takes no lock

    // Guarded by the lane's mutex.
    bool on_lane = false;
    TicketSlot* next = nullptr;
};

/// Owns the backend and its thread. Tables attach for their lifetime.
class ReadLane {
  public:
    /// errors  those of ReadBackend::start
    static Result<std::shared_ptr<ReadLane>> start(Host& host, std::string component,
                                                   std::string thread_name,
                                                   std::unique_ptr<ReadBackend> backend);
    ~ReadLane();  // no table is attached
    ReadLane(const ReadLane&) = delete;
    ReadLane& operator=(const ReadLane&) = delete;

    const char* engine() const { return engine_; }
    int32_t depth() const { return depth_; }
    /// Both return when the lane's thread has done it; `detach` waits for reads of that table.
    Status attach(LaneTable& table);
    void detach(LaneTable& table);
    /// The slot's state is `queued` and its mutex held; `wake` follows when it no longer is.
    void enqueue(TicketSlot& slot);
    void wake();

  private:
    /// An `attach` or `detach`, handed to the lane's thread; lives on the caller's stack.
    struct Request {
        bool detach = false;
        LaneTable* table = nullptr;
        Status status;
        bool done = false;
        Request* next = nullptr;
    };
    /// A failed read whose ids are read again one by one.
    struct Segment {
        TicketSlot* slot = nullptr;
        uint64_t ticket = 0;
        ReadRange rest;
    };

    ReadLane(Host& host, std::string component, std::unique_ptr<ReadBackend> backend);
    void run(const std::string& thread_name);
    bool start_backend();
    void perform(Request& request);
    bool take_orders();
    void wait_for_work();
    bool serve(Request& request);
    void do_attach(LaneTable& table);
    bool do_detach(LaneTable& table);

    void issue();
    void issue_retries();
    void plan(TicketSlot& slot);
    void issue_read(TicketSlot& slot, const ReadRange& range, int32_t attempt);
    void remove_active(size_t index);
    void complete(const Completion& completion);
    void finish(TicketSlot& slot);
    void fail_whole(TicketSlot& slot);
    void break_down(const Status& status);

    Host& host_;
    const std::string component_;
    std::unique_ptr<ReadBackend> backend_;
    const char* engine_ = "";
    int32_t depth_ = 0;

    std::mutex mutex_;  // guards the members down to the next comment
    std::condition_variable changed_;
    Status start_status_;
    bool started_ = false;
    bool stopping_ = false;
    bool has_orders_ = false;
    TicketSlot* incoming_ = nullptr;  // oldest first
    TicketSlot* incoming_last_ = nullptr;
    Request* requests_ = nullptr;

    // Lane thread only. Capacities are set in `attach`, so that fetches allocate nothing.
    std::vector<Read> reads_;
    std::vector<Read*> idle_reads_;
    std::vector<TicketSlot*> active_;
    std::vector<Segment> retries_;
    std::vector<Completion> completions_;
    std::vector<RowRef> scratch_;
    size_t most_active_ = 0;
    size_t turn_ = 0;
    bool broken_ = false;

    std::thread thread_;  // last: starts when everything above exists
};

}  // namespace tenon::storage
