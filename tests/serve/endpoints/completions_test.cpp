#include "based/serve/endpoints/completions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "based/serve/protocol/utf8_text.h"
#include "tests/serve/endpoints/recorded_reply.h"

namespace based {
namespace completions_test {

using ::testing::HasSubstr;

// Log-probabilities of all tokens after each token of a sequence, by the parallel form: [tokens, vocabulary].
Tensor log_probabilities(LanguageModel& model, const std::vector<int64_t>& ids) {
  const torch::InferenceMode inference;
  const Tensor hidden = model.forward(torch::tensor(ids), Sequences::equal(1, static_cast<int64_t>(ids.size()), torch::kCPU));
  return torch::log_softmax(model.logits(hidden).narrow(1, 0, model.config().vocab_size).to(torch::kFloat64), 1);
}

std::string text_of_ids(const std::vector<int64_t>& ids) {
  std::string bytes;
  for (const int64_t id : ids) bytes += ByteTokenizer().token_bytes(static_cast<int32_t>(id));
  return Utf8Text().push(bytes);
}

// The text of each choice of a stream, in order of the choices' indices.
std::vector<std::string> streamed_texts(const RecordedReply& reply, size_t choices) {
  std::vector<std::string> texts(choices);
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") continue;
    const Json chunk = parse_json(event, "event");
    for (const Json& choice : chunk["choices"]) texts.at(choice["index"].get<size_t>()) += choice["text"].get<std::string>();
  }
  return texts;
}

class Completions : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = std::make_unique<ServerWithoutNetwork>(); }
  static void TearDownTestSuite() { server_.reset(); }
  static Json complete(const std::string& body) {
    const auto reply = server_->complete(body);
    EXPECT_EQ(reply->status(), 200) << reply->body();
    EXPECT_EQ(reply->type(), "application/json");
    return reply->json();
  }
  static std::unique_ptr<ServerWithoutNetwork> server_;
};
std::unique_ptr<ServerWithoutNetwork> Completions::server_;

TEST_F(Completions, ScoresArePerTokenAndOneMoreForTheGeneratedOne) {
  const std::vector<std::vector<int64_t>> prompts = {some_text(12, 3), {65}, some_text(40, 9)};
  Json request = parse_json(R"({"model": "tiny", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true})", "");
  request["prompt"] = prompts;
  const Json reply = complete(dump_json(request));
  ASSERT_EQ(reply["choices"].size(), 3u);
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 53);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 3);
  for (size_t part = 0; part < prompts.size(); ++part) {
    const Json& choice = reply["choices"][part];
    EXPECT_EQ(choice["index"], part);
    const Json &values = choice["logprobs"]["token_logprobs"], &tops = choice["logprobs"]["top_logprobs"];
    std::vector<int64_t> ids = prompts[part];
    const Tensor expected = log_probabilities(server_->model(), ids);
    ids.push_back(expected[static_cast<int64_t>(ids.size()) - 1].argmax().item<int64_t>());
    ASSERT_EQ(values.size(), ids.size());
    ASSERT_EQ(tops.size(), ids.size());
    EXPECT_TRUE(values[0].is_null() && tops[0].is_null());
    for (size_t i = 1; i < ids.size(); ++i) {
      const Tensor row = expected[static_cast<int64_t>(i) - 1];
      EXPECT_NEAR(values[i].get<double>(), row[ids[i]].item<double>(), 1e-4) << part << " " << i;
      double largest = -1e300;
      for (const auto& [key, value] : tops[i].items()) largest = std::max(largest, value.get<double>());
      EXPECT_NEAR(largest, row.max().item<double>(), 1e-4);
      EXPECT_EQ(values[i].get<double>() == largest, row.argmax().item<int64_t>() == ids[i]) << part << " " << i;
    }
  }
}

TEST_F(Completions, TextIsTheSameInOnePieceAndAsAStream) {
  const std::vector<int64_t> prompt = some_text(20, 1);
  Json request = parse_json(R"({"temperature": 0, "max_tokens": 24, "ignore_eos": true})", "");
  request["prompt"] = prompt;
  const Json reply = complete(dump_json(request));
  const std::string text = reply["choices"][0]["text"];
  EXPECT_EQ(text, text_of_ids(greedy_text(server_->model(), prompt, 24)));
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["usage"]["total_tokens"], 44);

  request["stream"] = true;
  request["stream_options"] = parse_json(R"({"include_usage": true})", "");
  const auto stream = server_->complete(dump_json(request));
  EXPECT_EQ(stream->type(), "text/event-stream");
  EXPECT_EQ(streamed_texts(*stream, 1)[0], text);
  const std::vector<std::string> events = stream->events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_THAT(events[events.size() - 2], HasSubstr("\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":24"));
  EXPECT_THAT(events[events.size() - 3], HasSubstr("\"finish_reason\":\"length\"}],\"usage\":null}"));
}

// The bytes of é, one by one: the last character is cut by max_tokens.
TEST_F(Completions, ACharacterThatIsCutIsInNeitherForm) {
  for (const char* stream : {"false", "true"}) {
    const auto reply = server_->complete(R"({"prompt": "a", "max_tokens": 3, "logit_bias": {"195": 100}, "temperature": 0, "stream": )" +
                                         std::string(stream) + "}");
    const std::string text =
        std::string(stream) == "true" ? streamed_texts(*reply, 1)[0] : reply->json()["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(text, "\xef\xbf\xbd\xef\xbf\xbd") << stream;
  }
}

TEST_F(Completions, StopStringsOverSeveralTokensNeverLeak) {
  for (const char* stream : {"false", "true"}) {
    const auto reply = server_->complete(
        R"({"prompt": "a", "max_tokens": 9, "logit_bias": {"120": 100}, "temperature": 0, "stop": ["y", "xxx"], "logprobs": 0, "stream": )" +
        std::string(stream) + "}");
    if (std::string(stream) == "true") {
      EXPECT_EQ(streamed_texts(*reply, 1)[0], "");
      EXPECT_THAT(reply->body(), HasSubstr("\"finish_reason\":\"stop\""));
      continue;
    }
    const Json choice = reply->json()["choices"][0];
    EXPECT_EQ(choice["text"], "");
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(choice["logprobs"]["tokens"], Json::array({"x", "x", "x"}));
  }
}

TEST_F(Completions, TheEndOfTextHasAnEntryButNoText) {
  const Json choice =
      complete(R"({"prompt": "ab", "max_tokens": 1, "echo": true, "logprobs": 1, "logit_bias": {"256": 100}})")["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::array({"a", "b", "<|endoftext|>"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), 3u);
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json::array({0, 1, 2}));
}

TEST_F(Completions, NoTokenCanBeGeneratedToScoreAPromptAlone) {
  const Json reply = complete(R"({"prompt": "abc", "max_tokens": 0, "echo": true, "logprobs": 2, "prompt_logprobs": 1})");
  const Json& choice = reply["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 3u);
  ASSERT_EQ(choice["prompt_logprobs"].size(), 3u);
  EXPECT_TRUE(choice["prompt_logprobs"][0].is_null());
  EXPECT_EQ(choice["prompt_logprobs"][1]["98"]["logprob"], choice["logprobs"]["token_logprobs"][1]);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 0);
}

TEST_F(Completions, ChoicesDrawForThemselvesAndSeedsRepeatThem) {
  const std::string drawn = R"("max_tokens": 12, "ignore_eos": true, "temperature": 3)";
  const auto texts = [&](const std::string& members) {
    const Json reply = complete("{" + members + ", " + drawn + "}");
    std::vector<std::string> out;
    for (const Json& choice : reply["choices"]) {
      EXPECT_EQ(choice["index"], out.size());
      out.push_back(choice["text"]);
    }
    return out;
  };
  const auto five = texts(R"("prompt": "abc", "n": 5, "seed": 7)");
  ASSERT_EQ(five.size(), 5u) << "more than the engine has slots";
  EXPECT_EQ(std::set<std::string>(five.begin(), five.end()).size(), 5u);
  EXPECT_EQ(texts(R"("prompt": "abc", "seed": 7)").at(0), five[0]);
  EXPECT_EQ(texts(R"("prompt": ["b", "abc"], "n": 5, "seed": 7)").at(6), five[1]);
  const auto unseeded = texts(R"("prompt": ["abc", "abc"])"), again = texts(R"("prompt": ["abc", "abc"])");
  EXPECT_EQ(std::set<std::string>({unseeded[0], unseeded[1], again[0], again[1]}).size(), 4u);
}

TEST_F(Completions, AGuidedTextIsOneOfTheChoices) {
  const Json reply = complete(R"({"prompt": "abc", "max_tokens": 20, "n": 4, "guided_choice": ["yes", "no"]})");
  for (const Json& choice : reply["choices"]) {
    EXPECT_TRUE(choice["text"] == "yes" || choice["text"] == "no") << choice["text"];
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
  EXPECT_EQ(server_->complete(R"({"prompt": "a", "guided_regex": "("})")->status(), 400);
}

TEST_F(Completions, AStateContinuesWhereItsTextEnded) {
  const std::vector<int64_t> prompt = some_text(20, 1);
  const std::string greedy = R"("temperature": 0, "ignore_eos": true, "max_tokens": 8})";
  const Json first = complete(R"({"prompt": )" + dump_json(Json(prompt)) + R"(, "store": true, "state_at": ["prompt", "end"], )" + greedy);
  const std::string end = first["choices"][0]["state"], begin = first["choices"][0]["prompt_state"];
  const std::vector<int64_t> expected = greedy_text(server_->model(), prompt, 16);
  EXPECT_EQ(server_->states().get("", begin).sequence->ids, prompt);
  const std::vector<int64_t> stored = server_->states().get("", end).sequence->ids;
  ASSERT_EQ(stored.size(), 28u);
  EXPECT_TRUE(std::equal(stored.begin() + 20, stored.end(), expected.begin())) << "ids of the returned text";

  for (int fork = 0; fork < 2; ++fork) {
    const Json next = complete(R"({"state": ")" + end + R"(", )" + greedy);
    EXPECT_EQ(next["choices"][0]["text"], text_of_ids({expected.begin() + 8, expected.end()})) << fork;
    EXPECT_EQ(next["usage"]["prompt_tokens"], 28);
    EXPECT_EQ(next["usage"]["prompt_tokens_details"]["cached_tokens"], 27);
  }
}

TEST_F(Completions, OneTextIsScoredAfterManyStatesAndManyTextsAfterOne) {
  const auto state_after = [](const std::string& prompt) -> std::string {
    return complete(R"({"prompt": ")" + prompt + R"(", "max_tokens": 0, "store": true})")["choices"][0]["state"];
  };
  const std::string first = state_after("abc"), second = state_after("xyz");
  const std::string scored = R"("echo": true, "logprobs": 1, "max_tokens": 0})";
  const Json states = complete(R"({"prompt": "pq", "state": [")" + first + R"(", ")" + second + R"("], )" + scored);
  const Json texts = complete(R"({"prompt": ["pq", "r"], "state": ")" + second + R"(", )" + scored);
  const Json alone = complete(R"({"prompt": ["abcpq", "xyzpq", "xyzr"], )" + scored);
  const auto value = [](const Json& reply, size_t choice, size_t token) {
    return reply["choices"].at(choice)["logprobs"]["token_logprobs"].at(token).get<double>();
  };
  for (size_t token = 0; token < 2; ++token) {
    EXPECT_NEAR(value(states, 0, token), value(alone, 0, 3 + token), 1e-4);
    EXPECT_NEAR(value(states, 1, token), value(alone, 1, 3 + token), 1e-4);
    EXPECT_NEAR(value(texts, 0, token), value(alone, 1, 3 + token), 1e-4);
  }
  EXPECT_NEAR(value(texts, 1, 0), value(alone, 2, 3), 1e-4);
  EXPECT_EQ(texts["choices"][0]["text"], "pq");
}

TEST_F(Completions, WrongRequestsGetOneError) {
  for (const auto& [body, status] : std::vector<std::pair<std::string, int>>{{"", 400},
                                                                             {"{", 400},
                                                                             {std::string(100000, '['), 400},
                                                                             {R"({"prompt": "a", "prompt": "b"})", 400},
                                                                             {R"({"prompt": [[1], [257]]})", 400},
                                                                             {R"({"prompt": "a", "model": "other"})", 404},
                                                                             {R"({"prompt": "a", "state": "st_1"})", 404},
                                                                             {R"({"prompt": "a", "store": 1})", 400}}) {
    const auto reply = server_->complete(body);
    EXPECT_EQ(reply->status(), status) << body.substr(0, 50);
    EXPECT_TRUE(reply->json()["error"]["message"].is_string());
  }
}

// The engine does not wait for a client; tokens that it generates until the client has the piece before make one event.
TEST_F(Completions, PiecesThatWaitForAReplyAreJoined) {
  const std::string request =
      R"({"prompt": ["a", "b"], "n": 2, "max_tokens": 50, "ignore_eos": true, "seed": 3, "logprobs": 1, "stream": )";
  const Json whole = complete(request + "false}");
  const auto reply = std::make_shared<RecordedReply>();
  reply->hold();
  server_->start("POST", "/v1/completions", request + "true}", reply);
  ASSERT_TRUE(reply->wait()) << "the ends of choices do not wait";
  const std::vector<std::string> texts = streamed_texts(*reply, 4);
  std::vector<size_t> tokens(4);
  for (const std::string& event : reply->events()) {
    if (event == "[DONE]") continue;
    const Json chunk = parse_json(event, "event");
    for (const Json& choice : chunk["choices"])
      if (choice["logprobs"].is_object()) tokens[choice["index"].get<size_t>()] += choice["logprobs"]["tokens"].size();
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["text"]) << i;
    EXPECT_EQ(tokens[i], 50U) << i;
  }
  EXPECT_LT(reply->events().size(), 40U) << "of 200 tokens";
}

TEST_F(Completions, AClientThatGoesLeavesItsSlots) {
  const auto reply =
      server_->start("POST", "/v1/completions",
                     R"({"prompt": ["a", "b", "c", "d", "e"], "n": 2, "max_tokens": 60000, "ignore_eos": true, "stream": true})");
  EXPECT_TRUE(reply->wait("data: "));
  reply->close();
  EXPECT_EQ(complete(R"({"prompt": "a", "max_tokens": 2})")["choices"].size(), 1u) << "all four slots were busy";
  for (int i = 0; i < 6000 && server_->service().free_slots() < 4; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(server_->service().free_slots(), 4);
}

TEST(CompletionFailures, AreAStatusBeforeTheReplyAndAnEventWithinIt) {
  ServerWithoutNetwork server({.name = "tiny"}, {.slots = 1, .deadline_seconds = 1e-9});
  const auto whole = server.complete(R"({"prompt": ["a", "b", "c"]})");
  EXPECT_EQ(whole->status(), 504);
  EXPECT_EQ(whole->json()["error"]["type"], "timeout_error");
  const auto stream = server.complete(R"({"prompt": ["a", "b"], "stream": true})");
  EXPECT_EQ(stream->status(), 200);
  ASSERT_EQ(stream->events().size(), 1u) << "one error, and no [DONE]";
  EXPECT_THAT(stream->events()[0], HasSubstr("{\"error\":{\"message\":"));
}

// A request of more prompts than may wait is refused as a whole, with a status that says that trying again does not help.
TEST(CompletionFailures, MorePromptsThanMayWaitAreRefused) {
  ServerWithoutNetwork server({.name = "tiny"}, {.slots = 1, .max_waiting_jobs = 2});
  const auto reply = server.complete(R"({"prompt": ["a", "b", "c"], "max_tokens": 1, "stream": true})");
  EXPECT_EQ(reply->status(), 413);
  EXPECT_EQ(reply->json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(server.complete(R"({"prompt": ["a", "b"], "max_tokens": 1})")->status(), 200);
}

}  // namespace completions_test
}  // namespace based
