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
    /// The digest; the object must not be used afterwards.
    std::array<uint8_t, 32> finish();

  private:
    struct Free {
        void operator()(evp_md_ctx_st* context) const;
    };
    std::unique_ptr<evp_md_ctx_st, Free> context_;
};

/// The seed of a request that names none: first 8 bytes, little-endian, of SHA-256(salt, ids).
uint64_t default_seed(std::string_view salt, Span<const int32_t> ids);

}  // namespace tenon::engine
