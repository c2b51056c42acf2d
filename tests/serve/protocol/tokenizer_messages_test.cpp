#include "based/serve/protocol/tokenizer_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"

namespace based {
namespace tokenizer_messages_test {

using ::testing::HasSubstr;

const ModelFacts kModel{"tiny", 257};

std::string tokenize(const std::string& request) { return tokenize_reply(parse_json(request, "request"), ByteTokenizer(), kModel, 0); }
std::string detokenize(const std::string& request) { return detokenize_reply(parse_json(request, "request"), ByteTokenizer(), kModel); }

TEST(TokenizerMessages, SpecialTokensAreParsedAndNoneIsAdded) {
  EXPECT_EQ(tokenize(R"({"prompt": "a<|endoftext|>", "add_special_tokens": false})"),
            R"({"tokens":[97,256],"count":2,"max_model_len":null,"token_strs":null})");
  EXPECT_EQ(tokenize(R"({"prompt": "ab", "add_special_tokens": true, "return_token_strs": true})"),
            R"({"tokens":[97,98],"count":2,"max_model_len":null,"token_strs":["a","b"]})");
  EXPECT_EQ(tokenize(R"({"prompt": ""})"), R"({"tokens":[],"count":0,"max_model_len":null,"token_strs":null})");
  for (const char* wrong : {"{}", R"({"prompt": 5})", R"({"prompt": ["a"]})", "[]", R"({"messages": []})"})
    EXPECT_THROW(tokenize(wrong), ApiError) << wrong;
}

TEST(TokenizerMessages, DetokenizingIsTheInverse) {
  EXPECT_EQ(detokenize(R"({"tokens": [97, 256]})"), R"({"prompt":"a<|endoftext|>"})");
  EXPECT_EQ(detokenize(R"({"tokens": []})"), R"({"prompt":""})");
  EXPECT_EQ(detokenize(R"({"tokens": [195]})"), "{\"prompt\":\"\xef\xbf\xbd\"}");
  for (const char* wrong : {"{}", R"({"tokens": "a"})", R"({"tokens": [257]})", R"({"tokens": [-1]})"})
    EXPECT_THROW(detokenize(wrong), ApiError) << wrong;
}

TEST(TokenizerMessages, TheTokenizerAndTheModelAreDescribed) {
  EXPECT_EQ(tokenizer_info_reply(ByteTokenizer(), ""),
            R"({"eos_token":"<|endoftext|>","bos_token":"<|endoftext|>","pad_token":null,"chat_template":null})");
  EXPECT_THAT(tokenizer_info_reply(ByteTokenizer(), "{{ x }}"), HasSubstr(R"("chat_template":"{{ x }}")"));
  EXPECT_EQ(dump_json(model_list(kModel, 7, 2048)),
            R"({"object":"list","data":[{"id":"tiny","object":"model","created":7,"owned_by":"based","max_model_len":2048,)"
            R"("vocab_size":257}]})");
}

}  // namespace tokenizer_messages_test
}  // namespace based
