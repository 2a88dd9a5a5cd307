# SPDX-License-Identifier: MIT
# Unit tests of the quantisation plugins.
if(TARGET tenon_exl3_core)
  tenon_add_test(quant_exl3_test
      SOURCES unit/quant_exl3_codec_test.cc unit/quant_exl3_weight_test.cc
              unit/quant_exl3_load_test.cc unit/quant_pipe_test.cc
      LINK    tenon_exl3_core)
endif()
if(TARGET tenon_plain_core)
  tenon_add_test(quant_plain_test
      SOURCES unit/quant_plain_weight_test.cc
      LINK    tenon_plain_core)
endif()
if(TARGET tenon_exl3_core AND TARGET tenon_plain_core AND TARGET PkgConfig::HWY)
  tenon_add_test(quant_linear_test
      SOURCES unit/quant_linear_test.cc
      LINK    tenon_exl3_core tenon_plain_core PkgConfig::HWY)
endif()
if(TARGET tenon_exl3_core AND TARGET tenon_plain_core)
  tenon_add_test(quant_experts_test
      SOURCES unit/quant_experts_test.cc
      LINK    tenon_exl3_core tenon_plain_core)
endif()
# On a machine with a GPU the same tests run there too; without one they say so and leave it out.
if(TARGET tenon_exl3_cuda)
  foreach(test quant_exl3_test quant_plain_test quant_linear_test quant_experts_test)
    if(TARGET ${test})
      target_compile_definitions(${test} PRIVATE TENON_TEST_GPU)
      set_target_properties(${test} PROPERTIES LINKER_LANGUAGE CXX)
      set_property(TEST ${test} APPEND PROPERTY LABELS cuda)
    endif()
  endforeach()
endif()
