#include "based/eval/perplexity.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>

#include "tests/generate/texts.h"

namespace based {
namespace perplexity_test {

// The reference: the parallel form in double precision, one context at a time.
Perplexity exact_perplexity(const LanguageModel& model, const std::vector<std::vector<int64_t>>& documents, int64_t context,
                            bool padded_columns = false) {
  const torch::NoGradGuard no_grad;
  LanguageModel exact(model.config());
  const auto weights = model.named_parameters();
  for (const auto& item : exact.named_parameters()) item.value().copy_(weights[item.key()]);
  exact.to(torch::kDouble);
  exact.eval();
  Perplexity sum;
  for (const auto& document : documents) {
    const auto size = static_cast<int64_t>(document.size());
    for (int64_t begin = 0; begin + 1 < size; begin += (context > 0 ? context : size) - 1) {
      const int64_t length = std::min(context > 0 ? context : size, size - begin);
      const Tensor ids = torch::tensor(document).narrow(0, begin, length);
      const Tensor hidden = exact.forward(ids, Sequences::equal(1, length));
      const int64_t columns = padded_columns ? model.config().padded_vocab() : model.config().vocab_size;
      const Tensor all = exact.logits(hidden.narrow(0, 0, length - 1)).narrow(1, 0, columns).log_softmax(1);
      sum.nats -= all.gather(1, ids.narrow(0, 1, length - 1).unsqueeze(1)).sum().item<double>();
      sum.tokens += length - 1;
    }
  }
  return sum;
}

class PerplexityOf : public testing::TestWithParam<std::tuple<torch::DeviceType, const char*>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, PerplexityOf,
                         testing::Combine(testing::Values(torch::kCPU, torch::kCUDA), testing::Values("based-tiny", "attn-tiny")),
                         [](const auto& given) {
                           return std::string(std::get<1>(given.param)).substr(0, 4) +
                                  (std::get<0>(given.param) == torch::kCPU ? "_on_cpu" : "_on_cuda");
                         });

TEST_P(PerplexityOf, DocumentsSideBySideIsThatOfEachAlone) {
  const auto model = distinct_model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto on_cpu = distinct_model(torch::kCPU, std::get<1>(GetParam()));
  // One document is longer than a prefill piece on the CPU; two predict nothing.
  const std::vector<std::vector<int64_t>> documents{some_text(70, 3), {}, some_text(2500, 5), some_text(1, 9), some_text(33, 200),
                                                    some_text(2, 7)};
  for (const int64_t context : {0, 2, 31, 64}) {
    const Perplexity wanted = exact_perplexity(*on_cpu, documents, context);
    for (const int64_t batch : {1, 3, 16}) {
      const Perplexity got = measure_perplexity(*model, documents, {context, batch});
      EXPECT_EQ(got.tokens, wanted.tokens);
      EXPECT_EQ(got.tokens, 69 + 2499 + 32 + 1);  // every token but each document's first, with any context
      EXPECT_NEAR(got.value() / wanted.value(), 1, 1e-5) << context << " " << batch;
      EXPECT_NEAR(got.value() / measure_perplexity(*model, documents, {context, 1}).value(), 1, 1e-6) << context << " " << batch;
    }
  }
}

TEST_P(PerplexityOf, TheSoftmaxIsOverTheVocabularyOrOverThePaddingRowsTooWhereAsked) {
  const auto model = distinct_model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto on_cpu = distinct_model(torch::kCPU, std::get<1>(GetParam()));
  ASSERT_GT(model->config().padded_vocab(), model->config().vocab_size);
  const std::vector<std::vector<int64_t>> documents{some_text(70, 3), some_text(33, 200)};
  for (const bool padded : {false, true})
    EXPECT_NEAR(
        measure_perplexity(*model, documents, {.padded_columns = padded}).value() / exact_perplexity(*on_cpu, documents, 0, padded).value(),
        1, 1e-5);
  EXPECT_GT(measure_perplexity(*model, documents, {.padded_columns = true}).value(),
            1.001 * measure_perplexity(*model, documents, {}).value());
}

// Compares the scores of prefill, of decoding steps and of the evaluation during training.
TEST_P(PerplexityOf, IsWhatStepsAndEvaluationsSay) {
  const auto model = distinct_model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  Engine engine(*model, {.decode = {.steps = Steps::plain, .log_probabilities = true}});
  std::vector<int64_t> text = some_text(1, 3);
  engine.add(text, {.sampling = {2}, .max_tokens = 60});
  double nats = 0;
  while (!engine.idle())
    for (const Engine::Output& drawn : engine.step()) nats -= drawn.log_probability, text.push_back(drawn.token);
  ASSERT_EQ(text.size(), 61U);
  EXPECT_NEAR(measure_perplexity(*model, {text}, {}).nats / nats, 1, 1e-4);
  const Tensor all = torch::tensor(text).to(model->device());
  const Tensor labels = torch::cat({torch::full({1}, -100, all.options()), all.narrow(0, 2, 59)});  // the first token is not scored
  const double first = measure_perplexity(*model, {{text[0], text[1]}}, {}).nats;
  EXPECT_NEAR((first + model->evaluation_nats(all.narrow(0, 0, 60), labels, Sequences::equal(1, 60, model->device()))) / nats, 1, 1e-4);
}

TEST(Perplexity, StopsWhereItIsToldTo) {
  const auto model = distinct_model(torch::kCPU);
  int64_t calls = 0;
  const Perplexity some = measure_perplexity(*model, {some_text(9000, 3)}, {}, [&](int64_t) { return ++calls < 2; });
  EXPECT_EQ(some.tokens, 2 * default_prefill_tokens(torch::kCPU));
  EXPECT_TRUE(std::isfinite(some.value()));
}

TEST(Perplexity, OfWeightsThatAreNotFiniteIsAnError) {
  const auto model = distinct_model(torch::kCPU);
  const torch::NoGradGuard no_grad;
  model->named_parameters()["norm.weight"].fill_(NAN);
  EXPECT_THROW(measure_perplexity(*model, {some_text(20, 3)}, {}), Error);
}

}  // namespace perplexity_test
}  // namespace based
