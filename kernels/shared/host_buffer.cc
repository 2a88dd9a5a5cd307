// SPDX-License-Identifier: MIT
// Buffers are anonymous mappings: zero pages until touched, huge pages where the kernel has them.
#include "kernels/shared/host_buffer.h"

#include <algorithm>
#include <bit>
#include <cstdio>

#include <sys/mman.h>

namespace tenon::kernels {

namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;

class HostBuffer final : public Implements<HostBuffer, Buffer> {
  public:
    HostBuffer(void* map, int64_t map_bytes, void* data, int64_t bytes, Place place)
        : map_(map), map_bytes_(map_bytes), data_(data), bytes_(bytes), place_(place) {}
    HostBuffer(const HostBuffer&) = delete;
    HostBuffer& operator=(const HostBuffer&) = delete;
    ~HostBuffer() { munmap(map_, static_cast<size_t>(map_bytes_)); }

    void* data() noexcept override { return data_; }
    int64_t bytes() noexcept override { return bytes_; }
    Place place() noexcept override { return place_; }

  private:
    void* map_;
    int64_t map_bytes_;
    void* data_;
    int64_t bytes_;
    Place place_;
};

}  // namespace

Memory machine_memory() {
    Memory m;
    if (std::FILE* f = std::fopen("/proc/meminfo", "r")) {
        char line[160];
        long long kib = 0;
        while (std::fgets(line, sizeof line, f) != nullptr) {
            if (std::sscanf(line, "MemTotal: %lld kB", &kib) == 1) {
                m.total = kib * 1024;
            } else if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) {
                m.free = kib * 1024;
            }
        }
        std::fclose(f);
    }
    return m;
}

Status allocate_buffer(const BufferDesc& desc, Buffer** out) noexcept {
    return guard([&]() -> Status {
        if (desc.bytes < 0 || desc.alignment <= 0 ||
            !std::has_single_bit(static_cast<uint64_t>(desc.alignment))) {
            return error(Code::invalid_argument,
                         "buffer '{}': {} bytes aligned to {}, expected a size >= 0 and a power of "
                         "two",
                         desc.tag, desc.bytes, desc.alignment);
        }
        const int64_t alignment = std::max<int64_t>(desc.alignment, 256);
        const int64_t free = machine_memory().free;
        const int64_t slack = alignment > kPage ? alignment : 0;
        if (desc.bytes > free || slack > free) {
            return error(Code::does_not_fit, "buffer '{}': {} bytes wanted, {} free", desc.tag,
                         desc.bytes, free);
        }
        const int64_t map_bytes =
            (std::max<int64_t>(desc.bytes, 1) + slack + kPage - 1) / kPage * kPage;
        void* map = mmap(nullptr, static_cast<size_t>(map_bytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) {
            return error(Code::does_not_fit, "buffer '{}': the kernel refused {} bytes, {} free",
                         desc.tag, desc.bytes, free);
        }
        if (map_bytes >= 2 * kHugePage) {
            madvise(map, static_cast<size_t>(map_bytes), MADV_HUGEPAGE);  // advice only
        }
        const auto base = reinterpret_cast<uintptr_t>(map);
        const auto mask = static_cast<uintptr_t>(alignment) - 1;
        auto* data = reinterpret_cast<void*>((base + mask) & ~mask);
        const Place place = desc.kind == BufferKind::pinned ? Place::pinned : Place::host;
        *out = new HostBuffer(map, map_bytes, data, desc.bytes, place);
        return {};
    });
}

}  // namespace tenon::kernels
