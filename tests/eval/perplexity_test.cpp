#include "based/eval/perplexity.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>

#include "tests/generate/texts.h"

namespace based {
namespace {

// Document by document and context by context, by the parallel form in double precision.
Perplexity exact_perplexity(const LanguageModel& model, const std::vector<std::vector<int64_t>>& documents, int64_t context) {
  const torch::NoGradGuard no_grad;
  LanguageModel exact(model.config());
  const auto weights = model.named_parameters();
  for (const auto& item : exact.named_parameters()) item.value().copy_(weights[item.key()]);
  exact.to(torch::kDouble);
  exact.eval();
  Perplexity sum;
  for (const auto& document : documents) {
    const auto size = static_cast<int64_t>(document.size());
    for (int64_t begin = 0; begin + 1 < size; begin += context > 0 ? context : size) {
      const int64_t length = std::min(context > 0 ? context : size, size - begin);
      if (length < 2) continue;
      const Tensor ids = torch::tensor(document).narrow(0, begin, length);
      const Tensor hidden = exact.forward(ids, Sequences::equal(1, length));
      const Tensor all = exact.logits(hidden.narrow(0, 0, length - 1)).log_softmax(1);
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
  // One is longer than what is read at once on the CPU; two predict nothing.
  const std::vector<std::vector<int64_t>> documents{some_text(70, 3), {}, some_text(2500, 5), some_text(1, 9), some_text(33, 200),
                                                    some_text(2, 7)};
  for (const int64_t context : {0, 2, 31, 64}) {
    const Perplexity wanted = exact_perplexity(*on_cpu, documents, context);
    for (const int64_t batch : {1, 3, 16}) {
      const Perplexity got = measure_perplexity(*model, documents, {context, batch});
      EXPECT_EQ(got.tokens, wanted.tokens);
      EXPECT_NEAR(got.value() / wanted.value(), 1, 1e-5) << context << " " << batch;
      EXPECT_NEAR(got.value() / measure_perplexity(*model, documents, {context, 1}).value(), 1, 1e-6) << context << " " << batch;
    }
  }
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

}  // namespace
}  // namespace based
