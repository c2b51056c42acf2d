// Feature maps alone: sizes, errors, random draws. Golden files check their formulas.
#include "based/mixers/kit/feature_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "based/core/error.h"
#include "based/kernels/taylor/taylor.h"
#include "based/mixers/kit/mixer.h"

namespace based {
namespace feature_map_test {

using testing::HasSubstr;

std::shared_ptr<FeatureMap> make(const std::string& name, const std::string& toml, int64_t width) {
  return find_feature_map(name).make(Config::parse_toml(toml, "options.toml"), width);
}

std::shared_ptr<Mixer> make_mixer(const std::string& toml, int64_t d_model = 64) {
  return find_mixer("linear_attention").make(Config::parse_toml(toml, "options.toml"), {d_model, 0, 1});
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(FeatureMaps, GiveAsManyFeaturesAsTheySayAndTheStateHolds) {
  for (const FeatureMapInfo& info : feature_maps()) {
    const auto map = info.make(Config(Config::Table{}), 6);
    const Pass pass(Sequences::equal(2, 5));
    for (const torch::Dtype type : {torch::kFloat32, torch::kFloat64}) {
      map->to(type);
      const Tensor y = map->forward(torch::randn({10, 3, 6}, type), pass);
      EXPECT_EQ(y.sizes(), (torch::IntArrayRef{10, 3, map->features()})) << info.name;
      EXPECT_EQ(y.scalar_type(), type) << info.name;
      EXPECT_EQ(map->forward(torch::empty({0, 3, 6}, type), Pass(Sequences::equal(0, 5))).size(0), 0) << info.name;
    }
    const auto mixer = make_mixer("heads = 4\nfeature_dim = 6\nhead_dim = 5\nfeature_map = \"" + std::string(info.name) + "\"");
    EXPECT_EQ(state_bytes(*mixer, 1000), 4 * map->features() * (5 + 1) * 4) << info.name;
    EXPECT_EQ(mixer->make_state(3).bytes(), 3 * 4 * map->features() * (5 + 1) * 4) << info.name;
  }
}

TEST(FeatureMaps, HaveThePapersSizes) {
  EXPECT_EQ(make("taylor_exp", "", 16)->features(), 153);
  EXPECT_EQ(make("taylor_exp", "packed = false", 16)->features(), 273);
  EXPECT_EQ(make("cosformer", "", 16)->features(), 32);
  EXPECT_EQ(make("cosformer", "", 64)->features(), 128);
  EXPECT_EQ(make("projection", "width = 64\nthen = \"cosformer\"", 16)->features(), 128);
  EXPECT_EQ(make("performer", "features = 16", 16)->features(), 16);
  EXPECT_EQ(make("all_poly", "", 24)->features(), 24);
}

TEST(FeatureMaps, ErrorsNameTheNearestAndTheOption) {
  EXPECT_THAT(error_of([] { make_mixer("feature_map = \"cosfomer\""); }),
              HasSubstr("unknown feature map 'cosfomer', did you mean 'cosformer'?"));
  EXPECT_THAT(error_of([] { make_mixer("feature_map = \"zzzzzzzzzzzz\""); }), HasSubstr("`based mixers` lists the known ones"));
  EXPECT_THAT(error_of([] { make_mixer("feature_map = \"cosformer\"\nfeature_options.lenght = 5"); }), HasSubstr("length"));
  EXPECT_THAT(error_of([] { make_mixer("feature_map = \"relu\"\nfeature_options.length = 5"); }), HasSubstr("'length'"));
  EXPECT_THAT(error_of([] { make("cosformer", "length = 0", 4); }), HasSubstr("cosformer: length must be 1.."));
  EXPECT_THAT(error_of([] { make("performer", "features = 0", 4); }), HasSubstr("performer: features must be 1.."));
  EXPECT_THAT(error_of([] { make("all_poly", "features = -1", 4); }), HasSubstr("all_poly: features must be 0.."));
  EXPECT_THAT(error_of([] { make("taylor_exp", "", 257); }), HasSubstr("taylor_exp: feature_dim must be 1..256"));
  EXPECT_THAT(error_of([] { make("projection", "width = 0", 4); }), HasSubstr("projection: width must be 1.."));
  EXPECT_THAT(error_of([] { make("projection", "then = \"projection\"", 4); }), HasSubstr("two projections are one"));
  EXPECT_THAT(error_of([] { make("projection", "then = \"rellu\"", 4); }), HasSubstr("did you mean 'relu'?"));
  for (const char* map : {"relu", "exp_dim"}) {
    EXPECT_THAT(error_of([map] { make(map, "scale = inf", 4); }), HasSubstr("scale must be a number"));
    EXPECT_THAT(error_of([map] { make(map, "floor = -1.0", 4); }), HasSubstr("floor must be a number of at least 0"));
  }
  EXPECT_THAT(error_of([] { make_mixer("eps = -1.0"); }), HasSubstr("eps must be a number of at least 0"));
}

// The mean of an attention weight over many draws.
Tensor mean_weight(const std::string& options, const Tensor& q, const Tensor& k, int draws) {
  Tensor sum = torch::zeros({1}, torch::kFloat64);
  const Pass pass(Sequences::equal(1, 1));
  for (int i = 0; i < draws; ++i) {
    const auto map = make("performer", options, q.size(-1));
    map->to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    sum += (map->forward(q, pass) * map->forward(k, pass)).sum();
  }
  return sum / draws;
}

// Several rows share a block, and the last block is incomplete. A bias by the signs of LAPACK's orthogonal matrices would be detected here.
TEST(Performer, EstimatesTheSoftmaxWithoutBias) {
  torch::manual_seed(5);
  const Tensor q = torch::tensor({0.75, 0.35, -0.15, 0.2}, torch::kFloat64).view({1, 1, 4}),
               k = torch::tensor({0.45, 0.4, 0.25, -0.3}, torch::kFloat64).view({1, 1, 4});
  for (const double sign : {1.0, -1.0}) {
    const double weight = std::exp((q * k * sign).sum().item<double>() / 2);
    EXPECT_NEAR(mean_weight("features = 6", q, k * sign, 4000).item<double>(), weight, 0.04 * weight) << sign;
  }
}

TEST(Performer, OfTheRecallExperimentsHasRowsOfOneLength) {
  const auto map = make("performer", "features = 10\nunbiased = false", 4);
  const Tensor rows = map->named_parameters()["random_features"];
  EXPECT_TRUE(torch::allclose(rows.norm(2, {1}), torch::full({10}, std::sqrt(0.4))));
  EXPECT_TRUE(torch::allclose(torch::matmul(rows.narrow(0, 4, 4), rows.narrow(0, 4, 4).t()), 0.4 * torch::eye(4), 1e-5, 1e-6));
  EXPECT_FALSE(rows.requires_grad());
}

// For long rows the exponentials of queries overflow fp32 and those of keys underflow. Scaling a query's features keeps the ratios of its
// weights.
TEST(Performer, LongQueriesAndKeysStayFinite) {
  torch::manual_seed(7);
  const Pass pass(Sequences::equal(1, 6));
  for (const double length : {0.5, 40.0}) {
    const auto map = make("performer", "features = 16\neps = 1e-4", 64);
    const Tensor x = (torch::randn({6, 1, 64}) * length).requires_grad_();
    const Tensor q = map->query_features(x, pass), k = map->forward(x, pass), weights = torch::matmul(q.squeeze(1), k.squeeze(1).t());
    EXPECT_TRUE((weights > 0).all().item<bool>());
    EXPECT_TRUE(torch::isfinite(weights).all().item<bool>());
    EXPECT_TRUE(torch::isfinite(torch::autograd::grad({(weights / weights.sum(1, true)).square().sum()}, {x})[0]).all().item<bool>());
  }
  const auto map = make("performer", "features = 16", 4);
  const Tensor x = torch::randn({6, 1, 4}), ratio = map->query_features(x, pass) / map->forward(x, pass);
  EXPECT_TRUE(torch::allclose(ratio, ratio.narrow(-1, 0, 1).expand_as(ratio), 1e-4));
  EXPECT_THAT(error_of([] { make("performer", "eps = -1", 4); }), HasSubstr("performer: eps must be a number of at least 0"));
}

// Tokens parallel to the random rows have the largest exponents, |row|²/2, as queries and as keys: these overflow fp32, alone and as
// products.
TEST(Performer, TokensAlongTheRandomRowsStayFinite) {
  torch::manual_seed(8);
  const Pass pass(Sequences::equal(1, 6));
  for (const int64_t width : {128, 512}) {
    const auto map = make("performer", "features = 256\neps = 1e-4", width);
    const Tensor rows = map->named_parameters()["random_features"].narrow(0, 0, 6);
    const Tensor x = (rows * std::pow(static_cast<double>(width), 0.25)).unsqueeze(1).detach().requires_grad_();
    const Tensor q = map->query_features(x, pass), k = map->forward(x, pass);
    const Tensor weights = 1024 * torch::matmul(q.squeeze(1), k.squeeze(1).t());
    EXPECT_TRUE(torch::isfinite(weights).all().item<bool>()) << width;
    EXPECT_TRUE(torch::equal(weights.argmax(1), torch::arange(6))) << width;
    EXPECT_TRUE(torch::isfinite(torch::autograd::grad({(weights / weights.sum(1, true)).square().sum()}, {x})[0]).all().item<bool>());
  }
}

TEST(Cosformer, KnowsItsPositionAndTakesLateOnesForTheLast) {
  const auto map = make("cosformer", "length = 4", 2);
  const Tensor x = torch::tensor({1.F, -1.F}).expand({6, 1, 2}), y = map->forward(x, Pass(Sequences::equal(1, 6)));
  for (int64_t t = 0; t < 6; ++t) {
    const double angle = M_PI / 8 * static_cast<double>(std::min<int64_t>(t, 3) + 1);
    EXPECT_NEAR(y[t][0][0].item<double>(), std::sin(angle), 1e-6);
    EXPECT_NEAR(y[t][0][2].item<double>(), std::cos(angle), 1e-6);
    EXPECT_EQ(y[t][0][1].item<double>(), 0);
  }
}

TEST(TaylorExp, BothFormsHaveOneInnerProduct) {
  torch::manual_seed(6);
  const Tensor q = torch::randn({5, 2, 7}, torch::kFloat64), k = torch::randn({5, 2, 7}, torch::kFloat64);
  const Pass pass(Sequences::equal(1, 5));
  const Tensor s = (q * k).sum(-1) / std::sqrt(7.0), weight = 1 + s + s * s / 2;
  for (const char* options : {"packed = true", "packed = false"}) {
    const auto map = make("taylor_exp", options, 7);
    EXPECT_TRUE(torch::allclose((map->forward(q, pass) * map->forward(k, pass)).sum(-1), weight)) << options;
  }
}

TEST(AllPoly, IsDrawnByItsInput) {
  torch::manual_seed(7);
  for (const auto& weight : make("all_poly", "features = 400", 25)->parameters()) EXPECT_NEAR(weight.std().item<double>(), 0.2, 0.01);
}

// Weights are stored under the names of parameters.
TEST(FeatureMaps, ParameterNamesAreStable) {
  const auto names = [](const std::string& map) {
    std::string joined;
    for (const auto& parameter : make_mixer("feature_map = \"" + map + "\"")->named_parameters()) joined += parameter.key() + " ";
    return joined;
  };
  const std::string projections = "q_proj.weight k_proj.weight v_proj.weight o_proj.weight ";
  EXPECT_EQ(names("relu"), projections);
  EXPECT_EQ(names("performer"), projections + "feature_map.random_features ");
  EXPECT_EQ(names("all_poly"), projections + "feature_map.proj_1.weight feature_map.proj_2.weight ");
  EXPECT_EQ(names("projection"), projections + "feature_map.proj.weight ");
}

TEST(LinearAttention, WithTheTaylorMapIsTaylorAttention) {
  torch::manual_seed(8);
  const auto taylor = find_mixer("taylor_attention").make(Config::parse_toml("heads = 2\nfeature_dim = 4", "a"), {16, 0, 1});
  const auto linear = make_mixer("heads = 2\nfeature_dim = 4\nfeature_map = \"taylor_exp\"", 16);
  const torch::NoGradGuard no_grad;
  const auto from = taylor->named_parameters();
  for (auto& to : linear->named_parameters()) to.value().copy_(from[to.key()] * 20);
  for (auto& weight : from) weight.value().mul_(20);
  const Tensor x = torch::randn({70, 16});
  const Pass pass(Sequences::equal(2, 35));
  EXPECT_TRUE(torch::allclose(linear->forward(x, pass), taylor->forward(x, pass), 1e-4, 1e-5));
}

}  // namespace feature_map_test
}  // namespace based
