// SPDX-License-Identifier: MIT
// Ordinary weights that stay packed in memory, in the order in which the SIMD kernels read them.
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "kernels/cpu/matrix/aligned.h"
#include "matrix.h"
#include "tenon/numeric.h"

namespace tenon::plain {

namespace {

using packed::kBlock;

int64_t blocks_of(int64_t out) {
    return (out + kBlock - 1) / kBlock;
}
int64_t scale_groups(int64_t in) {
    return (in + kScaleGroup - 1) / kScaleGroup;
}
int64_t scale_count(const Part& part) {
    return has_scales(part.tensors->encoding) ? blocks_of(part.out) * scale_groups(part.in) * kBlock
                                              : 0;
}

class SimdMatrix final : public PlainMatrix {
  public:
    SimdMatrix(const Part& part, const Kernels& kernels)
        : PlainMatrix(part),
          kernels_(kernels),
          encoding_(part.tensors->encoding),
          codes_(blocks() * part.in * strip_bytes(encoding_)),
          scales_(scale_count(part)) {
        for (int64_t o = 0; o < part.out; ++o) {
            pack_row(part, o);
        }
    }

    int64_t bytes() const override { return codes_.bytes() + scales_.bytes(); }
    int64_t work_bytes() const override {
        return kernels_.panel_floats * static_cast<int64_t>(sizeof(float));
    }

    void block(int64_t index, const std::byte* staged, int64_t rows, float* y,
               std::byte* work) const override {
        BlockArgs args;
        args.encoding = encoding_;
        args.codes = codes_.data() + index * in() * strip_bytes(encoding_);
        args.scales = scales_.data() + index * scale_groups(in()) * kBlock;
        args.in = in();
        args.staged = staged;
        args.staged_bytes = staged_bytes();
        args.rows = rows;
        args.y = y;
        args.panel = reinterpret_cast<float*>(work);
        kernels_.block(args);
    }

    void dequantize(int64_t row0, int64_t rows, float* dst, int64_t stride) const override {
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t o = row0 + r;
            for (int64_t i = 0; i < in(); ++i) {
                dst[r * stride + i] = value(o, i);
            }
        }
    }

  private:
    uint8_t* strip(int64_t o, int64_t i) {
        return codes_.data() + (o / kBlock * in() + i) * strip_bytes(encoding_);
    }
    const uint8_t* strip(int64_t o, int64_t i) const {
        return codes_.data() + (o / kBlock * in() + i) * strip_bytes(encoding_);
    }
    int64_t scale_index(int64_t o, int64_t i) const {
        return (o / kBlock * scale_groups(in()) + i / kScaleGroup) * kBlock + o % kBlock;
    }
    static int64_t fp4_byte(int64_t column) { return column / 32 * 16 + column % 16; }
    static int fp4_shift(int64_t column) { return column % 32 < 16 ? 0 : 4; }

    void pack_row(const Part& part, int64_t o) {
        const Tensors& t = *part.tensors;
        const uint8_t* from = t.row(part.o0 + o) + row_bytes(encoding_, part.i0);
        const int64_t column = o % kBlock;
        for (int64_t i = 0; i < part.in; ++i) {
            if (encoding_ == Encoding::fp4) {
                const int code = from[i / 2] >> (i % 2 == 0 ? 0 : 4) & 15;
                uint8_t& to = strip(o, i)[fp4_byte(column)];
                to = static_cast<uint8_t>(to | code << fp4_shift(column));
            } else {
                const auto size = static_cast<size_t>(row_bytes(encoding_, 1));
                std::memcpy(strip(o, i) + column * static_cast<int64_t>(size),
                            from + i * static_cast<int64_t>(size), size);
            }
        }
        const int shift = encoding_ == Encoding::fp8 ? kFp8ScaleShift : kFp4ScaleShift;
        for (int64_t i = 0; has_scales(encoding_) && i < part.in; i += kScaleGroup) {
            const int exponent = t.scale_code(part.o0 + o, part.i0 + i) + shift;  // 1 .. 254
            scales_.data()[scale_index(o, i)] = static_cast<uint16_t>(exponent << 7);
        }
    }

    float value(int64_t o, int64_t i) const {
        const int64_t column = o % kBlock;
        const uint8_t* codes = strip(o, i);
        switch (encoding_) {
            case Encoding::f32: {
                float v = 0;
                std::memcpy(&v, codes + 4 * column, sizeof v);
                return v;
            }
            case Encoding::bf16:
            case Encoding::f16: {
                uint16_t bits = 0;
                std::memcpy(&bits, codes + 2 * column, sizeof bits);
                return encoding_ == Encoding::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
            }
            case Encoding::fp8:
                return e4m3_to_f32(codes[column]) * 0x1p-8f *
                       bf16_to_f32(scales_.data()[scale_index(o, i)]);
            case Encoding::fp4:
                break;
        }
        const int code = codes[fp4_byte(column)] >> fp4_shift(column) & 15;
        return e2m1_to_f32(static_cast<uint8_t>(code)) * 0x1p-14f *
               bf16_to_f32(scales_.data()[scale_index(o, i)]);
    }

    const Kernels& kernels_;
    Encoding encoding_;
    packed::AlignedArray<uint8_t> codes_;
    packed::AlignedArray<uint16_t> scales_;
};

}  // namespace

std::unique_ptr<packed::Matrix> make_simd_matrix(const Part& part, const Kernels& kernels) {
    return std::make_unique<SimdMatrix>(part, kernels);
}

int64_t simd_bytes(const Part& part) {
    return blocks_of(part.out) * part.in * strip_bytes(part.tensors->encoding) +
           scale_count(part) * static_cast<int64_t>(sizeof(uint16_t));
}

}  // namespace tenon::plain
