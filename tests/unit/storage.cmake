# SPDX-License-Identifier: MIT
# Row stores: planning, the lane behind a scripted backend, the real engines, and conformance without io_uring.
if(TARGET storage_common)
  tenon_add_test(storage_plan_test PLAIN SOURCES unit/storage_plan_test.cc LINK storage_common)
  tenon_add_test(storage_lane_test PLAIN SOURCES unit/storage_lane_test.cc
      LINK storage_common tenon::testing)
  tenon_add_test(storage_memory_test SOURCES unit/storage_memory_test.cc
      LINK storage_common tenon::testing)
endif()
if(TARGET storage_uring AND TARGET io_uring AND TARGET mmap AND NOT TENON_STATIC_PLUGINS)
  tenon_add_test(storage_engines_test SOURCES unit/storage_engines_test.cc unit/allocation_counter.cc
      LINK storage_uring tenon::testing)
  add_dependencies(storage_engines_test io_uring)

  add_executable(refusing tools/refusing.cc)
  target_link_libraries(refusing PRIVATE tenon_compile)
  target_include_directories(refusing PRIVATE ${PROJECT_SOURCE_DIR})
  add_test(NAME conformance.io_uring.threads
      COMMAND refusing io_uring
              $<TARGET_FILE:tenon::conformance> --plugin $<TARGET_FILE:io_uring>)
  add_test(NAME conformance.mmap.old_kernel
      COMMAND refusing populate $<TARGET_FILE:tenon::conformance> --plugin $<TARGET_FILE:mmap>)
  add_test(NAME conformance.io_uring.buffered
      COMMAND tenon::conformance --plugin $<TARGET_FILE:io_uring>
              --set direct=false --set queue_depth=2)
  # A copy in memory reads nothing later and does not notice a file that is cut.
  add_test(NAME conformance.io_uring.in_memory
      COMMAND tenon::conformance --plugin $<TARGET_FILE:io_uring> --set in_memory=1000000000
              --gtest_filter=-*Counts_what_it_read*:*cut_end*:*failed_row*:*after_a_failure*)
  set_tests_properties(conformance.io_uring.threads conformance.io_uring.buffered
      conformance.io_uring.in_memory
      conformance.mmap.old_kernel PROPERTIES
      LABELS conformance TIMEOUT 900 SKIP_RETURN_CODE 77)
endif()

# The suites notice what they are for: plugins that break a rule, run through the conformance program.
if(TARGET storage_common AND NOT TENON_STATIC_PLUGINS)
  foreach(fake faulty_store faulty_transport faulty_constraint faulty_descriptor)
    add_library(${fake} MODULE fakes/${fake}.cc)
    target_link_libraries(${fake} PRIVATE tenon_compile tenon::sdk)
    target_include_directories(${fake} PRIVATE ${PROJECT_SOURCE_DIR})
    set_target_properties(${fake} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
        VISIBILITY_INLINES_HIDDEN ON LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakes)
  endforeach()
  target_link_libraries(faulty_store PRIVATE storage_common)
  foreach(fake faulty_store faulty_transport faulty_constraint)
    target_link_options(${fake} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map)
  endforeach()
  tenon_add_test(conformance_self_test PLAIN SOURCES unit/conformance_self_test.cc LINK tenon::testing
      LABELS conformance)
  target_compile_definitions(conformance_self_test PRIVATE
      TENON_CONFORMANCE="$<TARGET_FILE:tenon::conformance>"
      TENON_CONFORMANCE_SOURCE="${PROJECT_SOURCE_DIR}/sdk/conformance/conformance_main.cc"
      FAULTY_STORE="$<TARGET_FILE:faulty_store>"
      FAULTY_TRANSPORT="$<TARGET_FILE:faulty_transport>"
      FAULTY_CONSTRAINT="$<TARGET_FILE:faulty_constraint>"
      FAULTY_DESCRIPTOR="$<TARGET_FILE:faulty_descriptor>")
  add_dependencies(conformance_self_test faulty_store faulty_transport faulty_constraint faulty_descriptor tenon_conformance)
endif()
