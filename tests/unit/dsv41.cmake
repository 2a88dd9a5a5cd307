# SPDX-License-Identifier: MIT
# Parts of the model plugin that need no kernels.
if(TARGET tenon_dsv41_core AND TARGET tenon_testing)
  foreach(test dsv41_config_test dsv41_load_test dsv41_packed_rows_test)
    tenon_add_test(${test} SOURCES unit/${test}.cc LINK tenon_dsv41_core tenon_testing)
  endforeach()
endif()
