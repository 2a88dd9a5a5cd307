// SPDX-License-Identifier: MIT
// Where the tests of a quantisation format run: the CPU's two forms and, in a build with CUDA, GPU
// 0.
#pragma once

#include <cstdio>
#include <string_view>
#include <vector>

#include "tenon/quant.h"

#if defined(TENON_TEST_GPU)
#include "gpu_quant.h"
#endif

namespace tenon::testing {

inline bool on_gpu(std::string_view arch) {
    return arch == "gpu";
}

inline bool gpu_forms() {
#if defined(TENON_TEST_GPU)
    static const bool found = [] {
        const bool gpu = has_gpu();
        if (!gpu) {
            std::printf("no GPU: the forms named *gpu are left out\n");
        }
        return gpu;
    }();
    return found;
#else
    return false;
#endif
}

/// The forms that can run here, out of all.
template <class Form>
std::vector<Form> forms_here(const std::vector<Form>& all) {
    std::vector<Form> list;
    for (const Form& f : all) {
        std::string_view arch;
        if constexpr (std::is_same_v<Form, const char*>) {
            arch = f;
        } else {
            arch = f.arch;
        }
        if (!on_gpu(arch) || gpu_forms()) {
            list.push_back(f);
        }
    }
    return list;
}

inline std::vector<const char*> archs_here() {
    return forms_here<const char*>({"cpu-reference", "cpu-test", "gpu"});
}

inline const char* arch_name(std::string_view arch) {
    return on_gpu(arch) ? "Gpu" : (arch == "cpu-test" ? "Fast" : "Reference");
}

/// The format for an arch; takes it over.
inline QuantFormat* format_for([[maybe_unused]] std::string_view arch, QuantFormat* format) {
#if defined(TENON_TEST_GPU)
    if (on_gpu(arch)) {
        return new GpuFormat(format);
    }
#endif
    return format;
}

}  // namespace tenon::testing
