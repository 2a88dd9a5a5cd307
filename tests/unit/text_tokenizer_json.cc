// SPDX-License-Identifier: MIT
// Malformed tokenizer files: each is refused with a message that names the field.
#include "unit/text_support.h"

namespace tenon::dsv41 {
namespace {

using testing::golden_path;
using testing::read_file;

/// A small file that loads, as text with replaceable parts.
struct File {
    std::string normalizer = "null";
    std::string decoder = R"({"type":"ByteLevel"})";
    std::string pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
    std::string added = R"([{"id":260,"content":"<x>","special":true,"normalized":false}])";
    std::string extra_vocab = R"(,"ab":256,"bc":257,"abc":258)";
    std::string merges = R"(["a b","b c",["ab","c"]])";
    std::string model = R"("type":"BPE")";

    std::string text() const {
        std::string vocab;
        char32_t spare = 256;
        for (int b = 0; b < 256; ++b) {
            const bool is_printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            std::string c;
            append_utf8(c, is_printable ? static_cast<char32_t>(b) : spare++);
            vocab += b > 0 ? "," : "";
            append_json_string(vocab, c);
            vocab += ":" + std::to_string(b);
        }
        return "{\"normalizer\":" + normalizer + ",\"decoder\":" + decoder +
               ",\"pre_tokenizer\":" + pre_tokenizer + ",\"added_tokens\":" + added +
               ",\"model\":{" + model + ",\"vocab\":{" + vocab + extra_vocab +
               "},\"merges\":" + merges + "}}";
    }
};

TEST(TokenizerFile, A_minimal_file_loads) {
    const Result<Tokenizer> t = Tokenizer::load(File().text());
    ASSERT_TRUE(t.ok()) << t.status().message().view();

    EXPECT_EQ(t->size(), 261);
    EXPECT_FALSE(t->has(259));
    EXPECT_TRUE(t->is_special(260));
    EXPECT_EQ(testing::encode(*t, "abc ab<x>"),
              (std::vector<int32_t>{258, ' ', 256, '<', 'x', '>'}));
    EXPECT_EQ(testing::encode(*t, "abc ab<x>", Tokenizer::Specials::parsed),
              (std::vector<int32_t>{258, ' ', 256, 260}));
    EXPECT_EQ(t->decode(std::vector<int32_t>{259}, false).status().code(), Code::invalid_argument);
    EXPECT_EQ(*t->decode(std::vector<int32_t>{258, 260}, true), "abc");
}

TEST(TokenizerFile, Later_rules_for_one_pair_win_and_rank_decides) {
    File file;
    file.merges = R"(["b c","a b"])";  // bc before ab, and no rule for a + bc
    EXPECT_EQ(testing::encode(*Tokenizer::load(file.text()), "abc"),
              (std::vector<int32_t>{'a', 257}));
}

TEST(TokenizerFile, Splits_by_literal_strings) {
    File file;
    file.pre_tokenizer =
        R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":"b+"},"behavior":"Isolated","invert":false},)"
        R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";
    file.merges = R"(["a b","b c"])";
    const Result<Tokenizer> t = Tokenizer::load(file.text());
    ASSERT_TRUE(t.ok()) << t.status().message().view();
    EXPECT_EQ(testing::encode(*t, "ab+ab"), (std::vector<int32_t>{'a', 'b', '+', 256}));
}

TEST(TokenizerFile, Malformed_files_are_refused_and_named) {
    struct Case {
        void (*change)(File&);
        Code code;
        const char* message;
    };
    const Case cases[] = {
        {[](File& f) { f.normalizer = R"({"type":"NFC"})"; }, Code::unsupported, "normalizer"},
        {[](File& f) { f.normalizer = R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})"; },
         Code::unsupported, "normalizer"},
        {[](File& f) { f.decoder = "null"; }, Code::unsupported, "decoder"},
        {[](File& f) { f.decoder = R"({"type":"Metaspace"})"; }, Code::unsupported, "decoder"},
        {[](File& f) { f.pre_tokenizer = "null"; }, Code::invalid_argument,
         "pre_tokenizer: missing"},
        {[](File& f) { f.pre_tokenizer = R"({"type":"Whitespace"})"; }, Code::unsupported,
         "pre_tokenizer.type"},
        {[](File& f) { f.pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":true})"; },
         Code::unsupported, "pre_tokenizer.add_prefix_space"},
        {[](File& f) { f.pre_tokenizer = R"({"type":"Sequence","pretokenizers":[]})"; },
         Code::unsupported, "ByteLevel"},
        {[](File& f) { f.pre_tokenizer = R"({"type":"Sequence","pretokenizers":5})"; },
         Code::invalid_argument, "pre_tokenizer.pretokenizers"},
        {[](File& f) {
             f.pre_tokenizer =
                 R"({"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated","invert":false})";
         },
         Code::invalid_argument, "pre_tokenizer.pattern"},
        {[](File& f) {
             f.pre_tokenizer =
                 R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Removed","invert":false})";
         },
         Code::unsupported, "isolated"},
        {[](File& f) {
             f.pre_tokenizer = R"({"type":"Split","pattern":{},"behavior":"Isolated"})";
         },
         Code::invalid_argument, "pre_tokenizer.pattern"},
        {[](File& f) { f.model = R"("type":"WordPiece")"; }, Code::unsupported, "model.type"},
        {[](File& f) { f.model = R"("type":"BPE","byte_fallback":true)"; }, Code::unsupported,
         "model.byte_fallback"},
        {[](File& f) { f.model = R"("type":"BPE","ignore_merges":true)"; }, Code::unsupported,
         "model.ignore_merges"},
        {[](File& f) { f.model = R"("type":"BPE","unk_token":"<unk>")"; }, Code::unsupported,
         "model.unk_token"},
        {[](File& f) { f.model = R"("type":"BPE","dropout":0.1)"; }, Code::unsupported,
         "model.dropout"},
        {[](File& f) { f.extra_vocab = R"(,"ab":5)"; }, Code::invalid_argument, "both have id 5"},
        {[](File& f) { f.extra_vocab = R"(,"ab":-1)"; }, Code::invalid_argument, "'ab' has id -1"},
        {[](File& f) { f.extra_vocab = R"(,"ab":4294967296)"; }, Code::invalid_argument,
         "'ab' has id 4294967296"},
        {[](File& f) { f.extra_vocab = R"(,"ab":1.5)"; }, Code::invalid_argument,
         "'ab' has id 1.5"},
        {[](File& f) { f.merges = "5"; }, Code::invalid_argument, "model.merges: missing"},
        {[](File& f) { f.merges = R"(["ab"])"; }, Code::invalid_argument, "model.merges[0]"},
        {[](File& f) { f.merges = R"(["a b","a z"])"; }, Code::invalid_argument,
         "model.merges[1]: 'az' is not in model.vocab"},
        {[](File& f) { f.merges = R"([["a"]])"; }, Code::invalid_argument, "model.merges[0]"},
        {[](File& f) { f.added = "{}"; }, Code::invalid_argument, "added_tokens: an object"},
        {[](File& f) { f.added = R"([{"content":"x"}])"; }, Code::invalid_argument,
         "added_tokens[0]: id"},
        {[](File& f) { f.added = R"([{"id":300}])"; }, Code::invalid_argument,
         "added_tokens[0]: content"},
        {[](File& f) { f.added = R"([{"id":300,"content":"ab"}])"; }, Code::invalid_argument,
         "'ab' has id 300 here and 256"},
        {[](File& f) { f.added = R"([{"id":256,"content":"new"}])"; }, Code::invalid_argument,
         "both have id 256"},
        {[](File& f) { f.added = R"([{"id":300,"content":"n","lstrip":true}])"; },
         Code::unsupported, "added_tokens[0].lstrip"},
    };

    for (const Case& c : cases) {
        File file;
        c.change(file);
        const Result<Tokenizer> t = Tokenizer::load(file.text());
        EXPECT_EQ(t.status().code(), c.code) << c.message << " / " << t.status().message().view();
        EXPECT_EQ(t.status().message().str().substr(0, 14), "tokenizer.json")
            << t.status().message().view();
        EXPECT_NE(t.status().message().view().find(c.message), std::string_view::npos)
            << t.status().message().view();
    }
    for (const char* text :
         {"", "[]", "{}", "{\"model\":[]}", "{\"model\":{\"type\":\"BPE\"}}", "\"x\""}) {
        EXPECT_EQ(Tokenizer::load(text).status().message().str().substr(0, 14), "tokenizer.json")
            << text;
    }
}

TEST(TokenizerFile, A_vocabulary_without_all_bytes_is_refused) {
    std::string text = File().text();
    const size_t at = text.find("\"A\":65,");
    text.erase(at, 7);
    EXPECT_EQ(Tokenizer::load(text).status().message().view(),
              "tokenizer.json: model.vocab: no token for byte 65 ('A'); a byte-level vocabulary "
              "has all 256");
}

TEST(TokenizerFile, Truncated_files_are_refused) {
    const std::string text = read_file(golden_path("dsv41/tiny/tokenizer.json"));
    for (size_t size = 0; size + 2 < text.size(); size += 97) {
        EXPECT_EQ(Tokenizer::load(text.substr(0, size)).status().code(), Code::invalid_argument)
            << size;
    }
}

}  // namespace
}  // namespace tenon::dsv41
