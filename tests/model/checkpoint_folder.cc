// SPDX-License-Identifier: MIT
// Reading of test checkpoints.
#include "model/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>

namespace tenon::testing {

namespace fs = std::filesystem;

namespace {

std::string read_text(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) {
        throw std::runtime_error(path.string() + ": cannot open");
    }
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

DType dtype_of(const std::string& name) {
    static const std::map<std::string, DType> kTypes = {
        {"F32", DType::f32},      {"F16", DType::f16},      {"BF16", DType::bf16},
        {"F8_E4M3", DType::e4m3}, {"F8_E8M0", DType::e8m0}, {"U8", DType::u8},
        {"I8", DType::i8},        {"U16", DType::u16},      {"I16", DType::i16},
        {"U32", DType::u32},      {"I32", DType::i32},      {"U64", DType::u64},
        {"I64", DType::i64},      {"BOOL", DType::u8}};
    const auto found = kTypes.find(name);
    if (found == kTypes.end()) {
        throw std::runtime_error("dtype " + name);
    }
    return found->second;
}

}  // namespace

class CheckpointFolder::Source final : public WeightSource {
  public:
    ~Source() {
        for (const Mapping& m : mappings_) {
            ::munmap(m.data, m.bytes);
        }
    }
    void add(const fs::path& path) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        struct stat info = {};
        if (fd < 0 || ::fstat(fd, &info) != 0) {
            throw std::runtime_error(path.string() + ": cannot open");
        }
        const auto bytes = static_cast<size_t>(info.st_size);
        void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        ::close(fd);
        if (data == MAP_FAILED) {
            throw std::runtime_error(path.string() + ": cannot map");
        }
        mappings_.push_back({data, bytes, path.string()});
        uint64_t header = 0;
        std::memcpy(&header, data, 8);
        const char* text = static_cast<const char*>(data) + 8;
        const auto json = nlohmann::json::parse(text, text + header);
        for (const auto& [name, entry] : json.items()) {
            if (name == "__metadata__") {
                continue;
            }
            Entry e;
            e.mapping = mappings_.size() - 1;
            e.info.dtype = dtype_of(entry["dtype"]);
            e.info.rank = static_cast<uint16_t>(entry["shape"].size());
            for (size_t i = 0; i < entry["shape"].size(); ++i) {
                e.info.shape[i] = entry["shape"][i];
            }
            e.info.offset = 8 + header + entry["data_offsets"][0].get<uint64_t>();
            e.info.bytes =
                entry["data_offsets"][1].get<uint64_t>() - entry["data_offsets"][0].get<uint64_t>();
            entries_[name] = e;
        }
    }
    void remove(const std::string& name) { entries_.erase(name); }

    void* query(StrView facet) noexcept override {
        return facet == StrView(WeightSource::kFacet) ? static_cast<WeightSource*>(this) : nullptr;
    }
    void release() noexcept override {}
    uint64_t count() noexcept override { return entries_.size(); }
    TensorInfo at(uint64_t index) noexcept override {
        auto it = entries_.begin();
        std::advance(it, static_cast<int64_t>(index));
        return shown(it);
    }
    Status find(StrView name, TensorInfo* out) noexcept override {
        const auto it = entries_.find(name.str());
        if (it == entries_.end()) {
            return error(Code::not_found, "no tensor named '{}'", name);
        }
        *out = shown(it);
        return {};
    }
    Status map(StrView name, TensorView* out) noexcept override {
        TensorInfo info;
        TENON_TRY(find(name, &info));
        const Entry& e = entries_.find(name.str())->second;
        TensorView v =
            make_view(static_cast<char*>(mappings_[e.mapping].data) + info.offset, info.dtype, {});
        v.rank = info.rank;
        int64_t stride = 1;
        for (int i = info.rank - 1; i >= 0; --i) {
            v.shape[i] = info.shape[i];
            v.stride[i] = stride;
            stride *= info.shape[i];
        }
        *out = v;
        return {};
    }
    Status read(StrView name, uint64_t offset, uint64_t bytes, void* dst) noexcept override {
        TensorInfo info;
        TENON_TRY(find(name, &info));
        if (offset > info.bytes || bytes > info.bytes - offset) {
            return error(Code::invalid_argument, "{}: range", name);
        }
        const Entry& e = entries_.find(name.str())->second;
        std::memcpy(dst, static_cast<const char*>(mappings_[e.mapping].data) + info.offset + offset,
                    bytes);
        return {};
    }
    Span<const uint8_t> digest() noexcept override { return {digest_, 32}; }

  private:
    struct Mapping {
        void* data;
        size_t bytes;
        std::string path;
    };
    struct Entry {
        TensorInfo info;
        size_t mapping = 0;
    };
    using Entries = std::map<std::string, Entry>;
    TensorInfo shown(Entries::iterator it) {
        TensorInfo info = it->second.info;
        info.name = it->first;
        info.file = mappings_[it->second.mapping].path;
        info.index = static_cast<uint64_t>(std::distance(entries_.begin(), it));
        return info;
    }

    std::vector<Mapping> mappings_;
    Entries entries_;
    uint8_t digest_[32] = {7};
};

CheckpointFolder::CheckpointFolder(const fs::path& dir)
    : dir_(dir.string()), source_(std::make_unique<Source>()) {
    if (fs::exists(dir / "config.json")) {
        config_ = read_text(dir / "config.json");
    }
    if (fs::exists(dir / "model.safetensors.index.json")) {
        const auto index = nlohmann::json::parse(read_text(dir / "model.safetensors.index.json"));
        std::set<std::string> shards;
        for (const auto& [name, shard] : index["weight_map"].items()) {
            shards.insert(shard.get<std::string>());
        }
        for (const std::string& shard : shards) {
            if (fs::exists(dir / shard)) {
                source_->add(dir / shard);
            }
        }
    } else if (fs::exists(dir / "model.safetensors")) {
        source_->add(dir / "model.safetensors");
    } else {
        source_.reset();
    }
}

CheckpointFolder::~CheckpointFolder() = default;

void CheckpointFolder::add_file(const fs::path& file) {
    source_->add(file);
}

void CheckpointFolder::remove(const std::string& name) {
    source_->remove(name);
}

WeightSource* CheckpointFolder::weights() noexcept {
    return source_.get();
}

Status CheckpointFolder::file(StrView name, StrView* out) noexcept {
    const fs::path path = fs::path(dir_) / name.str();
    if (!fs::exists(path)) {
        return error(Code::not_found, "{}: no such file", path);
    }
    return guard([&]() -> Status {
        std::string& text = files_[name.str()];
        if (text.empty()) {
            text = read_text(path);
        }
        *out = text;
        return {};
    });
}

}  // namespace tenon::testing
