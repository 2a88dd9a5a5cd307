// SPDX-License-Identifier: MIT
// Fuzz target: any file is refused with its name, or its tensors lie apart from each other inside
// it.
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "host/checkpoint/safetensors.h"

namespace {

using tenon::Span;
using tenon::TensorEntry;

constexpr const char* kName = "fuzz.safetensors";

void check_entries(const std::vector<TensorEntry>& entries, uint64_t data_at, uint64_t file_bytes) {
    for (const TensorEntry& a : entries) {
        auto bytes = static_cast<uint64_t>(tenon::dtype_bytes(a.dtype));
        for (const int64_t n : a.shape) {
            if (n < 0) {
                std::abort();
            }
            bytes *= static_cast<uint64_t>(n);
        }
        if (a.bytes != bytes || a.offset < data_at || a.offset > file_bytes ||
            a.bytes > file_bytes - a.offset || a.shape.size() > tenon::kMaxRank) {
            std::abort();
        }
        for (const TensorEntry& b : entries) {
            if (&a != &b && (a.name == b.name || (a.offset <= b.offset && a.bytes > 0 &&
                                                  b.bytes > 0 && b.offset < a.offset + a.bytes))) {
                std::abort();
            }
        }
    }
}

void parse(Span<const uint8_t> head, uint64_t file_bytes) {
    const auto entries = tenon::parse_safetensors(kName, head, file_bytes);
    if (!entries.ok()) {
        // Messages go to terminals, logs and JSON: dump throws if they are not UTF-8.
        const std::string text = entries.status().message().str();
        if (text.find(kName) == std::string::npos || nlohmann::json(text).dump().empty()) {
            std::abort();
        }
        return;
    }
    uint64_t length = 0;
    std::memcpy(&length, head.data, sizeof length);
    check_entries(*entries, 8 + length, file_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // Own block of exactly that size, so that a read behind its end is seen.
    const auto block = std::make_unique<uint8_t[]>(size);
    std::memcpy(block.get(), data, size);
    parse({block.get(), size}, size);
    if (size < 8) {
        return 0;
    }
    // No fuzzer keeps the length right while it grows the text: here all is header, and the file is
    // as long as its first byte says.
    const uint64_t length = size - 8;
    const uint64_t file_bytes = size + (uint64_t{1} << (block[0] % 48));
    std::memcpy(block.get(), &length, sizeof length);
    parse({block.get(), size}, file_bytes);
    return 0;
}
