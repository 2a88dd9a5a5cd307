// SPDX-License-Identifier: MIT
// The EXL3 code itself: codebooks, bit stream, tile order and rotation, bit for bit (docs/exl3.md 2
// and 7.1 to 7.3).
#include <gtest/gtest.h>

#include <numeric>

#include "plugins/quant_exl3/kernels.h"
#include "quant_exl3_util.h"
#include "tenon/testing/safetensors.h"

namespace tenon::testing {
namespace {

using exl3::Codebook;

const Safetensors& golden(const char* name) {
    static std::map<std::string, Safetensors> files;
    auto it = files.find(name);
    if (it == files.end()) {
        it = files
                 .emplace(name, Safetensors::open(std::string(TENON_FIXTURES "/golden/exl3/") +
                                                  name + ".safetensors"))
                 .first;
    }
    return it->second;
}

std::vector<uint16_t> decode(const std::vector<uint16_t>& tile, int twice_k, Codebook codebook) {
    std::vector<uint16_t> out(256);
    exl3::decode_tile(tile.data(), twice_k, codebook, out.data());
    return out;
}

constexpr Codebook kAll[] = {Codebook::inst3, Codebook::mcg, Codebook::mul1};

TEST(Exl3Codebook, Tables_have_the_checksums_of_the_format) {
    const uint32_t expected[] = {0x4c83d524, 0xd2d13c52, 0x2bdf05c5};
    for (int i = 0; i < 3; ++i) {
        std::vector<uint16_t> halves;
        for (uint32_t s = 0; s < 65536; ++s) {
            halves.push_back(exl3::codebook_half(kAll[i], static_cast<uint16_t>(s)));
        }

        EXPECT_EQ(crc32(halves.data(), 2 * halves.size()), expected[i]) << codebook_name(kAll[i]);
    }
}

TEST(Exl3Codebook, Every_value_equals_the_golden_table) {
    for (const Codebook codebook : kAll) {
        const TensorView table =
            golden("golden_tables").tensor(std::string("codebook.") + codebook_name(codebook));
        const float* ours = exl3::codebook_table(codebook);
        int wrong = 0;
        for (uint32_t s = 0; s < 65536; ++s) {
            const uint16_t bits = table.as<uint16_t>()[s];
            wrong += exl3::codebook_half(codebook, static_cast<uint16_t>(s)) != bits;
            wrong += ours[s] != f16_to_f32(bits);
        }

        EXPECT_EQ(wrong, 0) << codebook_name(codebook);
    }
}

// The rounding of mul1 must be that of one fused operation; multiplying, rounding and adding
// differs for 822 of the 1021 byte sums, so a decoder without the fused step is caught by the table
// above.
TEST(Exl3Codebook, Mul1_without_the_fused_rounding_is_another_codebook) {
    int different = 0;
    for (uint32_t sum = 0; sum <= 1020; ++sum) {
        const float h = 1024.0f + static_cast<float>(sum);
        const float a = f16_to_f32(0x1EEE);
        const float b = f16_to_f32(0xC931);
        const float product = f16_to_f32(f32_to_f16(h * a));
        different += f32_to_f16(product + b) != f32_to_f16(h * a + b);
    }

    EXPECT_EQ(different, 822);
}

// Every state, through the kernel that decodes in registers and through the panel: a row of x with
// a single 1 picks one weight out of each column.
TEST(Exl3Codebook, Simd_kernels_produce_every_value_of_mul1) {
    const exl3::Kernels* kernels = exl3::simd_kernels();
    if (kernels == nullptr) {
        GTEST_SKIP() << "this CPU has no SIMD kernels";
    }
    const exl3::FusedSet* fused = kernels->fused(16, Codebook::mul1);
    constexpr int kWords = static_cast<int>(exl3::strip_words(16));
    std::vector<uint16_t> words(kWords);
    const float* table = exl3::codebook_table(Codebook::mul1);
    alignas(64) float y[2 * 128];
    std::vector<float> panel(16 * 128);
    int wrong = 0;
    for (int first = 0; first < 65536; first += kWords) {
        std::iota(words.begin(), words.end(), static_cast<uint16_t>(first));
        kernels->decoder(16, Codebook::mul1)(words.data(), 1, panel.data());
        // At 8 bits the window of an odd position ends with a word, which is then the state.
        for (int i = 0; i < kWords; ++i) {
            const int p = i / exl3::kLanes % 16 * 2 + 1;
            const int at = exl3::tile_row(p) * 128 + i / 256 * 32 + exl3::tile_column(p) / 8 * 16;
            wrong += panel[static_cast<size_t>(at + i % exl3::kLanes)] !=
                     table[words[static_cast<size_t>(i)]];
        }
        for (int row = 0; fused != nullptr && row < 16; ++row) {
            float x[2][16] = {};
            x[0][row] = x[1][15 - row] = 1.0f;
            fused->rows[0](words.data(), 1, x[0], 16, y);
            wrong += !std::equal(y, y + 128, panel.data() + row * 128);
            fused->rows[1](words.data(), 1, x[0], 16, y);
            wrong += !std::equal(y, y + 128, panel.data() + row * 128);
            wrong += !std::equal(y + 128, y + 256, panel.data() + (15 - row) * 128);
        }
    }
    EXPECT_EQ(wrong, 0);
}

TEST(Exl3Tile, Order_equals_the_golden_permutation) {
    const TensorView perm = golden("golden_tables").tensor("perm");
    for (int p = 0; p < 256; ++p) {
        EXPECT_EQ(16 * exl3::tile_row(p) + exl3::tile_column(p), perm.as<int32_t>()[p]) << p;
    }
}

TEST(Exl3Tile, States_and_words_equal_the_golden_packing_in_both_directions) {
    for (int k = 1; k <= 8; ++k) {
        const std::string prefix = "pack.k" + std::to_string(k);
        const TensorView states = golden("golden_tables").tensor(prefix + ".states");
        const TensorView packed = golden("golden_tables").tensor(prefix + ".packed");
        for (int t = 0; t < 6; ++t) {
            const uint16_t* s = states.as<uint16_t>() + 256 * t;
            const uint16_t* w = packed.as<uint16_t>() + 16 * k * t;
            const std::vector<uint16_t> ring(s, s + 256);

            EXPECT_EQ(pack_tile(ring, 2 * k), std::vector<uint16_t>(w, w + 16 * k));
            for (int p = 0; p < 256; ++p) {
                ASSERT_EQ(exl3::tile_state(w, 2 * k, p), s[p]) << "K=" << k << " p=" << p;
            }
        }
    }
}

TEST(Exl3Tile, Half_rates_equal_the_words_states_and_values_of_the_original) {
    for (const int twice_k : {3, 5, 7}) {
        const std::string prefix = "tiles.k" + std::to_string(twice_k / 2) + ".5";
        const TensorView states = golden("golden_half").tensor(prefix + ".states");
        const TensorView packed = golden("golden_half").tensor(prefix + ".packed");
        const TensorView values = golden("golden_half").tensor(prefix + ".values");
        ASSERT_EQ(packed.shape[1], exl3::tile_words(twice_k));
        for (int t = 0; t < 6; ++t) {
            const uint16_t* s = states.as<uint16_t>() + 256 * t;
            const uint16_t* w = packed.as<uint16_t>() + packed.shape[1] * t;
            EXPECT_EQ(pack_tile(std::vector<uint16_t>(s, s + 256), twice_k),
                      std::vector<uint16_t>(w, w + packed.shape[1]));
            for (int p = 0; p < 256; ++p) {
                ASSERT_EQ(exl3::tile_state(w, twice_k, p), s[p]) << twice_k << " p=" << p;
                ASSERT_EQ(f16_to_f32(exl3::codebook_half(Codebook::mul1, s[p])),
                          values.as<float>()[256 * t + p]);
            }
        }
    }
}

struct WorkedTile {
    int twice_k;
    uint32_t seed;
    uint32_t first_word;
    std::vector<std::pair<int, uint16_t>> states;
    uint32_t crc[3];  // 3inst, mcg, mul1; 0 = none given
};

TEST(Exl3Tile, Worked_examples_of_the_format_description) {
    const WorkedTile tiles[] = {
        {4,
         0x00C0FFF0,
         0x2AA5928F,
         {{0, 0xC100},
          {1, 0x0402},
          {2, 0x100A},
          {3, 0x402A},
          {4, 0x00AA},
          {7, 0x2AA5},
          {8, 0xAA96},
          {100, 0xDBBE},
          {255, 0x7040}},
         {0xbcfda2de, 0xa2c79f53, 0x9443fef0}},
        {6,
         0x00C0FFF1,
         0x2ABEF89C,
         {{0, 0x2249},
          {1, 0x124A},
          {2, 0x9255},
          {3, 0x92AB},
          {4, 0x955F},
          {7, 0xBEF8},
          {8, 0xF7C4},
          {100, 0x006F},
          {255, 0x6449}},
         {0xf52ecf02, 0x099c19a9, 0x25e47923}},
        {8,
         0x00C0FFF2,
         0x2AD85EA9,
         {{0, 0x5922},
          {1, 0x922A},
          {2, 0x22AD},
          {3, 0x2AD8},
          {4, 0xAD85},
          {7, 0x5EA9},
          {8, 0xEA9D},
          {100, 0x1CEC},
          {255, 0x6592}},
         {0x6820a16e, 0x5aaac58e, 0xeea06c3a}},
        {5,
         0x00C10007,
         0x2CEDBDBA,
         {{0, 0x4CEC}, {1, 0x6765}, {2, 0x9D96}, {3, 0xECB3}, {254, 0xE267}, {255, 0x133B}},
         {0, 0, 0x938436b3}},
    };
    for (const WorkedTile& t : tiles) {
        WordGenerator generator(t.seed);
        const std::vector<uint16_t> tile = generated_tile(t.twice_k, generator);

        EXPECT_EQ(tile[0] | tile[1] << 16, static_cast<int>(t.first_word));
        for (const auto& [p, state] : t.states) {
            EXPECT_EQ(exl3::tile_state(tile.data(), t.twice_k, p), state)
                << "2K=" << t.twice_k << " p=" << p;
        }
        for (int i = 0; i < 3; ++i) {
            if (t.crc[i] != 0) {
                const auto values = decode(tile, t.twice_k, kAll[i]);
                EXPECT_EQ(crc32(values.data(), 512), t.crc[i]) << "2K=" << t.twice_k << " " << i;
            }
        }
    }
}

TEST(Exl3Tile, Worked_values_of_the_first_example) {
    WordGenerator generator(0x00C0FFF0);
    const std::vector<uint16_t> tile = generated_tile(4, generator);
    struct {
        int row, column;
        uint16_t inst3, mcg, mul1;
    } const expected[] = {{0, 0, 0x3CD4, 0xC084, 0x3192},  {1, 0, 0x3FA6, 0x38B4, 0x3485},
                          {8, 0, 0x4026, 0xBCD0, 0x40D1},  {9, 0, 0x4068, 0x3C8C, 0x3851},
                          {0, 8, 0xB780, 0x3D98, 0x3ED7},  {9, 8, 0x3E55, 0x3C7A, 0xBE73},
                          {2, 0, 0x309C, 0xB6C0, 0x2200},  {0, 11, 0x339C, 0x3C91, 0x3D23},
                          {15, 15, 0x39A6, 0x2EFE, 0x3B3D}};
    for (const auto& e : expected) {
        const size_t at = static_cast<size_t>(16 * e.row + e.column);
        EXPECT_EQ(decode(tile, 4, Codebook::inst3)[at], e.inst3) << e.row << "," << e.column;
        EXPECT_EQ(decode(tile, 4, Codebook::mcg)[at], e.mcg) << e.row << "," << e.column;
        EXPECT_EQ(decode(tile, 4, Codebook::mul1)[at], e.mul1) << e.row << "," << e.column;
    }
}

// The states form a shift register over the whole ring, the seam included, and packing them again
// gives the words back.
TEST(Exl3Tile, Random_words_form_a_shift_register_at_every_rate) {
    for (const int twice_k : {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16}) {
        WordGenerator generator(77u + static_cast<uint32_t>(twice_k));
        for (int repeat = 0; repeat < 20; ++repeat) {
            const std::vector<uint16_t> tile = generated_tile(twice_k, generator);
            std::vector<uint16_t> states;
            for (int p = 0; p < 256; ++p) {
                states.push_back(exl3::tile_state(tile.data(), twice_k, p));
            }
            for (int p = 0; p < 256; ++p) {
                const int bits = new_bits(twice_k, p);
                const uint32_t before = states[static_cast<size_t>((p + 255) % 256)];
                const uint32_t now = states[static_cast<size_t>(p)];
                ASSERT_EQ((before << bits & 0xFFFFu) >> bits, now >> bits)
                    << "2K=" << twice_k << " p=" << p;
            }
            EXPECT_EQ(pack_tile(states, twice_k), tile);
        }
    }
}

// The states that the original encoder chose decode to the error it reported for them.
TEST(Exl3Tile, Stored_encodings_decode_to_their_stored_error) {
    const Safetensors& file = golden("golden_viterbi");
    const TensorView tiles = file.tensor("tiles");
    for (const Codebook codebook : kAll) {
        for (int k = 1; k <= 8; ++k) {
            const std::string prefix =
                std::string(codebook_name(codebook)) + "_k" + std::to_string(k);
            const TensorView states = file.tensor(prefix + ".states");
            const TensorView relmse = file.tensor(prefix + ".relmse");
            const double scale = codebook == Codebook::mul1 ? 1.0 : 1.24371088;
            for (int t = 0; t < 6; ++t) {
                double error_sum = 0;
                double energy = 0;
                for (int p = 0; p < 256; ++p) {
                    const double target =
                        static_cast<double>(tiles.as<float>()[256 * t + p]) * scale;
                    const double value = f16_to_f32(
                        exl3::codebook_half(codebook, states.as<uint16_t>()[256 * t + p]));
                    error_sum += (value - target) * (value - target);
                    energy += target * target;
                }
                const double stored = relmse.as<float>()[t];
                EXPECT_NEAR(error_sum / energy, stored, 1e-5 * stored) << prefix << " tile " << t;
            }
        }
    }
}

TEST(Exl3Rotation, Equals_the_golden_hadamard_kernels) {
    const Safetensors& file = golden("golden_tables");
    const TensorView x = file.tensor("had.x");
    const TensorView scale = file.tensor("had.scale");
    for (const char* name : {"had.none_f32", "had.pre_f32", "had.post_f32"}) {
        const TensorView y = file.tensor(name);
        const bool pre = std::string_view(name) == "had.pre_f32";
        const bool post = std::string_view(name) == "had.post_f32";
        double difference = 0;
        double norm = 0;
        for (int row = 0; row < 4; ++row) {
            for (int block = 0; block < 2; ++block) {
                const int at = 256 * row + 128 * block;
                double v[128];
                for (int i = 0; i < 128; ++i) {
                    const double s = f16_to_f32(scale.as<uint16_t>()[128 * block + i]);
                    v[i] = f16_to_f32(x.as<uint16_t>()[at + i]) * (pre ? s : 1.0);
                }
                exl3::hadamard128(v);
                for (int i = 0; i < 128; ++i) {
                    const double s = f16_to_f32(scale.as<uint16_t>()[128 * block + i]);
                    const double ours = v[i] * exl3::kRotationScale * (post ? s : 1.0);
                    const double theirs = y.as<float>()[at + i];
                    difference += (ours - theirs) * (ours - theirs);
                    norm += theirs * theirs;
                }
            }
        }

        EXPECT_LE(std::sqrt(difference / norm), 1e-6) << name;  // golden/README.md
    }
}

TEST(Exl3Rotation, Twice_is_the_identity_times_128) {
    double v[128];
    for (int i = 0; i < 128; ++i) {
        v[i] = i * i - 40.0 * i;
    }
    exl3::hadamard128(v);
    exl3::hadamard128(v);
    for (int i = 0; i < 128; ++i) {
        EXPECT_EQ(v[i], 128.0 * (i * i - 40.0 * i));
    }
}

}  // namespace
}  // namespace tenon::testing
