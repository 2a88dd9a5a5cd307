// SPDX-License-Identifier: MIT
// The plugin `mmap`: rows copied out of the page cache. The plainest store, and the best when the
// tables fit memory.
#include "tenon/plugin.h"

#include "plugins/storage_common/mapped_backend.h"
#include "plugins/storage_common/row_table.h"

namespace tenon::storage {
namespace {

constexpr const char* kName = "mmap";
constexpr int32_t kReadAhead = 64;  // reads announced to the kernel before the first is awaited

Status probe(const ProbeEnv&, ProbeResult* result) noexcept {
    result->score = 20;  // works everywhere; io_uring and threads keep a drive busier
    set_text(result->reason, "reads through the page cache");
    return {};
}

Status create(Host& host, const Options&, Object** out) noexcept {
    return guard([&] {
        *out = new LaneRowStore(host, kName, Access::mapped, 1, [&host](int32_t) {
            return ReadLane::start(host, kName, "engram_mmap",
                                   std::make_unique<MappedBackend>(kReadAhead));
        });
    });
}

constexpr Component kComponents[] = {{.struct_size = sizeof(Component),
                                      .kind = PluginKind::storage,
                                      .name = kName,
                                      .summary = "rows from mapped files",
                                      .options = {},
                                      .needs = {},
                                      .probe = &probe,
                                      .create = &create}};

}  // namespace
}  // namespace tenon::storage

TENON_PLUGIN("mmap", "0.1.0", "Row store on memory-mapped files", "MIT", stable,
             tenon::storage::kComponents)
