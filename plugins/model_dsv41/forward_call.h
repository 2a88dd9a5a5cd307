// SPDX-License-Identifier: MIT
// The one place where Forward calls an op; included by its source files only.
#pragma once

#include <algorithm>

#include "forward.h"

namespace tenon::dsv41 {

template <class P>
Status Forward::call(const OpFn<P>& op, P params) {
    if (measuring_) {
        scratch_need_ = std::max(scratch_need_, op.scratch(params));
        return op.supports(params);
    }
    if constexpr (requires { params.scratch; }) {
        params.scratch = p_.act->scratch;
    }
    return op(params, *p_.stream);
}

}  // namespace tenon::dsv41
