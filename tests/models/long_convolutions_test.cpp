// Hyena and H3: weights drawn as their authors draw them, and filters that are kept no longer than their weights.
#include <gtest/gtest.h>

#include "based/mixers/long_filter.h"
#include "based/mixers/mixer.h"
#include "tests/models/drawn.h"

namespace based {
namespace {

using torch::Tensor;

std::shared_ptr<Mixer> make(const char* name, int64_t d_model, const char* options = "") {
  torch::manual_seed(1);
  return find_mixer(name).make(Config::parse_toml(options, "test"), {d_model, /*layer=*/0, /*layers=*/2});
}

TEST(Hyena, IsDrawnAsItsAuthorsDrawIt) {
  const auto mixer = make("hyena", 128, "l_max = 256");
  for (const auto& item : mixer->named_parameters()) {
    const std::string& name = item.key();
    const Tensor& drawn = item.value();
    if (name == "filter.z")
      EXPECT_TRUE(drawn.equal(position_features(256, 3).to(torch::kFloat32)));
    else if (name == "filter.frequency")
      expect_constant(name, drawn, 1);
    else if (name == "filter.bias")
      expect_normal(name, drawn, 1);
    else if (name.starts_with("conv."))
      expect_uniform(name, drawn, -1 / std::sqrt(3.0), 1 / std::sqrt(3.0));
    else if (name.ends_with(".bias"))
      expect_constant(name, drawn, 0);
    else
      expect_normal(name, drawn, name == "out_proj.weight" ? 0.02 / std::sqrt(4.0) : 0.02);
  }
}

// Where gradients are off a filter is made once; again for other weights, and in another type.
TEST(Hyena, AKeptFilterFollowsItsWeights) {
  const auto mixer = make("hyena", 8, "l_max = 12");
  const Tensor x = torch::randn({9, 8});
  const auto run = [&](const Tensor& in) { return mixer->forward(in, Pass(Sequences::equal(1, 9))); };
  const auto expect_fresh = [&](const Tensor& in) {
    const Tensor fresh = run(in).detach();
    const torch::NoGradGuard none;
    EXPECT_TRUE(run(in).allclose(fresh, 1e-5, 1e-7));
    EXPECT_TRUE(run(in).allclose(fresh, 1e-5, 1e-7));
  };
  expect_fresh(x);
  const Tensor before = run(x).detach();
  for (const auto& item : mixer->named_parameters()) {
    if (!item.key().starts_with("filter.")) continue;
    {
      const torch::NoGradGuard none;
      item.value().add_(0.5);
    }
    expect_fresh(x);
  }
  EXPECT_FALSE(run(x).allclose(before, 1e-2, 1e-4));
  mixer->to(torch::kFloat64);
  expect_fresh(x.to(torch::kFloat64));
}

}  // namespace
}  // namespace based
