// SPDX-License-Identifier: MIT
// A slot's newest ring rows and its open pair, to and from a record that knows no ring size.
#pragma once

#include "common/bytes.cuh"
#include "common/rows.cuh"

namespace tenon::cuda {

constexpr int kPartsAtOnce = 48;  // parts that travel as a kernel argument

/// One piece of a record: ring rows (rows > 0), or one raw pair.
struct RecordPart {
    uint8_t* codes;
    uint8_t* scales;
    int64_t record_at;
    int32_t R;
    int32_t code_row, scale_row;  ///< bytes; a raw pair is one row of R = 1
};

struct RecordParts {
    RecordPart part[kPartsAtOnce];
};

// blockIdx.y: part, blockIdx.x: row i of it. Ring rows: position length - positions + i.
template <bool kSave>
__global__ void record_kernel(__grid_constant__ const RecordParts parts, uint8_t* record,
                              int64_t slot, int64_t length, int64_t positions) {
    const RecordPart& p = parts.part[blockIdx.y];
    const int64_t i = blockIdx.x;
    const bool raw = p.R == 0;
    if (raw && i > 0) {
        return;
    }
    const int64_t pos = length - positions + i;
    uint8_t* codes = raw        ? p.codes
                     : pos >= 0 ? p.codes + (slot * p.R + pos % p.R) * p.code_row
                                : nullptr;
    uint8_t* record_codes = record + p.record_at + i * p.code_row;
    if (kSave) {
        move_bytes(record_codes, codes, p.code_row, threadIdx.x, blockDim.x);
    } else if (codes != nullptr) {
        move_bytes(codes, record_codes, p.code_row, threadIdx.x, blockDim.x);
    }
    if (p.scale_row == 0) {
        return;
    }
    uint8_t* scales = pos >= 0 ? p.scales + (slot * p.R + pos % p.R) * p.scale_row : nullptr;
    uint8_t* record_scales = record + p.record_at + positions * p.code_row + i * p.scale_row;
    if (kSave) {
        move_bytes(record_scales, scales, p.scale_row, threadIdx.x, blockDim.x);
    } else if (scales != nullptr) {
        move_bytes(scales, record_scales, p.scale_row, threadIdx.x, blockDim.x);
    }
}

}  // namespace tenon::cuda
