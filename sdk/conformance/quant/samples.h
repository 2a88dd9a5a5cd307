// SPDX-License-Identifier: MIT
// The matrices on which a format is tried, and the fixture of the suites of the kind `quant`.
#pragma once

#include <gtest/gtest.h>

#include "tenon/testing/plugin_fixture.h"
#include "tenon/testing/quant_harness.h"

namespace tenon::testing {

/// Made-up matrices in EXL3 and ordinary formats, `experts.{0..3}.w1|w3|w2` with `shared.w1|w3|w2`
/// in both families (prefixes "exl3." and "plain."), and the tensors of the file in
/// TENON_QUANT_SAMPLES.
void add_samples(MemorySource& source);

/// All names before a last dot, each once: the bases that a format may know.
std::vector<std::string> base_names(WeightSource& source);

class QuantSuite : public ::testing::TestWithParam<const Component*> {
  protected:
    void SetUp() override;

    QuantFormat& format() { return *format_.get(); }
    MemorySource& source() { return *source_; }
    HostStream& stream() { return stream_; }

    /// Bases that the format accepts; never empty (SetUp skips otherwise).
    const std::vector<std::string>& bases() const { return bases_; }
    QuantInfo inspect(const std::string& base);
    WeightRequest request(const std::string& base, HostDevice& device);
    WeightRequest request(const std::string& base) { return request(base, *device_); }
    Ref<QuantWeight> load(const WeightRequest& r);
    Ref<QuantWeight> load(const std::string& base) { return load(request(base)); }
    HostDevice& device() { return *device_; }

  private:
    TestHost host_;
    Created<QuantFormat> format_;
    Ref<MemorySource> source_;
    Ref<HostDevice> device_;
    HostStream stream_;
    std::vector<std::string> bases_;
};

}  // namespace tenon::testing
