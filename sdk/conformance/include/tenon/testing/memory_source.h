// SPDX-License-Identifier: MIT
// A WeightSource that lives in memory, so that tests can build checkpoints tensor by tensor and
// break them on purpose.
#pragma once

#include <algorithm>
#include <map>
#include <memory>

#include "tenon/weights.h"

namespace tenon::testing {

/// Named tensors in memory, listed in name order.
///
/// Create with `new` and own with Ref (or call `release`). Tensors may be added, replaced and
/// removed until a loader looks; views given out by `map` die with the tensor.
class MemorySource final : public Implements<MemorySource, WeightSource> {
  public:
    /// Adds or replaces a tensor; `bytes` are copied. A byte count that does not fit the shape is
    /// kept as it is (a malformed file looks like that).
    void add_bytes(std::string_view name, DType dtype, std::vector<int64_t> shape,
                   const void* bytes, uint64_t byte_count) {
        auto entry = std::make_unique<Entry>();
        entry->name = name;
        entry->shape = std::move(shape);
        entry->words.resize((byte_count + 15) / 16 * 2);
        if (byte_count != 0) {
            std::memcpy(entry->words.data(), bytes, byte_count);
        }
        entry->info.dtype = dtype;
        entry->info.rank = static_cast<uint16_t>(entry->shape.size());
        for (size_t i = 0; i < entry->shape.size() && i < static_cast<size_t>(kMaxRank); ++i) {
            entry->info.shape[i] = entry->shape[i];
        }
        entry->info.bytes = byte_count;
        entry->info.name = entry->name;
        entry->info.file = "memory";
        tensors_[entry->name] = std::move(entry);
        list_.clear();
    }

    /// Adds or replaces a tensor whose elements are the given values (any 1, 2, 4 or 8 byte type).
    template <class T>
    void add(std::string_view name, DType dtype, std::vector<int64_t> shape,
             const std::vector<T>& values) {
        add_bytes(name, dtype, std::move(shape), values.data(), values.size() * sizeof(T));
    }

    /// Adds a copy of a dense view.
    void add(std::string_view name, const TensorView& v) {
        add_bytes(name, v.dtype, std::vector<int64_t>(v.shape, v.shape + v.rank), v.data,
                  static_cast<uint64_t>(v.bytes()));
    }

    /// Removes a tensor; a name that is not there is no error.
    void remove(std::string_view name) {
        tensors_.erase(std::string(name));
        list_.clear();
    }

    /// Gives a tensor another name.
    void rename(std::string_view from, std::string_view to) {
        const auto it = tensors_.find(std::string(from));
        TENON_CHECK(it != tensors_.end(), "{}", from);
        const Entry& e = *it->second;
        add_bytes(to, e.info.dtype, e.shape, e.words.data(), e.info.bytes);
        remove(from);
    }

    /// The bytes of a tensor, writable, to damage them; null if there is none of that name.
    uint8_t* bytes(std::string_view name) {
        const auto it = tensors_.find(std::string(name));
        return it == tensors_.end() ? nullptr
                                    : reinterpret_cast<uint8_t*>(it->second->words.data());
    }

    /// All tensors of another source, with `prefix` in front of their names.
    Status add_all(WeightSource& other, std::string_view prefix = "") {
        for (uint64_t i = 0; i < other.count(); ++i) {
            const TensorInfo info = other.at(i);
            TensorView view;
            TENON_TRY(other.map(info.name, &view));
            add_bytes(std::string(prefix) + info.name.str(), info.dtype,
                      std::vector<int64_t>(info.shape, info.shape + info.rank), view.data,
                      info.bytes);
        }
        return {};
    }

    uint64_t count() noexcept override { return tensors_.size(); }

    TensorInfo at(uint64_t index) noexcept override {
        if (list_.size() != tensors_.size()) {
            list_.clear();
            for (const auto& [name, entry] : tensors_) {
                list_.push_back(entry.get());
            }
        }
        TENON_CHECK(index < list_.size(), "index {}, tensors {}", index, list_.size());
        TensorInfo info = list_[index]->info;
        info.index = index;
        return info;
    }

    Status find(StrView name, TensorInfo* out) noexcept override {
        const auto it = tensors_.find(name.str());
        if (it == tensors_.end()) {
            return error(Code::not_found, "no tensor named '{}'", name);
        }
        *out = it->second->info;
        out->index = static_cast<uint64_t>(std::distance(tensors_.begin(), it));
        return {};
    }

    Status map(StrView name, TensorView* out) noexcept override {
        TensorInfo info;
        TENON_TRY(find(name, &info));
        TensorView v = make_view(tensors_.find(name.str())->second->words.data(), info.dtype, {});
        v.rank = info.rank;
        int64_t stride = 1;
        for (int i = info.rank - 1; i >= 0; --i) {
            v.shape[i] = info.shape[i];
            v.stride[i] = stride;
            stride *= v.shape[i];
        }
        *out = v;
        return {};
    }

    Status read(StrView name, uint64_t offset, uint64_t byte_count, void* dst) noexcept override {
        TensorInfo info;
        TENON_TRY(find(name, &info));
        if (offset > info.bytes || byte_count > info.bytes - offset) {
            return error(Code::invalid_argument,
                         "{}: bytes [{}, {} + {}) lie outside of its {} bytes", name, offset,
                         offset, byte_count, info.bytes);
        }
        std::memcpy(dst, bytes(name.view()) + offset, byte_count);
        return {};
    }

    /// Not a SHA-256: 32 bytes that change with names and shapes, enough for a test's identity.
    Span<const uint8_t> digest() noexcept override {
        uint64_t h = 14695981039346656037ull;
        for (const auto& [name, entry] : tensors_) {
            for (const char c : name) {
                h = (h ^ static_cast<uint8_t>(c)) * 1099511628211ull;
            }
            for (const int64_t n : entry->shape) {
                h = (h ^ static_cast<uint64_t>(n)) * 1099511628211ull;
            }
        }
        for (int i = 0; i < 4; ++i) {
            std::memcpy(digest_ + 8 * i, &h, 8);
            h = h * 6364136223846793005ull + 1442695040888963407ull;
        }
        return {digest_, 32};
    }

  private:
    struct Entry {
        std::string name;
        std::vector<int64_t> shape;
        std::vector<uint64_t> words;  // 16-byte granules, so that views are aligned
        TensorInfo info;
    };
    std::map<std::string, std::unique_ptr<Entry>> tensors_;
    std::vector<const Entry*> list_;
    uint8_t digest_[32] = {};
};

}  // namespace tenon::testing
