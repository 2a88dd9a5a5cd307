# SPDX-License-Identifier: MIT
if(TARGET tenon_dsv41_text)
  tenon_add_test(test_text
      SOURCES
        unit/text_chat.cc
        unit/text_engram.cc
        unit/text_reply.cc
        unit/text_tokenizer.cc
      LINK tenon_dsv41_text)
endif()
