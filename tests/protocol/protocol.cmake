# SPDX-License-Identifier: MIT
# The front end over a fake engine, and over the real one: clients with raw sockets.
if(TARGET tenon_http AND TARGET tenon_testing)
  add_library(tenon_fake_engine STATIC fakes/fake_engine.cc)
  target_include_directories(tenon_fake_engine PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(tenon_fake_engine PUBLIC tenon::sdk nlohmann_json::nlohmann_json PRIVATE tenon_compile)
  tenon_add_test(protocol_openai PLAIN
      SOURCES protocol/chat_test.cc protocol/completion_test.cc protocol/malformed_http_test.cc
              protocol/malformed_json_test.cc protocol/parts_test.cc protocol/server_test.cc
              protocol/tls_test.cc protocol/raw_client.cc
              ${PROJECT_SOURCE_DIR}/plugins/frontend_openai/plugin.cc
      LINK tenon_http tenon_fake_engine tenon_testing OpenSSL::Crypto
      LABELS protocol)
  if(TARGET tenon_engine)
    tenon_add_test(protocol_engine
        SOURCES protocol/keys_engine_test.cc protocol/raw_client.cc
        LINK tenon_http tenon_engine tenon_fakes tenon_testing OpenSSL::Crypto
        LABELS protocol)
  endif()
endif()
