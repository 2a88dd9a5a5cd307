// SPDX-License-Identifier: MIT
// Where the time of a step goes, by kind of call.
#pragma once

#include <string>
#include <vector>

#include "tenon/host.h"
#include "tenon/tap.h"

namespace tenon::cli {

/// All calls of one name in a step.
struct OpFamily {
    std::string name;
    int64_t calls = 0;
    double us = 0;     ///< for all of them
    double bytes = 0;  ///< of quantized weights that they read
};

/// Ops are measured where they stand in the step, several times in a row, so that each finds its
/// own lists and rows; a product with quantized weights would find those in the cache then, so all
/// products of a name are run one after the other when the step is over. Values of the step are
/// spoilt: ops in place run more than once.
///
/// Thread: the thread that drives the model.
class OpFamilies final : public CallTap {
  public:
    OpFamilies(Host& host, int runs) : host_(host), runs_(runs) {}

    bool wants() noexcept override {
        ++passed_;
        return device_ != nullptr;
    }
    /// Calls that have come by so far. Work replayed from a graph makes none.
    int64_t passed() const { return passed_; }
    Status take(TappedCall call) noexcept override;

    /// Takes the calls from now on. `device`: of the model; may not capture meanwhile.
    void start(Device& device);
    /// Longest first. Only while the model is at rest.
    Status finish(std::vector<OpFamily>* out);

  private:
    struct Product {
        size_t family;
        Stream* stream;
        std::function<Status()> run;
    };
    size_t family_of(StrView name);
    /// Microseconds of one `work`, whose calls are enqueued on `stream`.
    template <class F>
    Status time(Stream& stream, F&& work, double* us);

    Host& host_;
    int runs_;
    Device* device_ = nullptr;
    int64_t passed_ = 0;
    std::vector<OpFamily> families_;
    std::vector<Product> products_;
};

}  // namespace tenon::cli
