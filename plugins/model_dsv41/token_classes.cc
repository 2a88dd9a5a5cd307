// SPDX-License-Identifier: MIT
// The Engram token map of a checkpoint: derived from its tokenizer, compared with a shipped one.
#include "family.h"
#include "text/engram_map.h"
#include "text/json.h"

namespace tenon::dsv41 {

namespace {

constexpr const char* kMapFile = "engram_token_map.safetensors";

/// Values of the tensor `token_map` (I32, one dimension) of a small safetensors file.
Result<std::vector<int32_t>> read_shipped_map(StrView bytes) {
    uint64_t header_bytes = 0;
    if (bytes.size >= 8) {
        std::memcpy(&header_bytes, bytes.data, 8);
    }
    if (bytes.size < 8 || header_bytes > bytes.size - 8) {
        return error(Code::io, "{}: the header is longer than the file", kMapFile);
    }
    auto header = parse_json(std::string_view(bytes.data + 8, header_bytes));
    if (!header.ok()) {
        return error(Code::io, "{}: {}", kMapFile, header.status().message());
    }
    const Json* entry = header->find("token_map");
    const Json* dtype = entry == nullptr ? nullptr : entry->find("dtype");
    const Json* offsets = entry == nullptr ? nullptr : entry->find("data_offsets");
    int64_t first = 0;
    int64_t last = 0;
    const bool good = dtype != nullptr && dtype->string() != nullptr && *dtype->string() == "I32" &&
                      offsets != nullptr && offsets->array() != nullptr &&
                      offsets->array()->size() == 2 && (*offsets->array())[0].integer(first) &&
                      (*offsets->array())[1].integer(last);
    const auto room = static_cast<int64_t>(bytes.size - 8 - header_bytes);
    if (!good || first < 0 || last < first || last > room || (last - first) % 4 != 0) {
        return error(Code::io, "{}: expected a tensor 'token_map' of dtype I32 inside the file",
                     kMapFile);
    }
    std::vector<int32_t> map(static_cast<size_t>(last - first) / 4);
    std::memcpy(map.data(), bytes.data + 8 + header_bytes + first, map.size() * 4);
    return map;
}

}  // namespace

Result<std::vector<int32_t>> token_classes(const ModelConfig& config, Checkpoint& checkpoint) {
    StrView json;
    TENON_TRY_CTX(checkpoint.file("tokenizer.json", &json), "the Engram hash needs the tokenizer");
    auto tokenizer = Tokenizer::load(json.view());
    if (!tokenizer.ok()) {
        return tokenizer.take_status().with_context("tokenizer.json");
    }
    TENON_ASSIGN(EngramTokenMap map, build_engram_token_map(*tokenizer));
    if (map.class_count != config.engram.classes) {
        return error(Code::invalid_argument,
                     "config.json: engram_compressed_vocab_size is {}, but the tokenizer's ids "
                     "fall into {} classes",
                     config.engram.classes, map.class_count);
    }
    if (static_cast<size_t>(config.engram.pad_id) >= map.classes.size()) {
        return error(Code::invalid_argument,
                     "config.json: engram_pad_token_id is {}, the tokenizer has {} ids",
                     config.engram.pad_id, map.classes.size());
    }
    StrView shipped_bytes;
    Status status = checkpoint.file(kMapFile, &shipped_bytes);
    if (status.code() == Code::not_found) {
        return std::move(map.classes);
    }
    TENON_TRY(std::move(status));
    TENON_ASSIGN(const std::vector<int32_t> shipped, read_shipped_map(shipped_bytes));
    for (size_t id = 0; id < map.classes.size(); ++id) {
        if (id >= shipped.size() || shipped[id] != map.classes[id]) {
            return error(Code::io,
                         "{}: token {} has class {}, the tokenizer gives {}; tokenizer and tables "
                         "do not belong together",
                         kMapFile, id, id < shipped.size() ? shipped[id] : -1, map.classes[id]);
        }
    }
    return std::move(map.classes);
}

}  // namespace tenon::dsv41
