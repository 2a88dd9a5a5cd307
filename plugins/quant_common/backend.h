// SPDX-License-Identifier: MIT
// Where the checked parts of a format's matrices become weights of a device: one backend per kind
// of device.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "kernels/cpu/matrix/facets.h"

namespace tenon::quant {

/// How much of a matrix a call needs: a memory plan, and a device that reads the checkpoint itself,
/// take shapes only.
enum class Want { shapes, data };

/// The three projections of one expert; empty if the rank does not hold it.
template <class Part>
struct ExpertParts {
    std::optional<Part> w1, w3, w2;
};

template <class Part>
struct ExpertsParts {
    std::string name;
    int64_t hidden = 0;
    int64_t intermediate = 0;  ///< of this rank
    bool whole_width = true;
    std::vector<ExpertParts<Part>> experts;
    ExpertParts<Part> shared;
};

/// Makes device objects. Parts need not outlive the call.
template <class Part>
class Backend {
  public:
    virtual ~Backend() = default;
    /// What the parts of a load must hold.
    virtual Want wants() const = 0;
    virtual Status weight(const std::string& name, const QuantInfo& info,
                          const std::vector<Part>& groups, QuantWeight** out) = 0;
    virtual Status group(const std::string& name, const std::vector<Part>& members,
                         QuantGroup** out) = 0;
    virtual Status experts(const ExpertsParts<Part>& parts, QuantExperts** out) = 0;
    /// Device bytes of one part; needs shapes only.
    virtual int64_t bytes(const Part& part) = 0;
};

/// Host memory: wraps the function that makes a format's Matrix.
template <class Part>
class CpuBackend final : public Backend<Part> {
  public:
    using Make = std::function<std::unique_ptr<packed::Matrix>(const Part&)>;
    using Bytes = std::function<int64_t(const Part&)>;

    CpuBackend(Device& device, Make make, Bytes bytes)
        : pool_(packed::pool_of(&device)),
          reference_(packed::wants_reference(device)),
          make_(std::move(make)),
          bytes_(std::move(bytes)) {}

    Want wants() const override { return Want::data; }
    Status weight(const std::string& name, const QuantInfo& info, const std::vector<Part>& groups,
                  QuantWeight** out) override {
        *out = packed::make_weight(name, info, all(groups), pool_);
        return {};
    }

    Status group(const std::string& name, const std::vector<Part>& members,
                 QuantGroup** out) override {
        *out = packed::make_group(name, all(members), pool_);
        return {};
    }

    Status experts(const ExpertsParts<Part>& parts, QuantExperts** out) override {
        packed::ExpertsDesc desc;
        desc.name = parts.name;
        desc.hidden = parts.hidden;
        desc.intermediate = parts.intermediate;
        desc.whole_width = parts.whole_width;
        desc.reference = reference_;
        for (const ExpertParts<Part>& e : parts.experts) {
            desc.experts.push_back(expert(e));
        }
        desc.shared = expert(parts.shared);
        *out = packed::make_experts(std::move(desc), pool_);
        return {};
    }

    int64_t bytes(const Part& part) override { return bytes_(part); }

  private:
    std::vector<std::unique_ptr<packed::Matrix>> all(const std::vector<Part>& parts) const {
        std::vector<std::unique_ptr<packed::Matrix>> list;
        for (const Part& part : parts) {
            list.push_back(make_(part));
        }
        return list;
    }

    packed::ExpertMatrices expert(const ExpertParts<Part>& e) const {
        return e.w1 ? packed::ExpertMatrices{make_(*e.w1), make_(*e.w3), make_(*e.w2)}
                    : packed::ExpertMatrices{};
    }

    ParallelFor* pool_;
    bool reference_;
    Make make_;
    Bytes bytes_;
};

}  // namespace tenon::quant
