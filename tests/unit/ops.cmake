# SPDX-License-Identifier: MIT
# Tests of the op contract and of the CPU compute plugin.
tenon_add_test(ops_golden_test
    SOURCES unit/ops_golden_test.cc unit/ops_providers.cc
    LINK tenon_op_fixture tenon::cpu_ops)

# The suites that every compute plugin runs, here on the static library in both kinds of kernels.
tenon_add_test(ops_conformance_test
    SOURCES unit/ops_providers.cc
    LINK tenon_op_suites tenon_op_fixture tenon::cpu_ops)

tenon_add_test(ops_layout_test SOURCES unit/ops_layout_test.cc)
tenon_add_test(numeric_test SOURCES unit/numeric_test.cc)
tenon_add_test(cpu_device_test SOURCES unit/cpu_device_test.cc unit/cuda_pinned_test.cc
    ${PROJECT_SOURCE_DIR}/kernels/cuda/device/pinned.cc LINK tenon::cpu_ops tenon::testing)
if(TARGET PkgConfig::HWY)
  tenon_add_test(ops_simd_test SOURCES unit/ops_simd_test.cc unit/ops_rows_test.cc
      LINK tenon_op_fixture tenon::cpu_ops PkgConfig::HWY)
endif()
