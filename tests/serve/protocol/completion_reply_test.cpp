#include "based/serve/protocol/completion_reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace based {
namespace completion_reply_test {

using ::testing::HasSubstr;

// Tokens 0 and 1 are the letters a and b, 2 and 3 the two halves of é, 4 another token that spells "a".
class TwoLetters final : public Tokenizer {
 public:
  TwoLetters() : Tokenizer(Vocabulary{{"a", "b", "\xc3", "\xa9", "a"}, {}, {}}) {}
  void encode_text(std::string_view, std::vector<int32_t>&) const override {}
};

const ReplyHead kHead{"cmpl-1", 7, "tiny", "fp_1"};

Json object_of(CompletionLogprobs& logprobs) { return parse_json(logprobs.take(), "logprobs"); }

TEST(CompletionLogprobs, HaveOneEntryATokenAndNullForTheFirstOnly) {
  const TwoLetters tokenizer;
  CompletionLogprobs logprobs(tokenizer, 1);
  logprobs.add({0, false, 0, {}});
  logprobs.add({1, true, -1.5, {{1, -1.5}}});
  logprobs.add({0, true, -2.25, {{1, -0.5}}});
  EXPECT_EQ(dump_json(object_of(logprobs)),
            R"({"tokens":["a","b","a"],"token_logprobs":[null,-1.5,-2.25],"top_logprobs":[null,{"b":-1.5},{"b":-0.5,"a":-2.25}],)"
            R"("text_offset":[0,1,2]})");
  EXPECT_TRUE(logprobs.empty());
  logprobs.add({1, true, -1, {{1, -1}}});
  EXPECT_EQ(object_of(logprobs)["text_offset"], Json::array({3})) << "offsets continue in the next chunk";
}

// lm-eval compares the numbers that it parses.
TEST(CompletionLogprobs, TheMostLikelyTokenHasTheSameDigitsInBothPlaces) {
  const TwoLetters tokenizer;
  for (const float value : {-1.0f / 3, -2.91131208f, -1e-8f, -0.0f, -123.456f}) {
    CompletionLogprobs logprobs(tokenizer, 1);
    logprobs.add({1, true, std::nextafter(value, -1000.0f), {{1, value}}});
    const Json object = object_of(logprobs);
    EXPECT_EQ(object["token_logprobs"][0].get<double>(), static_cast<double>(value));
    EXPECT_EQ(object["top_logprobs"][0]["b"].get<double>(), static_cast<double>(value));
  }
}

TEST(CompletionLogprobs, TokensOfOneTextKeepTheLargerNumber) {
  const TwoLetters tokenizer;
  CompletionLogprobs logprobs(tokenizer, 2);
  logprobs.add({0, true, -3, {{4, -1}, {1, -2}}});
  logprobs.add({0, true, -3, {{4, -1}, {0, -3}}});
  const Json object = object_of(logprobs);
  EXPECT_EQ(object["top_logprobs"][0], parse_json(R"({"a": -1.0, "b": -2.0})", ""));
  EXPECT_EQ(object["top_logprobs"][1], parse_json(R"({"a": -1.0})", ""));
  EXPECT_EQ(object["token_logprobs"][0], Json(-3.0)) << "less than the largest: not greedy";
}

TEST(CompletionLogprobs, PartsOfCharactersHaveKeysOfTheirOwn) {
  const TwoLetters tokenizer;
  CompletionLogprobs logprobs(tokenizer, 2);
  logprobs.add({2, true, -1, {{2, -1}, {3, -2}}});
  logprobs.add({3, true, -1, {{3, -1}, {2, -2}}});
  logprobs.add({1, true, -1, {{1, -1}}});
  const Json object = object_of(logprobs);
  EXPECT_EQ(object["tokens"][0], "bytes:\\xc3");
  EXPECT_EQ(object["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(object["text_offset"], Json::array({0, 0, 1}));
}

TEST(CompletionLogprobs, NumbersAreParsedToTheSameDoubles) {
  const auto written = [](double value) {
    std::string out;
    append_log_probability(value, out);
    return out;
  };
  EXPECT_EQ(written(-std::numeric_limits<double>::infinity()), "-9999.0");
  EXPECT_EQ(written(std::nan("")), "-9999.0");
  EXPECT_EQ(written(-5), "-5.0");
  for (const double value : {-0.1, -1.0 / 3, -1e-17, -17.25, static_cast<double>(-2.7182817f)}) {
    EXPECT_EQ(parse_json(written(value), "").get<double>(), value);
  }
}

TEST(CompletionLogprobs, ThePromptsAreKeyedByIdAsVllmDoes) {
  const TwoLetters tokenizer;
  EXPECT_EQ(prompt_logprobs_json(tokenizer, {{0, false, 0, {}}, {1, true, -2, {{0, -1}}}, {0, true, -1, {{0, -1}, {1, -3}}}}, 1),
            R"([null,{"0":{"logprob":-1.0,"decoded_token":"a"},"1":{"logprob":-2.0,"decoded_token":"b"}},)"
            R"({"0":{"logprob":-1.0,"decoded_token":"a"}}])");
}

TEST(CompletionReply, IsOneObjectWithUsage) {
  CompletionChoice first, second;
  first.text = "\"é\n";
  first.finish_reason = "stop";
  second.index = 1;
  second.finish_reason = "length";
  second.state = "st_2";
  second.prompt_state = "st_1";
  second.logprobs = "{}";
  EXPECT_EQ(completion_reply(kHead, {first, second}, {10, 3, 4}),
            R"({"id":"cmpl-1","object":"text_completion","created":7,"model":"tiny","system_fingerprint":"fp_1","choices":[)"
            R"({"index":0,"text":"\"é\n","logprobs":null,"finish_reason":"stop"},)"
            R"({"index":1,"text":"","logprobs":{},"finish_reason":"length","state":"st_2","prompt_state":"st_1"}],)"
            R"("usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":4}}})");
}

TEST(CompletionReply, ChunksAreEvents) {
  CompletionChoice choice;
  choice.text = "a\n\nb";
  EXPECT_EQ(completion_chunk(kHead, choice, false),
            "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"tiny\",\"system_fingerprint\":\"fp_1\","
            "\"choices\":[{\"index\":0,\"text\":\"a\\n\\nb\",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  EXPECT_THAT(completion_chunk(kHead, choice, true), HasSubstr("}],\"usage\":null}\n\n"));
  EXPECT_THAT(completion_usage_chunk(kHead, {1, 2, 0}), HasSubstr("\"choices\":[],\"usage\":{\"prompt_tokens\":1,"));
  EXPECT_THAT(sse_error(ApiError::failed("broken")), HasSubstr("data: {\"error\":{\"message\":\"broken\",\"type\":\"server_error\""));
  EXPECT_STREQ(finish_reason_text("end_of_text"), "stop");
  EXPECT_STREQ(finish_reason_text("positions"), "length");
}

}  // namespace completion_reply_test
}  // namespace based
