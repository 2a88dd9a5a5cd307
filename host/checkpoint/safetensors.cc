// SPDX-License-Identifier: MIT
// Safetensors headers: 8 bytes of length, a JSON object, then data. Headers come from strangers, so
// every number is checked before it is used.
#include "host/checkpoint/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "host/checkpoint/strict_json.h"

namespace tenon {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // what the format's own library accepts
constexpr int kMaxHeaderDepth = 4;            // {name: {shape: [...]}} needs three

using Json = nlohmann::json;  // sorted: the ordered form looks keys up one by one

const char* dtype_text(DType t) {
    constexpr const char* kNames[] = {"F32", "F16", "BF16", "F8_E4M3", "F8_E8M0", "U8", "I8",
                                      "U16", "I16", "U32",  "I32",     "U64",     "I64"};
    return kNames[static_cast<uint8_t>(t)];
}

Status read_entry(const std::string& path, const std::string& name, const Json& v, uint64_t data_at,
                  uint64_t file_bytes, TensorEntry* out) {
    const auto bad = [&](const std::string& what) {
        return error(Code::invalid_argument, "{}: tensor '{}': {}", path, name, what);
    };
    if (!v.is_object() || !v.contains("dtype") || !v.contains("shape") ||
        !v.contains("data_offsets")) {
        return bad("expected an object with dtype, shape and data_offsets");
    }
    out->name = name;
    const Json& dtype = v["dtype"];
    if (!dtype.is_string() || !safetensors_dtype(dtype.get<std::string>(), &out->dtype)) {
        return bad(
            format("unknown dtype {}",
                   cut_text(dtype.dump(-1, ' ', false, Json::error_handler_t::replace), 60)));
    }
    const Json& shape = v["shape"];
    if (!shape.is_array() || shape.size() > static_cast<size_t>(kMaxRank)) {
        return bad(format("shape must be a list of at most {} numbers", kMaxRank));
    }
    uint64_t bytes = static_cast<uint64_t>(dtype_bytes(out->dtype));
    for (const Json& n : shape) {
        if (!n.is_number_unsigned() || n.get<uint64_t>() > (1ull << 48)) {
            return bad("shape holds something other than a count");
        }
        const uint64_t count = n.get<uint64_t>();
        if (count != 0 && bytes > (1ull << 56) / count) {
            return bad("its shape has more than 2^56 bytes");
        }
        bytes *= count;
        out->shape.push_back(static_cast<int64_t>(count));
    }
    const Json& range = v["data_offsets"];
    if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() ||
        !range[1].is_number_unsigned()) {
        return bad("data_offsets must be two counts");
    }
    const uint64_t begin = range[0].get<uint64_t>();
    const uint64_t end = range[1].get<uint64_t>();
    if (begin > end || end > file_bytes - data_at) {
        return bad(format(
            "data_offsets [{}, {}] lie outside the file's {} data bytes; is the file complete?",
            begin, end, file_bytes - data_at));
    }
    if (end - begin != bytes) {
        return bad(format("data_offsets hold {} bytes, but its dtype and shape need {}",
                          end - begin, bytes));
    }
    out->offset = data_at + begin;
    out->bytes = bytes;
    return {};
}

}  // namespace

TensorView view_of(const TensorEntry& entry, void* data) {
    TensorView v;
    v.data = data;
    v.dtype = entry.dtype;
    v.rank = static_cast<uint16_t>(entry.shape.size());
    int64_t stride = 1;
    for (int i = v.rank - 1; i >= 0; --i) {
        v.shape[i] = entry.shape[static_cast<size_t>(i)];
        v.stride[i] = stride;
        stride *= v.shape[i];
    }
    return v;
}

TensorInfo info_of(const TensorEntry& entry, StrView file, uint64_t index) {
    TensorInfo out;
    out.dtype = entry.dtype;
    out.rank = static_cast<uint16_t>(entry.shape.size());
    std::copy(entry.shape.begin(), entry.shape.end(), out.shape);
    out.name = entry.name;
    out.file = file;
    out.offset = entry.offset;
    out.bytes = entry.bytes;
    out.index = index;
    return out;
}

Status check_range(const TensorEntry& entry, uint64_t offset, uint64_t bytes) {
    if (offset > entry.bytes || bytes > entry.bytes - offset) {
        return error(Code::invalid_argument, "tensor '{}': bytes [{}, {}) of {}", entry.name,
                     offset, offset + bytes, entry.bytes);
    }
    return {};
}

bool safetensors_dtype(const std::string& name, DType* out) {
    static const std::map<std::string, DType> kTypes = {
        {"F32", DType::f32},      {"F16", DType::f16},      {"BF16", DType::bf16},
        {"F8_E4M3", DType::e4m3}, {"F8_E8M0", DType::e8m0}, {"U8", DType::u8},
        {"I8", DType::i8},        {"U16", DType::u16},      {"I16", DType::i16},
        {"U32", DType::u32},      {"I32", DType::i32},      {"U64", DType::u64},
        {"I64", DType::i64},      {"BOOL", DType::u8}};
    const auto it = kTypes.find(name);
    if (it == kTypes.end()) {
        return false;
    }
    *out = it->second;
    return true;
}

Result<std::vector<TensorEntry>> parse_safetensors(const std::string& path,
                                                   Span<const uint8_t> head, uint64_t file_bytes) {
    if (head.size < 8 || file_bytes < 8) {
        return error(Code::invalid_argument, "{}: {} bytes, too short for a safetensors file", path,
                     file_bytes);
    }
    uint64_t length = 0;
    std::memcpy(&length, head.data, 8);
    if (length > kMaxHeader || length > file_bytes - 8 || length > head.size - 8) {
        return error(Code::invalid_argument,
                     "{}: its header claims {} bytes, the file has {} (limit {}); not a "
                     "safetensors file or cut "
                     "short",
                     path, length, file_bytes, kMaxHeader);
    }
    const std::string_view text(reinterpret_cast<const char*>(head.data) + 8, length);
    TENON_ASSIGN(const Json json, parse_strict_json(path + ": its header", text, kMaxHeaderDepth));
    if (!json.is_object()) {
        return error(Code::invalid_argument, "{}: its header is not a JSON object", path);
    }
    const uint64_t data_at = 8 + length;
    std::vector<TensorEntry> entries;
    entries.reserve(json.size());
    for (const auto& [name, value] : json.items()) {
        if (name == "__metadata__") {
            continue;
        }
        entries.emplace_back();
        TENON_TRY(read_entry(path, name, value, data_at, file_bytes, &entries.back()));
    }
    std::vector<const TensorEntry*> order;
    for (const TensorEntry& e : entries) {
        if (e.bytes > 0) {  // an empty tensor inside another would hide what follows it
            order.push_back(&e);
        }
    }
    std::sort(order.begin(), order.end(),
              [](const TensorEntry* a, const TensorEntry* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i) {
        if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
            return error(Code::invalid_argument, "{}: the data of tensors '{}' and '{}' overlap",
                         path, order[i - 1]->name, order[i]->name);
        }
    }
    return entries;
}

SafetensorsWriter::~SafetensorsWriter() {
    if (!partial_.empty()) {
        std::error_code ec;
        std::filesystem::remove(partial_, ec);
    }
}

Status SafetensorsWriter::open(const std::string& path, const std::vector<TensorOut>& tensors) {
    path_ = path;
    expected_ = 0;
    written_ = 0;
    auto header = nlohmann::ordered_json::object();
    for (const TensorOut& t : tensors) {
        uint64_t bytes = static_cast<uint64_t>(dtype_bytes(t.dtype));
        for (const int64_t n : t.shape) {
            bytes *= static_cast<uint64_t>(n);
        }
        header[t.name] = {{"dtype", dtype_text(t.dtype)},
                          {"shape", t.shape},
                          {"data_offsets", {expected_, expected_ + bytes}}};
        expected_ += bytes;
    }
    std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::error_code ec;
    const bool in_place =
        std::filesystem::exists(path, ec) && !std::filesystem::is_regular_file(path, ec);
    // Behind a link lies the file that is meant.
    const std::filesystem::path target = std::filesystem::weakly_canonical(path, ec);
    target_ = ec ? path : target.string();
    const std::string written = in_place ? path : target_ + ".partial";
    file_.open(written, std::ios::binary | std::ios::trunc);
    if (file_ && !in_place) {
        partial_ = written;
    }
    const uint64_t length = text.size();
    file_.write(reinterpret_cast<const char*>(&length), 8);
    file_.write(text.data(), static_cast<std::streamsize>(text.size()));
    return checked();
}

Status SafetensorsWriter::append(const void* data, uint64_t bytes) {
    written_ += bytes;
    TENON_CHECK(written_ <= expected_, "{} bytes of {}", written_, expected_);
    file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    return checked();
}

Status SafetensorsWriter::close() {
    TENON_CHECK(written_ == expected_, "{} bytes of {}", written_, expected_);
    file_.close();
    TENON_TRY(checked());
    if (!partial_.empty()) {
        std::error_code ec;
        std::filesystem::rename(partial_, target_, ec);
        if (ec) {
            return error(Code::io, "{}: could not be written: {}", path_, ec.message());
        }
        partial_.clear();
    }
    return {};
}

Status SafetensorsWriter::checked() const {
    return file_ ? Status()
                 : error(Code::io, "{}: could not be written: {}", path_, std::strerror(errno));
}

Status write_safetensors(const std::string& path, const std::vector<TensorOut>& tensors) {
    SafetensorsWriter writer;
    TENON_TRY(writer.open(path, tensors));
    for (const TensorOut& t : tensors) {
        uint64_t bytes = static_cast<uint64_t>(dtype_bytes(t.dtype));
        for (const int64_t n : t.shape) {
            bytes *= static_cast<uint64_t>(n);
        }
        TENON_TRY(writer.append(t.data, bytes));
    }
    return writer.close();
}

}  // namespace tenon
