// SPDX-License-Identifier: MIT
// Quantization formats: from named checkpoint tensors to weights that can be multiplied
// (ops.md 3.3, 3.4).
#pragma once

#include "tenon/compute.h"
#include "tenon/weights.h"

namespace tenon {

/// How a matrix [out, in] is cut for a rank. Cuts lie on multiples of QuantInfo::granule (128 for
/// EXL3).
enum class ShardAxis : uint8_t {
    none = 0,    ///< whole matrix on every rank
    out = 1,     ///< rows: heads, vocabulary, expert width of w1 and w3
    in = 2,      ///< columns: the result is a partial sum over ranks
    group = 3,   ///< whole groups of a block-diagonal weight
    expert = 4,  ///< whole experts (load_experts only)
};
struct Shard {
    ShardAxis axis = ShardAxis::none;
    int32_t rank = 0;
    int32_t world = 1;
};

struct QuantInfo {
    uint32_t struct_size = sizeof(QuantInfo);
    int32_t groups = 1;        ///< blocks of a block-diagonal weight found under this name (wo_a)
    int64_t in_features = 0;   ///< of one group
    int64_t out_features = 0;  ///< of all groups together
    double bits = 0;           ///< per weight
    int64_t bytes = 0;         ///< in the checkpoint, all tensors of this matrix
    int64_t granule_in = 1, granule_out = 1;  ///< legal multiples of a cut
    char codec[24] = {};                      ///< "exl3 mul1 K=3", "fp8 32x32", "bf16"
};

/// One matrix to load.
struct WeightRequest {
    uint32_t struct_size = sizeof(WeightRequest);
    StrView base;             ///< "layers.3.attn.wq_a" (no ".weight")
    int64_t in_features = 0;  ///< expected, of one group, before the cut; 0 = take the checkpoint's
    int64_t out_features =
        0;               ///< expected, of all groups, before the cut; 0 = take the checkpoint's
    int32_t groups = 1;  ///< > 1: block diagonal, `x [T, G, in]`
    Shard shard;
    bool activation_quant = true;  ///< may the format's activation quantisation apply (ops.md 3.3)?
    WeightSource* source = nullptr;  ///< read during the call only
    Device* device = nullptr;        ///< outlives what is made on it
    Stream* stream = nullptr;        ///< for copies; a format may use one of its own
};

struct ExpertsRequest {
    uint32_t struct_size = sizeof(ExpertsRequest);
    StrView prefix;         ///< "layers.3.ffn.experts": prefix + ".{e}.w1|w2|w3"
    StrView shared_prefix;  ///< "layers.3.ffn.shared_experts", or empty
    int32_t experts = 0;
    int64_t hidden = 0, intermediate = 0;  ///< expected, before the cut
    Shard shard;                     ///< axis `out` = by intermediate width, or `expert`, or none
    WeightSource* source = nullptr;  ///< read during the call only
    Device* device = nullptr;        ///< outlives what is made on it
    Stream* stream = nullptr;        ///< for copies; a format may use one of its own
};

/// y = x W^T, f32 accumulate, one rounding at y. Class I: row t does not depend on T or other rows.
struct LinearArgs {
    TensorView
        x;  ///< [T, in] bf16 (f32 allowed where stated), rows may be strided; groups: [T, G, in]
    TensorView y;  ///< [T, out] bf16 or f32, rows may be strided; groups: [T, G, out / G]
    Regime regime = Regime::decode;
    TensorView scratch;  ///< u8, 256-aligned, at least `scratch_bytes`; null if that is 0
};

class QuantWeight : public Object {
  public:
    static constexpr const char* kFacet = "quant.weight/1";
    virtual QuantInfo info() noexcept = 0;  ///< of the loaded part (after the cut)
    virtual int64_t device_bytes() noexcept = 0;
    virtual int64_t scratch_bytes(int64_t rows, Regime regime, DType y) noexcept = 0;  ///< pure
    /// errors  invalid_argument: names the field, found, expected
    virtual Status linear(const LinearArgs& args, Stream& stream) noexcept = 0;
};

/// The exact decoded weight, optional facet of a QuantWeight (tests, `inspect`).
class QuantDequant : public Object {
  public:
    static constexpr const char* kFacet = "quant.dequant/1";
    /// Rows [row0, row0 + dst.shape[0]) of W as [out, in] (groups: [out, in] with groups stacked).
    /// f32: computed in double, rounded once.
    virtual Status dequantize(int64_t row0, const TensorView& dst) noexcept = 0;
};

/// Matrices that share an input, loaded together. Member i equals `linear` of weight i.
class QuantGroup : public Object {
  public:
    static constexpr const char* kFacet = "quant.group/1";
    virtual int64_t device_bytes() noexcept = 0;
    virtual int64_t scratch_bytes(int64_t rows, Regime regime) noexcept = 0;
    virtual Status linear(const TensorView& x, Span<const TensorView> ys, Regime regime,
                          const TensorView& scratch, Stream& stream) noexcept = 0;
};

/// ops.md 3.4: routed experts and the shared one, `out = sum over slots ascending, then shared`.
struct ExpertsArgs {
    TensorView x;        ///< [T, d] bf16
    TensorView ids;      ///< i32[T, k], -1 = none
    TensorView weights;  ///< f32[T, k]
    float limit = 0;     ///< swiglu clamp
    TensorView out;      ///< f32[T, d], overwritten
    Regime regime = Regime::decode;
    TensorView scratch;  ///< u8, at least `scratch_bytes`
};

class QuantExperts : public Object {
  public:
    static constexpr const char* kFacet = "quant.experts/1";
    virtual int64_t device_bytes() noexcept = 0;
    virtual int64_t scratch_bytes(int64_t rows, int32_t k, Regime regime) noexcept = 0;
    virtual Status run(const ExpertsArgs& args, Stream& stream) noexcept = 0;
    /// Keeps every down product in f32 at world 1 (the "1f" arithmetic of ops.md 3.4; tests only).
    virtual void keep_f32(bool on) noexcept = 0;
};

/// A format. `inspect` decides whether a name is its own; the host asks a chain in profile order.
class QuantFormat : public Object {
  public:
    static constexpr const char* kFacet = "quant.format/1";
    /// errors  not_found: not my format (the chain goes on); invalid_argument: mine, but malformed
    virtual Status inspect(WeightSource& source, StrView base, QuantInfo* out) noexcept = 0;
    virtual Status load(const WeightRequest& request, QuantWeight** out) noexcept = 0;
    /// errors  unsupported: refuse to group these (the caller loads them one by one)
    virtual Status load_group(Span<const WeightRequest> requests, QuantGroup** out) noexcept = 0;
    virtual Status load_experts(const ExpertsRequest& request, QuantExperts** out) noexcept = 0;
    /// Device bytes that `load` of this request would take, for the memory plan; allocates nothing.
    virtual Status plan_bytes(const WeightRequest& request, int64_t* out) noexcept = 0;
};

}  // namespace tenon
