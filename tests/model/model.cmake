# SPDX-License-Identifier: MIT
# Whole models through the real plugins, driven by hand-made step plans.
if(TARGET dsv41 AND TARGET tenon_testing)
  add_library(tenon_model_rig STATIC model/checkpoint_folder.cc model/model_rig.cc)
  target_link_libraries(tenon_model_rig PUBLIC tenon_testing tenon::sdk PRIVATE tenon_compile nlohmann_json::nlohmann_json)
  target_include_directories(tenon_model_rig PUBLIC ${CMAKE_CURRENT_LIST_DIR}/..)
  target_compile_definitions(tenon_model_rig PRIVATE TENON_PLUGIN_DIR="${CMAKE_BINARY_DIR}/plugins")
  foreach(test snapshot tail poison golden pack control mini chunk batch step engram family fusion ranks graph official)
    set(name dsv41_${test}_test)
    set(label model)
    if(test STREQUAL "official")
      set(label checkpoint)  # needs a checkpoint that is not in the repository
    endif()
    set(sources model/${name}.cc)
    if(test STREQUAL "step")
      list(APPEND sources unit/allocation_counter.cc)
    endif()
    tenon_add_test(${name} SOURCES ${sources} LINK tenon_model_rig tenon::kernels_shared LABELS ${label} TIMEOUT 900)
    add_dependencies(${name} dsv41 cpu exl3)
    foreach(plugin plain mmap io_uring)
      if(TARGET ${plugin})
        add_dependencies(${name} ${plugin})
      endif()
    endforeach()
  endforeach()
  if(TARGET tenon::conformance)
    add_test(NAME conformance.dsv41.text
        COMMAND tenon::conformance --plugin $<TARGET_FILE:dsv41> --checkpoint ${PROJECT_SOURCE_DIR}/models/tenon-mini
                --gtest_filter=*TextRules*)
    set_tests_properties(conformance.dsv41.text PROPERTIES LABELS conformance TIMEOUT 900)
  endif()
  if(TARGET tenon_engine AND TARGET exl3)
    foreach(test engine_mini_test engine_prefetch_test engine_prefix_test engine_replay_test)
      tenon_add_test(${test} SOURCES model/${test}.cc
          LINK tenon_model_rig tenon_engine nlohmann_json::nlohmann_json LABELS model TIMEOUT 900)
      add_dependencies(${test} dsv41 cpu exl3)
    endforeach()
    tenon_add_test(engine_soak_test
        SOURCES model/engine_soak_test.cc
                ${PROJECT_SOURCE_DIR}/plugins/overlay_prefill_interleave/interleave.cc
        LINK tenon_model_rig tenon_engine LABELS model TIMEOUT 1800)
    add_dependencies(engine_soak_test dsv41 cpu exl3)
  endif()
  # Its operator new has to be the one that plugins find.
  set_target_properties(dsv41_step_test PROPERTIES ENABLE_EXPORTS ON)
endif()
