// SPDX-License-Identifier: MIT
// The QuantFormat of EXL3.
#pragma once

#include "tenon/quant.h"

namespace tenon::exl3 {

/// Creates the format; stateless.
QuantFormat* make_format();

}  // namespace tenon::exl3
