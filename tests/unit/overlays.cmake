# SPDX-License-Identifier: MIT
# Parts of overlays that need no host.
tenon_add_test(test_image_cache PLAIN
    SOURCES ${PROJECT_SOURCE_DIR}/plugins/overlay_image_cache/image_cache.cc
            unit/image_cache_test.cc)
target_include_directories(test_image_cache PRIVATE ${PROJECT_SOURCE_DIR}/plugins/overlay_image_cache)
