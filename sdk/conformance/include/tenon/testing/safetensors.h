// SPDX-License-Identifier: MIT
// A small reader of safetensors files for tests: whole file in memory, each tensor in its own
// aligned buffer.
#pragma once

#include <cctype>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "tenon/tensor.h"

namespace tenon::testing {

/// Test data are trusted to be ours; anything unexpected throws std::runtime_error with the path.
class Safetensors {
  public:
    static Safetensors open(const std::string& path) {
        Safetensors file;
        file.path_ = path;
        std::ifstream in(path, std::ios::binary);
        if (!in) {
            throw std::runtime_error(path + ": cannot open");
        }
        const std::string bytes((std::istreambuf_iterator<char>(in)), {});
        uint64_t header_bytes = 0;
        if (bytes.size() < 8) {
            file.fail("shorter than 8 bytes");
        }
        std::memcpy(&header_bytes, bytes.data(), 8);
        if (header_bytes > bytes.size() - 8) {
            file.fail("header longer than the file");
        }
        Parser parser{file, std::string_view(bytes).substr(8, header_bytes),
                      std::string_view(bytes).substr(8 + header_bytes)};
        parser.run();
        return file;
    }

    bool has(const std::string& name) const { return tensors_.count(name) != 0; }
    /// Dense view on memory that lives as long as this object; data are 64-byte aligned.
    TensorView tensor(const std::string& name) const {
        const auto it = tensors_.find(name);
        if (it == tensors_.end()) {
            fail("no tensor '" + name + "'");
        }
        return it->second;
    }
    std::vector<std::string> names() const {
        std::vector<std::string> out;
        for (const auto& entry : tensors_) {
            out.push_back(entry.first);
        }
        return out;
    }

  private:
    [[noreturn]] void fail(const std::string& what) const {
        throw std::runtime_error(path_ + ": " + what);
    }

    struct Parser {
        Safetensors& file;
        std::string_view text;
        std::string_view data;
        size_t at = 0;

        char peek() {
            while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) {
                ++at;
            }
            return at < text.size() ? text[at] : '\0';
        }
        void expect(char c) {
            if (peek() != c) {
                file.fail(std::string("header: expected '") + c + "' at " + std::to_string(at));
            }
            ++at;
        }
        bool take(char c) {
            if (peek() == c) {
                ++at;
                return true;
            }
            return false;
        }
        std::string string() {
            expect('"');
            std::string out;
            while (at < text.size() && text[at] != '"') {
                if (text[at] == '\\') {
                    ++at;
                }
                out.push_back(text[at++]);
            }
            expect('"');
            return out;
        }
        std::vector<int64_t> integers() {
            std::vector<int64_t> out;
            expect('[');
            while (peek() != ']') {
                size_t used = 0;
                out.push_back(std::stoll(std::string(text.substr(at, 24)), &used));
                at += used;
                take(',');
            }
            expect(']');
            return out;
        }
        void skip_value() {
            int depth = 0;
            do {
                const char c = peek();
                if (c == '"') {
                    string();
                    continue;
                }
                depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
                ++at;
            } while (depth > 0 && at < text.size());
        }
        void run() {
            expect('{');
            while (peek() == '"') {
                const std::string name = string();
                expect(':');
                if (name == "__metadata__") {
                    skip_value();
                } else {
                    tensor(name);
                }
                take(',');
            }
            expect('}');
        }
        void tensor(const std::string& name) {
            std::string dtype;
            std::vector<int64_t> shape;
            std::vector<int64_t> range;
            expect('{');
            while (peek() == '"') {
                const std::string key = string();
                expect(':');
                if (key == "dtype") {
                    dtype = string();
                } else if (key == "shape") {
                    shape = integers();
                } else if (key == "data_offsets") {
                    range = integers();
                } else {
                    skip_value();
                }
                take(',');
            }
            expect('}');
            file.add(name, dtype, shape, range, data);
        }
    };

    void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
             const std::vector<int64_t>& range, std::string_view data) {
        static const std::map<std::string, DType> kTypes = {
            {"F32", DType::f32},      {"F16", DType::f16},      {"BF16", DType::bf16},
            {"F8_E4M3", DType::e4m3}, {"F8_E8M0", DType::e8m0}, {"U8", DType::u8},
            {"BOOL", DType::u8},      {"I8", DType::i8},        {"U16", DType::u16},
            {"I16", DType::i16},      {"U32", DType::u32},      {"I32", DType::i32},
            {"U64", DType::u64},      {"I64", DType::i64}};
        const auto type = kTypes.find(dtype);
        if (type == kTypes.end()) {
            fail(name + ": dtype " + dtype + " is not supported");
        }
        if (shape.size() > kMaxRank || range.size() != 2) {
            fail(name + ": bad shape or offsets");
        }
        TensorView v;
        v.dtype = type->second;
        v.rank = static_cast<uint16_t>(shape.size());
        int64_t stride = 1;
        for (int i = v.rank - 1; i >= 0; --i) {
            v.shape[i] = shape[static_cast<size_t>(i)];
            v.stride[i] = stride;
            stride *= v.shape[i];
        }
        const int64_t size = range[1] - range[0];
        if (size != v.bytes() || range[0] < 0 || range[1] > static_cast<int64_t>(data.size())) {
            fail(name + ": offsets do not fit the shape or the file");
        }
        auto* memory = static_cast<char*>(
            ::operator new (static_cast<size_t>(size) + 64, std::align_val_t{64}));
        buffers_.emplace_back(memory);
        std::memcpy(memory, data.data() + range[0], static_cast<size_t>(size));
        v.data = memory;
        tensors_[name] = v;
    }

    struct Free {
        void operator()(char* p) const { ::operator delete (p, std::align_val_t{64}); }
    };

    std::string path_;
    std::map<std::string, TensorView> tensors_;
    std::vector<std::unique_ptr<char, Free>> buffers_;
};

}  // namespace tenon::testing
