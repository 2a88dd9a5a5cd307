// SPDX-License-Identifier: MIT
// Samples of the quantisation suites (see samples.h).
#include "quant/samples.h"

#include <cstdlib>
#include <set>

#include "tenon/testing/quant_samples.h"
#include "tenon/testing/safetensors.h"

namespace tenon::testing {

namespace {

void add_expert(MemorySource& source, const std::string& prefix, bool exl3, uint32_t seed) {
    constexpr int64_t kHidden = 256;
    constexpr int64_t kWidth = 128;
    for (const char* name : {".w1", ".w3", ".w2"}) {
        const bool down = std::string_view(name) == ".w2";
        const int64_t in = down ? kWidth : kHidden;
        const int64_t out = down ? kHidden : kWidth;
        ++seed;
        if (exl3) {
            add_exl3(
                source, prefix + name,
                {.twice_k = 2 + static_cast<int>(seed % 6) * 2, .k = in, .n = out, .seed = seed});
        } else {
            add_plain(source, prefix + name, kFakes[seed % 5], out, in, seed);
        }
    }
}

}  // namespace

void add_samples(MemorySource& source) {
    add_exl3(source, "exl3.a", {.twice_k = 6, .k = 256, .n = 384, .seed = 1});
    add_exl3(source, "exl3.b", {.twice_k = 5, .k = 256, .n = 256, .seed = 2});
    add_exl3(source, "exl3.c", {.twice_k = 8, .marker = "mcg", .k = 128, .n = 128, .seed = 3});
    add_exl3(source, "exl3.d", {.twice_k = 16, .marker = "", .k = 384, .n = 128, .bias = true});
    for (const Fake kind : kFakes) {
        add_plain(source, std::string("plain.") + fake_name(kind), kind, 192, 256);
    }
    for (const char* family : {"exl3.", "plain."}) {
        const bool exl3 = std::string_view(family) == "exl3.";
        for (uint32_t e = 0; e < 4; ++e) {
            add_expert(source, std::string(family) + "experts." + std::to_string(e), exl3, 10 * e);
        }
        add_expert(source, std::string(family) + "shared", exl3, 50);
    }
    if (const char* path = std::getenv("TENON_QUANT_SAMPLES")) {
        const Safetensors file = Safetensors::open(path);
        for (const std::string& name : file.names()) {
            source.add(name, file.tensor(name));
        }
    }
}

std::vector<std::string> base_names(WeightSource& source) {
    std::set<std::string> names;
    for (uint64_t i = 0; i < source.count(); ++i) {
        const std::string name = source.at(i).name.str();
        names.insert(name.substr(0, name.rfind('.')));
    }
    return {names.begin(), names.end()};
}

void QuantSuite::SetUp() {
    OptionSet options(*GetParam());
    auto created = Created<QuantFormat>::make(*GetParam(), host_, options);
    ASSERT_TRUE(created.ok()) << created.status().message().view();
    format_ = std::move(*created);
    source_.reset(new MemorySource);
    device_.reset(new HostDevice);
    add_samples(*source_);
    for (const std::string& base : base_names(*source_)) {
        QuantInfo info;
        if (format().inspect(*source_, base, &info).ok()) {
            bases_.push_back(base);
        }
    }
    if (bases_.empty()) {
        GTEST_SKIP() << "the format accepts none of the built-in samples; name a safetensors file "
                        "in its format in TENON_QUANT_SAMPLES";
    }
}

QuantInfo QuantSuite::inspect(const std::string& base) {
    QuantInfo info;
    TENON_EXPECT_OK(format().inspect(source(), base, &info));
    return info;
}

WeightRequest QuantSuite::request(const std::string& base, HostDevice& on) {
    WeightRequest r;
    r.base = base;  // borrowed: callers keep `base` alive
    r.source = source_.get();
    r.device = &on;
    r.stream = &stream_;
    return r;
}

Ref<QuantWeight> QuantSuite::load(const WeightRequest& r) {
    Ref<QuantWeight> weight;
    TENON_EXPECT_OK(format().load(r, weight.out()));
    return weight;
}

}  // namespace tenon::testing
