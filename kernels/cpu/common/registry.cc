// SPDX-License-Identifier: MIT
// The list of all CPU ops.
#include "common/registry.h"

namespace tenon::cpu {

void add_rows_gather(Registry& r);
void add_rows_digest(Registry& r);
void add_embed_gather(Registry& r);
void add_norm_rms(Registry& r);
void add_elem(Registry& r);
void add_mhc_mix(Registry& r);
void add_mhc_streams(Registry& r);
void add_linear_plain(Registry& r);
void add_route_topk(Registry& r);
void add_rope_angles(Registry& r);
void add_rope_turn(Registry& r);
void add_kvq(Registry& r);
void add_window_store(Registry& r);
void add_cache_store(Registry& r);
void add_compress_pool(Registry& r);
void add_index_score(Registry& r);
void add_index_topk(Registry& r);
void add_attn_sparse(Registry& r);
void add_engram_decode(Registry& r);
void add_engram_gate(Registry& r);
void add_sample_draw(Registry& r);
void add_sample_logprobs(Registry& r);
void add_spec_verify(Registry& r);
void add_draft_step(Registry& r);
void add_draft_rows(Registry& r);
void add_pages(Registry& r);
void add_state(Registry& r);

void add_all(Registry& r) {
    for (const auto add :
         {add_rows_gather,  add_rows_digest,     add_embed_gather,  add_norm_rms,
          add_elem,         add_mhc_mix,         add_mhc_streams,   add_linear_plain,
          add_route_topk,   add_rope_angles,     add_rope_turn,     add_kvq,
          add_window_store, add_cache_store,     add_compress_pool, add_index_score,
          add_index_topk,   add_attn_sparse,     add_engram_decode, add_engram_gate,
          add_sample_draw,  add_sample_logprobs, add_spec_verify,   add_draft_step,
          add_draft_rows,   add_pages,           add_state}) {
        add(r);
    }
}

}  // namespace tenon::cpu
