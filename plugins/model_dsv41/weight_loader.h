// SPDX-License-Identifier: MIT
// Loads single matrices, groups and expert sets through the format chain, or adds up what they
// would take.
#pragma once

#include <map>

#include "tenon/quant.h"

namespace tenon::dsv41 {

/// One matrix after the cut.
struct Linear {
    Ref<QuantWeight> weight;
    int64_t out = 0;  ///< columns of y (all groups together)

    explicit operator bool() const { return static_cast<bool>(weight); }
};

/// Matrices that read the same input. One facet if the format groups them, else one by one.
struct LinearGroup {
    Ref<QuantGroup> group;
    std::vector<Linear> members;  ///< `weight` is empty in members of a loaded group

    int64_t scratch_bytes(int64_t rows, Regime regime, Span<const DType> ys) const;
    Status run(const TensorView& x, Span<const TensorView> ys, Regime regime,
               const TensorView& scratch, Stream& stream) const;
};

struct MatrixDesc {
    std::string base;
    int64_t in = 0;   ///< before the cut; with groups: of one group
    int64_t out = 0;  ///< before the cut, all groups
    int32_t groups = 1;
    ShardAxis axis = ShardAxis::none;
    bool activation_quant = true;
};

struct ExpertsDesc {
    std::string prefix;
    std::string shared_prefix;  ///< empty: no shared expert
    int32_t experts = 0;
    int64_t hidden = 0, width = 0;
};

/// What dtype a plain tensor ends up with.
enum class PlainType {
    as_stored,  ///< bf16 or f32
    f32,        ///< stored bf16 is widened
    bf16,       ///< anything else is refused
};

struct PlainDesc {
    std::string name;
    std::vector<int64_t> shape;  ///< before the cut
    PlainType type = PlainType::as_stored;
    bool cut_rows = false;  ///< keep this rank's part of dimension 0
};

/// Thread: main, before ready. With `device == nullptr` nothing is loaded, only bytes are counted.
class WeightLoader {
  public:
    WeightLoader(WeightSource& source, Span<QuantFormat* const> formats, Device* device,
                 Stream* stream, int32_t rank, int32_t world)
        : source_(source),
          formats_(formats),
          device_(device),
          stream_(stream),
          rank_(rank),
          world_(world) {}

    bool planning() const { return device_ == nullptr; }
    /// The device whose layout is counted while planning.
    void plan_for(Device* device) { plan_device_ = device; }
    /// Bytes are counted under this tag until the next call.
    void set_tag(std::string tag) { tag_ = std::move(tag); }
    const std::map<std::string, int64_t>& bytes() const { return bytes_; }
    /// Bytes of the largest matrix that was planned.
    int64_t largest() const { return largest_; }

    Status matrix(const MatrixDesc& desc, Linear* out);
    /// `single`: some member is also multiplied alone, so a format's group would not do.
    Status group(const std::vector<MatrixDesc>& descs, bool single, LinearGroup* out);
    Status experts(const ExpertsDesc& desc, Ref<QuantExperts>* out);
    /// errors  not_found: no tensor of that name; invalid_argument: shape or dtype (found,
    /// expected)
    Status plain(const PlainDesc& desc, TensorView* out);
    bool has(const std::string& name);

    /// Memory of the plain tensors; must outlive their views.
    std::vector<Ref<Buffer>> take_buffers() { return std::move(buffers_); }

  private:
    Status find_format(const std::string& base, QuantFormat** out);
    Status request_for(const MatrixDesc& desc, WeightRequest* out);
    Status load_one(QuantFormat& format, const MatrixDesc& desc, Linear* out);
    /// `first`: byte of the tensor where `to` begins; bf16 is widened if `to` is f32.
    Status copy_plain(const std::string& name, DType stored, int64_t first, const TensorView& to);
    Status upload_plain(const std::string& name, DType stored, int64_t first, const TensorView& to);
    Status experts_by_matrix(const ExpertsDesc& desc, Ref<QuantExperts>* out);
    Status count_matrix(QuantFormat& format, const MatrixDesc& desc);
    std::vector<MatrixDesc> expert_matrices(const ExpertsDesc& desc) const;
    int64_t local_out(const MatrixDesc& desc) const;

    WeightSource& source_;
    Span<QuantFormat* const> formats_;
    Device* device_;
    Device* plan_device_ = nullptr;
    Stream* stream_;
    int32_t rank_, world_;
    std::string tag_ = "weights.other";
    std::map<std::string, int64_t> bytes_;
    int64_t largest_ = 0;
    std::vector<Ref<Buffer>> buffers_;
};

}  // namespace tenon::dsv41
