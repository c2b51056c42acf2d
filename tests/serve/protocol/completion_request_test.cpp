#include "based/serve/protocol/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace based {
namespace completion_request_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const ModelFacts kModel{"tiny", 100};

CompletionRequest parse(const std::string& text, const RequestLimits& limits = {}) {
  return parse_completion_request(parse_json(text, "request"), limits, kModel);
}

// The field that the error names, with the code: "n: invalid_value". Empty if there is no error.
std::string refused(const std::string& text, const RequestLimits& limits = {}) {
  try {
    parse(text, limits);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), error.code() == "not_found" ? 404 : 400) << text;
    EXPECT_STRNE(error.what(), "") << text;
    return error.param() + ": " + error.code();
  }
  return "";
}

std::vector<int64_t> ids_of(const CompletionRequest& request, size_t index) {
  return std::get<std::vector<int64_t>>(request.prompts.at(index));
}

TEST(CompletionRequest, AbsentFieldsAndNullsHaveOpenAisDefaults) {
  for (const char* text : {R"({"prompt": "a"})",
                           R"({"prompt": "a", "model": null, "n": null, "best_of": null, "echo": null, "logprobs": null, "stop": null,
                               "max_tokens": null, "temperature": null, "top_p": null, "seed": null, "stream": null, "suffix": null,
                               "stream_options": null, "logit_bias": null, "presence_penalty": null, "user": null, "state": null,
                               "store": null, "response_format": null})"}) {
    const CompletionRequest request = parse(text);
    EXPECT_EQ(request.prompts, std::vector<Prompt>{Prompt("a")});
    EXPECT_EQ(request.generation.sampling, SamplingOptions());
    EXPECT_EQ(request.generation.max_tokens, 16);
    EXPECT_FALSE(request.generation.seed);
    EXPECT_EQ(request.n, 1);
    EXPECT_EQ(request.logprobs, -1);
    EXPECT_FALSE(request.echo || request.scores_prompt() || request.generation.stream || request.generation.store.any());
    EXPECT_TRUE(request.generation.stops.empty() && request.generation.constraint.empty());
  }
}

TEST(CompletionRequest, APromptHasFourForms) {
  EXPECT_EQ(parse(R"({"prompt": "a b"})").prompts, std::vector<Prompt>{Prompt("a b")});
  EXPECT_EQ(parse(R"({"prompt": ["a", "b"]})").prompts, (std::vector<Prompt>{Prompt("a"), Prompt("b")}));
  EXPECT_THAT(ids_of(parse(R"({"prompt": [1, 0, 99]})"), 0), ElementsAre(1, 0, 99));
  const CompletionRequest lists = parse(R"({"prompt": [[1, 2], [3]]})");
  EXPECT_THAT(ids_of(lists, 0), ElementsAre(1, 2));
  EXPECT_THAT(ids_of(lists, 1), ElementsAre(3));
  EXPECT_EQ(lists.parts(), 2);
}

TEST(CompletionRequest, EveryFieldIsRead) {
  const CompletionRequest request = parse(R"({"model": "tiny", "prompt": [1], "n": 3, "best_of": 3, "echo": true, "logprobs": 5,
      "prompt_logprobs": 2, "max_tokens": 7.0, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1,
      "presence_penalty": -0.5, "frequency_penalty": 1.5, "logit_bias": {"7": -100, "3": 2.5}, "seed": -4, "stop": ["x", "yz"],
      "stop_token_ids": [9], "stream": true, "stream_options": {"include_usage": true}, "guided_choice": ["a", "b"],
      "state": "st_1", "store": true, "state_at": ["prompt", "end"], "state_ttl": 60, "user": "me", "unheard_of": {"a": [1]}})");
  const GenerationFields& fields = request.generation;
  EXPECT_EQ(request.n, 3);
  EXPECT_TRUE(request.echo && request.scores_prompt());
  EXPECT_EQ(request.logprobs, 5);
  EXPECT_EQ(request.prompt_logprobs, 2);
  EXPECT_EQ(fields.max_tokens, 7);
  EXPECT_EQ(fields.sampling.temperature, 0.5);
  EXPECT_EQ(fields.sampling.top_p, 0.9);
  EXPECT_EQ(fields.sampling.top_k, 40);
  EXPECT_EQ(fields.sampling.min_p, 0.05);
  EXPECT_EQ(fields.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(fields.sampling.presence_penalty, -0.5);
  EXPECT_EQ(fields.sampling.frequency_penalty, 1.5);
  EXPECT_THAT(fields.sampling.logit_bias, ElementsAre(Pair(3, 2.5), Pair(7, -100)));
  EXPECT_EQ(fields.seed, -4);
  EXPECT_THAT(fields.stops, ElementsAre("x", "yz"));
  EXPECT_THAT(fields.stop_tokens, ElementsAre(9));
  EXPECT_TRUE(fields.stream && fields.include_usage && !fields.ignore_end_of_text);
  EXPECT_TRUE(parse(R"({"prompt": "a", "ignore_eos": true})").generation.ignore_end_of_text);
  EXPECT_THAT(fields.constraint.choices, ElementsAre("a", "b"));
  EXPECT_EQ(request.state(0), "st_1");
  EXPECT_TRUE(fields.store.at_prompt && fields.store.at_end);
  EXPECT_EQ(fields.store.ttl_seconds, 60);
}

TEST(CompletionRequest, WrongValuesNameTheirField) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"("prompt": "")", "prompt: invalid_value"},
      {R"("prompt": [])", "prompt: invalid_value"},
      {R"("prompt": [[]])", "prompt: invalid_value"},
      {R"("prompt": ["a", ""])", "prompt: invalid_value"},
      {R"("prompt": 5)", "prompt: invalid_value"},
      {R"("prompt": {"a": 1})", "prompt: invalid_value"},
      {R"("prompt": [1, "a"])", "prompt: invalid_value"},
      {R"("prompt": ["a", 1])", "prompt: invalid_value"},
      {R"("prompt": ["a", [1]])", "prompt: invalid_value"},
      {R"("prompt": [[1], "a"])", "prompt: invalid_value"},
      {R"("prompt": [-1])", "prompt: invalid_value"},
      {R"("prompt": [100])", "prompt: invalid_value"},
      {R"("prompt": [1.5])", "prompt: invalid_value"},
      {R"("prompt": [1.0])", "prompt: invalid_value"},
      {R"("prompt": [18446744073709551615])", "prompt: invalid_value"},
      {R"("prompt": [[1], [100]])", "prompt[1]: invalid_value"},
      {R"("prompt": "a", "n": 0)", "n: invalid_value"},
      {R"("prompt": "a", "n": -3)", "n: invalid_value"},
      {R"("prompt": "a", "n": 1e300)", "n: invalid_value"},
      {R"("prompt": "a", "n": "2")", "n: invalid_value"},
      {R"("prompt": "a", "n": true)", "n: invalid_value"},
      {R"("prompt": "a", "best_of": 2)", "best_of: unsupported"},
      {R"("prompt": "a", "max_tokens": -1)", "max_tokens: invalid_value"},
      {R"("prompt": "a", "max_tokens": 1.5)", "max_tokens: invalid_value"},
      {R"("prompt": "a", "max_tokens": 9223372036854775808)", "max_tokens: invalid_value"},
      {R"("prompt": "a", "max_tokens": 0)", "max_tokens: invalid_value"},
      {R"("prompt": "a", "max_tokens": 0, "echo": true, "n": 2)", "n: invalid_value"},
      {R"("prompt": "a", "temperature": 1e300)", "temperature: invalid_value"},
      {R"("prompt": "a", "temperature": -0.1)", "temperature: invalid_value"},
      {R"("prompt": "a", "temperature": "hot")", "temperature: invalid_value"},
      {R"("prompt": "a", "top_p": 0)", "top_p: invalid_value"},
      {R"("prompt": "a", "top_p": 1.1)", "top_p: invalid_value"},
      {R"("prompt": "a", "top_k": -2)", "top_k: invalid_value"},
      {R"("prompt": "a", "min_p": 2)", "min_p: invalid_value"},
      {R"("prompt": "a", "repetition_penalty": 0)", "repetition_penalty: invalid_value"},
      {R"("prompt": "a", "presence_penalty": 2.1)", "presence_penalty: invalid_value"},
      {R"("prompt": "a", "frequency_penalty": -2.1)", "frequency_penalty: invalid_value"},
      {R"("prompt": "a", "logit_bias": [])", "logit_bias: invalid_value"},
      {R"("prompt": "a", "logit_bias": {"100": 1})", "logit_bias: invalid_value"},
      {R"("prompt": "a", "logit_bias": {"-1": 1})", "logit_bias: invalid_value"},
      {R"("prompt": "a", "logit_bias": {"a": 1})", "logit_bias: invalid_value"},
      {R"("prompt": "a", "logit_bias": {"1": 101})", "logit_bias: invalid_value"},
      {R"("prompt": "a", "logit_bias": {"1": "2"})", "logit_bias: invalid_value"},
      {R"("prompt": "a", "logit_bias": {"1": 1, "01": 2})", "logit_bias: invalid_value"},
      {R"("prompt": "a", "seed": 0.5)", "seed: invalid_value"},
      {R"("prompt": "a", "stop": "")", "stop: invalid_value"},
      {R"("prompt": "a", "stop": [1])", "stop: invalid_value"},
      {R"("prompt": "a", "stop_token_ids": [100])", "stop_token_ids: invalid_value"},
      {R"("prompt": "a", "echo": 1)", "echo: invalid_value"},
      {R"("prompt": "a", "logprobs": 21)", "logprobs: invalid_value"},
      {R"("prompt": "a", "logprobs": -1)", "logprobs: invalid_value"},
      {R"("prompt": "a", "logprobs": true)", "logprobs: invalid_value"},
      {R"("prompt": "a", "stream_options": {"include_usage": true})", "stream_options: invalid_value"},
      {R"("prompt": "a", "stream": true, "stream_options": [])", "stream_options: invalid_value"},
      {R"("prompt": "a", "stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage: invalid_value"},
      {R"("prompt": "a", "state": [])", "state: invalid_value"},
      {R"("prompt": ["a", "b"], "state": ["st_1", "st_2"])", "state: invalid_value"},
      {R"("prompt": "a", "state_at": ["end"])", "state_at: invalid_value"},
      {R"("prompt": "a", "store": true, "state_at": ["middle"])", "state_at: invalid_value"},
      {R"("prompt": "a", "store": true, "state_at": [])", "state_at: invalid_value"},
      {R"("prompt": "a", "store": true, "state_ttl": 0)", "state_ttl: invalid_value"},
      {R"("prompt": "a", "guided_choice": [])", "guided_choice: invalid_value"},
      {R"("prompt": "a", "guided_regex": "")", "guided_regex: invalid_value"},
      {R"("prompt": "a", "guided_regex": "a", "guided_choice": ["a"])", "guided_regex: invalid_value"},
      {R"("prompt": "a", "guided_regex": "a", "ignore_eos": true)", "ignore_eos: invalid_value"},
      {R"("prompt": "a", "structured_outputs": {"choice": ["a"]}, "ignore_eos": true)", "ignore_eos: invalid_value"},
      {R"("prompt": "a", "structured_outputs": {})", "structured_outputs: invalid_value"},
      {R"("prompt": "a", "state_ttl": 5)", "state_ttl: invalid_value"},
      {R"("prompt": "a", "model": "gpt-4")", "model: not_found"},
  };
  for (const auto& [members, expected] : cases) EXPECT_EQ(refused("{" + std::string(members) + "}"), expected) << members;
  EXPECT_EQ(refused("[]"), ": invalid_value");
  EXPECT_EQ(refused("{}"), "prompt: invalid_value");
}

TEST(CompletionRequest, WhatTheServerLacksIsRefusedUnlessItChangesNothing) {
  for (const char* field : {R"("suffix": "z")",
                            R"("use_beam_search": true)",
                            R"("min_tokens": 3)",
                            R"("typical_p": 0.5)",
                            R"("mirostat": 2)",
                            R"("grammar": "root ::= x")",
                            R"("guided_json": {})",
                            R"("bad_words": ["a"])",
                            R"("tools": [{}])",
                            R"("add_special_tokens": true)",
                            R"("repeat_penalty": 1.5)",
                            R"("n_predict": 3)",
                            R"("n_probs": 2)",
                            R"("include_stop_str_in_output": true)",
                            R"("no_repeat_ngram_size": 3)",
                            R"("lora": [{"id": 0}])",
                            R"("image_data": [{}])",
                            R"("cache_salt": "x")",
                            R"("max_completion_tokens": 3)",
                            R"("repeat_last_n": 64, "repetition_penalty": 1.2)",
                            R"("samplers": ["top_k"])",
                            R"("modalities": ["audio"])",
                            R"("truncate_prompt_tokens": 5)",
                            R"("response_format": {"type": "json_object"})",
                            R"("structured_outputs": {"json": {}})"}) {
    EXPECT_THAT(refused(R"({"prompt": "a", )" + std::string(field) + "}"), HasSubstr(": unsupported")) << field;
  }
  EXPECT_EQ(refused(R"({"prompt": "a", "suffix": "", "use_beam_search": false, "length_penalty": 1.0, "min_tokens": 0, "typical_p": 1,
                        "tools": [], "tool_choice": "none", "repeat_penalty": 1.0, "repeat_last_n": 64, "n_probs": 0, "lora": [], "modalities": ["text"], "response_format": {"type": "text"}, "add_special_tokens": false})"),
            "");
  EXPECT_EQ(parse(R"({"prompt": "a", "structured_outputs": {"regex": "[ab]+"}})").generation.constraint.regex, "[ab]+");
}

TEST(CompletionRequest, LimitsAreCounted) {
  RequestLimits limits;
  limits.batch = 2;
  limits.stops = 2;
  limits.prompt_tokens = 3;
  limits.choices = 4;
  limits.stop_bytes = 2;
  limits.logit_bias = 1;
  limits.max_tokens = 8;
  EXPECT_EQ(refused(R"({"prompt": ["a", "b"], "n": 2, "stop": ["aa", "b"]})", limits), "");
  EXPECT_EQ(refused(R"({"prompt": ["a", "b", "c"]})", limits), "prompt: invalid_value");
  EXPECT_EQ(refused(R"({"prompt": ["a", "b"], "n": 3})", limits), "n: invalid_value");
  EXPECT_EQ(refused(R"({"prompt": "a", "stop": ["a", "b", "c"]})", limits), "stop: invalid_value");
  EXPECT_EQ(refused(R"({"prompt": "a", "stop": "abc"})", limits), "stop: invalid_value");
  EXPECT_EQ(refused(R"({"prompt": [1, 2, 3, 4]})", limits), "prompt: invalid_value");
  EXPECT_EQ(refused(R"({"prompt": "a", "logit_bias": {"1": 1, "2": 1}})", limits), "logit_bias: invalid_value");
  EXPECT_EQ(refused(R"({"prompt": "a", "max_tokens": 9})", limits), "max_tokens: invalid_value");
  EXPECT_EQ(parse(R"({"prompt": "a"})", limits).generation.max_tokens, 8);
  limits.n = 0;
  EXPECT_THROW(check_request_limits(limits), UsageError);
}

TEST(CompletionRequest, StatesAndPromptsMultiply) {
  const CompletionRequest states = parse(R"({"prompt": "q", "state": ["st_1", "st_2", "st_3"]})");
  EXPECT_EQ(states.parts(), 3);
  EXPECT_EQ(states.state(2), "st_3");
  EXPECT_EQ(states.prompt(2), Prompt("q"));
  const CompletionRequest prompts = parse(R"({"prompt": ["p", "q"], "state": "st_1"})");
  EXPECT_EQ(prompts.parts(), 2);
  EXPECT_EQ(prompts.state(1), "st_1");
  EXPECT_EQ(prompts.prompt(1), Prompt("q"));
  EXPECT_EQ(parse(R"({"state": "st_1"})").prompts, std::vector<Prompt>{Prompt("")}) << "nothing new";
}

TEST(ApiError, IsWrittenInOpenAisForm) {
  EXPECT_EQ(dump_json(ApiError::invalid("n", "n: is wrong").to_json()),
            R"({"error":{"message":"n: is wrong","type":"invalid_request_error","param":"n","code":"invalid_value"}})");
  EXPECT_EQ(dump_json(ApiError::unauthorized("no key").to_json()),
            R"({"error":{"message":"no key","type":"authentication_error","param":null,"code":"invalid_api_key"}})");
  EXPECT_EQ(ApiError::exceeds_context("x").type(), "exceed_context_size_error");
  EXPECT_EQ(ApiError::overloaded("x", 2).retry_after(), 2);
  EXPECT_EQ(ApiError::overloaded("x", 2).status(), 429);
}

}  // namespace completion_request_test
}  // namespace based
