# SPDX-License-Identifier: MIT
if(TARGET tenon_dsv41_text)
  tenon_add_test(test_text PLAIN
      SOURCES
        unit/text_chat.cc
        unit/text_engram.cc
        unit/text_codec.cc
        unit/text_json.cc
        unit/text_reply.cc
        unit/text_reply_rules.cc
        unit/text_tokenizer.cc
        unit/text_tokenizer_json.cc
      LINK tenon_dsv41_text)
endif()
