// SPDX-License-Identifier: MIT
// inspect: what a checkpoint holds, through the quantization formats; one tensor as f32.
#include <cstdio>
#include <set>

#include "host/checkpoint/checkpoint.h"
#include "host/checkpoint/safetensors.h"
#include "host/cli/verbs.h"
#include "host/lifecycle/deployment.h"
#include "host/log/log.h"
#include "host/profile/units.h"
#include "tenon/numeric.h"

namespace tenon::cli {
namespace {

/// The installed formats and a CPU device, with default options; released in reverse.
class Formats {
  public:
    ~Formats() {
        for (size_t i = objects_.size(); i-- > 0;) {
            objects_[i]->release();
        }
    }
    Status open() {
        TENON_TRY(registry_.load({}));
        TENON_TRY(log_configure({LogLevel::warn, LogFormat::automatic, ""}));
        for (const FoundComponent& f : registry_.all(PluginKind::compute)) {
            Object* object = nullptr;
            if (device_ == nullptr && std::string_view(f.component->name) == "cpu") {
                TENON_TRY(make(f, &object));
                device_ = facet_of<Device>(object);
            }
        }
        if (device_ == nullptr) {
            return error(Code::unavailable,
                         "no compute plugin 'cpu' is installed (tenon plugins lists all)");
        }
        TENON_TRY(device_->create_stream({"inspect", 0}, stream_.out()));
        for (const FoundComponent& f : registry_.all(PluginKind::quant)) {
            Object* object = nullptr;
            TENON_TRY(make(f, &object));
            if (auto* quant_format = facet_of<QuantFormat>(object)) {
                formats_.push_back(quant_format);
            }
        }
        return {};
    }
    /// errors  not_found: no format knows the name
    Status inspect(WeightSource& source, const std::string& base, QuantInfo* info,
                   QuantFormat** which) {
        for (QuantFormat* f : formats_) {
            Status status = f->inspect(source, base, info);
            if (status.ok()) {
                *which = f;
                return {};
            }
            if (status.code() != Code::not_found) {
                return status;
            }
        }
        return error(Code::not_found, "no matrix '{}'", base);
    }
    Device* device() { return device_; }
    Stream* stream() { return stream_.get(); }

  private:
    Status make(const FoundComponent& f, Object** out) {
        OptionBag bag;
        for (const OptionSpec& o : f.component->options) {
            TENON_TRY(bag.add(o, nullptr, f.component->name, "."));
        }
        TENON_TRY(f.component->create(host_, bag.view(f.component->name), out));
        objects_.push_back(*out);
        bags_.push_back(std::move(bag));
        return {};
    }

    HostServices host_;
    PluginRegistry registry_;
    std::vector<OptionBag> bags_;
    std::vector<Object*> objects_;
    Device* device_ = nullptr;
    Ref<Stream> stream_;
    std::vector<QuantFormat*> formats_;
};

std::string base_of(const std::string& name) {
    for (const char* suffix : {".weight", ".trellis"}) {
        const std::string s = suffix;
        if (name.size() > s.size() && name.compare(name.size() - s.size(), s.size(), s) == 0) {
            std::string base = name.substr(0, name.size() - s.size());
            const size_t slice = base.find(".slice.");
            return slice == std::string::npos ? base : base.substr(0, slice);
        }
    }
    return "";
}

Status plain_to_f32(const TensorView& v, const std::string& name, std::vector<float>* out) {
    const int64_t n = v.elements();
    out->resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
        float& x = (*out)[static_cast<size_t>(i)];
        switch (v.dtype) {
            case DType::f32:
                x = v.as<float>()[i];
                break;
            case DType::bf16:
                x = bf16_to_f32(v.as<uint16_t>()[i]);
                break;
            case DType::f16:
                x = f16_to_f32(v.as<uint16_t>()[i]);
                break;
            case DType::e4m3:
                x = e4m3_to_f32(v.as<uint8_t>()[i]);
                break;
            case DType::e8m0:
                x = e8m0_to_f32(v.as<uint8_t>()[i]);
                break;
            case DType::i32:
                x = static_cast<float>(v.as<int32_t>()[i]);
                break;
            case DType::i16:
                x = static_cast<float>(v.as<int16_t>()[i]);
                break;
            case DType::u8:
                x = static_cast<float>(v.as<uint8_t>()[i]);
                break;
            case DType::i8:
                x = static_cast<float>(v.as<int8_t>()[i]);
                break;
            default:
                return error(Code::unsupported, "{}: {} cannot be written as f32", name,
                             dtype_name(v.dtype));
        }
    }
    return {};
}

Status one_tensor(Formats& formats, WeightSource& source, const InspectArgs& args) {
    std::string base = args.tensor;
    if (base.size() > 7 && base.compare(base.size() - 7, 7, ".weight") == 0) {
        base.resize(base.size() - 7);
    }
    QuantInfo info;
    QuantFormat* which = nullptr;
    std::vector<float> values;
    TensorOut out;
    out.name = args.tensor;
    // Vectors and kernels of convolutions may end in .weight too; only matrices concern formats.
    TensorInfo stored;
    const bool no_matrix = source.find(base + ".weight", &stored).ok() && stored.rank != 2;
    Status matrix = no_matrix ? error(Code::not_found, "no matrix '{}'", base)
                              : formats.inspect(source, base, &info, &which);
    if (matrix.ok()) {
        WeightRequest request;
        request.base = base;
        request.groups = info.groups;
        request.source = &source;
        request.device = formats.device();
        request.stream = formats.stream();
        Ref<QuantWeight> weight;
        TENON_TRY(which->load(request, weight.out()));
        auto* dequant = facet_of<QuantDequant>(weight.get());
        if (dequant == nullptr) {
            return error(Code::unsupported, "{}: its format cannot give exact values", base);
        }
        out.shape = {info.out_features, info.in_features};
        values.resize(static_cast<size_t>(info.out_features * info.in_features));
        TENON_TRY(dequant->dequantize(
            0, make_view(values.data(), DType::f32, {info.out_features, info.in_features})));
    } else if (matrix.code() == Code::not_found) {
        TensorInfo t;
        Status found = source.find(args.tensor, &t);
        const std::string name = found.ok() ? args.tensor : base + ".weight";
        if (!found.ok()) {
            TENON_TRY(source.find(name, &t));
        }
        TensorView view;
        TENON_TRY(source.map(name, &view));
        TENON_TRY(plain_to_f32(view, name, &values));
        out.shape.assign(t.shape, t.shape + t.rank);
    } else {
        return matrix;
    }
    out.data = values.data();
    TENON_TRY(write_safetensors(args.out, {out}));
    std::string shape;
    for (const int64_t n : out.shape) {
        shape += (shape.empty() ? "" : ", ") + std::to_string(n);
    }
    std::printf("%s: f32 [%s], %s -> %s\n", args.tensor.c_str(), shape.c_str(),
                matrix.ok() ? info.codec : "stored plain", args.out.c_str());
    return {};
}

Status list_all(Formats& formats, WeightSource& source) {
    std::set<std::string> seen;
    int64_t matrices = 0;
    int64_t plain = 0;
    int64_t bytes = 0;
    std::printf("%-48s %-22s %8s %8s %10s\n", "name", "format", "out", "in", "bytes");
    for (uint64_t i = 0; i < source.count(); ++i) {
        const TensorInfo t = source.at(i);
        bytes += static_cast<int64_t>(t.bytes);
        const std::string base = base_of(t.name.str());
        if (!base.empty() && t.rank >= 2) {
            if (!seen.insert(base).second) {
                continue;
            }
            QuantInfo info;
            QuantFormat* which = nullptr;
            const Status status = formats.inspect(source, base, &info, &which);
            if (status.ok()) {
                ++matrices;
                std::printf("%-48s %-22s %8lld %8lld %10lld\n", base.c_str(), info.codec,
                            static_cast<long long>(info.out_features),
                            static_cast<long long>(info.in_features),
                            static_cast<long long>(info.bytes));
                continue;
            }
            if (status.code() != Code::not_found) {
                return status.copy();
            }
        }
        static const std::set<std::string> kParts = {"suh",  "svh", "su",    "sv",
                                                     "mul1", "mcg", "scale", "bias"};
        const std::string name = t.name.str();
        const size_t dot = name.rfind('.');
        if (dot != std::string::npos && kParts.count(name.substr(dot + 1)) != 0 &&
            name.find(".gate.bias") == std::string::npos) {
            continue;  // part of a matrix
        }
        ++plain;
        std::string shape;
        for (int k = 0; k < t.rank; ++k) {
            shape += (k != 0 ? "x" : "") + std::to_string(t.shape[k]);
        }
        std::printf("%-48s %-22s %17s %10llu\n", name.c_str(), dtype_name(t.dtype), shape.c_str(),
                    static_cast<unsigned long long>(t.bytes));
    }
    std::printf("%lld matrices, %lld plain tensors, %s\n", static_cast<long long>(matrices),
                static_cast<long long>(plain), size_text(bytes).c_str());
    return {};
}

}  // namespace

int inspect_verb(const InspectArgs& args) {
    if (args.tensor.empty() != args.out.empty()) {
        return fail(kExitUsage, "--tensor and --out go together");
    }
    Formats formats;
    Status status = formats.open();
    if (!status.ok()) {
        return fail(kExitPlugin, status.message().str());
    }
    Ref<Checkpoint> checkpoint;
    status = open_checkpoint({args.checkpoint, args.extra, true}, checkpoint.out());
    if (status.ok()) {
        status = guard([&] {
            return args.tensor.empty() ? list_all(formats, *checkpoint->weights())
                                       : one_tensor(formats, *checkpoint->weights(), args);
        });
    }
    return status.ok() ? static_cast<int>(kExitOk) : fail(kExitData, status.message().str());
}

}  // namespace tenon::cli
