#include "based/train/throughput.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/runtime/card.h"

namespace based {
namespace throughput_test {

using ::testing::HasSubstr;

ModelConfig one_layer(const std::string& type, Config::Table options = {}) {
  options.emplace_back("type", Config(type));
  ModelConfig config;
  config.d_model = 8;
  config.vocab_size = 16;
  config.layers = {"layer"};
  config.mixers = {{"layer", Config(options)}};
  config.mlp = "none";
  return config;
}

// The embedding [16, 8], in_proj [32, 8], the filter [16, 3] and out_proj [8, 16]; not biases, norms and learned positions.
TEST(TrainingFlops, AreSixForEachMatrixParameterWhereNoMixerMultipliesTokens) {
  ModelConfig config = one_layer("gated_conv");
  config.max_positions = 10;
  const TrainingFlops flops = training_flops(LanguageModel(config), 64).value();
  EXPECT_EQ(flops.weights, 6 * (16 * 8 + 32 * 8 + 16 * 3 + 8 * 16));
  EXPECT_EQ(flops.sequence, 0);
}

// Two layers of d = 32 with an MLP of 256 over 264 rows of the embedding. A row of 16 tokens has 16·17/2 pairs of a query and a key, which
// are 8.5 a token, each with 2·32 operations for q·k and for the value, three times for forward and backward.
TEST(TrainingFlops, CountTheCausalHalfOfAttention) {
  const LanguageModel model(find_preset("attn-tiny"));
  const TrainingFlops flops = training_flops(model, 16).value();
  EXPECT_EQ(flops.weights, 6 * (264 * 32 + 2 * (96 * 32 + 32 * 32 + 512 * 32 + 32 * 256)));
  EXPECT_EQ(flops.sequence, 3 * 2 * 8.5 * (2 * 32 + 2 * 32));
  EXPECT_EQ(flops.total(), flops.weights + flops.sequence);
}

// One convolution, one Taylor layer of 2 heads with 1 + 4 + 10 features and 16 values beside the denominator, and one window of 8 keys:
// the first 8 of 16 tokens see 1 to 8 keys, the others 8.
TEST(TrainingFlops, CountTaylorFeaturesAndWindows) {
  const TrainingFlops flops = training_flops(LanguageModel(find_preset("based-tiny")), 16).value();
  const double linear = 2 * (2 + 2) * 15 * (16 + 1), window = (36.0 + 8 * 8) / 16 * (2 * 32 + 2 * 32);
  EXPECT_EQ(flops.sequence, 3 * (linear + window));
}

// DeltaNet also reads the value stored under the key: three multiply-adds for each of the 8·8 elements of the state, where GLA, with half
// as many key channels, has two for each of 4·8.
TEST(TrainingFlops, CountUpdatesAndReadoutsOfStates) {
  const Config one_head(int64_t{1});
  EXPECT_EQ(training_flops(LanguageModel(one_layer("delta_net", {{"heads", one_head}})), 4)->sequence, 3 * 6 * 64);
  EXPECT_EQ(training_flops(LanguageModel(one_layer("gla", {{"heads", one_head}})), 4)->sequence, 3 * 4 * 32);
  EXPECT_EQ(training_flops(LanguageModel(one_layer("mamba")), 4)->sequence, 3 * 4 * 16 * 16);
}

TEST(TrainingFlops, AreUnknownForAMixerThatDoesNotCountThem) {
  const LanguageModel model(one_layer("bigbird", {{"block_size", Config(int64_t{8})}, {"l_max", Config(int64_t{32})}}));
  EXPECT_FALSE(training_flops(model, 16));
  EXPECT_FALSE(model_flops_utilization(model, 16, "NVIDIA H200"));
}

TEST(PeakFlops, AreDenseRatesOfKnownCardsOnly) {
  const PeakFlops h100 = peak_flops("NVIDIA H100 80GB HBM3", torch::kBFloat16).value();
  EXPECT_EQ(h100.flops, 989.4e12);  // not the 1,979e12 with sparsity
  EXPECT_EQ(h100.name, "NVIDIA H100 80GB HBM3 bf16 dense, 989 TFLOP/s");
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe", torch::kHalf)->flops, 756e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB", torch::kFloat)->flops, 156e12);
  EXPECT_THAT(peak_flops("NVIDIA H200", torch::kFloat)->name, HasSubstr("TF32"));
  for (const char* unknown : {"", "NVIDIA H300", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Tesla K80"})
    EXPECT_FALSE(peak_flops(unknown, torch::kBFloat16)) << unknown;
  EXPECT_FALSE(peak_flops("NVIDIA H200", torch::kDouble));
}

TEST(Mfu, IsTheShareOfThePeakOfAllDevices) {
  const Mfu mfu{2e9, {1e15, "a card"}};
  EXPECT_DOUBLE_EQ(mfu.at(250'000), 0.5);
  EXPECT_DOUBLE_EQ(mfu.at(250'000, 2), 0.25);
}

TEST(Mfu, HasThePeakOfTheModelsType) {
  LanguageModel model(find_preset("attn-tiny"));
  EXPECT_EQ(model_flops_utilization(model, 16, "NVIDIA H200")->peak.flops, 494.7e12);
  model.to(torch::kBFloat16);
  const Mfu mfu = model_flops_utilization(model, 16, "NVIDIA H200").value();
  EXPECT_EQ(mfu.peak.flops, 989.4e12);
  EXPECT_EQ(mfu.flops_per_token, training_flops(model, 16)->total());
  EXPECT_FALSE(model_flops_utilization(model, 16, "a card that nobody measured"));
  EXPECT_EQ(runtime::card_name(torch::kCPU), "");
  EXPECT_FALSE(model_flops_utilization(model, 16, runtime::card_name(torch::kCPU)));
}

}  // namespace throughput_test
}  // namespace based
