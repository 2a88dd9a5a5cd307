# SPDX-License-Identifier: MIT
# Tests of the op contract and of the CPU compute plugin.
set(ops_conformance ${PROJECT_SOURCE_DIR}/sdk/conformance/ops)
add_library(tenon_op_suite OBJECT ${ops_conformance}/op_fixture.cc)
target_link_libraries(tenon_op_suite PUBLIC tenon::sdk GTest::gtest PRIVATE tenon_compile)
target_include_directories(tenon_op_suite PUBLIC ${PROJECT_SOURCE_DIR}/sdk/conformance/include)

tenon_add_test(ops_golden_test
    SOURCES unit/ops_golden_test.cc unit/ops_providers.cc
    LINK tenon_op_suite tenon::cpu_ops)
