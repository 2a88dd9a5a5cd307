// SPDX-License-Identifier: MIT
// attn.sparse, and the family's registration.
#include "attn/launch.cuh"
#include "common/registry.h"

namespace tenon::cuda {

namespace {

template <Regime kRegime>
Status attend(void* self, const AttnSparse& p, Stream& stream) noexcept {
    kernels::SparseShape s{};
    TENON_TRY(kernels::check_op(p, &s));
    if (s.T == 0) {
        return {};
    }
    const Context& c = context(self);
    return sparse::run<false>(AttnSparse::kOp.name, c, sparse::args_of(c, p, s), s.D, kRegime,
                              native(stream));
}

}  // namespace

void add_attn_turn(Registry& r);

void add_attn(Registry& r) {
    r.add<AttnSparse>(&attend<Regime::decode>, Exactness::invariant, kDecode);
    r.add<AttnSparse>(&attend<Regime::prefill>, Exactness::invariant, kPrefill);
    add_attn_turn(r);
}

}  // namespace tenon::cuda
