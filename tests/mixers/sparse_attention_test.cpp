// Sparse attention: it is causal, and it covers the documented part of the past.
#include <gtest/gtest.h>

#include <cmath>

#include "based/core/error.h"
#include "based/mixers/kit/mixer.h"
#include "tests/models/drawn.h"

namespace based {
namespace sparse_attention_test {

using torch::Tensor;

std::shared_ptr<Mixer> make(const std::string& name, int64_t d_model, const std::string& options) {
  torch::manual_seed(3);
  const auto mixer = find_mixer(name).make(Config::parse_toml(options, "test"), {d_model, /*layer=*/0, /*layers=*/1});
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard none;
  for (Tensor& parameter : mixer->parameters()) parameter.normal_(0, 0.5);
  return mixer;
}

Tensor draw(int64_t tokens, int64_t width) { return torch::randn({tokens, width}, torch::kFloat64); }

Tensor forward(Mixer& mixer, const Tensor& x) { return mixer.forward(x, Pass(Sequences::equal(1, x.size(0)))); }

class NoLaterToken : public testing::TestWithParam<std::pair<const char*, const char*>> {};

// Segments, windows and blocks of several sizes, so that tokens are within one, across two, or in segments of a single token.
INSTANTIATE_TEST_SUITE_P(Of, NoLaterToken,
                         testing::Values(std::pair("nystromformer", "landmarks = 4\nl_max = 20"),
                                         std::pair("nystromformer", "landmarks = 7\nl_max = 20\nheads = 2\ndamping = 0.0"),
                                         std::pair("nystromformer", "landmarks = 20\nl_max = 20"),
                                         std::pair("bigbird", "block_size = 1\nl_max = 24"),
                                         std::pair("bigbird", "block_size = 2\nl_max = 16\nheads = 2\nseed = 5"),
                                         std::pair("scatterbrain", "window = 5"),
                                         std::pair("scatterbrain", "window = 1\nheads = 2\nfeature_dim = 6")),
                         [](const auto& given) { return given.param.first + std::to_string(given.index); });

// The gradient of each output with respect to each later input must be exactly 0, and with respect to some earlier inputs it must not be.
TEST_P(NoLaterToken, IsSeen) {
  constexpr int64_t length = 23, width = 8;
  const auto mixer = make(GetParam().first, width, GetParam().second);
  const Tensor x = draw(length, width).requires_grad_(true);
  const Tensor y = forward(*mixer, x);
  for (int64_t t = 0; t < length; ++t) {
    const Tensor seen = torch::autograd::grad({y[t].sum()}, {x}, {}, /*retain_graph=*/true)[0].abs().sum(1);
    EXPECT_EQ(seen.narrow(0, t + 1, length - t - 1).sum().item<double>(), 0) << "token " << t;
    EXPECT_GT(seen[t].item<double>(), 0) << "token " << t;
    EXPECT_GT(seen[0].item<double>(), 0) << "token " << t;
  }
}

// Full attention with the mixer's projections.
Tensor attention_of(Mixer& mixer, int64_t heads, const Tensor& x) {
  const bool biases = mixer.named_parameters().contains("qkv_proj.bias");
  const std::string bias = biases ? "true" : "false";
  const auto attention =
      make("attention", x.size(1), "rotary_dim = 0\nheads = " + std::to_string(heads) + "\nqkv_bias = " + bias + "\nout_bias = " + bias);
  const torch::NoGradGuard none;
  const auto source = mixer.named_parameters();
  for (auto& parameter : attention->named_parameters()) parameter.value().copy_(source[parameter.key()]);
  return forward(*attention, x);
}

class IsAttention : public testing::TestWithParam<std::pair<const char*, const char*>> {};

// Options for which every token is covered exactly: one token per segment, or a window or beginning as long as the sequence.
INSTANTIATE_TEST_SUITE_P(Of, IsAttention,
                         testing::Values(std::pair("nystromformer", "landmarks = 30\nl_max = 30"), std::pair("bigbird", "block_size = 14"),
                                         std::pair("bigbird", "block_size = 21\nl_max = 4"), std::pair("scatterbrain", "window = 41")),
                         [](const auto& given) { return given.param.first + std::to_string(given.index); });

TEST_P(IsAttention, OverAllTokens) {
  const auto ours = make(GetParam().first, 12, std::string("heads = 3\n") + GetParam().second);
  const Tensor x = draw(41, 12);
  EXPECT_TRUE(forward(*ours, x).allclose(attention_of(*ours, 3, x), 1e-10, 1e-12));
}

// The mean of e^(R z_q − |z_q|²/2) e^(R z_k − |z_k|²/2) over rows R is e^(q·k/√d), so that many rows approximate full attention.
TEST(Scatterbrain, ManyFeaturesEstimateWhatIsOutsideTheWindow) {
  torch::manual_seed(5);
  const auto mixer = find_mixer("scatterbrain").make(Config::parse_toml("window = 2\nfeature_dim = 32768", "test"), {4, 0, 1});
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard none;
  for (const auto& parameter : mixer->named_parameters())
    if (parameter.key() != "random_features") parameter.value().normal_(0, 0.3);
  const Tensor x = draw(30, 4), wanted = attention_of(*mixer, 1, x);
  const auto error = [&] { return ((forward(*mixer, x) - wanted).norm() / wanted.norm()).item<double>(); };
  const double estimated = error();
  EXPECT_LT(estimated, 0.05);
  mixer->named_parameters()["random_features"].mul_(0.5);
  EXPECT_GT(error(), 3 * estimated);
}

// Queries parallel and keys antiparallel to the random rows: features underflow and overflow fp32 although the weights do not, and the
// first tokens' own scores are far below the possible features of later ones. Computed in two pieces, and after a state.
TEST(Scatterbrain, OfLongQueriesAndKeysIsThatInDouble) {
  constexpr int64_t width = 64, length = 600;
  const auto mixer_in = [](torch::Dtype type) {
    const auto mixer = make("scatterbrain", width, "window = 3\nfeature_dim = 16\nqkv_bias = false");
    const torch::NoGradGuard none;
    auto parameters = mixer->named_parameters();
    Tensor& rows = parameters["random_features"];
    rows.copy_(rows / rows.norm(2, 1, true) * 8.5);
    const Tensor same = torch::eye(width, torch::kFloat64) * 2;
    parameters["qkv_proj.weight"].copy_(torch::cat({same, -same, same}));
    mixer->to(type);
    return mixer;
  };
  const auto exact = mixer_in(torch::kFloat64), tested = mixer_in(torch::kFloat);
  const Tensor rows = exact->named_parameters()["random_features"].detach();
  const Tensor x = (rows.repeat({length / 8, 1}) + 0.1 * draw(length, width)).to(torch::kFloat) * std::sqrt(2.0);
  const auto run = [](Mixer& mixer, const Tensor& given) {
    const Tensor leaf = given.detach().requires_grad_(true), y = forward(mixer, leaf);
    return std::pair(y.detach().to(torch::kFloat64), torch::autograd::grad({y.sum()}, {leaf})[0].to(torch::kFloat64));
  };
  const auto [y, gradient] = run(*exact, x.to(torch::kFloat64));
  const auto [found, found_gradient] = run(*tested, x);
  EXPECT_LT(((found - y).norm() / y.norm()).item<double>(), 1e-3);
  EXPECT_LT(((found_gradient - gradient).norm() / gradient.norm()).item<double>(), 1e-2);

  const torch::NoGradGuard none;
  MixerState state = tested->make_state(1);
  const Tensor slots = torch::zeros({1}, torch::kInt64);
  const auto prefill = [&](int64_t from, int64_t count) {
    return tested->prefill(x.narrow(0, from, count), state, Pass(Sequences::equal(1, count), slots, torch::full({1}, from)));
  };
  const Tensor first = prefill(0, 550), second = prefill(550, 50);
  EXPECT_LT(((torch::cat({first, second}).to(torch::kFloat64) - y).norm() / y.norm()).item<double>(), 1e-3);
}

// The keys that a token attends to, from the gradients with respect to values; queries and keys are constant.
TEST(Bigbird, SeesWindowBeginningAndRandomPlaces) {
  constexpr int64_t length = 60, block = 3;
  const auto mixer = make("bigbird", 2, "block_size = 3\nl_max = 50\nseed = 4");
  {
    const torch::NoGradGuard none;
    mixer->named_parameters()["qkv_proj.weight"].narrow(0, 0, 4).zero_();
  }
  const Tensor x = draw(length, 2).requires_grad_(true);
  const Tensor y = forward(*mixer, x);
  int64_t random = 0;
  for (int64_t t = 0; t < length; ++t) {
    const Tensor seen = torch::autograd::grad({y[t].sum()}, {x}, {}, /*retain_graph=*/true)[0].abs().sum(1) > 0;
    for (int64_t key = 0; key <= t; ++key) {
      const bool sees = seen[key].item<bool>();
      const bool must = t - key <= 3 * block || key < 2 * block;
      EXPECT_TRUE(sees || !must) << t << " sees " << key;
      if (sees && !must) {
        ++random;
        EXPECT_LT(t, 50) << t << " sees " << key;
      }
    }
  }
  EXPECT_GT(random, 0);
  EXPECT_LE(random, 4 * 3 * block);
}

TEST(Bigbird, DrawsItsPlacesFromSeedAndLayer) {
  const auto places = [](const char* options, int64_t layer) {
    return find_mixer("bigbird").make(Config::parse_toml(options, "test"), {8, layer, 2})->named_buffers()["open.value"].clone();
  };
  EXPECT_TRUE(places("seed = 1", 0).equal(places("seed = 1", 0)));
  EXPECT_FALSE(places("seed = 1", 0).equal(places("seed = 2", 0)));
  EXPECT_FALSE(places("seed = 1", 0).equal(places("seed = 1", 1)));
}

TEST(SparseAttention, IsDrawnAsItsAuthorsDrawIt) {
  for (const char* name : {"bigbird", "scatterbrain", "nystromformer"}) {
    torch::manual_seed(1);
    const auto mixer = find_mixer(name).make(Config{Config::Table{}}, {96, /*layer=*/0, /*layers=*/2});
    for (const auto& item : mixer->named_parameters()) {
      if (item.key() == "random_features")
        EXPECT_NEAR(item.value().square().sum(1).mean().item<double>(), 96, 5 * std::sqrt(2 * 96.0 / 12)) << name;
      else if (item.key().ends_with(".bias"))
        expect_constant(item.key(), item.value(), 0);
      else
        expect_normal(item.key(), item.value(), item.key() == "out_proj.weight" ? 0.01 : 0.02);
    }
  }
}

// If all tokens of a segment are equal, its landmark represents them exactly.
TEST(Nystromformer, OfSegmentsOfEqualTokensIsAttention) {
  for (const char* damping : {"0.0", "1.0"}) {
    const auto ours = make("nystromformer", 6, std::string("landmarks = 5\nl_max = 20\ndamping = ") + damping);
    const Tensor x = draw(6, 6).repeat_interleave(4, 0).narrow(0, 0, 22);
    EXPECT_TRUE(forward(*ours, x).allclose(attention_of(*ours, 1, x), 1e-9, 1e-11)) << damping;
  }
}

TEST(Nystromformer, HasNoStateAndSaysWhatDecodingWouldTake) {
  const auto mixer = find_mixer("nystromformer").make(Config::parse_toml("landmarks = 4\nl_max = 40", "test"), {8, 0, 1});
  EXPECT_FALSE(find_mixer("nystromformer").recurrent);
  EXPECT_TRUE(find_mixer("attention").recurrent);
  EXPECT_EQ(state_bytes(*mixer, 35), 2 * 8 * 4 * (35 + 3));  // keys and values of 35 tokens and of 3 complete segments
  MixerState state;
  EXPECT_THROW(mixer->make_state(1), Error);
  EXPECT_THROW(mixer->prefill(torch::zeros({1, 8}), state, Pass(Sequences::equal(1, 1))), Error);
  EXPECT_THROW(mixer->step(torch::zeros({1, 8}), state, Pass(Sequences::equal(1, 1))), Error);
}

}  // namespace sparse_attention_test
}  // namespace based
