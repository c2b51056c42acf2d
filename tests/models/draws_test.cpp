// Random numbers of models. No random number makes a weight that is not finite, and different seeds and layers share no random numbers.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <unordered_set>

#include "based/mixers/blocks/time_step.h"
#include "based/mixers/kit/feature_map.h"
#include "based/mixers/kit/mixer.h"
#include "based/models/language_model.h"

namespace based {
namespace draws_test {

using torch::Tensor;

// The word of the generator's state from which it computes this output.
uint32_t untempered(uint32_t y) {
  y ^= y >> 18;
  y ^= (y << 15) & 0xefc60000;
  uint32_t x = y;
  for (int i = 0; i < 5; ++i) x = y ^ ((x << 7) & 0x9d2c5680);
  y = x;
  for (int i = 0; i < 3; ++i) x = y ^ (x >> 11);
  return x;
}

// Torch's CPU generator returns this word for the next 623 calls, and 0 afterwards.
void draw_always(uint32_t word) {
  at::mt19937_data_pod data{};
  data.seeded_ = true;
  data.left_ = at::MERSENNE_STATE_N;
  data.state_.fill(untempered(word));
  at::mt19937 engine;
  engine.set_data(data);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(0);  // drops the second number of a pair of normal ones
  at::check_generator<at::CPUGeneratorImpl>(generator)->set_engine(engine);
}

TEST(Draws, TheGeneratorCanBeMadeToDrawOneWord) {
  draw_always(0);
  EXPECT_EQ(torch::rand({1000}).max().item<float>(), 0);
  draw_always(~0U);
  EXPECT_EQ(torch::rand({600}).min().item<float>(), 1 - 0x1p-24F);
}

// Every mixer with its defaults, and linear attention with every feature map.
std::vector<std::pair<std::string, Config::Table>> all_mixers() {
  std::vector<std::pair<std::string, Config::Table>> all;
  for (const MixerInfo& info : mixers()) {
    Config::Table options;
    for (const auto& field : info.help())
      if (field.name == "heads") options.emplace_back("heads", Config(int64_t{2}));
    all.emplace_back(info.name, options);
  }
  for (const FeatureMapInfo& map : feature_maps())
    all.emplace_back("linear_attention", Config::Table{{"heads", Config(int64_t{2})}, {"feature_map", Config(std::string(map.name))}});
  return all;
}

std::string name_of(const std::pair<std::string, Config::Table>& mixer) { return mixer.first + " " + Config(mixer.second).to_json(-1); }

TEST(Draws, OfTheLeastAndTheGreatestWordAreFinite) {
  for (const auto& mixer : all_mixers())
    for (const uint32_t word : {0U, ~0U}) {
      draw_always(word);
      const auto made = find_mixer(mixer.first).make(Config(mixer.second), {64, 0, 2});
      for (const auto& item : made->named_parameters())
        EXPECT_TRUE(item.value().isfinite().all().item<bool>()) << name_of(mixer) << ": " << item.key() << ", drawn of " << word;
    }
}

// All weights but those of a random number 0 keep their bits, because published runs begin from them.
TEST(Draws, OfRatesAreClampedAndNotDrawnAgain) {
  for (const double low : {0.0, 1.0}) {
    torch::manual_seed(3);
    const Tensor rates = initial_rate_log(1 << 16, low, 16);
    torch::manual_seed(3);
    EXPECT_TRUE(rates.equal(torch::empty({1 << 16}).uniform_(low, 16).log())) << low;
  }
  draw_always(0);
  EXPECT_TRUE(initial_rate_log(100, 0, 16).equal(torch::full({100}, 16 * 0x1p-24F).log()));
}

ModelConfig model_of(const std::pair<std::string, Config::Table>& mixer) {
  ModelConfig config;
  config.d_model = 64;
  config.vocab_size = 64;
  config.layers = {"m", "m"};
  config.mlp_width = 64;
  Config options(mixer.second);
  options.set("type", Config(mixer.first));
  config.mixers["m"] = options;
  return config;
}

// The bits of all random values; constants, which are the same for every seed, and zeros are left out.
std::unordered_set<uint32_t> drawn(const std::map<std::string, Tensor>& one, const std::map<std::string, Tensor>& other) {
  std::unordered_set<uint32_t> bits;
  for (const auto& [name, tensor] : one) {
    if (tensor.equal(other.at(name))) continue;
    const Tensor values = tensor.detach().abs().contiguous();
    for (int64_t i = 0; i < values.numel(); ++i)
      if (values.const_data_ptr<float>()[i] > 0) bits.insert(reinterpret_cast<const uint32_t*>(values.const_data_ptr<float>())[i]);
  }
  return bits;
}

// The parameters whose names begin with `prefix`, by the rest of the name.
std::map<std::string, Tensor> parameters_of(const LanguageModel& model, const std::string& prefix) {
  std::map<std::string, Tensor> found;
  for (const auto& item : model.named_parameters())
    if (item.key().rfind(prefix, 0) == 0) found[item.key().substr(prefix.size())] = item.value();
  return found;
}

// The share of values that both models have. It would be close to 1 if one random stream were a shifted copy of the other.
double shared(const std::map<std::string, Tensor>& one, const std::map<std::string, Tensor>& other) {
  const auto a = drawn(one, other), b = drawn(other, one);
  int64_t both = 0;
  for (const uint32_t bits : a) both += static_cast<int64_t>(b.count(bits));
  return a.empty() ? 0 : static_cast<double>(both) / static_cast<double>(std::min(a.size(), b.size()));
}

TEST(Draws, OfOtherSeedsAndLayersShareNothing) {
  constexpr double kByChance = 0.03;  // expected for some 1e5 values of 24 bits
  for (const auto& mixer : all_mixers()) {
    const auto first = make_model(model_of(mixer), 1);
    for (const int64_t seed : {int64_t{0}, int64_t{2}, int64_t{1} + (int64_t{1} << 32), int64_t{-1}, int64_t{1} << 62}) {
      const auto other = make_model(model_of(mixer), seed);
      EXPECT_LT(shared(parameters_of(*first, ""), parameters_of(*other, "")), kByChance) << name_of(mixer) << ", seeds 1 and " << seed;
      EXPECT_FALSE(parameters_of(*first, "").at("embedding").equal(parameters_of(*other, "").at("embedding"))) << seed;
    }
    EXPECT_LT(shared(parameters_of(*first, "layers.0."), parameters_of(*first, "layers.1.")), kByChance) << name_of(mixer) << ", layers";
  }
}

TEST(Draws, GeneratorsAreSeededWithTheSeedItselfAtTheStart) {
  for (const int64_t seed : {int64_t{0}, int64_t{1}, int64_t{418467}, (int64_t{1} << 32) - 1})
    EXPECT_EQ(generator_seed(seed), static_cast<uint64_t>(seed));
  std::unordered_set<uint64_t> seen;
  for (const int64_t seed : {int64_t{0}, int64_t{1}, int64_t{1} << 32, (int64_t{1} << 32) + 1, int64_t{-1}, int64_t{1} << 62})
    for (const int64_t step : {0, 1, 2, 1000}) {
      EXPECT_LT(generator_seed(seed, step), uint64_t{1} << 32) << "which is all that torch's CPU generator reads";
      EXPECT_TRUE(seen.insert(generator_seed(seed, step)).second) << seed << ", step " << step;
    }
}

// BigBird opens a few thousandths of the places at random. Two masks must not share more open places than independent ones.
TEST(Draws, OfBigbirdsPlacesAreIndependent) {
  const auto places = [](int64_t seed, int64_t layer) {
    const auto mixer = find_mixer("bigbird").make(Config(Config::Table{{"seed", Config(seed)}}), {16, layer, 2});
    return mixer->named_buffers()["open.value"].to(torch::kDouble);
  };
  const Tensor one = places(0, 0);
  const double share = 2 * one.mean().item<double>();  // the share of open places among those not after the query
  for (const auto& [seed, layer] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 0}, {1, 1}, {int64_t{1} << 32, 0}}) {
    const Tensor other = places(seed, layer);
    for (const int64_t shift : {-2, -1, 0, 1, 2}) {
      const double both = (one * other.roll({shift, shift}, {0, 1})).sum().item<double>();
      EXPECT_LT(both / one.sum().item<double>(), share + 0.05) << "seed " << seed << ", layer " << layer << ", shifted by " << shift;
    }
  }
}

}  // namespace draws_test
}  // namespace based
