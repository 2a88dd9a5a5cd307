# SPDX-License-Identifier: MIT
# Whole-system tests: `tenon serve` on the mini profile, driven by clients that applications use.
set(TENON_E2E_PYTHON python3 CACHE STRING "Python with the package 'openai' for tests/e2e")
add_test(NAME scripts COMMAND ${PROJECT_SOURCE_DIR}/tests/tools/scripts_test.sh)
set_tests_properties(scripts PROPERTIES LABELS "unit" TIMEOUT 120)
if(TARGET tenon AND TARGET openai AND TARGET dsv41)
  add_test(NAME e2e_openai_client
      COMMAND ${TENON_E2E_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/openai_client.py
              --serve $<TARGET_FILE:tenon> ${PROJECT_SOURCE_DIR}/profiles/mini.toml --streams 16)
  set_tests_properties(e2e_openai_client PROPERTIES
      LABELS "protocol" RUN_SERIAL TRUE TIMEOUT 900 SKIP_RETURN_CODE 77
      ENVIRONMENT TENON_PLUGIN_PATH=${CMAKE_BINARY_DIR}/plugins)
  add_test(NAME e2e_cli_errors
      COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/e2e/cli_errors.py $<TARGET_FILE:tenon>
              ${PROJECT_SOURCE_DIR})
  set_tests_properties(e2e_cli_errors PROPERTIES
      LABELS "protocol" RUN_SERIAL TRUE TIMEOUT 900 ENVIRONMENT TENON_PLUGIN_PATH=${CMAKE_BINARY_DIR}/plugins)
  add_test(NAME e2e_cli_verbs
      COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/e2e/cli_verbs.py $<TARGET_FILE:tenon>
              ${PROJECT_SOURCE_DIR}/tests/fixtures/golden)
  set_tests_properties(e2e_cli_verbs PROPERTIES
      LABELS "protocol" RUN_SERIAL TRUE TIMEOUT 900 ENVIRONMENT TENON_PLUGIN_PATH=${CMAKE_BINARY_DIR}/plugins)
  add_test(NAME e2e_synthetic
      COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/e2e/synthetic.py $<TARGET_FILE:tenon>
              ${PROJECT_SOURCE_DIR}/profiles/mini.toml ${PROJECT_SOURCE_DIR}/models/tenon-mini)
  set_tests_properties(e2e_synthetic PROPERTIES
      LABELS "protocol" RUN_SERIAL TRUE TIMEOUT 900 ENVIRONMENT TENON_PLUGIN_PATH=${CMAKE_BINARY_DIR}/plugins)
  add_test(NAME e2e_serving_faults
      COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/e2e/serving_faults.py $<TARGET_FILE:tenon>
              ${PROJECT_SOURCE_DIR}/profiles/mini.toml)
  set_tests_properties(e2e_serving_faults PROPERTIES
      LABELS "protocol" RUN_SERIAL TRUE TIMEOUT 900 ENVIRONMENT TENON_PLUGIN_PATH=${CMAKE_BINARY_DIR}/plugins)
endif()
