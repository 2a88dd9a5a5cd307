# SPDX-License-Identifier: MIT
# Row stores: planning, the lane behind a scripted backend, the real engines, and conformance without io_uring.
if(TARGET storage_common)
  tenon_add_test(storage_plan_test SOURCES unit/storage_plan_test.cc LINK storage_common)
  tenon_add_test(storage_lane_test SOURCES unit/storage_lane_test.cc
      LINK storage_common tenon::testing)
endif()
if(TARGET storage_uring AND TARGET io_uring AND NOT TENON_STATIC_PLUGINS)
  tenon_add_test(storage_engines_test SOURCES unit/storage_engines_test.cc unit/allocation_counter.cc
      LINK storage_uring tenon::testing)
  add_dependencies(storage_engines_test io_uring)

  add_executable(without_io_uring tools/without_io_uring.cc)
  target_link_libraries(without_io_uring PRIVATE tenon_compile)
  target_include_directories(without_io_uring PRIVATE ${PROJECT_SOURCE_DIR})
  add_test(NAME conformance.io_uring.threads
      COMMAND without_io_uring $<TARGET_FILE:tenon::conformance> --plugin $<TARGET_FILE:io_uring>)
  add_test(NAME conformance.io_uring.buffered
      COMMAND tenon::conformance --plugin $<TARGET_FILE:io_uring>
              --set direct=false --set queue_depth=2)
  set_tests_properties(conformance.io_uring.threads conformance.io_uring.buffered PROPERTIES
      LABELS conformance TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()
