// The models of the published recall experiments: numbers of parameters, initial weights, and equal results in all forms.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>

#include "based/models/language_model.h"
#include "tests/models/drawn.h"

namespace based {
namespace published_models_test {

using torch::Tensor;

Config::Table attention_options(const char* type) {
  return {{"type", Config(std::string(type))},
          {"heads", Config(int64_t{1})},
          {"rotary_dim", Config(int64_t{0})},
          {"qkv_bias", Config(true)},
          {"out_bias", Config(true)}};
}

ModelConfig two_layers(int64_t d_model, Config::Table mixer) {
  ModelConfig config;
  config.d_model = d_model;
  config.vocab_size = 8192;
  config.mlp = "identity";
  config.norm = "layer_norm";
  config.layers = {"base_conv", "mixer"};
  config.mixers["mixer"] = Config(std::move(mixer));
  return config;
}

ModelConfig attention(int64_t d_model) { return two_layers(d_model, attention_options("attention")); }

ModelConfig window(int64_t d_model, int64_t keys) {
  Config::Table options = attention_options("sliding_window");
  options.emplace_back("window", Config(keys));
  return two_layers(d_model, std::move(options));
}

ModelConfig taylor(int64_t d_model, int64_t feature_dim) {
  return two_layers(d_model, {{"type", Config(std::string("taylor_attention"))},
                              {"heads", Config(int64_t{1})},
                              {"feature_dim", Config(feature_dim)},
                              {"rescale_output", Config(false)}});
}

// Blocks of an RMSNorm and a mixer, without an MLP.
ModelConfig mamba(int64_t d_model, int64_t d_state) {
  ModelConfig config = two_layers(d_model, {{"type", Config(std::string("mamba"))}, {"d_state", Config(d_state)}});
  config.mlp = "none", config.norm = "rms_norm", config.final_norm = "layer_norm";
  config.layers = {"mixer", "mixer"};
  return config;
}

TEST(PublishedModels, HaveAsManyParameters) {
  EXPECT_EQ(parameter_count(attention(64)), 545984);
  EXPECT_EQ(parameter_count(attention(128)), 1132928);
  const std::map<int64_t, std::vector<int64_t>> taylor_counts = {
      {48, {401616, 402384, 403152}}, {64, {538560, 539584, 540608}}, {128, {1101696, 1103744, 1105792}}};
  for (const auto& [d_model, counts] : taylor_counts)
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(parameter_count(taylor(d_model, 8 * (i + 1))), counts[static_cast<size_t>(i)]) << d_model;
  EXPECT_EQ(parameter_count(mamba(64, 16)), 589824);
  EXPECT_EQ(parameter_count(mamba(256, 24)), 2998272);
  for (int64_t keys = 8; keys <= 1024; keys *= 2) EXPECT_EQ(parameter_count(window(128, keys)), 1132928) << keys;
}

TEST(PublishedModels, AreDrawnAsTheirAuthorsDrawThem) {
  const double scaled = 0.02 / std::sqrt(4.0);
  for (const ModelConfig& config : {attention(64), window(64, 16), taylor(64, 16)}) {
    torch::manual_seed(1);
    const LanguageModel model(config);
    for (const auto& item : model.named_parameters()) {
      const std::string& name = item.key();
      const Tensor& drawn = item.value();
      const auto ends = [&name](const char* end) { return name.ends_with(end); };
      if (name.find("norm") != std::string::npos) {
        EXPECT_TRUE((drawn == (ends(".weight") ? 1 : 0)).all().item<bool>()) << name;
      } else if (name.find(".conv.") != std::string::npos) {  // uniform in ±1/√3
        EXPECT_LE(drawn.abs().max().item<double>(), 1 / std::sqrt(3.0)) << name;
        EXPECT_NEAR(drawn.std().item<double>(), 1.0 / 3, 0.08) << name;
      } else if (ends(".bias")) {
        EXPECT_TRUE((drawn == 0).all().item<bool>()) << name;
      } else {
        expect_normal(name, drawn, ends("out_proj.weight") ? scaled : 0.02);
      }
    }
  }
}

// Checks uniform draws from ±bound; the largest must be close to the bound.
void expect_uniform(const std::string& name, const Tensor& drawn, double bound) {
  const auto n = static_cast<double>(drawn.numel());
  EXPECT_NEAR(drawn.mean().item<double>(), 0, 5 * bound / std::sqrt(3 * n)) << name;
  EXPECT_NEAR(drawn.square().mean().item<double>(), bound * bound / 3, 5 * bound * bound * std::sqrt(4.0 / 45 / n)) << name;
  EXPECT_LE(drawn.abs().max().item<double>(), bound) << name;
  EXPECT_GE(drawn.abs().max().item<double>(), bound * (1 - 20 / n)) << name;
}

TEST(PublishedModels, MambaIsDrawnAsItsAuthorsDrawIt) {
  torch::manual_seed(1);
  const LanguageModel model(mamba(64, 16));
  const auto parameters = model.named_parameters();
  for (const std::string layer : {"layers.0.mixer.", "layers.1.mixer."}) {
    const auto weight = [&](const char* name) { return parameters[layer + name].detach(); };
    expect_uniform("in_proj", weight("in_proj.weight"), 1 / 8.0);
    expect_uniform("conv", weight("conv.weight"), 1 / 2.0);
    expect_uniform("conv bias", weight("conv.bias"), 1 / 2.0);
    expect_uniform("x_proj", weight("x_proj.weight"), 1 / std::sqrt(128.0));
    expect_uniform("dt_proj", weight("dt_proj.weight"), 1 / 2.0);  // rank 4
    expect_uniform("out_proj, divided by the root of two layers", weight("out_proj.weight"), 1 / std::sqrt(128.0) / std::sqrt(2.0));
    const double low = std::log(0.001), high = std::log(0.1);
    const Tensor steps = torch::softplus(weight("dt_bias").to(torch::kDouble)).log();
    expect_uniform("steps", steps - (low + high) / 2, (high - low) / 2 + 1e-4);
    EXPECT_TRUE((weight("D") == 1).all().item<bool>());
    EXPECT_TRUE(torch::allclose(weight("A_log").exp(), torch::arange(1, 17, torch::kFloat).expand({128, 16})));
  }
  expect_normal("embedding", parameters["embedding"], 0.02);
}

// The linear attention of language models has its authors' initial weights.
TEST(PublishedModels, ALanguageModelsLinearAttentionIsScaledWithItsDepth) {
  ModelConfig config = taylor(64, 16);
  config.mixers["mixer"].set("rescale_output", Config(true));
  torch::manual_seed(1);
  const LanguageModel model(config);
  expect_normal("o_proj", model.named_parameters()["layers.1.mixer.o_proj.weight"], 0.02 / std::sqrt(4.0));
}

class Blocks : public testing::TestWithParam<std::tuple<const char*, const char*, const char*>> {
 protected:
  static std::shared_ptr<LanguageModel> make() {
    ModelConfig config = taylor(16, 4);
    config.vocab_size = 61;
    config.layers = {"base_conv", "mixer", "mixer"};
    config.mlp_width = 24;
    std::tie(config.mlp, config.norm, config.final_norm) = GetParam();
    torch::manual_seed(4);
    auto model = std::make_shared<LanguageModel>(config);
    model->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : model->parameters()) parameter.add_(torch::randn_like(parameter), 0.1);  // so that norms' weights are not 1
    return model;
  }
};

INSTANTIATE_TEST_SUITE_P(Of, Blocks,
                         testing::Combine(testing::Values("identity", "none", "gelu"), testing::Values("rms_norm", "layer_norm"),
                                          testing::Values("", "rms_norm", "layer_norm")),
                         [](const auto& given) {
                           return std::string(std::get<0>(given.param)) + "_" + std::get<1>(given.param) + "_" +
                                  (*std::get<2>(given.param) == '\0' ? "as_the_blocks" : std::get<2>(given.param));
                         });

TEST_P(Blocks, GiveOneAnswerInEveryForm) {
  const auto model = make();
  const Tensor ids = torch::randint(61, {12}, torch::kInt64), slots = torch::zeros({1}, torch::kInt64);
  const Tensor whole = model->forward(ids, Sequences::equal(1, 12)).detach();
  const torch::NoGradGuard no_grad;
  const auto expect_equal = [](const Tensor& found, const Tensor& wanted) {
    EXPECT_LT((found - wanted).abs().max().item<double>(), 1e-12);
  };
  expect_equal(model->forward(ids, Sequences::equal(1, 12)), whole);
  ModelState state = model->make_state(1);
  expect_equal(model->prefill(ids.slice(0, 0, 5), Sequences::equal(1, 5), state, slots), whole.slice(0, 0, 5));
  expect_equal(model->prefill_last(ids.slice(0, 5, 8), Sequences::equal(1, 3), state, slots), whole.slice(0, 7, 8));
  for (int64_t t = 8; t < 12; ++t) expect_equal(model->step(ids.slice(0, t, t + 1), state, slots), whole.slice(0, t, t + 1));
}

TEST_P(Blocks, KeepTheirGradientsWhenTheyAreComputedAgain) {
  const auto model = make();
  const Tensor ids = torch::randint(61, {12}, torch::kInt64), labels = torch::randint(61, {12}, torch::kInt64);
  std::vector<std::vector<Tensor>> gradients;
  for (const bool again : {false, true}) {
    model->set_checkpoint_activations(again);
    model->zero_grad();
    model->loss(ids, labels, Sequences::equal(1, 12)).backward();
    gradients.emplace_back();
    for (const Tensor& parameter : model->parameters()) gradients.back().push_back(parameter.grad().clone());
  }
  for (size_t i = 0; i < gradients[0].size(); ++i)
    EXPECT_LT((gradients[0][i] - gradients[1][i]).abs().max().item<double>(), 1e-12 * (1 + gradients[0][i].abs().max().item<double>()));
}

// With gradients, a norm that is a layer of its own and the norm after it are one operator; in blocks that are recomputed they are two.
TEST(PublishedModels, HaveTheSameGradientsOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  ModelConfig config = taylor(48, 8);
  config.vocab_size = 61;
  config.layers = {"base_conv", "mixer", "mixer"};
  torch::manual_seed(4);
  LanguageModel model(config);
  {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : model.parameters()) parameter.add_(torch::randn_like(parameter), 0.1);
  }
  const Tensor ids = torch::randint(61, {256}, torch::kInt64), labels = torch::randint(61, {256}, torch::kInt64);
  const auto gradients = [&](torch::Device device, bool again) {
    model.to(device);
    model.set_checkpoint_activations(again);
    model.zero_grad();
    model.loss(ids.to(device), labels.to(device), Sequences::equal(4, 64, device)).backward();
    std::vector<Tensor> result;
    for (const Tensor& parameter : model.parameters()) result.push_back(parameter.grad().to(torch::kCPU, torch::kDouble, false, true));
    return result;
  };
  const std::vector<Tensor> wanted = gradients(torch::kCPU, false);
  for (const bool again : {false, true}) {
    const std::vector<Tensor> found = gradients(torch::kCUDA, again);
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_LT((found[i] - wanted[i]).abs().max().item<double>(), 1e-3 * (1e-3 + wanted[i].abs().max().item<double>()))
          << model.named_parameters().keys()[i] << (again ? ", computed again" : "");
  }
}

TEST(PublishedModels, FinalNormsAreNamed) {
  ModelConfig config = attention(64);
  config.final_norm = "batch_norm";
  try {
    LanguageModel model(config);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()), "model.final_norm must be one of rms_norm, layer_norm, got 'batch_norm'");
  }
}

}  // namespace published_models_test
}  // namespace based
