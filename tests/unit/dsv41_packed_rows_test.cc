// SPDX-License-Identifier: MIT
// Packed Engram tables: every row is found where the layout says, stopped runs go on, damage is
// noticed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "packed_rows.h"
#include "tenon/testing/memory_source.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::dsv41 {
namespace {

namespace fs = std::filesystem;

/// Tables of the tiny model with rows that say where they are.
class MemoryCheckpoint final : public Checkpoint {
  public:
    MemoryCheckpoint() {
        std::ifstream in(std::string(TENON_FIXTURES) + "/golden/dsv41/tiny/config.json");
        std::ostringstream text;
        text << in.rdbuf();
        config_text_ = text.str();
        config = *parse_config(config_text_);
        for (size_t t = 0; t < config.engram.layers.size(); ++t) {
            std::vector<uint8_t> values;
            std::vector<uint8_t> scales;
            for (int64_t r = 0; r < config.engram.rows[t]; ++r) {
                for (int32_t i = 0; i < config.engram.width; ++i) {
                    values.push_back(value(t, r, i));
                }
                for (int32_t i = 0; i < config.engram.width / 32; ++i) {
                    scales.push_back(scale(t, r, i));
                }
            }
            const int32_t layer = config.engram.layers[t];
            source.add(engram_values_name(layer), DType::e4m3,
                       {config.engram.rows[t], config.engram.width}, values);
            source.add(engram_scales_name(layer), DType::e8m0,
                       {config.engram.rows[t], config.engram.width / 32}, scales);
        }
    }
    static uint8_t value(size_t t, int64_t r, int32_t i) {
        return static_cast<uint8_t>(static_cast<size_t>(r) * 7 + t * 101 +
                                    static_cast<size_t>(i) * 3);
    }
    static uint8_t scale(size_t t, int64_t r, int32_t i) {
        return static_cast<uint8_t>(static_cast<size_t>(r) * 5 + t * 17 + static_cast<size_t>(i) +
                                    1);
    }
    void* query(StrView) noexcept override { return nullptr; }
    void release() noexcept override {}
    StrView dir() noexcept override { return "memory"; }
    StrView config_json() noexcept override { return config_text_; }
    WeightSource* weights() noexcept override { return &source; }
    Status file(StrView name, StrView*) noexcept override {
        return error(Code::not_found, "{}", name);
    }

    ModelConfig config;
    Ref<testing::MemorySource> owner{new testing::MemorySource};
    testing::MemorySource& source = *owner;
    std::string config_text_;
};

class PackedRows : public ::testing::Test {
  protected:
    PackRequest request(int32_t rank = 0, int32_t world = 1) {
        PackRequest r;
        r.rank = rank;
        r.world = world;
        r.source = &checkpoint_;
        out_ = dir_.path().string();
        r.out_dir = out_;
        return r;
    }
    std::string file(int32_t layer, int32_t rank, int32_t world) const {
        return (dir_.path() / packed_file_name(layer, rank, world)).string();
    }
    static std::vector<uint8_t> bytes(const std::string& path) {
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    static void flip(const std::string& path, int64_t at) {
        std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
        f.seekg(at);
        const int old = f.get();
        f.seekp(at);
        f.put(static_cast<char>(old ^ 1));
    }

    MemoryCheckpoint checkpoint_;
    testing::TempDir dir_;
    std::string out_;
};

TEST_F(PackedRows, Each_rank_holds_the_rows_of_its_columns) {
    const auto hash = make_hash(checkpoint_.config);
    ASSERT_TRUE(hash.ok());
    for (int32_t rank = 0; rank < 2; ++rank) {
        TENON_ASSERT_OK(pack_rows(checkpoint_.config, request(rank, 2), 2));
        for (size_t t = 0; t < 2; ++t) {
            const EngramSlice slice = EngramSlice::of(*hash, static_cast<int64_t>(t), rank, 2);
            PackedHeader header;
            const std::string path = file(checkpoint_.config.engram.layers[t], rank, 2);
            TENON_ASSERT_OK(read_packed_header(path, *hash, checkpoint_.config.engram,
                                               static_cast<int64_t>(t), rank, 2, &header));
            const auto data = bytes(path);
            ASSERT_EQ(data.size(), header.file_bytes());
            for (int64_t r = 0; r < slice.rows; ++r) {
                const int64_t at = 4096 + r / header.records_per_page * 4096 +
                                   r % header.records_per_page * header.record_bytes;
                ASSERT_EQ(at / 4096, (at + header.record_bytes - 1) / 4096)
                    << "row " << r << " crosses a page";
                ASSERT_EQ(data[static_cast<size_t>(at)],
                          MemoryCheckpoint::value(t, slice.first_row + r, 0));
                ASSERT_EQ(data[static_cast<size_t>(at) + 64],
                          MemoryCheckpoint::scale(t, slice.first_row + r, 0));
                ASSERT_EQ(data[static_cast<size_t>(at) + 65],
                          MemoryCheckpoint::scale(t, slice.first_row + r, 1));
            }
        }
    }
}

TEST_F(PackedRows, A_stopped_run_goes_on_and_gives_the_same_file) {
    TENON_ASSERT_OK(pack_rows(checkpoint_.config, request(), 2));
    const auto whole = bytes(file(1, 0, 1));
    fs::remove(file(1, 0, 1));
    fs::remove(file(4, 0, 1));
    PackRequest r = request();
    int calls = 0;
    r.arg = &calls;
    r.cancelled = [](void* arg) noexcept { return ++*static_cast<int*>(arg) > 3; };
    const Status stopped = pack_rows(checkpoint_.config, r, 2);
    EXPECT_EQ(stopped.code(), Code::cancelled);
    EXPECT_FALSE(fs::exists(file(1, 0, 1))) << "an unfinished file must not have the final name";
    ASSERT_TRUE(fs::exists(file(1, 0, 1) + ".part"));

    // The rest is read from the source; the finished blocks are not (they could not be: the rows
    // are gone).
    const std::string values = engram_values_name(1);
    std::memset(checkpoint_.source.bytes(values), 0xEE, 64 * 10);
    TENON_ASSERT_OK(pack_rows(checkpoint_.config, request(), 2));
    EXPECT_EQ(bytes(file(1, 0, 1)), whole);
    EXPECT_FALSE(fs::exists(file(1, 0, 1) + ".part"));
    EXPECT_FALSE(fs::exists(file(1, 0, 1) + ".part.sums"));
}

TEST_F(PackedRows, A_damaged_part_is_built_again) {
    PackRequest r = request();
    int calls = 0;
    r.arg = &calls;
    r.cancelled = [](void* arg) noexcept { return ++*static_cast<int*>(arg) > 3; };
    EXPECT_FALSE(pack_rows(checkpoint_.config, r, 2).ok());
    flip(file(1, 0, 1) + ".part", 4096 + 77);
    TENON_ASSERT_OK(pack_rows(checkpoint_.config, request(), 2));
    PackRequest verify = request();
    verify.verify_only = true;
    TENON_EXPECT_OK(pack_rows(checkpoint_.config, verify, 2));
}

TEST_F(PackedRows, Verify_finds_a_flipped_bit_anywhere) {
    TENON_ASSERT_OK(pack_rows(checkpoint_.config, request(), 2));
    PackRequest verify = request();
    verify.verify_only = true;
    TENON_ASSERT_OK(pack_rows(checkpoint_.config, verify, 2));
    const auto size = static_cast<int64_t>(fs::file_size(file(1, 0, 1)));
    for (const int64_t at : {int64_t{20}, int64_t{4000}, int64_t{4096}, int64_t{9000}, size - 1}) {
        flip(file(1, 0, 1), at);
        EXPECT_FALSE(pack_rows(checkpoint_.config, verify, 2).ok()) << "byte " << at;
        flip(file(1, 0, 1), at);
    }
    TENON_EXPECT_OK(pack_rows(checkpoint_.config, verify, 2));
    fs::resize_file(file(4, 0, 1), 8192);
    TENON_EXPECT_ERROR(pack_rows(checkpoint_.config, verify, 2), Code::invalid_argument,
                       "size of the file");
}

TEST_F(PackedRows, A_file_of_another_rank_or_model_is_refused) {
    TENON_ASSERT_OK(pack_rows(checkpoint_.config, request(0, 2), 2));
    const auto hash = make_hash(checkpoint_.config);
    PackedHeader header;
    fs::rename(file(1, 0, 2), file(1, 1, 2));
    TENON_EXPECT_ERROR(
        read_packed_header(file(1, 1, 2), *hash, checkpoint_.config.engram, 0, 1, 2, &header),
        Code::invalid_argument, "rank is 0, expected 1");
    EXPECT_EQ(read_packed_header(file(1, 0, 2), *hash, checkpoint_.config.engram, 0, 0, 2, &header)
                  .code(),
              Code::not_found);
    std::ofstream(file(4, 1, 2)) << std::string(5000, 'x');
    TENON_EXPECT_ERROR(
        read_packed_header(file(4, 1, 2), *hash, checkpoint_.config.engram, 1, 1, 2, &header),
        Code::invalid_argument, "not a packed Engram table");
}

TEST_F(PackedRows, Buckets_that_do_not_fit_the_row_counts_are_refused) {
    ModelConfig wrong = checkpoint_.config;
    wrong.engram.rows[1] += 1;
    const auto hash = make_hash(wrong);
    ASSERT_FALSE(hash.ok());
    EXPECT_NE(hash.status().message().str().find("engram_num_embeddings[1] is 835"),
              std::string::npos)
        << hash.status().message().view();
}

TEST_F(PackedRows, A_source_without_tables_is_named) {
    checkpoint_.source.remove(engram_scales_name(4));
    TENON_EXPECT_ERROR(pack_rows(checkpoint_.config, request(), 2), Code::not_found,
                       "layers.4.engram.embed.scale");
}

}  // namespace
}  // namespace tenon::dsv41
