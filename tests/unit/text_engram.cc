// SPDX-License-Identifier: MIT
// Engram token map and hash: published numbers, golden files, and what must not come out.
#include "engram_hash.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "text/engram_map.h"
#include "unit/text_support.h"

namespace tenon::dsv41 {
namespace {

using testing::golden_path;
using testing::read_file;
using testing::tokenizer;

const EngramShape kReleased{
    .layers = {1, 14}, .bucket_floor = 16'000'000, .max_ngram = 4, .heads = 8, .classes = 99'092};

/// The int32 data of a .npy file of format 1.0.
std::vector<int32_t> read_npy(const std::string& name) {
    const std::string file = read_file(golden_path(name));
    EXPECT_NE(file.find("'descr': '<i4'"), std::string::npos);
    const size_t header =
        10 + static_cast<unsigned char>(file[8]) + 256U * static_cast<unsigned char>(file[9]);
    std::vector<int32_t> out((file.size() - header) / sizeof(int32_t));
    std::memcpy(out.data(), file.data() + header, out.size() * sizeof(int32_t));
    return out;
}

template <class T>
std::vector<T> read_tensor(const std::string& file_name, const std::string& tensor) {
    const std::string file = read_file(golden_path(file_name));
    uint64_t size = 0;
    std::memcpy(&size, file.data(), sizeof size);
    const Result<Json> header = parse_json(std::string_view(file).substr(8, size));
    const Json& offsets = testing::at(testing::at(*header, tensor), "data_offsets");
    int64_t begin = 0, end = 0;
    EXPECT_TRUE(offsets.array() != nullptr && (*offsets.array())[0].integer(begin) &&
                (*offsets.array())[1].integer(end))
        << tensor;
    std::vector<T> out(static_cast<size_t>(end - begin) / sizeof(T));
    std::memcpy(out.data(), file.data() + 8 + size + begin, out.size() * sizeof(T));
    return out;
}

EngramHash released() {
    Result<EngramHash> hash = EngramHash::make(kReleased);
    EXPECT_TRUE(hash.ok());
    return std::move(*hash);
}

TEST(EngramMap, Equals_the_reference_for_every_id) {
    const std::pair<const char*, int32_t> cases[] = {{"text/tokenizer", 99'092},
                                                     {"text/small", 3'082}};

    for (const auto& [folder, count] : cases) {
        const Result<EngramTokenMap> map = build_engram_token_map(tokenizer(folder));
        ASSERT_TRUE(map.ok());
        EXPECT_EQ(map->class_count, count) << folder;
        EXPECT_EQ(map->classes, read_npy(std::string(folder) + "/engram_map.npy")) << folder;
        EXPECT_EQ(map->classes[2], 2) << folder;
    }
    const Result<EngramTokenMap> tiny = build_engram_token_map(tokenizer("dsv41/tiny"));
    EXPECT_EQ(tiny->class_count, 422);
    EXPECT_EQ(tiny->classes,
              read_tensor<int32_t>("dsv41/tiny/engram_token_map.safetensors", "token_map"));
}

TEST(EngramMap, Folds_case_accents_compatibility_forms_and_white_space) {
    EXPECT_EQ(*engram_key(" Été\xC2\xA0"), "ete");
    EXPECT_EQ(*engram_key("ﬁ①"), "fi1");
    EXPECT_EQ(*engram_key(" \n\t"), " ");
    EXPECT_EQ(*engram_key("\t a \r\n b "), "a b");
    EXPECT_EQ(*engram_key("\xC2\xA0"), " ");  // NFKC makes it a space
    EXPECT_EQ(*engram_key("\xE2\x80\xA8"),
              "\xE2\x80\xA8");                       // white space, but no blank: the text itself
    EXPECT_EQ(*engram_key("\xCC\x81"), "\xCC\x81");  // nothing remains: the text itself
    EXPECT_EQ(*engram_key(""), "");
}

TEST(EngramHash, Draws_multipliers_like_numpy) {
    // numpy.random.default_rng(s).integers(0, 46539438283891, size=4, dtype=int64)
    EXPECT_EQ(draw_like_numpy(0, 46539438283891, 4),
              (std::vector<int64_t>{29643839136299, 12555722115027, 1906884788502, 769186873658}));
    EXPECT_EQ(draw_like_numpy(42, (int64_t{1} << 62) + 1, 6),
              (std::vector<int64_t>{3569242288002845090, 2023969564393766896, 3959584022706161033,
                                    3216042389311332899, 434316358506045562, 4499263958308476131}));
    EXPECT_EQ(draw_like_numpy(uint64_t{10007} * 999'999, int64_t{1} << 33, 3),
              (std::vector<int64_t>{456149625, 935167951, 2181798015}));
}

TEST(EngramHash, Has_the_released_primes_rows_and_multipliers) {
    const EngramHash hash = released();

    EXPECT_EQ(hash.columns(), 24);
    EXPECT_EQ(hash.rows(0), 384'006'168);
    EXPECT_EQ(hash.rows(1), 384'016'682);
    EXPECT_EQ(hash.primes(0)[0], 16'000'057);
    EXPECT_EQ(hash.primes(1)[23], 16'000'889);
    std::vector<int64_t> primes, offsets, multipliers;
    for (int64_t t = 0; t < 2; ++t) {
        primes.insert(primes.end(), hash.primes(t).begin(), hash.primes(t).end());
        offsets.insert(offsets.end(), hash.offsets(t).begin(), hash.offsets(t).end());
        multipliers.insert(multipliers.end(), hash.multipliers(t).begin(),
                           hash.multipliers(t).end());
    }
    EXPECT_EQ(primes, read_tensor<int64_t>("dsv41/ops.safetensors", "engram.primes"));
    EXPECT_EQ(offsets, read_tensor<int64_t>("dsv41/ops.safetensors", "engram.offsets"));
    EXPECT_EQ(multipliers, read_tensor<int64_t>("dsv41/ops.safetensors", "engram.multipliers"));
    EXPECT_EQ(multipliers, (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349,
                                                 73987337458391, 67716810739261, 51510806800915,
                                                 30921347202721, 82619226485591}));
}

TEST(EngramHash, Gives_the_worked_rows_of_the_specification) {
    const EngramHash hash = released();
    const std::vector<int32_t> look{5, 17, 1000, 99091};
    std::vector<int64_t> rows(24);

    hash.look_up(0, look, rows);
    EXPECT_EQ(rows, (std::vector<int64_t>{3889985,   30570021,  40268302,  53854578,  74235168,
                                          81029010,  100426120, 118891433, 136880502, 148161633,
                                          166681034, 177401790, 192891858, 216697433, 228480692,
                                          253708252, 267291008, 287262003, 300097410, 317608346,
                                          325094405, 346042047, 355923939, 371354787}));
    hash.look_up(1, look, rows);
    EXPECT_EQ(rows, (std::vector<int64_t>{897380,    16353005,  34900403,  63266234,  69449016,
                                          85289440,  108947768, 120779290, 132152479, 145299210,
                                          175131478, 185450879, 197598761, 220145834, 225900101,
                                          243868189, 268122114, 276117325, 298481161, 316485753,
                                          332920916, 348227468, 367516029, 371801950}));
}

class GoldenRows : public ::testing::Test {
  protected:
    void SetUp() override {
        const std::vector<int32_t> ids =
            read_tensor<int32_t>("dsv41/ops.safetensors", "engram.ids");
        const std::vector<uint8_t> dead =
            read_tensor<uint8_t>("dsv41/ops.safetensors", "engram.dead");
        pad_ = read_tensor<int32_t>("dsv41/ops.safetensors", "engram.pad")[0];
        golden_ = read_tensor<int64_t>("dsv41/ops.safetensors", "engram.rows");
        classes_.assign(3, EngramHash::kDead);
        for (size_t i = 0; i < ids.size(); ++i) {
            classes_.push_back(dead[i] != 0 ? EngramHash::kDead : ids[i]);
        }
    }
    /// Rows that differ from the golden ones, dead positions aside.
    size_t differences(const EngramHash& hash, const std::vector<int32_t>& classes,
                       int32_t pad) const {
        size_t wrong = 0;
        const size_t count = classes.size() - 3;
        for (size_t table = 0; table < 2; ++table) {
            std::vector<int64_t> rows(count * 24);
            hash.row_ids(static_cast<int64_t>(table), classes, pad, rows);
            for (size_t i = 0; i < count; ++i) {
                if (classes[3 + i] == EngramHash::kDead) {
                    EXPECT_TRUE(std::all_of(&rows[i * 24], &rows[i * 24] + 24,
                                            [](int64_t r) { return r == -1; }));
                    continue;
                }
                for (size_t c = 0; c < 24; ++c) {
                    wrong += rows[i * 24 + c] != golden_[(i * 2 + table) * 24 + c];
                }
            }
        }
        return wrong;
    }

    std::vector<int32_t> classes_;
    std::vector<int64_t> golden_;
    int32_t pad_ = 0;
};

TEST_F(GoldenRows, Are_equal_across_the_start_and_around_dead_spans) {
    EXPECT_EQ(differences(released(), classes_, pad_), 0U);
}

TEST_F(GoldenRows, Do_not_depend_on_how_positions_are_cut_into_chunks) {
    const EngramHash hash = released();
    std::vector<int64_t> whole((classes_.size() - 3) * 24);
    hash.row_ids(0, classes_, pad_, whole);

    for (size_t chunk = 1; chunk <= 7; ++chunk) {
        std::vector<int64_t> rows;
        for (size_t begin = 0; begin + 3 < classes_.size(); begin += chunk) {
            const size_t count = std::min(chunk, classes_.size() - 3 - begin);
            std::vector<int64_t> part(count * 24);
            hash.row_ids(0, std::span<const int32_t>(classes_).subspan(begin, count + 3), pad_,
                         part);
            rows.insert(rows.end(), part.begin(), part.end());
        }
        EXPECT_EQ(rows, whole) << "chunks of " << chunk;
    }
}

// Each slip that an implementation could make must show in these data.
TEST_F(GoldenRows, Show_wrong_pads_layers_heads_and_unblocked_history) {
    EXPECT_GT(differences(released(), classes_, pad_ + 1), 0U);

    EngramShape swapped = kReleased;
    std::swap(swapped.layers[0], swapped.layers[1]);
    EXPECT_GT(differences(*EngramHash::make(swapped), classes_, pad_), 0U);

    EngramShape fewer = kReleased;
    fewer.classes = 129'280;  // the uncompressed vocabulary: other multipliers
    EXPECT_GT(differences(*EngramHash::make(fewer), classes_, pad_), 0U);

    EngramShape floor = kReleased;
    floor.bucket_floor += 57;  // 16000057 itself is taken as the first bucket either way …
    EXPECT_EQ(differences(*EngramHash::make(floor), classes_, pad_), 0U);
    floor.bucket_floor += 1;  // … and skipped here
    EXPECT_GT(differences(*EngramHash::make(floor), classes_, pad_), 0U);

    std::vector<int32_t> unblocked = classes_;
    std::replace(unblocked.begin() + 3, unblocked.end(), EngramHash::kDead, int32_t{2});
    EXPECT_GT(differences(released(), unblocked, pad_), 0U);

    std::vector<int32_t> early = classes_;
    early[2] = 7;  // a token before the first
    EXPECT_GT(differences(released(), early, pad_), 0U);
}

TEST(EngramHash, Uses_each_bucket_count_once) {
    const EngramHash hash = *EngramHash::make(
        {.layers = {1, 4}, .bucket_floor = 96, .max_ngram = 4, .heads = 2, .classes = 422});
    std::set<int64_t> seen;

    for (int64_t t = 0; t < hash.tables(); ++t) {
        for (const int64_t prime : hash.primes(t)) {
            EXPECT_TRUE(seen.insert(prime).second) << prime;
        }
    }
    EXPECT_EQ(hash.rows(0), 630);  // the tiny checkpoint's engram_num_embeddings
    EXPECT_EQ(hash.rows(1), 834);
}

TEST(EngramHash, Rows_stay_inside_their_bucket) {
    const EngramHash hash = released();
    testing::Random random(3);
    std::vector<int64_t> rows(24);

    for (int round = 0; round < 1000; ++round) {
        std::vector<int32_t> look(4);
        for (int32_t& token : look) {
            token = round == 0 ? 99'091 : static_cast<int32_t>(random.below(99'092));
        }
        for (int64_t t = 0; t < 2; ++t) {
            hash.look_up(t, look, rows);
            for (size_t c = 0; c < rows.size(); ++c) {
                EXPECT_GE(rows[c], hash.offsets(t)[c]);
                EXPECT_LT(rows[c], hash.offsets(t)[c] + hash.primes(t)[c]);
            }
        }
    }
}

TEST(EngramHash, Refuses_numbers_that_no_table_can_have) {
    const auto message = [](EngramShape shape) {
        return EngramHash::make(shape).status().message().str();
    };
    EngramShape shape = kReleased;
    shape.max_ngram = 1;
    EXPECT_EQ(message(shape), "engram: engram_max_ngram_size = 1 is out of range 2…16");
    shape = kReleased;
    shape.heads = 0;
    EXPECT_NE(message(shape).find("engram_n_heads"), std::string::npos);
    shape = kReleased;
    shape.classes = 0;
    EXPECT_NE(message(shape).find("engram_compressed_vocab_size"), std::string::npos);
    shape = kReleased;
    shape.bucket_floor = INT64_MAX;
    EXPECT_NE(message(shape).find("engram_vocab_size"), std::string::npos);
    shape = kReleased;
    shape.layers = {-1};
    EXPECT_NE(message(shape).find("engram_layer_ids"), std::string::npos);
}

}  // namespace
}  // namespace tenon::dsv41
