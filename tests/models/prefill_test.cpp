// prefill_last() leaves the same state as prefill(), and returns its hidden states of each row's last token.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/models/language_model.h"

namespace based {
namespace prefill_test {

struct Shape {
  const char *mlp, *norm;
};

class PrefillLast : public testing::TestWithParam<std::tuple<torch::DeviceType, Shape>> {
 protected:
  static std::shared_ptr<LanguageModel> make_model() {
    torch::manual_seed(3);
    ModelConfig config = find_preset("based-tiny");
    config.mlp = std::get<1>(GetParam()).mlp, config.norm = std::get<1>(GetParam()).norm;
    const auto model = std::make_shared<LanguageModel>(config);
    model->eval();
    model->to(std::get<0>(GetParam()));
    return model;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, PrefillLast,
                         testing::Combine(testing::Values(torch::kCPU, torch::kCUDA),
                                          testing::Values(Shape{"swiglu", "rms_norm"}, Shape{"gelu", "layer_norm"},
                                                          Shape{"none", "rms_norm"}, Shape{"identity", "rms_norm"},
                                                          Shape{"identity", "layer_norm"})),
                         [](const auto& given) {
                           return std::string(std::get<1>(given.param).mlp) + "_" + std::get<1>(given.param).norm +
                                  (std::get<0>(given.param) == torch::kCPU ? "_cpu" : "_cuda");
                         });

TEST_P(PrefillLast, IsAPrefillsLastRowsAndState) {
  if (std::get<0>(GetParam()) == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const torch::InferenceMode inference;
  const auto model = make_model();
  const std::vector<int64_t> starts{0, 70, 71, 71, 200};  // the third row is empty
  const Sequences rows = Sequences::packed(starts, starts.back(), model->device());
  const Tensor ids = torch::randint(model->config().vocab_size, {starts.back()}, torch::kInt64).to(model->device());
  const Tensor slots = torch::tensor({3, 0, 4, 1}, torch::kInt64).to(model->device());
  ModelState whole = model->make_state(5), last = model->make_state(5);
  for (int pass = 0; pass < 2; ++pass) {  // the second one continues from a state
    const Tensor all = model->prefill(ids, rows, whole, slots), ends = model->prefill_last(ids, rows, last, slots);
    ASSERT_EQ(ends.sizes(), (std::vector<int64_t>{4, model->config().d_model}));
    for (const int64_t row : {0, 1, 3}) {
      const Tensor wanted = all[starts[static_cast<size_t>(row) + 1] - 1];
      EXPECT_LT((ends[row] - wanted).norm().item<double>(), 1e-5 * wanted.norm().item<double>()) << "row " << row;
    }
    EXPECT_TRUE(torch::equal(whole.position(), last.position()));
    for (size_t layer = 0; layer < whole.layers().size(); ++layer)
      for (const StateTensor& tensor : whole.layers()[layer].tensors())
        EXPECT_TRUE(torch::equal(tensor.value, last.layers()[layer][tensor.name])) << layer << " " << tensor.name;
  }
}

}  // namespace prefill_test
}  // namespace based
