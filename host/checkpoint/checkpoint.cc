// SPDX-License-Identifier: MIT
// Opens shards, checks them against the index, and serves tensors: views from mappings, copies from
// the disk.
#include "host/checkpoint/checkpoint.h"

#include <openssl/evp.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "host/checkpoint/direct_file.h"
#include "host/checkpoint/mapped_file.h"
#include "host/checkpoint/safetensors.h"
#include "host/checkpoint/strict_json.h"
#include "host/checkpoint/synthetic.h"
#include "host/log/log.h"

namespace tenon {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMaxSmallFile = 64ull << 20;
constexpr int kMaxDepth = 64;

struct Stored {
    TensorEntry entry;
    const MappedFile* shard = nullptr;
};

/// Shards that are open for reads past the page cache: those that were read last, however many the
/// checkpoint has. Any thread.
class OpenShards {
  public:
    /// Bytes [offset, offset + bytes) of the file that was mapped as `checked`. The caller holds
    /// this object, and nothing else is needed while the disk is busy.
    /// errors  io: of the disk, or the file is no longer the one that was mapped
    Status read(const std::string& path, const FileIdentity& checked, uint64_t offset,
                uint64_t bytes, void* dst) {
        TENON_ASSIGN(const std::shared_ptr<DirectFile> file, get(path));
        Status status = file->read(offset, bytes, dst);
        if (!file->direct() && !told_.exchange(true)) {
            log_line(LogLevel::warn, "checkpoint",
                     format("no O_DIRECT file={}: weights are read through the page cache", path));
        }
        // If it is still that file it was so while it was read; else that is why the read failed.
        TENON_ASSIGN(const FileIdentity found, file->identity());
        TENON_TRY(check_identity(path, found, checked));
        return status;
    }

  private:
    static constexpr size_t kMost = 8;
    struct Open {
        std::string path;
        std::shared_ptr<DirectFile> file;
    };

    /// Shared, since a shard may leave the list while others still read it.
    Result<std::shared_ptr<DirectFile>> get(const std::string& path) {
        const std::lock_guard lock(mutex_);
        const auto it =
            std::find_if(open_.begin(), open_.end(), [&](const Open& o) { return o.path == path; });
        if (it != open_.end()) {
            open_.splice(open_.begin(), open_, it);
            return open_.front().file;
        }
        Result<std::unique_ptr<DirectFile>> file = DirectFile::open(path);
        if (!file.ok()) {
            return error(Code::io, "{}; was it removed while in use?", file.status().message());
        }
        open_.push_front({path, std::move(*file)});
        if (open_.size() > kMost) {
            open_.pop_back();
        }
        return open_.front().file;
    }

    std::atomic<bool> told_{false};  // that O_DIRECT is refused
    std::mutex mutex_;               // guards open_
    std::list<Open> open_;           // read last first
};

/// Tensors by name over files. Thread-safe: what is found is immutable after opening.
class FileWeights final : public Implements<FileWeights, WeightSource> {
  public:
    /// Adds the tensors of one file; with `only`, just those that the index assigns to it.
    Status add(const std::string& path, const std::map<std::string, std::string>* index,
               const std::string& shard) {
        TENON_ASSIGN(MappedFile opened, MappedFile::open(path));
        files_.push_back(std::move(opened));
        const MappedFile& mapped = files_.back();
        TENON_ASSIGN(std::vector<TensorEntry> entries,
                     parse_safetensors(path, Span<const uint8_t>(mapped.data(), mapped.size()),
                                       mapped.size()));
        for (TensorEntry& e : entries) {
            if (index != nullptr) {
                const auto it = index->find(e.name);
                if (it == index->end() || it->second != shard) {
                    continue;
                }
            }
            const auto [it, fresh] = tensors_.try_emplace(e.name);
            if (!fresh) {
                return error(Code::invalid_argument, "{}: tensor '{}' is in {} too", path, e.name,
                             it->second.shard->path());
            }
            it->second = {std::move(e), &files_.back()};
        }
        return {};
    }

    /// Call once after the last `add`.
    void seal() {
        order_.reserve(tensors_.size());
        EVP_MD_CTX* ctx = EVP_MD_CTX_new();
        EVP_DigestInit_ex(ctx, EVP_sha256(), nullptr);
        for (const auto& [name, t] : tensors_) {
            order_.push_back(&t);
            const std::string line = format("{}\n{}\n{}\n{}\n", name, dtype_name(t.entry.dtype),
                                            t.entry.bytes, t.entry.offset);
            EVP_DigestUpdate(ctx, line.data(), line.size());
            for (const int64_t n : t.entry.shape) {
                EVP_DigestUpdate(ctx, &n, sizeof n);
            }
        }
        // Identity of the bytes without reading hundreds of gigabytes: size and 64 KiB at both
        // ends.
        for (const MappedFile& f : files_) {
            const uint64_t size = f.size();
            const uint64_t piece = std::min<uint64_t>(size, 65536);
            EVP_DigestUpdate(ctx, &size, sizeof size);
            EVP_DigestUpdate(ctx, f.data(), piece);
            EVP_DigestUpdate(ctx, f.data() + (size - piece), piece);
        }
        digest_.resize(32);
        EVP_DigestFinal_ex(ctx, digest_.data(), nullptr);
        EVP_MD_CTX_free(ctx);
    }

    bool has(const std::string& name) const { return tensors_.count(name) != 0; }

    uint64_t count() noexcept override { return order_.size(); }
    TensorInfo at(uint64_t index) noexcept override { return info(*order_[index], index); }
    Status find(StrView name, TensorInfo* out) noexcept override {
        return guard([&]() -> Status {
            const auto it = tensors_.find(name.view());
            if (it == tensors_.end()) {
                return error(Code::not_found, "no tensor '{}' in the checkpoint", name);
            }
            *out = info(it->second, 0);
            return {};
        });
    }
    Status map(StrView name, TensorView* out) noexcept override {
        return guard([&]() -> Status {
            const auto it = tensors_.find(name.view());
            if (it == tensors_.end()) {
                return error(Code::not_found, "no tensor '{}' in the checkpoint", name);
            }
            const TensorEntry& e = it->second.entry;
            TENON_TRY_CTX(check_mapped(*it->second.shard), "tensor '{}'", name);
            *out = view_of(e, const_cast<uint8_t*>(it->second.shard->data() + e.offset));
            return {};
        });
    }
    Status read(StrView name, uint64_t offset, uint64_t bytes, void* dst) noexcept override {
        return guard([&]() -> Status {
            const auto it = tensors_.find(name.view());
            if (it == tensors_.end()) {
                return error(Code::not_found, "no tensor '{}' in the checkpoint", name);
            }
            const TensorEntry& e = it->second.entry;
            TENON_TRY(check_range(e, offset, bytes));
            // A read that never ends may outlive this object (WeightPipe), so the call holds all
            // that it needs. It may begin before what the caller is after, so the tensor's own
            // place is told.
            const std::shared_ptr<OpenShards> open = open_;
            const std::string path = it->second.shard->path();
            const FileIdentity checked = it->second.shard->identity();
            const uint64_t begin = e.offset;
            const uint64_t end = e.offset + e.bytes;
            TENON_TRY_CTX(open->read(path, checked, begin + offset, bytes, dst),
                          "tensor '{}' (bytes {} to {})", name, begin, end);
            return {};
        });
    }
    Span<const uint8_t> digest() noexcept override { return digest_; }

  private:
    /// A mapping keeps the file that it shows; if another has its name that does not matter, but
    /// what becomes of the file shows in the mapping.
    static Status check_mapped(const MappedFile& shard) {
        struct stat st {};
        if (::stat(shard.path().c_str(), &st) != 0) {
            return {};
        }
        const FileIdentity found(st);
        return found.same_file(shard.identity())
                   ? check_identity(shard.path(), found, shard.identity())
                   : Status();
    }
    static TensorInfo info(const Stored& t, uint64_t index) {
        return info_of(t.entry, t.shard->path(), index);
    }

    std::list<MappedFile> files_;                                        // a list: addresses stay
    std::shared_ptr<OpenShards> open_ = std::make_shared<OpenShards>();  // with reads that run
    std::map<std::string, Stored, std::less<>> tensors_;
    std::vector<const Stored*> order_;
    std::vector<uint8_t> digest_;
};

class FileCheckpoint final : public Implements<FileCheckpoint, Checkpoint> {
  public:
    Status open(const CheckpointOptions& options) {
        std::error_code ec;
        dir_ = fs::weakly_canonical(options.dir, ec).string();
        if (dir_.empty() || !fs::is_directory(dir_, ec)) {
            return error(Code::not_found, "{}: is not a directory", options.dir);
        }
        TENON_TRY(read_config());
        TENON_TRY(open_weights(options));
        return {};
    }

    StrView dir() noexcept override { return dir_; }
    StrView config_json() noexcept override { return config_; }
    WeightSource* weights() noexcept override {
        return synthetic_.get() != nullptr ? synthetic_.get() : has_weights_ ? &weights_ : nullptr;
    }
    Status file(StrView name, StrView* out) noexcept override {
        return guard([&]() -> Status {
            if (name.empty() || name.view().find('/') != std::string_view::npos ||
                name.view().front() == '.') {
                return error(Code::invalid_argument, "'{}' is not the name of a file in {}", name,
                             dir_);
            }
            const auto it = small_.find(name.view());
            if (it != small_.end()) {
                *out = it->second;
                return {};
            }
            const std::string path = dir_ + "/" + name.str();
            TENON_ASSIGN(MappedFile mapped, MappedFile::open(path));
            if (mapped.size() > kMaxSmallFile) {
                return error(Code::io, "{}: has {} bytes, more than the {} of a small file", path,
                             mapped.size(), kMaxSmallFile);
            }
            std::string text(reinterpret_cast<const char*>(mapped.data()), mapped.size());
            *out = small_.emplace(name.str(), std::move(text)).first->second;
            return {};
        });
    }

  private:
    Status read_config() {
        StrView text;
        Status status = file("config.json", &text);
        if (status.code() == Code::not_found) {
            return {};
        }
        TENON_TRY(std::move(status));
        TENON_ASSIGN(const Json json, parse_strict_json(dir_ + "/config.json:", text, kMaxDepth));
        if (!json.is_object()) {
            return error(Code::invalid_argument, "{}/config.json: is not a JSON object", dir_);
        }
        config_ = text.str();
        return {};
    }

    Status open_weights(const CheckpointOptions& options) {
        const std::string described = dir_ + "/" + kSyntheticFile;
        if (options.synthetic) {
            return open_synthetic(described, synthetic_.out());
        }
        StrView text;
        Status status = file("model.safetensors.index.json", &text);
        if (status.ok()) {
            TENON_TRY(open_index(text));
        } else if (status.code() != Code::not_found) {
            return status;
        } else {
            const std::string single = dir_ + "/model.safetensors";
            std::error_code ec;
            if (fs::exists(single, ec)) {
                TENON_TRY(weights_.add(single, nullptr, ""));
                has_weights_ = true;
            } else if (options.need_weights && fs::exists(described, ec)) {
                return error(Code::invalid_argument,
                             "{}: describes weights without values; only `tenon bench "
                             "--synthetic` reads it",
                             described);
            } else if (options.need_weights) {
                return error(Code::not_found,
                             "{}: holds neither model.safetensors.index.json nor model.safetensors",
                             dir_);
            }
        }
        for (const std::string& path : options.extra_tensors) {
            TENON_TRY(weights_.add(path, nullptr, ""));
            has_weights_ = true;
        }
        weights_.seal();
        return {};
    }

    Status open_index(StrView text) {
        const std::string path = dir_ + "/model.safetensors.index.json";
        TENON_ASSIGN(const Json json, parse_strict_json(path + ":", text, kMaxDepth));
        if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
            return error(Code::invalid_argument, "{}: has no object 'weight_map'", path);
        }
        std::map<std::string, std::string> index;
        std::map<std::string, int> shards;
        for (const auto& [name, shard] : json["weight_map"].items()) {
            if (!shard.is_string()) {
                return error(Code::invalid_argument, "{}: weight_map['{}'] is not a file name",
                             path, name);
            }
            const std::string file = shard.get<std::string>();
            if (file.empty() || file.find('/') != std::string::npos || file.front() == '.') {
                return error(Code::invalid_argument,
                             "{}: weight_map['{}'] = '{}' is not a file of this folder", path, name,
                             file);
            }
            index[name] = file;
            shards[file] = 0;
        }
        for (const auto& [shard, unused] : shards) {
            static_cast<void>(unused);
            TENON_TRY_CTX(weights_.add(dir_ + "/" + shard, &index, shard), "{}", path);
        }
        for (const auto& [name, shard] : index) {
            if (!weights_.has(name)) {
                return error(Code::invalid_argument,
                             "{}: tensor '{}' is said to be in {}, which lacks it", path, name,
                             shard);
            }
        }
        has_weights_ = true;
        return {};
    }

    std::string dir_;
    std::string config_;
    FileWeights weights_;
    Ref<WeightSource> synthetic_;
    bool has_weights_ = false;
    std::map<std::string, std::string, std::less<>> small_;
};

}  // namespace

Status open_checkpoint(const CheckpointOptions& options, Checkpoint** out) {
    return guard([&]() -> Status {
        auto checkpoint = std::make_unique<FileCheckpoint>();
        TENON_TRY(checkpoint->open(options));
        *out = checkpoint.release();
        return {};
    });
}

}  // namespace tenon
