#include "based/eval/perplexity.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>

#include "tests/core/temporary_folder.h"
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
  const Tensor others = model->evaluation_nats(all.narrow(0, 0, 60), labels, Sequences::equal(1, 60, model->device()));
  EXPECT_EQ(others[0].item<double>(), 0) << "no label";
  EXPECT_NEAR((first + others.sum().item<double>()) / nats, 1, 1e-4);
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

std::shared_ptr<const TokenDataset> packed_text(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> starts;
  for (const int64_t length : lengths) {
    starts.push_back(tokens.size());
    for (const int64_t id : some_text(length, 11 * length)) tokens.push_back(static_cast<int32_t>(id));
  }
  return std::make_shared<const TokenDataset>("packed", std::move(tokens), std::move(starts), ByteTokenizer());
}

std::vector<int64_t> tokens_between(const TokenDataset& data, int64_t first, int64_t last) {
  std::vector<int32_t> ids(static_cast<size_t>(last - first));
  data.copy(first, ids);
  return {ids.begin(), ids.end()};
}

// A window is a document of its inputs and the token after them.
TEST_P(PerplexityOf, WindowsIsThatOfTheSameDocuments) {
  const auto model = distinct_model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto data = packed_text({70, 3, 190, 1, 60});  // 324 tokens: 7 windows of 45 and 8 tokens that are left out
  std::vector<std::vector<int64_t>> documents;
  for (int64_t window = 0; window < 7; ++window) documents.push_back(tokens_between(*data, 45 * window, 45 * window + 46));
  std::vector<float> wanted(7 * 45);
  const Perplexity by_engine =
      measure_perplexity(*model, documents, {}, {}, [&](const DocumentContext& context, std::span<const float> nats) {
        EXPECT_EQ(context.first, 0);
        std::copy(nats.begin(), nats.end(), wanted.begin() + 45 * context.document);
      });
  for (const int64_t batch : {0, 1, 3, 64}) {
    std::vector<float> got;
    int64_t last = 0;
    const Perplexity windows = measure_windows(
        *model, data, {.length = 45, .batch = batch},
        [&](int64_t done) {
          EXPECT_GT(done, last);
          last = done;
          return true;
        },
        [&](const TokenBatch& part, std::span<const float> nats) {
          EXPECT_EQ(nats.size(), part.targets.size());
          got.insert(got.end(), nats.begin(), nats.end());
        });
    EXPECT_EQ(last, 7 * 45);
    EXPECT_EQ(windows.tokens, by_engine.tokens);
    EXPECT_NEAR(windows.nats / by_engine.nats, 1, 1e-5) << batch;
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 1e-3 * (1 + wanted[i])) << batch << ' ' << i;
  }
}

TEST_P(PerplexityOf, WindowsWithSeparateDocumentsIsThatOfEachPart) {
  const auto model = distinct_model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto data = packed_text({50, 30, 41});  // windows 0-60 and 60-120, each a token longer
  const std::vector<std::vector<int64_t>> parts{tokens_between(*data, 0, 50), tokens_between(*data, 50, 61), tokens_between(*data, 60, 80),
                                                tokens_between(*data, 80, 121)};
  const Perplexity wanted = measure_perplexity(*model, parts, {});
  for (const int64_t batch : {1, 2}) {
    const Perplexity got = measure_windows(*model, data, {.length = 60, .batch = batch, .documents = true});
    EXPECT_EQ(got.tokens, 49 + 10 + 19 + 40);
    EXPECT_EQ(got.tokens, wanted.tokens);
    EXPECT_NEAR(got.nats / wanted.nats, 1, 1e-5);
  }
}

TEST(Perplexity, OfWindowsStopsWhereItIsToldToAndRefusesWhatItCannotScore) {
  const auto model = distinct_model(torch::kCPU);
  const auto data = packed_text({100});
  EXPECT_EQ(measure_windows(*model, data, {.length = 20, .batch = 1}, [](int64_t done) { return done < 40; }).tokens, 40);
  EXPECT_EQ(message_of<Error>([&] { measure_windows(*model, data, {.length = 100}); }),
            "packed: has 100 tokens, too few for a window of 100 and the token after it");
  EXPECT_EQ(measure_windows(*model, data, {.length = 99}).tokens, 99);
  const torch::NoGradGuard no_grad;
  model->named_parameters()["norm.weight"].fill_(NAN);
  EXPECT_THROW(measure_windows(*model, data, {.length = 20}), Error);
}

}  // namespace perplexity_test
}  // namespace based
