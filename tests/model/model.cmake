# SPDX-License-Identifier: MIT
# Whole models through the real plugins, driven by hand-made step plans.
if(TARGET dsv41 AND TARGET tenon_testing)
  add_library(tenon_model_rig STATIC model/checkpoint_folder.cc model/model_rig.cc)
  target_link_libraries(tenon_model_rig PUBLIC tenon_testing tenon::sdk PRIVATE tenon_compile nlohmann_json::nlohmann_json)
  target_include_directories(tenon_model_rig PUBLIC ${CMAKE_CURRENT_LIST_DIR}/..)
  target_compile_definitions(tenon_model_rig PRIVATE TENON_PLUGIN_DIR="${CMAKE_BINARY_DIR}/plugins")
  set(tests)
  foreach(test snapshot tail poison golden pack control mini chunk batch engram family fusion ranks graph official)
    list(APPEND tests model/dsv41_${test}_test.cc)
  endforeach()
  tenon_add_tests(dsv41_tests TESTS ${tests} LINK tenon_model_rig tenon::kernels_shared LABELS model)
  set_tests_properties(dsv41_official_test PROPERTIES LABELS checkpoint)  # the checkpoint is not in the repository
  # Its operator new has to be the one that plugins find.
  tenon_add_test(dsv41_step_test SOURCES model/dsv41_step_test.cc unit/allocation_counter.cc
      LINK tenon_model_rig tenon::kernels_shared LABELS model)
  set_target_properties(dsv41_step_test PROPERTIES ENABLE_EXPORTS ON)
  foreach(plugin dsv41 cpu exl3 plain mmap io_uring)
    if(TARGET ${plugin})
      add_dependencies(dsv41_tests ${plugin})
      add_dependencies(dsv41_step_test ${plugin})
    endif()
  endforeach()
  if(TARGET tenon::conformance)
    add_test(NAME conformance.dsv41.text
        COMMAND tenon::conformance --plugin $<TARGET_FILE:dsv41> --checkpoint ${PROJECT_SOURCE_DIR}/models/tenon-mini
                --gtest_filter=*TextRules*)
    set_tests_properties(conformance.dsv41.text PROPERTIES LABELS conformance TIMEOUT 900)
  endif()
  if(TARGET tenon_engine AND TARGET exl3)
    tenon_add_tests(engine_model_tests
        TESTS model/engine_mini_test.cc model/engine_prefetch_test.cc model/engine_prefix_test.cc
              model/engine_replay_test.cc model/engine_soak_test.cc
        SOURCES ${PROJECT_SOURCE_DIR}/plugins/overlay_prefill_interleave/interleave.cc
        LINK tenon_model_rig tenon_engine nlohmann_json::nlohmann_json LABELS model TIMEOUT 1800)
    add_dependencies(engine_model_tests dsv41 cpu exl3)
  endif()
endif()
