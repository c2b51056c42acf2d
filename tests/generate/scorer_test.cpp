#include "based/generate/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>

#include "tests/generate/texts.h"

namespace based {
namespace scorer_test {

using ::testing::HasSubstr;

std::vector<int64_t> joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Contexts with several continuations, contexts that begin alike, and a request that shares nothing.
std::vector<ScoreRequest> some_requests() {
  std::vector<ScoreRequest> requests;
  for (const int64_t length : {70, 3}) {
    const std::vector<int64_t> document = some_text(length, 11);
    for (int64_t question = 0; question < 3; ++question) {
      const std::vector<int64_t> context = joined(document, some_text(12, 100 + 31 * question));
      for (int64_t choice = 0; choice < 3; ++choice) requests.push_back({context, some_text(1 + choice, 5 * choice)});
    }
  }
  requests.push_back({some_text(1, 200), some_text(70, 9)});
  return requests;
}

// By the parallel form over each whole request.
std::vector<ContinuationScore> exact_scores(LanguageModel& model, const std::vector<ScoreRequest>& requests, bool padded = false) {
  const torch::InferenceMode inference;
  std::vector<ContinuationScore> scores;
  const int64_t columns = padded ? model.config().padded_vocab() : model.config().vocab_size;
  for (const ScoreRequest& request : requests) {
    const Tensor ids = torch::tensor(joined(request.context, request.continuation));
    const auto first = static_cast<int64_t>(request.context.size()), count = static_cast<int64_t>(request.continuation.size());
    const Tensor hidden = model.forward(ids.narrow(0, 0, first + count - 1), Sequences::equal(1, first + count - 1));
    const Tensor logs = model.logits(hidden.narrow(0, first - 1, count)).narrow(1, 0, columns).to(torch::kDouble).log_softmax(1);
    const Tensor wanted = ids.narrow(0, first, count);
    scores.push_back({{}, logs.gather(1, wanted.unsqueeze(1)).sum().item<double>(), logs.argmax(1).eq(wanted).all().item<bool>()});
  }
  return scores;
}

class Scores : public testing::TestWithParam<std::tuple<torch::DeviceType, const char*>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
  std::shared_ptr<LanguageModel> model(bool on_cpu = false) const {
    return distinct_model(on_cpu ? torch::kCPU : std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
  ByteTokenizer tokenizer_;
};

INSTANTIATE_TEST_SUITE_P(Devices, Scores,
                         testing::Combine(testing::Values(torch::kCPU, torch::kCUDA), testing::Values("based-tiny", "attn-tiny")),
                         [](const auto& given) {
                           return std::string(std::get<1>(given.param)).substr(0, 4) +
                                  (std::get<0>(given.param) == torch::kCPU ? "_on_cpu" : "_on_cuda");
                         });

TEST_P(Scores, AreThoseOfWholeRequestsWithAndWithoutForks) {
  const auto model = this->model();
  const auto reference = this->model(true);
  std::vector<ScoreRequest> requests = some_requests();
  // Continuations that greedy decoding produces, with and without a wrong last token.
  std::vector<int64_t> likely = greedy_text(*reference, some_text(20, 11), 3);
  requests.push_back({some_text(20, 11), likely});
  likely.back() = (likely.back() + 1) % 257;
  requests.push_back({some_text(20, 11), likely});
  const std::vector<ContinuationScore> wanted = exact_scores(*reference, requests);
  ASSERT_TRUE(wanted[requests.size() - 2].greedy);
  for (const bool fork : {true, false}) {
    for (const int64_t batch : {1, 5}) {
      Scorer scorer(*model, tokenizer_, {.batch = batch, .fork = fork, .least_saved = 8});
      const std::vector<ContinuationScore> got = scorer.score(requests);
      ASSERT_EQ(got.size(), requests.size());
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE(std::to_string(i) + (fork ? " forked" : ""));
        EXPECT_EQ(got[i].log_probabilities.size(), requests[i].continuation.size());
        EXPECT_NEAR(got[i].log_likelihood / wanted[i].log_likelihood, 1, 1e-4);
        EXPECT_EQ(got[i].greedy, wanted[i].greedy);
      }
      EXPECT_EQ(scorer.forks(), fork);
      if (fork)
        EXPECT_GT(scorer.tokens(), 2 * scorer.tokens_read()) << "each document and each context is read once";
      else
        EXPECT_EQ(scorer.tokens(), scorer.tokens_read());
    }
  }
}

TEST_P(Scores, CountThePaddingRowsWhereAsked) {
  const auto model = this->model();
  const auto reference = this->model(true);
  const std::vector<ScoreRequest> requests = some_requests();
  const std::vector<ContinuationScore> wanted = exact_scores(*reference, requests, true);
  Scorer scorer(*model, tokenizer_, {.padded_columns = true});
  const std::vector<ContinuationScore> got = scorer.score(requests);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].log_likelihood / wanted[i].log_likelihood, 1, 1e-4) << i;
    EXPECT_EQ(got[i].greedy, wanted[i].greedy) << i;
  }
}

TEST(Scorer, InvariantScoresHaveTheSameBitsWithAnyBatchAndWithForks) {
  const auto model = distinct_model(torch::kCPU);
  const ByteTokenizer tokenizer;
  const std::vector<ScoreRequest> requests = some_requests();
  std::vector<std::vector<float>> first;
  for (const bool fork : {false, true}) {
    for (const int64_t batch : {1, 7}) {
      Scorer scorer(*model, tokenizer, {.batch = batch, .fork = fork, .invariant = true});
      std::vector<std::vector<float>> bits;
      for (const ContinuationScore& score : scorer.score(requests)) bits.push_back(score.log_probabilities);
      if (first.empty()) first = bits;
      EXPECT_EQ(bits, first) << fork << " " << batch;
      if (fork) {
        EXPECT_LT(scorer.tokens_read(), scorer.tokens()) << "a cell of 64 tokens is shared";
      }
    }
  }
}

TEST(Scorer, GeneratesAfterSharedContextsUpToAStopString) {
  const auto model = distinct_model(torch::kCPU);
  const ByteTokenizer tokenizer;
  std::vector<GenerationRequest> requests;
  std::vector<std::string> wanted;
  for (const int64_t end : {1, 40, 80, 120}) {
    std::vector<int64_t> context = joined(some_text(60, 11), some_text(9, end));
    const std::vector<int64_t> ids = greedy_text(*model, context, 12);
    const std::vector<int32_t> narrow(ids.begin(), std::find(ids.begin(), ids.end(), *tokenizer.end_of_text()));
    wanted.push_back(tokenizer.decode(narrow));
    requests.push_back({std::move(context), {}, 12});
  }
  for (const bool fork : {true, false}) {
    Scorer scorer(*model, tokenizer, {.fork = fork});
    EXPECT_EQ(scorer.generate(requests), wanted) << fork;
  }
  ASSERT_GT(wanted[1].size(), 3U);
  const std::string stop = wanted[1].substr(2, 1);
  for (GenerationRequest& request : requests) request.stops = {stop};
  const std::vector<std::string> stopped = Scorer(*model, tokenizer, {}).generate(requests);
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(stopped[i], wanted[i].substr(0, wanted[i].find(stop)));
}

// A small model of one layer. `options`: the mixer's, as TOML.
std::shared_ptr<LanguageModel> one_layer_model(const std::string& mixer, const std::string& options = "") {
  torch::manual_seed(3);
  ModelConfig config = find_preset("based-tiny");
  config.layers = {"layer"};
  config.mixers = {{"layer", Config::parse_toml("type = \"" + mixer + "\"\n" + options, "test")}};
  auto model = std::make_shared<LanguageModel>(config);
  model->eval();
  return model;
}

TEST(Scorer, ScoresModelsWithoutARecurrentFormInParallel) {
  const auto shared_model = one_layer_model("nystromformer");
  LanguageModel& model = *shared_model;
  const ByteTokenizer tokenizer;
  const std::vector<ScoreRequest> requests = some_requests();
  const std::vector<ContinuationScore> wanted = exact_scores(model, requests);
  for (const int64_t batch : {0, 3}) {
    Scorer scorer(model, tokenizer, {.batch = batch});
    EXPECT_FALSE(scorer.forks());
    const std::vector<ContinuationScore> got = scorer.score(requests);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i].log_likelihood / wanted[i].log_likelihood, 1, 1e-4) << i;
  }
  try {
    Scorer(model, tokenizer, {.model = "some/model"}).generate(std::vector<GenerationRequest>{{{1}, {}, 1}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("some/model cannot generate"));
  }
}

// H3's state has more bytes than the model has parameters.
TEST(Scorer, ReadsASharedContextAgainWhereItsStateIsLarge) {
  const auto shared_model = one_layer_model("h3", "head_dim = 32");
  LanguageModel& model = *shared_model;
  ASSERT_GT(model.make_state(1).bytes(), model.parameter_count());
  const ByteTokenizer tokenizer;
  const std::vector<ScoreRequest> requests = some_requests();
  const std::vector<ContinuationScore> wanted = exact_scores(model, requests);
  for (const int64_t least_saved : {0, 8}) {
    Scorer scorer(model, tokenizer, {.least_saved = least_saved});
    const std::vector<ContinuationScore> got = scorer.score(requests);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i].log_likelihood / wanted[i].log_likelihood, 1, 1e-4) << i;
    if (least_saved == 0)
      EXPECT_EQ(scorer.tokens_read(), scorer.tokens());
    else
      EXPECT_LT(scorer.tokens_read(), scorer.tokens()) << "as asked for";
  }
}

TEST(Scorer, StopsWhereItIsToldToAndThenStartsAnew) {
  const auto model = distinct_model(torch::kCPU);
  const ByteTokenizer tokenizer;
  Scorer scorer(*model, tokenizer, {});
  EXPECT_TRUE(scorer.score(some_requests(), [](int64_t) { return false; }).empty());
  EXPECT_EQ(scorer.tokens(), 0);
  EXPECT_EQ(scorer.tokens_read(), 0);
  EXPECT_EQ(scorer.score(some_requests()).size(), some_requests().size());
}

TEST(Scorer, RefusesEmptyPartsAndWeightsThatAreNotFinite) {
  const auto model = distinct_model(torch::kCPU);
  const ByteTokenizer tokenizer;
  Scorer scorer(*model, tokenizer, {});
  EXPECT_THROW(scorer.score(std::vector<ScoreRequest>{{{}, {1}}}), Error);
  EXPECT_THROW(scorer.score(std::vector<ScoreRequest>{{{1}, {}}}), Error);
  EXPECT_THROW(scorer.score(std::vector<ScoreRequest>{{{1}, {1000000}}}), Error);
  const torch::NoGradGuard no_grad;
  model->named_parameters()["norm.weight"].fill_(NAN);
  EXPECT_THROW(scorer.score(some_requests()), Error);
}

}  // namespace scorer_test
}  // namespace based
