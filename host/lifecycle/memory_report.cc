// SPDX-License-Identifier: MIT
// The memory table, and what the machine says about its memory.
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "host/lifecycle/deployment.h"
#include "host/profile/units.h"

namespace tenon {
namespace {

const char* place_name(PlanPlace place) {
    constexpr const char* kNames[] = {"device", "pinned", "host", "disk"};
    return kNames[static_cast<int>(place)];
}

std::string padded(std::string text, size_t width, bool right = false) {
    const size_t have = text.size();
    if (have < width) {
        text.insert(right ? 0 : have, width - have, ' ');
    }
    return text;
}

}  // namespace

int64_t memory_available() {
    std::ifstream file("/proc/meminfo");
    std::string key;
    int64_t kib = 0;
    std::string unit;
    while (file >> key >> kib) {
        std::getline(file, unit);
        if (key == "MemAvailable:") {
            return kib * 1024;
        }
    }
    return 0;
}

int64_t memory_resident() {
    std::ifstream file("/proc/self/statm");
    int64_t size = 0;
    int64_t resident = 0;
    file >> size >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t MemoryReport::device_total() const {
    int64_t sum = 0;
    for (const PlannedMemory& e : entries) {
        sum += e.place == PlanPlace::device ? e.bytes : 0;
    }
    return sum;
}

int64_t MemoryReport::host_total() const {
    int64_t sum = 0;
    for (const PlannedMemory& e : entries) {
        sum += e.place == PlanPlace::pinned || e.place == PlanPlace::host ? e.bytes : 0;
    }
    return sum;
}

bool MemoryReport::fits() const {
    return own_memory ? device_total() + device_reserve <= device_free &&
                            host_total() + reserve <= available
                      : total() + reserve <= available;
}

std::string MemoryReport::needs() const {
    if (!own_memory) {
        return format("the plan needs {} and a reserve of {}, available are {}", size_text(total()),
                      size_text(reserve), size_text(available));
    }
    return format(
        "the plan needs {} of the device's memory and memory.device_reserve = {}, free are {}; of "
        "the host's {} and memory.reserve = {}, available are {}",
        size_text(device_total()), size_text(device_reserve), size_text(device_free),
        size_text(host_total()), size_text(reserve), size_text(available));
}

std::string MemoryReport::table() const {
    std::vector<const PlannedMemory*> order;
    for (const PlannedMemory& e : entries) {
        order.push_back(&e);
    }
    std::stable_sort(
        order.begin(), order.end(),
        [](const PlannedMemory* a, const PlannedMemory* b) { return a->bytes > b->bytes; });
    std::string out =
        padded("tag", 28) + padded("place", 8) + padded("size", 10, true) + "  note\n";
    for (const PlannedMemory* e : order) {
        out += padded(e->tag, 28) + padded(place_name(e->place), 8) +
               padded(size_text(e->bytes), 10, true) + "  " +
               (e->count > 1 ? format("{} x ", e->count) : "") + e->note + "\n";
    }
    const auto line = [&](const char* name, int64_t bytes) {
        out += padded(name, 36) + padded(size_text(bytes), 10, true) + "\n";
    };
    if (own_memory) {
        line("sum on the device", device_total());
        line("memory.device_reserve", device_reserve);
        line("free on the device", device_free);
        line("sum on the host", host_total());
    } else {
        line("sum", total());
    }
    line("memory.reserve", reserve);
    line("available", available);
    return out;
}

}  // namespace tenon
