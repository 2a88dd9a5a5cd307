// SPDX-License-Identifier: MIT
// state.save and state.load.
#include "state/record.cuh"

#include <algorithm>

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

template <bool kSave, class P>
class Launcher {
  public:
    Launcher(const P& p, cudaStream_t stream) : p_(p), stream_(stream) {}

    void add(const RecordPart& part) {
        parts_.part[count_++] = part;
        if (count_ == kPartsAtOnce) {
            flush();
        }
    }
    void flush() {
        if (count_ == 0) {
            return;
        }
        const dim3 grid(static_cast<unsigned>(std::max(p_.positions, 1)),
                        static_cast<unsigned>(count_));
        record_kernel<kSave><<<grid, 64, 0, stream_>>>(parts_, p_.record.template as<uint8_t>(),
                                                       p_.slot, p_.length, p_.positions);
        count_ = 0;
    }

  private:
    const P& p_;
    cudaStream_t stream_;
    RecordParts parts_{};
    int count_ = 0;
};

template <bool kSave, class P>
Status move(void*, const P& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    Launcher<kSave, P> launcher(p, native(stream));
    int64_t at = 0;
    for (const Ring& r : p.rings) {
        const int64_t codes = code_bytes(r.format, r.width);
        const int64_t scales = scale_bytes(r.format, r.width);
        if (p.positions > 0) {
            launcher.add({r.codes.as<uint8_t>(), r.scales.as<uint8_t>(), at, r.R,
                          static_cast<int32_t>(codes), static_cast<int32_t>(scales)});
        }
        at += p.positions * (codes + scales);
    }
    for (const TensorView& raw : p.raws) {
        const int64_t bytes = 2 * raw.shape[3] * 4;
        const int64_t pos = int64_t{p.length} - 1;
        uint8_t* pair =
            p.length % 2 == 0
                ? nullptr
                : raw.as<uint8_t>() + (p.slot * kRawPositions + pos % kRawPositions) * bytes;
        launcher.add({pair, nullptr, at, 0, static_cast<int32_t>(bytes), 0});
        at += bytes;
    }
    launcher.flush();
    return launched(P::kOp.name);
}

}  // namespace

void add_state(Registry& r) {
    r.add<StateSave>(&move<true, StateSave>, Exactness::exact, kBoth, nullptr, false);
    r.add<StateLoad>(&move<false, StateLoad>, Exactness::exact, kBoth, nullptr, false);
}

}  // namespace tenon::cuda
