// SPDX-License-Identifier: MIT
// QuantWeight, QuantDequant and QuantGroup over Matrix: argument checks and the lists of products.
#include <algorithm>

#include "check.h"
#include "facets.h"

namespace tenon::packed {

namespace {

class Weight final : public Implements<Weight, QuantWeight, QuantDequant> {
  public:
    Weight(std::string name, const QuantInfo& info, std::vector<std::unique_ptr<Matrix>> groups,
           ParallelFor* pool)
        : name_(std::move(name)), info_(info), groups_(std::move(groups)), pool_(pool) {}

    QuantInfo info() noexcept override { return info_; }

    int64_t device_bytes() noexcept override {
        int64_t total = 0;
        for (const auto& m : groups_) {
            total += m->bytes();
        }
        return total;
    }

    int64_t scratch_bytes(int64_t rows, Regime, DType) noexcept override {
        ProductList products;
        return multiply_scratch(fill(&products), rows, workers_of(pool_));
    }

    Status linear(const LinearArgs& request, Stream&) noexcept override {
        const Matrix& m = *groups_[0];
        const auto count = static_cast<int64_t>(groups_.size());
        LinearArgs args = request;
        TENON_TRY(check_linear(name_, count, m.in(), m.out(), &args));
        const int64_t rows = args.x.shape[0];
        if (rows == 0) {
            return {};
        }
        ProductList products;
        const Span<Product> list = fill(&products);
        TENON_TRY(
            check_scratch("linear", args.scratch, multiply_scratch(list, rows, workers_of(pool_))));
        for (int64_t g = 0; g < count; ++g) {
            const int64_t x_at = count == 1 ? 0 : g * args.x.stride[1];
            const int64_t y_at = count == 1 ? 0 : g * args.y.stride[1];
            Product& p = list.data[g];
            p.x.data = args.x.as<char>() + x_at * dtype_bytes(args.x.dtype);
            p.x.dtype = args.x.dtype;
            p.x.stride = args.x.stride[0];
            p.y = args.y.as<char>() + y_at * dtype_bytes(args.y.dtype);
            p.y_dtype = args.y.dtype;
            p.y_stride = args.y.stride[0];
        }
        multiply(list, rows, args.scratch.data, pool_);
        return {};
    }

    Status dequantize(int64_t row0, const TensorView& dst) noexcept override {
        return guard([&]() -> Status {
            const int64_t out = groups_[0]->out();
            const int64_t total = out * static_cast<int64_t>(groups_.size());
            TENON_TRY(check_dequantize(name_, total, groups_[0]->in(), row0, dst));
            int64_t done = 0;
            while (done < dst.shape[0]) {
                const int64_t g = (row0 + done) / out;
                const int64_t first = (row0 + done) % out;
                const int64_t count = std::min(out - first, dst.shape[0] - done);
                groups_[static_cast<size_t>(g)]->dequantize(first, count, dst.row<float>(done),
                                                            dst.stride[0]);
                done += count;
            }
            return {};
        });
    }

  private:
    Span<Product> fill(ProductList* products) const {
        for (size_t g = 0; g < groups_.size(); ++g) {
            products->add(groups_[g].get(), static_cast<int32_t>(g));
        }
        return products->view();
    }

    std::string name_;
    QuantInfo info_;
    std::vector<std::unique_ptr<Matrix>> groups_;
    ParallelFor* pool_;
};

class Group final : public Implements<Group, QuantGroup> {
  public:
    Group(std::string name, std::vector<std::unique_ptr<Matrix>> members, ParallelFor* pool)
        : name_(std::move(name)), members_(std::move(members)), pool_(pool) {
        for (size_t i = 0; i < members_.size(); ++i) {
            size_t by = i;
            for (size_t j = 0; j < i && by == i; ++j) {
                if (members_[j]->stages_for(*members_[i])) {
                    by = j;
                }
            }
            staged_by_.push_back(static_cast<int32_t>(by));
            outs_.push_back(members_[i]->out());
        }
    }

    int64_t device_bytes() noexcept override {
        int64_t total = 0;
        for (const auto& m : members_) {
            total += m->bytes();
        }
        return total;
    }

    int64_t scratch_bytes(int64_t rows, Regime) noexcept override {
        ProductList products;
        return multiply_scratch(fill(&products), rows, workers_of(pool_));
    }

    Status linear(const TensorView& x, Span<const TensorView> ys, Regime, const TensorView& scratch,
                  Stream&) noexcept override {
        TENON_TRY(check_group(name_, members_[0]->in(), outs_, x, ys));
        const int64_t rows = x.shape[0];
        ProductList products;
        const Span<Product> list = fill(&products);
        for (uint64_t i = 0; i < ys.size; ++i) {
            Product& p = list.data[i];
            p.x.data = x.data;
            p.x.dtype = x.dtype;
            p.x.stride = x.stride[0];
            p.y = ys[i].data;
            p.y_dtype = ys[i].dtype;
            p.y_stride = ys[i].stride[0];
        }
        if (rows == 0) {
            return {};
        }
        TENON_TRY(
            check_scratch("linear", scratch, multiply_scratch(list, rows, workers_of(pool_))));
        multiply(list, rows, scratch.data, pool_);
        return {};
    }

  private:
    Span<Product> fill(ProductList* products) const {
        for (size_t i = 0; i < members_.size(); ++i) {
            products->add(members_[i].get(), staged_by_[i]);
        }
        return products->view();
    }

    std::string name_;
    std::vector<std::unique_ptr<Matrix>> members_;
    std::vector<int32_t> staged_by_;
    std::vector<int64_t> outs_;
    ParallelFor* pool_;
};

}  // namespace

Status check_device(StrView format, StrView base, Device* device) {
    if (device == nullptr) {
        return error(Code::invalid_argument, "{}: '{}' was asked for without a device", format,
                     base);
    }
    const DeviceInfo info = device->info();
    if (!info.cpu) {
        return error(
            Code::unsupported,
            "{}: '{}' cannot be loaded on device '{}' ({}): this build of the format has CPU "
            "kernels only",
            format, base, info.name, info.arch);
    }
    return {};
}

bool wants_reference(Device& device) {
    return std::string_view(device.info().arch) == "cpu-reference";
}

QuantWeight* make_weight(std::string name, const QuantInfo& info,
                         std::vector<std::unique_ptr<Matrix>> groups, ParallelFor* pool) {
    TENON_CHECK(!groups.empty() && groups.size() <= kMaxProducts, "{}", groups.size());
    return new Weight(std::move(name), info, std::move(groups), pool);
}

QuantGroup* make_group(std::string name, std::vector<std::unique_ptr<Matrix>> members,
                       ParallelFor* pool) {
    TENON_CHECK(!members.empty() && members.size() <= kMaxProducts, "{}", members.size());
    return new Group(std::move(name), std::move(members), pool);
}

Cut cut_units(int64_t total, const Shard& shard) {
    const int64_t first = total * shard.rank / shard.world;
    return {first, total * (shard.rank + 1) / shard.world - first};
}

Status check_shard(StrView name, const Shard& shard) {
    if (shard.world < 1 || shard.rank < 0 || shard.rank >= shard.world) {
        return error(Code::invalid_argument, "{}: shard rank {} of world {} does not exist", name,
                     shard.rank, shard.world);
    }
    return {};
}

}  // namespace tenon::packed
