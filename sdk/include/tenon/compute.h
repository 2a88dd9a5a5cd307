// SPDX-License-Identifier: MIT
// What a compute plugin offers: a device with memory and streams, and a table of ops that models
// bind once.
#pragma once

#include "tenon/object.h"
#include "tenon/tensor.h"

namespace tenon {

enum class BufferKind : uint8_t { device, pinned, host };

struct BufferDesc {
    int64_t bytes = 0;
    int64_t alignment = 256;  ///< power of two, at least 256 is given
    BufferKind kind = BufferKind::device;
    StrView tag;  ///< memory-plan tag, shown in the memory report
};

/// Memory owned by the object; zero-filled at allocation. Released before its device.
class Buffer : public Object {
  public:
    static constexpr const char* kFacet = "compute.buffer/1";
    virtual void* data() noexcept = 0;
    virtual int64_t bytes() noexcept = 0;
    virtual Place place() noexcept = 0;
};

/// An in-order queue. Parameters of an enqueued op are copied at the call; memory must stay valid
/// until an event recorded after it completes. A CPU stream runs the op before returning.
class Stream : public Object {
  public:
    static constexpr const char* kFacet = "compute.stream/1";
    /// Backend's own handle (cudaStream_t), null on the CPU.
    virtual void* native() noexcept = 0;
};

class Event : public Object {
  public:
    static constexpr const char* kFacet = "compute.event/1";
    virtual bool done() noexcept = 0;  ///< true also when the device failed; `wait` reports it
    /// Waits at most `timeout_us`; `deadline` when it passes, `device` when the device failed.
    virtual Status wait(int64_t timeout_us) noexcept = 0;
};

struct StreamDesc {
    StrView name;          ///< for messages
    int32_t priority = 0;  ///< higher goes first; clamped to what the device has
};

struct DeviceInfo {
    uint32_t struct_size = sizeof(DeviceInfo);
    bool unified_memory = false;  ///< host and device memory are one pool
    bool cpu = false;
    char name[64] = {};
    char arch[32] = {};      ///< "cpu-avx3", "sm_90a"
    int64_t bytes_free = 0;  ///< device memory; of a CPU: MemAvailable of the machine
    int64_t bytes_total = 0;
    int32_t threads = 1;  ///< CPU pool size; 0 on GPUs
    int32_t index = 0;    ///< among the devices of its kind
};

/// One device of one compute plugin. Thread: main while the model loads, then the engine thread;
/// never two at once.
class Device : public Object {
  public:
    static constexpr const char* kFacet = "compute.device/1";
    virtual DeviceInfo info() noexcept = 0;
    /// errors  does_not_fit: names tag, bytes wanted and free
    virtual Status allocate(const BufferDesc& desc, Buffer** out) noexcept = 0;
    virtual Status create_stream(const StreamDesc& desc, Stream** out) noexcept = 0;
    virtual Status create_event(Event** out) noexcept = 0;
    /// Whole-view copy, ordered on the stream; shapes and dtypes equal, any places.
    virtual Status copy(const TensorView& dst, const TensorView& src, Stream& stream) noexcept = 0;
    virtual Status fill_zero(const TensorView& dst, Stream& stream) noexcept = 0;
    virtual Status record(Event& event, Stream& stream) noexcept = 0;  ///< marks this point
    virtual Status wait(Stream& stream, Event& event) noexcept = 0;    ///< returns at once
    virtual Status synchronize(Stream& stream) noexcept = 0;           ///< blocks the caller
    /// Count of device-side misuse since start (ops.md 1.3); nonzero is an internal error.
    virtual uint64_t fault_count() noexcept = 0;
};

/// Numeric class of a row: prompt chunks run in `prefill`, everything else in `decode`
/// (ops.md 1.6).
enum class Regime : uint8_t { decode = 0, prefill = 1 };

struct OpId {
    const char* name;
    uint32_t version;
};

struct OpTraits {
    uint32_t struct_size = sizeof(OpTraits);
    uint32_t regimes = 3;              ///< bit 1 << Regime
    int64_t rows_max[2] = {64, 4096};  ///< by regime
    bool graph_safe = true;            ///< may be captured by GraphCapture
    bool exact = false;                ///< class X
    bool equal_regimes = false;        ///< both regimes give the same bits
    uint8_t reserved[5] = {};
};

/// One provider's implementation of one op. `call` has type `Status (*)(void*, const P&, Stream&)
/// noexcept`.
struct OpEntry {
    uint32_t struct_size = sizeof(OpEntry);
    OpId id{};
    void* self = nullptr;
    void (*call)() noexcept = nullptr;
    /// Geometry check at bind time, `Status (*)(void*, const P&) noexcept`; null = everything.
    void (*supports)() noexcept = nullptr;
    /// Scratch bytes, `int64_t (*)(void*, const P&) noexcept`; pure, data pointers may be null;
    /// null = 0.
    void (*scratch)() noexcept = nullptr;
    OpTraits traits;
};

/// Ops of one provider for one place. Any plugin may offer ops under its own names.
class OpTable : public Object {
  public:
    static constexpr const char* kFacet = "compute.ops/1";
    virtual Span<const OpEntry> ops() noexcept = 0;
    virtual StrView provider() noexcept = 0;  ///< for messages: "cpu"
};

/// A bound op: one indirect call, no look-up. P is the op's parameter struct.
template <class P>
struct OpFn {
    void* self = nullptr;
    Status (*fn)(void*, const P&, Stream&) noexcept = nullptr;
    Status (*supports_fn)(void*, const P&) noexcept = nullptr;
    int64_t (*scratch_fn)(void*, const P&) noexcept = nullptr;
    OpTraits traits;

    explicit operator bool() const { return fn != nullptr; }
    Status operator()(const P& p, Stream& stream) const { return fn(self, p, stream); }
    Status supports(const P& p) const { return supports_fn ? supports_fn(self, p) : Status(); }
    int64_t scratch(const P& p) const { return scratch_fn ? scratch_fn(self, p) : 0; }
};

/// Builds an OpEntry from typed functions (provider side).
template <class P>
OpEntry make_op(void* self, Status (*call)(void*, const P&, Stream&) noexcept, OpTraits traits = {},
                int64_t (*scratch)(void*, const P&) noexcept = nullptr,
                Status (*supports)(void*, const P&) noexcept = nullptr) {
    OpEntry e;
    e.id = P::kOp;
    e.self = self;
    e.call = reinterpret_cast<void (*)() noexcept>(call);
    e.scratch = reinterpret_cast<void (*)() noexcept>(scratch);
    e.supports = reinterpret_cast<void (*)() noexcept>(supports);
    e.traits = traits;
    return e;
}

/// Consumer side: binds ops by id from an ordered list of tables and collects what is missing.
///
/// Later tables win over earlier ones only where the earlier lacks the op. `veto` names are never
/// bound by `bind_optional` (profile key compute.fusions_off).
class OpBinder {
  public:
    explicit OpBinder(std::vector<OpTable*> tables, std::vector<std::string> veto = {})
        : tables_(std::move(tables)), veto_(std::move(veto)) {}

    template <class P>
    void bind(OpFn<P>* out, Regime regime) {
        if (!find(out, regime)) {
            missing_ += format("{}{}/{} ({})", missing_.empty() ? "" : ", ", P::kOp.name,
                               P::kOp.version, regime == Regime::decode ? "decode" : "prefill");
        }
    }
    template <class P>
    bool bind_optional(OpFn<P>* out, Regime regime) {
        for (const std::string& name : veto_) {
            if (name == P::kOp.name) {
                return false;
            }
        }
        return find(out, regime);
    }
    /// True if every op bound so far has equal bits in both regimes.
    bool equal_regimes() const { return equal_regimes_; }
    /// `unavailable` naming every op that `bind` did not find and the providers asked.
    Status finish() const {
        if (missing_.empty()) {
            return {};
        }
        std::string providers;
        for (OpTable* table : tables_) {
            providers += (providers.empty() ? "" : ", ") + table->provider().str();
        }
        return error(Code::unavailable, "missing ops: {}; providers asked: {}", missing_,
                     providers);
    }

  private:
    template <class P>
    bool find(OpFn<P>* out, Regime regime) {
        for (OpTable* table : tables_) {
            for (const OpEntry& e : table->ops()) {
                const uint32_t bit = 1u << static_cast<uint32_t>(regime);
                if (e.id.version == P::kOp.version && (e.traits.regimes & bit) != 0 &&
                    std::string_view(e.id.name) == P::kOp.name) {
                    out->self = e.self;
                    out->fn =
                        reinterpret_cast<Status (*)(void*, const P&, Stream&) noexcept>(e.call);
                    out->supports_fn =
                        reinterpret_cast<Status (*)(void*, const P&) noexcept>(e.supports);
                    out->scratch_fn =
                        reinterpret_cast<int64_t (*)(void*, const P&) noexcept>(e.scratch);
                    out->traits = e.traits;
                    equal_regimes_ = equal_regimes_ && e.traits.equal_regimes;
                    return true;
                }
            }
        }
        return false;
    }

    std::vector<OpTable*> tables_;
    std::vector<std::string> veto_;
    std::string missing_;
    bool equal_regimes_ = true;
};

/// CPU worker pool, optional facet of a CPU device: how plugins of other kinds (quant) share its
/// threads.
class ParallelFor : public Object {
  public:
    static constexpr const char* kFacet = "compute.parallel/1";
    using Body = void (*)(void* arg, int64_t begin, int64_t end, int32_t worker) noexcept;
    /// Calls body for disjoint ranges covering [0, n); a range never crosses a multiple of `grain`
    /// except at its ends. Returns when all are done. Results must not depend on the partition.
    virtual void run(int64_t n, int64_t grain, Body body, void* arg) noexcept = 0;
    virtual int32_t workers() noexcept = 0;  ///< `worker` of a body is below it
};

/// Typed convenience over ParallelFor::run. `body(begin, end, worker)`; a null pool runs inline.
template <class F>
void parallel_for(ParallelFor* pool, int64_t n, int64_t grain, F&& body) {
    if (n <= 0) {
        return;
    }
    if (pool == nullptr) {
        body(int64_t{0}, n, int32_t{0});
        return;
    }
    using Fn = std::remove_reference_t<F>;
    pool->run(
        n, grain,
        [](void* arg, int64_t begin, int64_t end, int32_t worker) noexcept {
            (*static_cast<Fn*>(arg))(begin, end, worker);
        },
        &body);
}

/// Optional facet "compute.graphs/1": capture between begin and end, then replay.
class GraphCapture : public Object {
  public:
    static constexpr const char* kFacet = "compute.graphs/1";
    class Graph : public Object {
      public:
        static constexpr const char* kFacet = "compute.graph/1";
        virtual Status launch(Stream& stream) noexcept = 0;
    };
    virtual Status begin(Stream& stream) noexcept = 0;
    virtual Status end(Stream& stream, Graph** out) noexcept = 0;
};

/// Optional facet "compute.flags/1": the stream waits until a pinned word reaches a value (graph
/// safe).
class StreamFlags : public Object {
  public:
    static constexpr const char* kFacet = "compute.flags/1";
    virtual Status wait_flag(Stream& stream, const uint32_t* word, uint32_t value) noexcept = 0;
};

/// Optional facet "compute.segments/1": gives memory of idle 64 MiB segments back to the machine.
class Segments : public Object {
  public:
    static constexpr const char* kFacet = "compute.segments/1";
    virtual int64_t segment_bytes() noexcept = 0;
    virtual Status unback(Buffer& buffer, int64_t first_segment, int64_t count) noexcept = 0;
    virtual Status back(Buffer& buffer, int64_t first_segment, int64_t count) noexcept = 0;
};

}  // namespace tenon
