// SPDX-License-Identifier: MIT
// One read of a checkpoint that does not wait for a dead disk for ever.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tenon/weights.h"

namespace tenon::quant {

/// Bytes [offset, offset + bytes) of a tensor, read by a thread of its own: for what is too small
/// for a WeightPipe. A thread whose read does not end in time is left behind, as the pipe's are.
/// Any thread. errors  of the read; deadline: not read within `timeout_us`
inline Result<std::vector<uint8_t>> timed_read(WeightSource& source, const std::string& tensor,
                                               uint64_t offset, uint64_t bytes,
                                               int64_t timeout_us) {
    struct Read {
        std::string tensor;
        std::vector<uint8_t> to;
        std::mutex mutex;  // guards what follows
        std::condition_variable ended;
        bool done = false;
        Status status;
    };
    TensorInfo info;
    TENON_TRY(source.find(tensor, &info));
    const std::string file = info.file.str();
    // Shared: a read that never ends outlives the caller.
    const auto read = std::make_shared<Read>();
    read->tensor = tensor;
    read->to.resize(bytes);
    std::thread thread([read, &source, offset, bytes] {
        Status status = source.read(read->tensor, offset, bytes, read->to.data());
        const std::lock_guard lock(read->mutex);
        read->status = std::move(status);
        read->done = true;
        read->ended.notify_all();
    });
    std::unique_lock lock(read->mutex);
    if (!read->ended.wait_for(lock, std::chrono::microseconds(timeout_us),
                              [&] { return read->done; })) {
        thread.detach();
        return error(Code::deadline,
                     "{}: {} bytes at byte {} of {} were not read within {} ms; does its disk, or "
                     "the machine that it lies on, still answer?",
                     tensor, bytes, info.offset + offset, file, timeout_us / 1000);
    }
    lock.unlock();
    thread.join();
    TENON_TRY(std::move(read->status));
    return std::move(read->to);
}

}  // namespace tenon::quant
