// SPDX-License-Identifier: MIT
// The transport of a single rank: every collective is a copy of the rank's own data, or nothing.
#include "tenon/plugin.h"
#include "tenon/transport.h"

#include <atomic>

namespace tenon::local {
namespace {

Status check_same(const TensorView& dst, const TensorView& src, const char* op) {
    if (dst.dtype != src.dtype || dst.elements() != src.elements()) {
        return error(Code::invalid_argument,
                     "transport.{}: dst is {}, expected the elements of src {}", op, describe(dst),
                     describe(src));
    }
    return {};
}

/// One rank, so data never leaves the device. Thread: the engine thread.
class LocalCommunicator final : public Implements<LocalCommunicator, Communicator> {
  public:
    explicit LocalCommunicator(Device& device) : device_(device) {}

    CommunicatorInfo info() noexcept override {
        CommunicatorInfo info;
        info.graph_capturable = true;
        info.in_place_gather = true;
        info.graph_safe_bytes = INT64_MAX;
        return info;
    }
    Status allocate_exchange(int64_t bytes, Buffer** out) noexcept override {
        return device_.allocate({.bytes = bytes, .tag = "exchange"}, out);
    }
    Status all_gather(const TensorView& dst, const TensorView& src,
                      Stream& stream) noexcept override {
        return copy_own(dst, src, stream, "all_gather");
    }
    Status all_reduce_sum(const TensorView& inout, Stream&) noexcept override {
        if (inout.dtype != DType::f32) {
            return error(Code::invalid_argument, "transport.all_reduce_sum: {}, expected f32",
                         describe(inout));
        }
        return health();
    }
    Status gather(const TensorView& dst, const TensorView& src, int32_t root,
                  Stream& stream) noexcept override {
        TENON_TRY(check_root(root, "gather"));
        return copy_own(dst, src, stream, "gather");
    }
    Status broadcast(const TensorView&, int32_t root, Stream&) noexcept override {
        TENON_TRY(check_root(root, "broadcast"));
        return health();
    }
    Status health() noexcept override {
        return aborted_ ? Status(Code::peer, "transport 'local' was aborted") : Status();
    }
    void abort() noexcept override { aborted_ = true; }

  private:
    static Status check_root(int32_t root, const char* op) {
        return root == 0 ? Status()
                         : error(Code::invalid_argument, "transport.{}: root {} in a world of 1",
                                 op, root);
    }
    Status copy_own(const TensorView& dst, const TensorView& src, Stream& stream, const char* op) {
        return guard([&]() -> Status {
            TENON_TRY(check_same(dst, src, op));
            TENON_TRY(health());
            if (dst.data == src.data || src.elements() == 0) {
                return {};
            }
            // dst is [1, …] of the same elements; copying wants equal shapes.
            TensorView target = src;
            target.data = dst.data;
            target.place = dst.place;
            if (!dst.dense() || !src.dense()) {
                return error(Code::invalid_argument, "transport.{}: views must be dense", op);
            }
            return device_.copy(target, src, stream);
        });
    }

    Device& device_;
    std::atomic<bool> aborted_ = false;
};

class LocalTransport final : public Implements<LocalTransport, Transport> {
  public:
    Status connect(Rendezvous& rendezvous, Device& device, Communicator** out) noexcept override {
        return guard([&]() -> Status {
            if (rendezvous.world() != 1) {
                return error(
                    Code::unsupported,
                    "transport 'local' serves 1 rank, the profile says cluster.world = {}; choose "
                    "nccl, ucx or verbs",
                    rendezvous.world());
            }
            *out = new LocalCommunicator(device);
            return {};
        });
    }
};

Status probe(const ProbeEnv&, ProbeResult* out) noexcept {
    out->score = 1;
    set_text(out->reason, "always usable, world 1 only");
    return {};
}

Status create(Host&, const Options&, Object** out) noexcept {
    return guard([&] { *out = static_cast<Transport*>(new LocalTransport); });
}

const Component kComponents[] = {{sizeof(Component),
                                  PluginKind::transport,
                                  "local",
                                  "One rank: collectives without a network",
                                  {},
                                  {},
                                  &probe,
                                  &create}};

}  // namespace
}  // namespace tenon::local

TENON_PLUGIN("local", "0.1.0", "Transport of a single rank", "MIT", stable,
             tenon::local::kComponents)
