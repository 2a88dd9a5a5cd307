// SPDX-License-Identifier: MIT
// SHA-256 of token ids: default seeds and the token_sha of replies.
#pragma once

#include <array>
#include <memory>

#include "tenon/base.h"

struct evp_md_ctx_st;

namespace tenon::engine {

/// A running SHA-256. One thread at a time.
class Sha256 {
  public:
    Sha256();
    void add(Span<const uint8_t> bytes);
    /// Ids as little-endian i32.
    void add_ids(Span<const int32_t> ids);
    void add_text(std::string_view text);
    /// Text with its length before it, so that neighbours cannot run into each other.
    void add_field(std::string_view text);
    /// The digest of what was added so far; more may follow.
    std::array<uint8_t, 32> peek() const;
    /// The digest; the object must not be used afterwards.
    std::array<uint8_t, 32> finish();

  private:
    struct Free {
        void operator()(evp_md_ctx_st* context) const;
    };
    std::unique_ptr<evp_md_ctx_st, Free> context_;
};

/// Root of the prefix tree of a caller (Engine::cache_salt): first 8 bytes of a SHA-256 over both;
/// 0 if both are empty.
uint64_t caller_salt(std::string_view key, std::string_view wish);

/// The seed of a request that names none: first 8 bytes, little-endian, of SHA-256(salt, ids).
uint64_t default_seed(std::string_view salt, Span<const int32_t> ids);

}  // namespace tenon::engine
