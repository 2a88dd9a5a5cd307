// SPDX-License-Identifier: MIT
// attn.sparse_turn: rope.turn of q on load, the inverse turn of the bf16 output on store.
#include "attn/launch.cuh"
#include "common/registry.h"

namespace tenon::cuda {

namespace {

template <Regime kRegime>
Status attend_turned(void* self, const AttnSparseTurn& p, Stream& stream) noexcept {
    kernels::SparseShape s{};
    TENON_TRY(kernels::check_op(p, &s));
    if (s.T == 0) {
        return {};
    }
    const Context& c = context(self);
    sparse::Args a = sparse::args_of(c, p, s);
    a.cs = p.cs.as<const float>();
    a.R = static_cast<int>(p.cs.shape[1]);
    return sparse::run<true>(AttnSparseTurn::kOp.name, c, a, s.D, kRegime, native(stream));
}

}  // namespace

void add_attn_turn(Registry& r) {
    r.add<AttnSparseTurn>(&attend_turned<Regime::decode>, Exactness::invariant, kDecode);
    r.add<AttnSparseTurn>(&attend_turned<Regime::prefill>, Exactness::invariant, kPrefill);
}

}  // namespace tenon::cuda
