// SPDX-License-Identifier: MIT
// Checkpoints: reading, and each malformed file with its message.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "host/checkpoint/checkpoint.h"
#include "host/checkpoint/direct_file.h"
#include "host/checkpoint/safetensors.h"
#include "unit/host_support.h"

namespace tenon {
namespace {

std::string file_of(const std::string& header, const std::string& data,
                    uint64_t claimed = UINT64_MAX) {
    const uint64_t length = claimed == UINT64_MAX ? header.size() : claimed;
    std::string out(reinterpret_cast<const char*>(&length), 8);
    return out + header + data;
}

constexpr const char* kTwo =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}})";

Status open(const testing::TempFolder& folder, Ref<Checkpoint>* out,
            std::vector<std::string> extra = {}) {
    return open_checkpoint({folder.path(), std::move(extra), true}, out->out());
}

/// Nothing aligns the bytes of a file, so they are copied out.
float float_at(const TensorView& v, int64_t i) {
    float out;
    std::memcpy(&out, v.as<char>() + i * static_cast<int64_t>(sizeof out), sizeof out);
    return out;
}

TEST(Checkpoint, Serves_tensors_by_name_with_shape_and_bytes) {
    testing::TempFolder folder;
    const float values[2] = {1.5f, -2.0f};
    folder.write("model.safetensors",
                 file_of(kTwo, std::string(reinterpret_cast<const char*>(values), 8) + "abcd"));
    Ref<Checkpoint> c;
    ASSERT_TRUE(open(folder, &c).ok());

    WeightSource& w = *c->weights();
    TensorView v;
    ASSERT_TRUE(w.map("a", &v).ok());
    EXPECT_EQ(float_at(v, 1), -2.0f);
    TensorInfo info;
    ASSERT_TRUE(w.find("b", &info).ok());
    EXPECT_EQ(info.rank, 2);
    EXPECT_EQ(info.bytes, 4u);
    char piece[2];
    ASSERT_TRUE(w.read("b", 1, 2, piece).ok());
    EXPECT_EQ(std::string(piece, 2), "bc");
    EXPECT_EQ(w.read("b", 3, 2, piece).code(), Code::invalid_argument);
    EXPECT_EQ(w.find("c", &info).code(), Code::not_found);
    EXPECT_EQ(w.count(), 2u);
}

TEST(Checkpoint, Without_an_index_other_files_are_read_only_when_named) {
    testing::TempFolder folder;
    folder.write("model.safetensors", file_of(kTwo, std::string(12, 'x')));
    const std::string more =
        folder.write("more.safetensors",
                     file_of(R"({"c":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "z"));
    Ref<Checkpoint> alone;
    Ref<Checkpoint> both;
    ASSERT_TRUE(open(folder, &alone).ok());
    ASSERT_TRUE(open(folder, &both, {more}).ok());

    EXPECT_EQ(alone->weights()->count(), 2u);
    EXPECT_EQ(both->weights()->count(), 3u);
    Ref<Checkpoint> twice;
    const Status status = open(folder, &twice, {more, more});
    EXPECT_NE(status.message().str().find("tensor 'c' is in"), std::string::npos)
        << status.message().str();
}

TEST(Checkpoint, An_index_decides_which_file_holds_a_tensor) {
    testing::TempFolder folder;
    folder.write("one.safetensors", file_of(kTwo, std::string(12, 'x')));
    folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "one.safetensors"}})");
    Ref<Checkpoint> c;
    ASSERT_TRUE(open(folder, &c).ok());
    EXPECT_EQ(c->weights()->count(), 1u);
}

TEST(Checkpoint, Write_and_read_round_trip) {
    testing::TempFolder folder;
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const int32_t b[1] = {7};
    ASSERT_TRUE(write_safetensors(folder.path() + "/model.safetensors",
                                  {{"x", DType::f32, {2, 3}, a}, {"y", DType::i32, {1}, b}})
                    .ok());
    Ref<Checkpoint> c;
    ASSERT_TRUE(open(folder, &c).ok());
    TensorView v;
    ASSERT_TRUE(c->weights()->map("x", &v).ok());
    EXPECT_EQ(v.shape[1], 3);
    EXPECT_EQ(float_at(v, 5), 6.0f);
}

struct Broken {
    const char* name;
    std::string file;
    const char* expected;
};

void PrintTo(const Broken& broken, std::ostream* out) {
    *out << broken.name;
}

std::string entry(const char* body) {
    return std::string(R"({"a":)") + body + "}";
}

const Broken kBroken[] = {
    {"empty", "", "too short for a safetensors file"},
    {"seven_bytes", "1234567", "too short"},
    {"huge_header", file_of("{}", "", uint64_t{1} << 60),
     "its header claims 1152921504606846976 bytes"},
    {"header_past_end", file_of("{}", "", 3), "its header claims 3 bytes"},
    {"not_json", file_of("{a", ""), "is not valid JSON"},
    {"json_list", file_of("[]", ""), "is not a JSON object"},
    {"deep", file_of(R"({"a":{"b":[[[[[[[[[[[[1]]]]]]]]]]]]}})", ""),
     "its header is not valid JSON: nested more than 4 deep"},
    {"invalid_utf8", file_of("{\"\xff\":1}", ""), "is not valid JSON"},
    {"duplicate",
     file_of(
         R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
         "x"),
     "its header has the key 'a' twice"},
    {"duplicate_field",
     file_of(entry(R"({"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,1]})"), "x"),
     "its header has the key 'dtype' twice"},
    {"shape_is_text", file_of(entry(R"({"dtype":"U8","shape":"1","data_offsets":[0,1]})"), "x"),
     "shape must be a list"},
    {"one_offset", file_of(entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})"), "x"),
     "data_offsets must be two counts"},
    {"negative_offset", file_of(entry(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})"), "x"),
     "data_offsets must be two counts"},
    {"huge_dim",
     file_of(entry(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]})"), "x"),
     "something other than a count"},
    {"truncated_data", file_of(kTwo, std::string(11, 'x')),
     "data_offsets [8, 12] lie outside the file's 11 data bytes; is the file complete?"},
    {"entry_is_number", file_of(entry("3"), ""),
     "expected an object with dtype, shape and data_offsets"},
    {"no_dtype", file_of(entry(R"({"shape":[1],"data_offsets":[0,1]})"), "x"),
     "expected an object with"},
    {"odd_dtype", file_of(entry(R"({"dtype":"F7","shape":[1],"data_offsets":[0,1]})"), "x"),
     "unknown dtype \"F7\""},
    {"dtype_number", file_of(entry(R"({"dtype":7,"shape":[1],"data_offsets":[0,1]})"), "x"),
     "unknown dtype 7"},
    {"negative_dim", file_of(entry(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"), "x"),
     "something other than a count"},
    {"float_dim", file_of(entry(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})"), "x"),
     "something other than a count"},
    {"many_dims",
     file_of(entry(R"({"dtype":"U8","shape":[1,1,1,1,1,1,1],"data_offsets":[0,1]})"), "x"),
     "shape must be a list of at most 6"},
    {"overflow",
     file_of(
         entry(R"({"dtype":"F32","shape":[281474976710656,281474976710656],"data_offsets":[0,1]})"),
         "x"),
     "more than 2^56 bytes"},
    {"offsets_swapped", file_of(entry(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})"), "x"),
     "lie outside the file's 1 data bytes"},
    {"offsets_outside", file_of(entry(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})"), "x"),
     "is the file complete?"},
    {"size_mismatch", file_of(entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,1]})"), "x"),
     "hold 1 bytes, but its dtype and shape need 4"},
    {"overlap",
     file_of(
         R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
         "xyz"),
     "the data of tensors 'a' and 'b' overlap"},
    {"overlap_around_an_empty_one",
     file_of(
         R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"c":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
         "wxyz"),
     "the data of tensors 'a' and 'c' overlap"},
};

class CheckpointBroken : public ::testing::TestWithParam<Broken> {};

TEST_P(CheckpointBroken, Is_refused_with_file_and_reason) {
    testing::TempFolder folder;
    folder.write("model.safetensors", GetParam().file);
    Ref<Checkpoint> c;
    const Status status = open(folder, &c);

    ASSERT_FALSE(status.ok());
    const std::string message = status.message().str();
    EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
    EXPECT_NE(message.find("model.safetensors"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointBroken, ::testing::ValuesIn(kBroken),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Checkpoint, Broken_folders_and_indexes_are_named) {
    testing::TempFolder folder;
    Ref<Checkpoint> c;
    EXPECT_NE(open(folder, &c).message().str().find("holds neither"), std::string::npos);
    EXPECT_EQ(open_checkpoint({folder.path() + "/gone", {}, true}, c.out()).code(),
              Code::not_found);
    const auto index = [&](const std::string& text) {
        folder.write("model.safetensors.index.json", text);
        return open(folder, &c).message().str();
    };
    EXPECT_NE(index("{").find("is not valid JSON"), std::string::npos);
    EXPECT_NE(index("{}").find("has no object 'weight_map'"), std::string::npos);
    EXPECT_NE(index(R"({"weight_map": {"a": "x", "a": "y"}})").find("has the key 'a' twice"),
              std::string::npos);
    EXPECT_NE(index(R"({"weight_map": {"a": 1}})").find("weight_map['a'] is not a file name"),
              std::string::npos);
    EXPECT_NE(index(R"({"weight_map": {"a": "../x"}})").find("is not a file of this folder"),
              std::string::npos);
    EXPECT_NE(index(R"({"weight_map": {"a": "gone.safetensors"}})")
                  .find("gone.safetensors: cannot be opened"),
              std::string::npos);
    folder.write("one.safetensors", file_of(kTwo, std::string(12, 'x')));
    EXPECT_NE(index(R"({"weight_map": {"zz": "one.safetensors"}})")
                  .find("tensor 'zz' is said to be in one.safetensors"),
              std::string::npos);
    folder.write("config.json", "[1");
    EXPECT_NE(open(folder, &c).message().str().find("config.json: is not valid JSON"),
              std::string::npos);
}

TEST(Checkpoint, A_cut_shard_among_whole_ones_is_named) {
    testing::TempFolder folder;
    folder.write("model-00001-of-00002.safetensors", file_of(kTwo, std::string(12, 'x')));
    const std::string second = file_of(
        R"({"c":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}})", std::string(256, 'y'));
    folder.write(
        "model.safetensors.index.json",
        R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}})");
    Ref<Checkpoint> c;

    // Inside the length, the header, and the data.
    for (const size_t kept : {size_t{0}, size_t{7}, size_t{8}, size_t{40}, second.size() - 1}) {
        folder.write("model-00002-of-00002.safetensors", second.substr(0, kept));
        const Status status = open(folder, &c);
        EXPECT_EQ(status.code(), Code::invalid_argument) << kept;
        EXPECT_NE(status.message().str().find("model-00002-of-00002.safetensors: "),
                  std::string::npos)
            << kept << ": " << status.message().str();
    }
    folder.write("model-00002-of-00002.safetensors", second);
    EXPECT_TRUE(open(folder, &c).ok());
}

/// One tensor of `bytes` bytes from a seed, behind a header whose length nothing aligns.
std::string file_of_noise(uint64_t bytes, std::string* data) {
    data->resize(bytes);
    uint32_t state = 1;
    for (char& c : *data) {
        state = state * 1664525u + 1013904223u;
        c = static_cast<char>(state >> 24);
    }
    const std::string size = std::to_string(bytes);
    return file_of(
        R"({"t":{"dtype":"U8","shape":[)" + size + R"(],"data_offsets":[0,)" + size + "]}}", *data);
}

/// Reads of all kinds of ends from a source of `data`, into memory of all alignments.
void expect_ranges(WeightSource& source, const std::string& data, uint64_t seed) {
    const uint64_t size = data.size();
    std::vector<std::pair<uint64_t, uint64_t>> ranges = {
        {0, size}, {0, 0}, {size, 0}, {0, 1}, {size - 1, 1}, {size - 5000, 5000}, {4095, 2}};
    for (int i = 0; i < 60; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const uint64_t first = (seed >> 33) % size;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const uint64_t most = i % 3 == 0 ? size - first : std::min<uint64_t>(size - first, 9000);
        ranges.push_back({first, (seed >> 33) % (most + 1)});
    }
    TensorInfo info;
    ASSERT_TRUE(source.find("t", &info).ok());
    std::vector<char> memory(size + 3 * DirectFile::kBlock);
    char* blocks = memory.data() + DirectFile::kBlock -
                   reinterpret_cast<uintptr_t>(memory.data()) % DirectFile::kBlock;
    for (size_t i = 0; i < ranges.size(); ++i) {
        const auto [first, bytes] = ranges[i];
        // Every other one as the file lies, so that blocks go straight into it.
        char* to = blocks + (i % 2 == 0 ? (info.offset + first) % DirectFile::kBlock : i % 64 + 1);
        to[-1] = to[bytes] = 0x55;
        ASSERT_TRUE(source.read("t", first, bytes, to).ok()) << first << " + " << bytes;
        ASSERT_EQ(std::memcmp(to, data.data() + first, bytes), 0) << first << " + " << bytes;
        ASSERT_TRUE(to[-1] == 0x55 && to[bytes] == 0x55) << first << " + " << bytes;
    }
}

TEST(Checkpoint, Reads_any_range_from_the_disk_as_the_mapping_shows_it) {
    // The second is no disk: whether it takes O_DIRECT is up to the kernel.
    for (const std::filesystem::path& where :
         {std::filesystem::temp_directory_path(), std::filesystem::path("/dev/shm")}) {
        std::error_code ec;
        if (!std::filesystem::is_directory(where, ec)) {
            continue;
        }
        testing::TempFolder folder(where);
        std::string data;
        folder.write("model.safetensors", file_of_noise(5'000'123, &data));
        Ref<Checkpoint> c;
        const Status opened = open(folder, &c);
        ASSERT_TRUE(opened.ok()) << opened.message().str();
        TensorView mapped;
        ASSERT_TRUE(c->weights()->map("t", &mapped).ok());
        ASSERT_EQ(std::memcmp(mapped.data, data.data(), data.size()), 0);

        std::vector<std::thread> threads;
        for (uint64_t i = 0; i < 4; ++i) {
            threads.emplace_back([&, i] { expect_ranges(*c->weights(), data, i); });
        }
        for (std::thread& t : threads) {
            t.join();
        }
        EXPECT_EQ(c->weights()->read("t", data.size() - 1, 2, nullptr).code(),
                  Code::invalid_argument);
    }
}

TEST(Checkpoint, A_file_cut_while_in_use_is_an_error_that_names_tensor_and_byte) {
    testing::TempFolder folder;
    std::string data;
    const std::string path = folder.write("model.safetensors", file_of_noise(100'000, &data));
    Ref<Checkpoint> c;
    ASSERT_TRUE(open(folder, &c).ok());
    Result<std::unique_ptr<DirectFile>> file = DirectFile::open(path);
    ASSERT_TRUE(file.ok());
    for (const uint64_t left : {uint64_t{50'000}, uint64_t{8192}}) {
        std::filesystem::resize_file(path, left);
        std::vector<char> to(data.size());

        const Status status = c->weights()->read("t", 0, data.size(), to.data());
        const Status plain = (*file)->read(0, data.size(), to.data());

        EXPECT_EQ(status.code(), Code::io);
        const std::string text = status.message().str();
        TensorInfo info;
        ASSERT_TRUE(c->weights()->find("t", &info).ok());
        const std::string where =
            format("tensor 't' (bytes {} to {}): ", info.offset, info.offset + info.bytes);
        EXPECT_NE(text.find(where + path), std::string::npos) << text;
        EXPECT_NE(text.find(" was cut after its header was checked: found "), std::string::npos)
            << text;
        EXPECT_NE(text.find(format(", {} bytes, written", left)), std::string::npos) << text;
        EXPECT_EQ(plain.code(), Code::io);
        EXPECT_NE(plain.message().str().find(format("ends at byte {}, expected", left)),
                  std::string::npos)
            << plain.message().str();
    }
}

/// What becomes of a shard while a checkpoint is open; contents are of 100,000 bytes' length.
struct Changed {
    const char* name;
    std::function<void(const std::string& path, const std::string& content)> change;
    const char* expected;
    bool same_file;  ///< what is mapped or open has changed, not only what the path names
};

const Changed kChanged[] = {
    {"replaced",
     [](const std::string& path, const std::string& content) {
         std::ofstream(path + ".new", std::ios::binary) << content;
         std::filesystem::rename(path + ".new", path);
     },
     "was replaced by another file after", false},
    {"cut",
     [](const std::string& path, const std::string& content) {
         std::filesystem::resize_file(path, content.size() - 1);
     },
     "was cut after", true},
    {"extended",
     [](const std::string& path, const std::string&) {
         std::ofstream(path, std::ios::binary | std::ios::app) << "x";
     },
     "was extended after", true},
    {"written_to",
     [](const std::string& path, const std::string& content) {
         // The same bytes at a time that no clock's step can hide.
         std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << content;
         const auto at = std::filesystem::last_write_time(path);
         std::filesystem::last_write_time(path, at + std::chrono::seconds(2));
     },
     "was written to after", true},
};

TEST(Checkpoint, A_shard_that_is_not_the_one_that_was_checked_is_refused) {
    for (const Changed& c : kChanged) {
        for (const bool opened : {false, true}) {
            SCOPED_TRACE(format("{} {}", c.name, opened ? "between reads" : "before the first"));
            testing::TempFolder folder;
            std::string data;
            const std::string content = file_of_noise(100'000, &data);
            const std::string path = folder.write("model.safetensors", content);
            Ref<Checkpoint> checkpoint;
            ASSERT_TRUE(open(folder, &checkpoint).ok());
            WeightSource& w = *checkpoint->weights();
            char byte = 0;
            ASSERT_TRUE(!opened || w.read("t", 0, 1, &byte).ok());

            c.change(path, content);

            TensorView view;
            const Status mapped = w.map("t", &view);
            const Status read = w.read("t", 0, 1, &byte);
            if (opened && !c.same_file) {
                EXPECT_TRUE(read.ok());  // the open file is the one that was checked
            } else {
                EXPECT_EQ(read.code(), Code::io);
                const std::string text = read.message().str();
                EXPECT_NE(text.find(path + ": " + c.expected), std::string::npos) << text;
                EXPECT_NE(text.find(format(" {} bytes, ", content.size())), std::string::npos);
                EXPECT_NE(text.find("tensor 't'"), std::string::npos) << text;
            }
            EXPECT_EQ(mapped.ok(), !c.same_file);
            EXPECT_EQ(mapped.message().str().find(c.expected) != std::string::npos, c.same_file)
                << mapped.message().str();
        }
    }
}

TEST(Checkpoint, Many_shards_are_read_through_few_descriptors) {
    testing::TempFolder folder;
    std::string index = R"({"weight_map": {)";
    for (int i = 0; i < 40; ++i) {
        const std::string shard = format("s{}.safetensors", i);
        folder.write(shard, file_of(R"({"t)" + std::to_string(i) +
                                        R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                                    std::to_string(1000 + i)));
        index += format(R"({}"t{}": "{}")", i == 0 ? "" : ", ", i, shard);
    }
    folder.write("model.safetensors.index.json", index + "}}");
    Ref<Checkpoint> c;
    const auto descriptors = [] {
        const std::filesystem::directory_iterator all("/proc/self/fd");
        return std::distance(begin(all), end(all));
    };
    const auto before = descriptors();
    const Status opened = open(folder, &c);
    ASSERT_TRUE(opened.ok()) << opened.message().str();

    // Several at a time, and back and forth: a shard that others still read may be put aside.
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int n = 0; n < 200; ++n) {
                const int i = (n * 7 + t * 11) % 40;
                char got[5] = {};
                wrong += !c->weights()->read(format("t{}", i), 0, 4, got).ok() ||
                         std::to_string(1000 + i) != got;
            }
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(descriptors() - before, 8);

    std::filesystem::remove(folder.path() + "/s3.safetensors");
    for (int i = 4; i < 14; ++i) {
        char got[4];
        EXPECT_TRUE(c->weights()->read(format("t{}", i), 0, 4, got).ok());
    }
    char got[4];
    const Status gone = c->weights()->read("t3", 0, 4, got);
    EXPECT_EQ(gone.code(), Code::io);
    EXPECT_NE(gone.message().str().find("s3.safetensors: cannot be opened"), std::string::npos)
        << gone.message().str();
}

TEST(DirectFile, The_reason_of_a_failed_read_is_told) {
    // Nothing is mapped at address 0: a read there is an I/O error.
    Result<std::unique_ptr<DirectFile>> file = DirectFile::open("/proc/self/mem");
    ASSERT_TRUE(file.ok()) << file.status().message().str();
    char byte = 0;
    const Status status = (*file)->read(0, 1, &byte);
    EXPECT_EQ(status.code(), Code::io);
    EXPECT_NE(
        status.message().str().find("/proc/self/mem: cannot be read at byte 0: Input/output error"),
        std::string::npos)
        << status.message().str();
    EXPECT_EQ(DirectFile::open("/gone/file").status().code(), Code::not_found);
}

TEST(Checkpoint, Small_files_stay_inside_the_folder) {
    testing::TempFolder folder;
    folder.write("model.safetensors", file_of("{}", ""));
    folder.write("tokenizer.json", "{}");
    Ref<Checkpoint> c;
    ASSERT_TRUE(open(folder, &c).ok());
    StrView text;
    EXPECT_TRUE(c->file("tokenizer.json", &text).ok());
    EXPECT_EQ(text.str(), "{}");
    EXPECT_EQ(c->file("../etc", &text).code(), Code::invalid_argument);
    EXPECT_EQ(c->file("gone.json", &text).code(), Code::not_found);
}

}  // namespace
}  // namespace tenon
