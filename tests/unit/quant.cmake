# SPDX-License-Identifier: MIT
# Unit tests of the quantisation plugins.
tenon_add_test(quant_exl3_test
    SOURCES unit/quant_exl3_codec_test.cc unit/quant_exl3_weight_test.cc
    LINK    tenon_exl3_core)
