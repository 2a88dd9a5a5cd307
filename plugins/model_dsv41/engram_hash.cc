// SPDX-License-Identifier: MIT
// Builds the tables of primes and multipliers, and hashes n-grams.
#include "engram_hash.h"

#include <algorithm>
#include <array>
#include <set>

namespace tenon::dsv41 {

namespace {

__extension__ typedef unsigned __int128 uint128;

constexpr int64_t kMostBuckets = int64_t{1} << 40;
constexpr int64_t kMostColumns = 1024;
constexpr int64_t kMostTables = 64;

bool is_prime(int64_t n) {
    if (n < 2 || n % 2 == 0) {
        return n == 2;
    }
    for (int64_t k = 3; k <= n / k; k += 2) {
        if (n % k == 0) {
            return false;
        }
    }
    return true;
}

/// Spreads a seed over the state of a generator, as numpy's SeedSequence does.
std::array<uint64_t, 4> spread_seed(uint64_t seed) {
    constexpr uint32_t kInitA = 0x43b0d7e5, kMultiplierA = 0x931e8875;
    constexpr uint32_t kInitB = 0x8b51f9dd, kMultiplierB = 0x58f38ded;
    constexpr uint32_t kMixLeft = 0xca01f9dd, kMixRight = 0x4973f715;
    constexpr int kShift = 16;
    constexpr size_t kPool = 4;

    std::array<uint32_t, kPool> entropy{static_cast<uint32_t>(seed),
                                        static_cast<uint32_t>(seed >> 32), 0, 0};
    std::array<uint32_t, kPool> pool{};
    uint32_t hash_a = kInitA;
    const auto hash = [&hash_a](uint32_t value) {
        value ^= hash_a;
        hash_a *= kMultiplierA;
        value *= hash_a;
        return value ^ (value >> kShift);
    };
    const auto mix = [](uint32_t x, uint32_t y) {
        const uint32_t value = x * kMixLeft - y * kMixRight;
        return value ^ (value >> kShift);
    };
    for (size_t i = 0; i < kPool; ++i) {
        pool[i] = hash(entropy[i]);
    }
    for (size_t from = 0; from < kPool; ++from) {
        for (size_t to = 0; to < kPool; ++to) {
            if (from != to) {
                pool[to] = mix(pool[to], hash(pool[from]));
            }
        }
    }
    std::array<uint64_t, 4> state{};
    uint32_t hash_b = kInitB;
    for (size_t i = 0; i < state.size() * 2; ++i) {
        uint32_t value = pool[i % kPool] ^ hash_b;
        hash_b *= kMultiplierB;
        value *= hash_b;
        value ^= value >> kShift;
        state[i / 2] |= static_cast<uint64_t>(value) << (i % 2 * 32);
    }
    return state;
}

/// PCG XSL-RR 128/64 with numpy's seeding.
class Pcg64 {
  public:
    explicit Pcg64(uint64_t seed) {
        const std::array<uint64_t, 4> words = spread_seed(seed);
        const uint128 start = (static_cast<uint128>(words[0]) << 64) | words[1];
        increment_ = (((static_cast<uint128>(words[2]) << 64) | words[3]) << 1) | 1;
        step();
        state_ += start;
        step();
    }
    uint64_t next() {
        step();
        const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
        const auto turn = static_cast<unsigned>(state_ >> 122);
        return turn == 0 ? folded : (folded >> turn) | (folded << (64 - turn));
    }
    /// Uniform in [0, bound) by multiplication and rejection.
    uint64_t below(uint64_t bound) {
        uint128 product = static_cast<uint128>(next()) * bound;
        if (static_cast<uint64_t>(product) < bound) {
            const uint64_t threshold = (UINT64_MAX - bound + 1) % bound;
            while (static_cast<uint64_t>(product) < threshold) {
                product = static_cast<uint128>(next()) * bound;
            }
        }
        return static_cast<uint64_t>(product >> 64);
    }

  private:
    void step() { state_ = state_ * kMultiplier + increment_; }

    static constexpr uint128 kMultiplier =
        (static_cast<uint128>(2549297995355413924ULL) << 64) | 4865540595714422341ULL;
    uint128 state_ = 0, increment_ = 0;
};

Status check_range(std::string_view name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
        return error(Code::invalid_argument, "engram: {} = {} is out of range {}…{}", name, value,
                     low, high);
    }
    return {};
}

}  // namespace

std::vector<int64_t> draw_like_numpy(uint64_t seed, int64_t bound, int64_t count) {
    Pcg64 generator(seed);
    std::vector<int64_t> out;
    for (int64_t i = 0; i < count; ++i) {
        out.push_back(static_cast<int64_t>(generator.below(static_cast<uint64_t>(bound))));
    }
    return out;
}

Result<EngramHash> EngramHash::make(const EngramShape& shape) {
    TENON_TRY(
        check_range("number of layers", static_cast<int64_t>(shape.layers.size()), 0, kMostTables));
    TENON_TRY(check_range("engram_max_ngram_size", shape.max_ngram, 2, kMostNgram));
    TENON_TRY(check_range("engram_n_heads", shape.heads, 1, kMostColumns / (shape.max_ngram - 1)));
    TENON_TRY(check_range("engram_vocab_size", shape.bucket_floor, 1, kMostBuckets));
    // From 2^30 classes on, multipliers would be drawn from 32-bit numbers, by another rule.
    TENON_TRY(
        check_range("engram_compressed_vocab_size", shape.classes, 1, (int64_t{1} << 30) - 1));

    const int64_t bound = INT64_MAX / shape.classes / 2;
    EngramHash hash(shape);
    std::set<int64_t> used;
    for (const int64_t layer : shape.layers) {
        TENON_TRY(check_range("engram_layer_ids", layer, 0, 1'000'000));
        Table table;
        for (int64_t ngram = 2; ngram <= shape.max_ngram; ++ngram) {
            int64_t current = shape.bucket_floor - 1;
            for (int64_t head = 0; head < shape.heads; ++head) {
                ++current;
                while (used.count(current) != 0 || !is_prime(current)) {
                    ++current;
                }
                used.insert(current);
                table.offsets.push_back(table.rows);
                table.primes.push_back(current);
                table.rows += current;
            }
        }
        for (const int64_t drawn :
             draw_like_numpy(static_cast<uint64_t>(10007 * layer), bound, shape.max_ngram)) {
            table.multipliers.push_back(2 * drawn + 1);
        }
        hash.tables_.push_back(std::move(table));
    }
    return hash;
}

void EngramHash::look_up(int64_t table, std::span<const int32_t> look,
                         std::span<int64_t> out) const {
    const Table& t = tables_[static_cast<size_t>(table)];
    // class < classes and multiplier < 2^63 / classes: no product overflows, and xor keeps the sign
    // bit clear.
    int64_t mixed = look[0] * t.multipliers[0];
    size_t column = 0;
    for (size_t back = 1; back < t.multipliers.size(); ++back) {
        mixed ^= look[back] * t.multipliers[back];
        for (int64_t head = 0; head < shape_.heads; ++head, ++column) {
            out[column] = mixed % t.primes[column] + t.offsets[column];
        }
    }
}

void EngramHash::row_ids(int64_t table, std::span<const int32_t> classes, int32_t pad,
                         std::span<int64_t> out) const {
    const auto before = static_cast<size_t>(history());
    const auto width = static_cast<size_t>(columns());
    std::array<int32_t, kMostNgram> look{};
    for (size_t i = 0; i + before < classes.size(); ++i) {
        const std::span<int64_t> row = out.subspan(i * width, width);
        if (classes[before + i] == kDead) {
            std::fill(row.begin(), row.end(), -1);
            continue;
        }
        bool is_blocked = false;
        for (size_t back = 0; back <= before; ++back) {
            const int32_t token = classes[before + i - back];
            is_blocked = is_blocked || token == kDead;
            look[back] = is_blocked ? pad : token;
        }
        look_up(table, std::span<const int32_t>(look).first(before + 1), row);
    }
}

}  // namespace tenon::dsv41
