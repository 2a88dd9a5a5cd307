// SPDX-License-Identifier: MIT
// A transport of any number of ranks that breaks one rule of tenon/transport.h, chosen by the
// option `fault`: the suite must notice each. Its collectives are rounds of the rendezvous.
#include "tenon/transport.h"

#include "faulty.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace tenon::testing {
namespace {

class FaultyCommunicator final : public Implements<FaultyCommunicator, Communicator> {
  public:
    FaultyCommunicator(Rendezvous& meeting, Device& device, const std::string& fault)
        : meeting_(meeting),
          device_(device),
          fault_(fault),
          deadline_us_(fault == "hides_loss" || fault == "stays_healthy" ? 50'000 : 2'000'000) {}

    CommunicatorInfo info() noexcept override {
        CommunicatorInfo info;
        info.rank = fault_ == "wrong_rank" ? 0 : meeting_.rank();
        info.world = meeting_.world();
        info.in_place_gather = true;
        info.deadline_us = deadline_us_;
        return info;
    }

    Status allocate_exchange(int64_t bytes, Buffer** out) noexcept override {
        TENON_TRY(device_.allocate({.bytes = bytes, .tag = "exchange"}, out));
        if (fault_ == "dirty_exchange") {
            std::memset((*out)->data(), 1, static_cast<size_t>(bytes));
        }
        return {};
    }

    Status all_gather(const TensorView& dst, const TensorView& src, Stream&) noexcept override {
        return guard([&]() -> Status {
            TENON_TRY(check_parts(dst, src));
            if (fault_ == "clears_in_place") {
                std::memset(dst.data, 0, static_cast<size_t>(dst.bytes()));
            }
            TENON_TRY(round(src));
            if (fault_ == "reverses_parts") {
                for (int32_t r = 0; r < meeting_.world(); ++r) {
                    std::copy_n(part(meeting_.world() - 1 - r), part_bytes_,
                                static_cast<uint8_t*>(dst.data) + r * part_bytes_);
                }
                return {};
            }
            return write_parts(dst);
        });
    }

    Status all_reduce_sum(const TensorView& inout, Stream&) noexcept override {
        return guard([&]() -> Status {
            if (inout.dtype != DType::f32 && fault_ != "sums_anything") {
                return error(Code::invalid_argument, "sum: {}, expected f32", describe(inout));
            }
            TENON_TRY(round(inout));
            const int32_t first = fault_ == "sums_own_first" ? meeting_.rank() : 0;
            auto* sum = static_cast<float*>(inout.data);
            for (int64_t i = 0; i < part_bytes_ / 4; ++i) {
                sum[i] = value(first, i);
                for (int32_t r = 1; r < meeting_.world(); ++r) {
                    sum[i] += value((first + r) % meeting_.world(), i);
                }
            }
            return {};
        });
    }

    Status gather(const TensorView& dst, const TensorView& src, int32_t root,
                  Stream&) noexcept override {
        return guard([&]() -> Status {
            TENON_TRY(check_root(root));
            TENON_TRY(check_parts(dst, src));
            TENON_TRY(round(src));
            return meeting_.rank() == root || fault_ == "gathers_everywhere" ? write_parts(dst)
                                                                             : Status();
        });
    }

    Status broadcast(const TensorView& buffer, int32_t root, Stream&) noexcept override {
        return guard([&]() -> Status {
            TENON_TRY(check_root(root));
            TENON_TRY(round(buffer));
            std::copy_n(part(fault_ == "broadcasts_first" ? 0 : root), part_bytes_,
                        static_cast<uint8_t*>(buffer.data));
            return {};
        });
    }

    Status health() noexcept override {
        return usable_ ? Status() : Status(Code::peer, "an operation failed or was aborted");
    }
    void abort() noexcept override { usable_ = usable_ && fault_ == "ignores_abort"; }

  private:
    Status check_parts(const TensorView& dst, const TensorView& src) const {
        return dst.bytes() == src.bytes() * meeting_.world()
                   ? Status()
                   : error(Code::invalid_argument, "dst is {}, expected {} parts of {}",
                           describe(dst), meeting_.world(), describe(src));
    }
    Status check_root(int32_t root) const {
        return (root >= 0 && root < meeting_.world()) || fault_ == "takes_any_root"
                   ? Status()
                   : error(Code::invalid_argument, "root {} of {} ranks", root, meeting_.world());
    }

    /// Data of all ranks to `parts_`.
    Status round(const TensorView& src) {
        TENON_TRY(health());
        part_bytes_ = src.bytes();
        parts_.resize(static_cast<size_t>(part_bytes_ * meeting_.world()));
        const auto* data = static_cast<const uint8_t*>(src.data);
        Status status =
            meeting_.all_gather(std::to_string(++rounds_), {data, static_cast<size_t>(part_bytes_)},
                                {parts_.data(), parts_.size()}, deadline_us_);
        if (fault_ == "hides_loss" && !status.ok()) {
            return {};
        }
        usable_ = usable_ && (status.ok() || fault_ == "stays_healthy");
        if (fault_ == "loses_tail" && part_bytes_ > 65'536) {
            parts_.back() ^= 1;
        }
        return status;
    }
    Status write_parts(const TensorView& dst) const {
        std::copy(parts_.begin(), parts_.end(), static_cast<uint8_t*>(dst.data));
        return {};
    }
    const uint8_t* part(int32_t rank) const { return parts_.data() + rank * part_bytes_; }
    float value(int32_t rank, int64_t i) const {
        float v = 0;
        std::memcpy(&v, part(rank) + 4 * i, 4);
        return v;
    }

    Rendezvous& meeting_;
    Device& device_;
    const std::string& fault_;  // the transport's
    const int64_t deadline_us_;
    std::atomic<bool> usable_ = true;
    int64_t rounds_ = 0;
    int64_t part_bytes_ = 0;
    std::vector<uint8_t> parts_;
};

class FaultyTransport final : public Implements<FaultyTransport, Transport> {
  public:
    FaultyTransport(Host&, std::string fault) : fault_(std::move(fault)) {}

    Status connect(Rendezvous& meeting, Device& device, Communicator** out) noexcept override {
        return guard([&]() -> Status {
            if (fault_ == "refuses_one" && meeting.world() == 1) {
                return Status(Code::unsupported, "one rank needs no transport");
            }
            *out = new FaultyCommunicator(meeting, device, fault_);
            return {};
        });
    }

  private:
    const std::string fault_;
};

constexpr OptionSpec kOptions[] = {
    fault_option("none|wrong_rank|dirty_exchange|reverses_parts|loses_tail|clears_in_place|"
                 "sums_own_first|sums_anything|gathers_everywhere|broadcasts_first|takes_any_root|"
                 "hides_loss|stays_healthy|ignores_abort|refuses_one")};

constexpr Component kComponents[] = {
    faulty_component<FaultyTransport>(PluginKind::transport, "faulty_transport", kOptions)};

}  // namespace
}  // namespace tenon::testing

TENON_PLUGIN("faulty_transport", "0.1.0", "Breaks one rule of transports", "MIT", experimental,
             tenon::testing::kComponents)
