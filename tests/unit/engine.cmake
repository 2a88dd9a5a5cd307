# SPDX-License-Identifier: MIT
# The engine on a scripted model: wire form, planner, mirror, replies, ends, memory.
add_library(tenon_fakes STATIC fakes/scripted_codec.cc fakes/scripted_model.cc
            fakes/scripted_rows.cc)
target_include_directories(tenon_fakes PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(tenon_fakes PUBLIC tenon::sdk PRIVATE tenon_compile nlohmann_json::nlohmann_json)

tenon_add_test(test_engine_plan PLAIN SOURCES unit/engine_codec_test.cc unit/engine_mirror_test.cc
    LINK tenon_engine tenon_fakes)
tenon_add_test(test_engine PLAIN
    SOURCES ${PROJECT_SOURCE_DIR}/plugins/overlay_prefill_interleave/interleave.cc
            unit/engine_allotment_test.cc unit/engine_bundle_test.cc unit/engine_equality_test.cc unit/engine_interleave_test.cc unit/engine_life_test.cc unit/engine_pages_test.cc unit/engine_planner_test.cc
            unit/engine_prefix_test.cc
            unit/engine_replay_test.cc unit/engine_reply_test.cc unit/engine_request_test.cc
    LINK tenon_engine tenon_fakes)
tenon_add_test(test_engine_spill PLAIN SOURCES unit/engine_spill_file_test.cc unit/engine_spill_test.cc
    LINK tenon_engine tenon_fakes)
# Replaces malloc, so it is a program of its own.
tenon_add_test(test_engine_memory SOURCES unit/engine_memory_test.cc LINK tenon_engine tenon_fakes)
