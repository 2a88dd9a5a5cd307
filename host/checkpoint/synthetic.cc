// SPDX-License-Identifier: MIT
// One small block of values per type and fill, mapped again and again behind itself until the
// largest tensor fits.
#include "host/checkpoint/synthetic.h"

#include <openssl/evp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "host/checkpoint/mapped_file.h"
#include "host/checkpoint/safetensors.h"
#include "host/checkpoint/strict_json.h"
#include "tenon/numeric.h"

namespace tenon {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kBlock = 16ull << 20;
constexpr uint64_t kMaxTensors = 4'000'000;
constexpr uint64_t kMaxBytes = 1ull << 40;
constexpr int kMaxJsonDepth = 4;

enum class FillKind { bits, normal, signs, value };
struct Fill {
    FillKind kind = FillKind::bits;
    double scale = 0;
    bool operator<(const Fill& o) const { return kind != o.kind ? kind < o.kind : scale < o.scale; }
};

/// splitmix64 (Steele, Lea, Flood 2014): a counter through a mixing function.
struct Random {
    uint64_t state = 0;
    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    /// (0, 1)
    double unit() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
};

double draw(const Fill& fill, Random& random) {
    switch (fill.kind) {
        case FillKind::normal:  // Box and Muller
            return fill.scale * std::sqrt(-2 * std::log(random.unit())) *
                   std::cos(2 * 3.14159265358979323846 * random.unit());
        case FillKind::signs:
            return (random.next() & 1) != 0 ? fill.scale : -fill.scale;
        default:
            return fill.scale;
    }
}

void fill_block(uint8_t* block, DType dtype, const Fill& fill) {
    Random random{static_cast<uint64_t>(dtype) * 4 + static_cast<uint64_t>(fill.kind)};
    if (fill.kind == FillKind::bits) {
        for (uint64_t i = 0; i < kBlock; i += 8) {
            const uint64_t word = random.next();
            std::memcpy(block + i, &word, 8);
        }
        return;
    }
    const auto bytes = static_cast<uint64_t>(dtype_bytes(dtype));
    for (uint64_t i = 0; i < kBlock; i += bytes) {
        const auto value = static_cast<float>(draw(fill, random));
        if (dtype == DType::f32) {
            std::memcpy(block + i, &value, 4);
        } else if (dtype == DType::i32) {
            const auto whole = static_cast<int32_t>(fill.scale);
            std::memcpy(block + i, &whole, 4);
        } else {
            const uint16_t half = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
            std::memcpy(block + i, &half, 2);
        }
    }
}

/// A read-only range of addresses over one block.
class Range {
  public:
    Range() = default;
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
    ~Range() {
        if (data_ != nullptr) {
            ::munmap(data_, size_);
        }
    }
    /// At least `bytes` from any place in the first block. errors  io
    Status open(DType dtype, const Fill& fill, uint64_t bytes) {
        const int fd = ::memfd_create("tenon-synthetic", MFD_CLOEXEC);
        if (fd < 0) {
            return error(Code::io, "synthetic weights: memfd_create: {}", std::strerror(errno));
        }
        Status status = map(fd, (bytes + 2 * kBlock - 1) / kBlock);
        ::close(fd);
        if (status.ok()) {
            fill_block(data_, dtype, fill);
            ::mprotect(data_, size_, PROT_READ);
        }
        return status;
    }
    uint8_t* data() const { return data_; }

  private:
    Status map(int fd, uint64_t blocks) {
        const auto failed = [&](const char* what) {
            return error(Code::io, "synthetic weights: {} of {} bytes: {}", what, blocks * kBlock,
                         std::strerror(errno));
        };
        if (::ftruncate(fd, static_cast<off_t>(kBlock)) != 0) {
            return failed("ftruncate");
        }
        void* base = ::mmap(nullptr, blocks * kBlock, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
            return failed("mmap");
        }
        data_ = static_cast<uint8_t*>(base);
        size_ = blocks * kBlock;
        for (uint64_t i = 0; i < blocks; ++i) {
            if (::mmap(data_ + i * kBlock, kBlock, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                       fd, 0) == MAP_FAILED) {
                return failed("mmap");
            }
        }
        return {};
    }

    uint8_t* data_ = nullptr;
    uint64_t size_ = 0;
};

struct Described {
    TensorEntry entry;  ///< `offset`: of the first byte in the block
    Fill fill;
};

/// One level of "{first..last}" after the other.
Status expand(const std::string& pattern, std::vector<std::string>* out) {
    const size_t open = pattern.find('{');
    if (open == std::string::npos) {
        out->push_back(pattern);
        return {};
    }
    const size_t close = pattern.find('}', open);
    long long first = 0, last = -1;
    int used = 0;
    if (close == std::string::npos ||
        std::sscanf(pattern.c_str() + open, "{%lld..%lld}%n", &first, &last, &used) != 2 ||
        static_cast<size_t>(used) != close - open + 1 || first < 0 || last < first ||
        last - first >= static_cast<long long>(kMaxTensors)) {
        return error(Code::invalid_argument,
                     "a range is written {{first..last}}, 0 <= first <= "
                     "last, found '{}'",
                     cut_text(pattern.substr(open), 60));
    }
    for (long long i = first; i <= last; ++i) {
        TENON_TRY(
            expand(pattern.substr(0, open) + std::to_string(i) + pattern.substr(close + 1), out));
        if (out->size() > kMaxTensors) {
            return error(Code::invalid_argument, "more than {} tensors", kMaxTensors);
        }
    }
    return {};
}

Status read_fill(const std::string& text, DType dtype, Fill* out) {
    constexpr const char* kExpected =
        "\"bits\", or \"normal S\", \"signs S\", \"value V\" for F32, F16 and BF16, or \"value "
        "V\" for I32";
    const bool real = dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
    if (text == "bits") {
        out->kind = FillKind::bits;
        return {};
    }
    char name[8] = {};
    double scale = 0;
    int used = 0;
    const bool read = std::sscanf(text.c_str(), "%7[a-z] %lf%n", name, &scale, &used) == 2 &&
                      static_cast<size_t>(used) == text.size() && std::isfinite(scale);
    const std::string kind = name;
    if (!read || !(real || (dtype == DType::i32 && kind == "value")) ||
        (kind != "normal" && kind != "signs" && kind != "value")) {
        return error(Code::invalid_argument, "fill is '{}', expected {}", cut_text(text, 60),
                     kExpected);
    }
    out->kind = kind == "normal"  ? FillKind::normal
                : kind == "signs" ? FillKind::signs
                                  : FillKind::value;
    out->scale = scale;
    return {};
}

Status read_entry(const Json& entry, Described* out) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
        !entry.contains("dtype") || !entry["dtype"].is_string() || !entry.contains("fill") ||
        !entry["fill"].is_string() || !entry.contains("shape") || !entry["shape"].is_array()) {
        return error(Code::invalid_argument,
                     "expected an object with name, dtype, shape and fill, found {}",
                     cut_text(entry.dump(-1, ' ', false, Json::error_handler_t::replace), 80));
    }
    TensorEntry& tensor = out->entry;
    tensor.name = entry["name"].get<std::string>();
    if (!safetensors_dtype(entry["dtype"].get<std::string>(), &tensor.dtype)) {
        return error(Code::invalid_argument, "'{}' is no dtype of safetensors",
                     cut_text(entry["dtype"].get<std::string>(), 40));
    }
    tensor.bytes = static_cast<uint64_t>(dtype_bytes(tensor.dtype));
    for (const Json& n : entry["shape"]) {
        if (!n.is_number_unsigned() || n.get<uint64_t>() == 0 ||
            n.get<uint64_t>() > kMaxBytes / tensor.bytes || tensor.shape.size() == kMaxRank) {
            return error(Code::invalid_argument,
                         "shape is {}, expected at most {} numbers from 1, {} bytes together",
                         cut_text(entry["shape"].dump(), 60), kMaxRank, kMaxBytes);
        }
        tensor.shape.push_back(static_cast<int64_t>(n.get<uint64_t>()));
        tensor.bytes *= n.get<uint64_t>();
    }
    return read_fill(entry["fill"].get<std::string>(), tensor.dtype, &out->fill);
}

/// Immutable after `open`, so threads may share it.
class SyntheticWeights final : public Implements<SyntheticWeights, WeightSource> {
  public:
    Status open(const std::string& path) {
        path_ = path;
        TENON_ASSIGN(MappedFile file, MappedFile::open(path));
        const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
        TENON_ASSIGN(const Json json, parse_strict_json(path + ":", text, kMaxJsonDepth));
        if (!json.is_object() || !json.contains("tensors") || !json["tensors"].is_array()) {
            return error(Code::invalid_argument, "{}: has no array 'tensors'", path);
        }
        for (size_t i = 0; i < json["tensors"].size(); ++i) {
            TENON_TRY_CTX(add(json["tensors"][i]), "{}: tensors[{}]", path, i);
        }
        digest_.resize(32);
        unsigned size = 0;
        EVP_Digest(text.data(), text.size(), digest_.data(), &size, EVP_sha256(), nullptr);
        for (const auto& [name, t] : tensors_) {
            order_.push_back(&t);
        }
        return make_ranges();
    }

    uint64_t count() noexcept override { return order_.size(); }
    TensorInfo at(uint64_t index) noexcept override {
        return info_of(order_[index]->entry, path_, index);
    }
    Status find(StrView name, TensorInfo* out) noexcept override {
        return guard([&]() -> Status {
            const auto it = tensors_.find(name.view());
            if (it == tensors_.end()) {
                return error(Code::not_found, "no tensor '{}' in {}", name, path_);
            }
            *out = info_of(it->second.entry, path_, 0);
            return {};
        });
    }
    Status map(StrView name, TensorView* out) noexcept override {
        return guard([&]() -> Status {
            const auto it = tensors_.find(name.view());
            if (it == tensors_.end()) {
                return error(Code::not_found, "no tensor '{}' in {}", name, path_);
            }
            *out = view_of(it->second.entry, bytes_of(it->second));
            return {};
        });
    }
    Status read(StrView name, uint64_t offset, uint64_t bytes, void* dst) noexcept override {
        return guard([&]() -> Status {
            const auto it = tensors_.find(name.view());
            if (it == tensors_.end()) {
                return error(Code::not_found, "no tensor '{}' in {}", name, path_);
            }
            TENON_TRY(check_range(it->second.entry, offset, bytes));
            std::memcpy(dst, bytes_of(it->second) + offset, bytes);
            return {};
        });
    }
    Span<const uint8_t> digest() noexcept override { return digest_; }

  private:
    Status add(const Json& entry) {
        Described described;
        TENON_TRY(read_entry(entry, &described));
        std::vector<std::string> names;
        TENON_TRY(expand(described.entry.name, &names));
        for (const std::string& name : names) {
            // Tensors of one kind begin at different places, a cache line apart at least.
            Random random{std::hash<std::string>{}(name)};
            described.entry.name = name;
            described.entry.offset = random.next() % (kBlock / 256) * 256;
            const auto [it, fresh] = tensors_.try_emplace(name, described);
            if (!fresh) {
                return error(Code::invalid_argument, "tensor '{}' is described twice", it->first);
            }
            if (tensors_.size() > kMaxTensors) {
                return error(Code::invalid_argument, "more than {} tensors", kMaxTensors);
            }
        }
        return {};
    }

    Status make_ranges() {
        std::map<std::pair<DType, Fill>, uint64_t> largest;
        for (const auto& [name, t] : tensors_) {
            uint64_t& bytes = largest[{t.entry.dtype, t.fill}];
            bytes = std::max(bytes, t.entry.bytes);
        }
        for (const auto& [key, bytes] : largest) {
            TENON_TRY(ranges_[key].open(key.first, key.second, bytes));
        }
        return {};
    }

    uint8_t* bytes_of(const Described& t) {
        return ranges_.find({t.entry.dtype, t.fill})->second.data() + t.entry.offset;
    }

    std::string path_;
    std::map<std::string, Described, std::less<>> tensors_;
    std::vector<const Described*> order_;
    std::map<std::pair<DType, Fill>, Range> ranges_;
    std::vector<uint8_t> digest_;
};

}  // namespace

Status open_synthetic(const std::string& path, WeightSource** out) {
    return guard([&]() -> Status {
        auto weights = std::make_unique<SyntheticWeights>();
        TENON_TRY(weights->open(path));
        *out = weights.release();
        return {};
    });
}

}  // namespace tenon
