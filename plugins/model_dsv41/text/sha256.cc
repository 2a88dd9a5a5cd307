// SPDX-License-Identifier: MIT
// SHA-256 by FIPS 180-4.
#include "text/sha256.h"

#include <array>
#include <cstdint>

namespace tenon::dsv41 {

namespace {

constexpr size_t kRounds = 64;

// Fractional parts of the cube roots of the first 64 primes, and of the square roots of the first
// eight.
constexpr std::array<uint32_t, kRounds> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
constexpr std::array<uint32_t, 8> kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

constexpr uint32_t rotate(uint32_t x, int by) {
    return (x >> by) | (x << (32 - by));
}

void absorb(std::array<uint32_t, 8>& state, const unsigned char* block) {
    std::array<uint32_t, kRounds> w{};
    for (size_t i = 0; i < 16; ++i) {
        w[i] = static_cast<uint32_t>(block[4 * i]) << 24 |
               static_cast<uint32_t>(block[4 * i + 1]) << 16 |
               static_cast<uint32_t>(block[4 * i + 2]) << 8 |
               static_cast<uint32_t>(block[4 * i + 3]);
    }
    for (size_t i = 16; i < kRounds; ++i) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ (a >> 3)) +
               (rotate(b, 17) ^ rotate(b, 19) ^ (b >> 10));
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t i = 0; i < kRounds; ++i) {
        const uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
        const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRoundConstants[i] + w[i];
        const uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
        const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    const std::array<uint32_t, 8> add{a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < state.size(); ++i) {
        state[i] += add[i];
    }
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
    std::array<uint32_t, 8> state = kStart;
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
    const size_t whole = bytes.size() / 64 * 64;
    for (size_t i = 0; i < whole; i += 64) {
        absorb(state, data + i);
    }
    std::string tail(bytes.substr(whole));
    tail += '\x80';
    tail.resize((tail.size() + 8 + 63) / 64 * 64, '\0');
    const uint64_t bits = static_cast<uint64_t>(bytes.size()) * 8;
    for (size_t i = 0; i < 8; ++i) {
        tail[tail.size() - 1 - i] = static_cast<char>(bits >> (8 * i) & 0xFF);
    }
    for (size_t i = 0; i < tail.size(); i += 64) {
        absorb(state, reinterpret_cast<const unsigned char*>(tail.data()) + i);
    }
    static constexpr char kHex[] = "0123456789abcdef";
    std::string hex;
    for (const uint32_t word : state) {
        for (int shift = 28; shift >= 0; shift -= 4) {
            hex += kHex[(word >> shift) & 15];
        }
    }
    return hex;
}

}  // namespace tenon::dsv41
