// Replays what lm-eval's client sent to a recorded server: every request is parsed, and the replies that are written from the recorded
// server's numbers give the client the same values.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <sstream>

#include "based/core/files.h"
#include "based/core/hash.h"
#include "based/serve/protocol/completion_reply.h"
#include "based/serve/protocol/completion_request.h"
#include "based/serve/protocol/tokenizer_messages.h"
#include "tests/data/goldens.h"

namespace based {
namespace exchange_test {

constexpr int64_t kGenerated = 220, kOther = 87;  // the tokens " " and "x"

// The recorded server's numbers (goldens/eval/README.md): h = XXH64 of the ids up to and with the token, as little-endian u32.
ScoredToken stub_score(const std::vector<int64_t>& ids, size_t index) {
  std::string bytes;
  for (size_t i = 0; i <= index; ++i)
    for (const unsigned shift : {0U, 8U, 16U, 24U}) bytes += static_cast<char>(static_cast<uint64_t>(ids[i]) >> shift & 255U);
  const uint64_t hash = xxh64(std::as_bytes(std::span(bytes)));
  const double value = -static_cast<double>(hash % 1000003) / 100070.0;
  ScoredToken token{ids[index], index > 0, value, {{ids[index], value}}};
  const bool generated = index + 1 == ids.size();  // always the most likely one
  if (!generated && (hash >> 20U) % 7 == 0) token.top = {{kOther, value / 2}};
  return token;
}

std::vector<Json> recorded_calls() {
  std::vector<Json> calls;
  std::istringstream lines(read_file(test::golden("eval/http/exchange.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    Json exchange = parse_json(line, "exchange.jsonl");
    for (Json& call : exchange["calls"]) calls.push_back(std::move(call));
  }
  return calls;
}

class Exchange : public testing::Test {
 protected:
  void SetUp() override {
    BASED_NEEDS_FILE(test::golden("eval/http/exchange.jsonl"));
    BASED_NEEDS_FILE(test::data_set("gpt2-bpe"));
    tokenizer_ = make_tokenizer(test::data_set("gpt2-bpe"));
    model_ = {"tiny", tokenizer_->vocab_size()};
  }

  std::string reply(const CompletionRequest& request) const {
    std::vector<CompletionChoice> choices;
    Usage usage;
    for (const Prompt& prompt : request.prompts) {
      std::vector<int64_t> ids;
      if (const auto* const text = std::get_if<std::string>(&prompt)) {
        const std::vector<int32_t> encoded = tokenizer_->encode(*text, Specials::recognised);
        ids.assign(encoded.begin(), encoded.end());
      } else {
        ids = std::get<std::vector<int64_t>>(prompt);
      }
      usage.prompt_tokens += static_cast<int64_t>(ids.size());
      usage.completion_tokens += 1;
      ids.push_back(kGenerated);
      CompletionChoice choice;
      choice.index = static_cast<int64_t>(choices.size());
      choice.finish_reason = "length";
      CompletionLogprobs logprobs(*tokenizer_, request.logprobs);
      Utf8Text text;
      for (size_t i = 0; i < ids.size(); ++i) {
        logprobs.add(stub_score(ids, i));
        choice.text += text.push(tokenizer_->token_bytes(static_cast<int32_t>(ids[i])));
      }
      choice.logprobs = logprobs.take();
      choices.push_back(std::move(choice));
    }
    return completion_reply({"cmpl-0", 0, "tiny", "fp_0"}, choices, usage);
  }

  // The values of a choice that the client reads: its text, its numbers, and whether each token is the most likely one.
  static Json read(const Json& choice) {
    const Json& logprobs = choice["logprobs"];
    Json greedy = Json::array();
    for (size_t i = 1; i < logprobs["token_logprobs"].size(); ++i) {
      double largest = -1e300;
      for (const auto& [key, value] : logprobs["top_logprobs"][i].items()) largest = std::max(largest, value.get<double>());
      greedy.push_back(logprobs["token_logprobs"][i].get<double>() == largest);
    }
    return Json::array({choice["text"], logprobs["token_logprobs"], greedy, choice["finish_reason"]});
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  ModelFacts model_;
};

TEST_F(Exchange, ScoresAreReadAsFromTheRecordedServer) {
  int scored = 0;
  for (const Json& call : recorded_calls()) {
    if (call["path"] != "/v1/completions" || !call["body"].contains("logprobs")) continue;
    const CompletionRequest request = parse_completion_request(call["body"], {}, model_);
    EXPECT_TRUE(request.scores_prompt());
    EXPECT_EQ(request.generation.max_tokens, 1);
    EXPECT_EQ(request.generation.sampling.temperature, 0);
    const Json ours = parse_json(reply(request), "reply"), &recorded = call["reply"];
    ASSERT_EQ(ours["choices"].size(), recorded["choices"].size());
    EXPECT_EQ(ours["usage"]["prompt_tokens"], recorded["usage"]["prompt_tokens"]);
    EXPECT_EQ(ours["usage"]["total_tokens"], recorded["usage"]["total_tokens"]);
    for (const Json& choice : recorded["choices"]) {
      const auto index = choice["index"].get<size_t>();
      EXPECT_EQ(ours["choices"][index]["index"], choice["index"]);
      EXPECT_EQ(read(ours["choices"][index]), read(choice));
      ++scored;
    }
  }
  EXPECT_EQ(scored, 20);
}

TEST_F(Exchange, GenerationRequestsAndTheTokenizerAreUnderstood) {
  int generated = 0, tokenized = 0;
  for (const Json& call : recorded_calls()) {
    const std::string path = call["path"];
    const Json &body = call["body"], &expected = call["reply"];
    if (path == "/v1/completions" && !body.contains("logprobs")) {
      const CompletionRequest request = parse_completion_request(body, {}, model_);
      EXPECT_EQ(request.generation.max_tokens, 48);
      EXPECT_EQ(request.generation.stops.size(), body["stop"].size());
      EXPECT_EQ(request.parts(), static_cast<int64_t>(expected["choices"].size()));
      ++generated;
    } else if (path == "/tokenize") {
      const Json ours = parse_json(tokenize_reply(body, *tokenizer_, model_, 0), "reply");
      EXPECT_EQ(ours["tokens"], expected["tokens"]) << body["prompt"];
      ++tokenized;
    } else if (path == "/detokenize") {
      EXPECT_EQ(parse_json(detokenize_reply(body, *tokenizer_, model_), "reply"), expected);
    } else if (path == "/tokenizer_info") {
      EXPECT_EQ(parse_json(tokenizer_info_reply(*tokenizer_, ""), "reply"), expected);
    }
  }
  EXPECT_GT(generated, 4);
  EXPECT_GT(tokenized, 30);
}

}  // namespace exchange_test
}  // namespace based
