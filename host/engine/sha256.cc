// SPDX-License-Identifier: MIT
// SHA-256 on top of OpenSSL's digest interface.
#include "host/engine/sha256.h"

#include <openssl/evp.h>

#include <bit>

namespace tenon::engine {

static_assert(std::endian::native == std::endian::little, "ids are hashed as they lie in memory");

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
    EVP_MD_CTX_free(context);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
    if (context_ == nullptr || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) {
        throw std::bad_alloc();
    }
}

void Sha256::add(Span<const uint8_t> bytes) {
    EVP_DigestUpdate(context_.get(), bytes.data, static_cast<size_t>(bytes.size));
}

void Sha256::add_ids(Span<const int32_t> ids) {
    EVP_DigestUpdate(context_.get(), ids.data, static_cast<size_t>(ids.size) * sizeof(int32_t));
}

void Sha256::add_text(std::string_view text) {
    EVP_DigestUpdate(context_.get(), text.data(), text.size());
}

void Sha256::add_field(std::string_view text) {
    const uint64_t bytes = text.size();
    EVP_DigestUpdate(context_.get(), &bytes, sizeof bytes);
    add_text(text);
}

std::array<uint8_t, 32> Sha256::peek() const {
    Sha256 copy;
    if (EVP_MD_CTX_copy_ex(copy.context_.get(), context_.get()) != 1) {
        throw std::bad_alloc();
    }
    return copy.finish();
}

std::array<uint8_t, 32> Sha256::finish() {
    std::array<uint8_t, 32> digest{};
    unsigned int bytes = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &bytes);
    return digest;
}

uint64_t caller_salt(std::string_view key, std::string_view wish) {
    if (key.empty() && wish.empty()) {
        return 0;
    }
    Sha256 sha;
    // Kept prefixes on disk carry salts, so this text never changes.
    sha.add_field("tenon prefix scope 1");
    sha.add_field(key);
    sha.add_field(wish);
    const std::array<uint8_t, 32> digest = sha.finish();
    uint64_t salt = 0;
    std::memcpy(&salt, digest.data(), sizeof salt);
    return salt == 0 ? 1 : salt;
}

uint64_t default_seed(std::string_view salt, Span<const int32_t> ids) {
    Sha256 sha;
    sha.add({reinterpret_cast<const uint8_t*>(salt.data()), salt.size()});
    sha.add_ids(ids);
    const std::array<uint8_t, 32> digest = sha.finish();
    uint64_t seed = 0;
    std::memcpy(&seed, digest.data(), sizeof seed);
    return seed;
}

}  // namespace tenon::engine
