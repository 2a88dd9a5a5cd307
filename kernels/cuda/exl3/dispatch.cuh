// SPDX-License-Identifier: MIT
// From a rate and a code that are known at run time to a template.
#pragma once

#include "layout.h"

namespace tenon::exl3::cuda {

template <int kValue>
struct Rate {
    static constexpr int value = kValue;
};
template <Code kValue>
struct CodeOf {
    static constexpr Code value = kValue;
};

/// Calls f(Rate<2 K>{}, CodeOf<code>{}); false if the format has no such pair.
template <class F>
bool dispatch(int twice_k, Code code, F&& f) {
    const auto with_rate = [&](auto rate) {
        switch (code) {
            case Code::mul1:
                f(rate, CodeOf<Code::mul1>{});
                return true;
            case Code::mcg:
                if constexpr (decltype(rate)::value % 2 == 0) {
                    f(rate, CodeOf<Code::mcg>{});
                    return true;
                }
                return false;
            case Code::inst3:
                if constexpr (decltype(rate)::value % 2 == 0) {
                    f(rate, CodeOf<Code::inst3>{});
                    return true;
                }
                return false;
        }
        return false;
    };
    switch (twice_k) {
        case 2:
            return with_rate(Rate<2>{});
        case 3:
            return with_rate(Rate<3>{});
        case 4:
            return with_rate(Rate<4>{});
        case 5:
            return with_rate(Rate<5>{});
        case 6:
            return with_rate(Rate<6>{});
        case 7:
            return with_rate(Rate<7>{});
        case 8:
            return with_rate(Rate<8>{});
        case 10:
            return with_rate(Rate<10>{});
        case 12:
            return with_rate(Rate<12>{});
        case 14:
            return with_rate(Rate<14>{});
        case 16:
            return with_rate(Rate<16>{});
        default:
            return false;
    }
}

}  // namespace tenon::exl3::cuda
