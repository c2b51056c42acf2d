// Ranges of a model's parts in a profile, and that recording them changes no bit.
#include "tests/core/profile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/core/profile.h"
#include "based/models/language_model.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace model_profile_test {

using ::testing::Contains;
using ::testing::ElementsAreArray;
using ::testing::IsSupersetOf;
using torch::Tensor;

class ModelProfile : public testing::Test {
 protected:
  // Runs the body in a session and returns the file.
  template <class Body>
  ProfileFile recorded(const Body& body) const {
    const std::string path = folder_.file("profile.json");
    ProfileSession session(path);
    body();
    session.finish();
    return ProfileFile(path);
  }
  // The loss and all gradients.
  std::vector<Tensor> train_once() {
    model_->train();
    model_->zero_grad();
    Tensor loss = model_->loss(ids_, labels_, rows_);
    loss.backward();
    std::vector<Tensor> all{loss.detach()};
    for (const Tensor& parameter : model_->parameters()) all.push_back(parameter.grad().clone());
    return all;
  }
  static bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, const Tensor& y) { return torch::equal(x, y); });
  }
  // The parts of layer i inside a range of that layer.
  std::vector<std::string> layer_paths(const std::string& before = "") const {
    std::vector<std::string> paths;
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      const std::string layer = before + "layers." + std::to_string(i);
      for (const std::string& part : {std::string("norm1"), config_.layers[i], std::string("norm2"), std::string("mlp")})
        paths.push_back(layer + "/" + part);
    }
    return paths;
  }

  const TemporaryFolder folder_;
  const ModelConfig config_ = find_preset("based-tiny");
  const std::shared_ptr<LanguageModel> model_ = make_model(config_, 3);
  Tensor ids_ = torch::arange(40) * 7 % 200, labels_ = torch::arange(40) % 200;
  Sequences rows_ = Sequences::equal(2, 20);
};

TEST_F(ModelProfile, TheForwardHasEachPartInsideItsLayerAndTheBackwardHasThemInReverse) {
  const std::vector<Tensor> without = train_once();
  std::vector<Tensor> with;
  const ProfileFile file = recorded([&] { with = train_once(); });
  EXPECT_TRUE(same_bits(with, without));
  std::vector<std::string> expected{"embedding"};
  for (size_t i = 0; i < config_.layers.size(); ++i)
    for (const std::string& part :
         {std::string(), std::string("/norm1"), "/" + config_.layers[i], std::string("/norm2"), std::string("/mlp")})
      expected.push_back("layers." + std::to_string(i) + part);
  expected.insert(expected.end(), {"norm", "head"});
  for (const char* part : {"head", "norm"}) expected.emplace_back(part);  // from here on the backward pass
  for (size_t i = config_.layers.size(); i-- > 0;)
    for (const std::string& part : {std::string("mlp"), std::string("norm2"), config_.layers[i], std::string("norm1")})
      expected.push_back(part);
  expected.emplace_back("embedding");
  EXPECT_THAT(file.paths(), ElementsAreArray(expected));
  std::vector<int64_t> layers;
  for (const Json& event : file.events())
    if (event.at("name") == "mlp") layers.push_back(event.at("args").at("layer"));
  EXPECT_THAT(layers, ElementsAreArray({0, 1, 2, 2, 1, 0}));
}

TEST_F(ModelProfile, RecomputedActivationsAreInsideTheBackwardOfTheirLayer) {
  const std::vector<Tensor> without = train_once();
  model_->set_checkpoint_activations(true);
  std::vector<Tensor> with;
  const ProfileFile file = recorded([&] { with = train_once(); });
  EXPECT_TRUE(same_bits(with, without));
  const std::vector<std::string> paths = file.paths();
  EXPECT_THAT(paths, IsSupersetOf(layer_paths()));
  EXPECT_THAT(paths, IsSupersetOf(layer_paths("recompute/")));
  EXPECT_EQ(std::count(paths.begin(), paths.end(), "recompute"), 3);
  EXPECT_EQ(std::count(paths.begin(), paths.end(), "mlp"), 3) << "the backward passes";
}

TEST_F(ModelProfile, PrefillAndStepHaveTheSameParts) {
  const torch::InferenceMode inference;
  model_->eval();
  const Tensor slots = torch::arange(2), next = torch::tensor({5, 6}, torch::kInt64);
  const auto run = [&] {
    ModelState state = model_->make_state(2);
    std::vector<Tensor> hidden{model_->prefill_last(ids_, rows_, state, slots)};
    hidden.push_back(model_->logits(model_->step(next, state, slots)));
    return hidden;
  };
  const std::vector<Tensor> without = run();
  std::vector<Tensor> with;
  const ProfileFile file = recorded([&] { with = run(); });
  EXPECT_TRUE(same_bits(with, without));
  const std::vector<std::string> paths = file.paths();
  for (const std::string& path : layer_paths()) EXPECT_EQ(std::count(paths.begin(), paths.end(), path), 2) << path;
  for (const char* part : {"embedding", "norm"}) EXPECT_EQ(std::count(paths.begin(), paths.end(), part), 2) << part;
  EXPECT_THAT(paths, Contains("head"));
}

TEST_F(ModelProfile, OnAGpuEachPartHasATimeThereToo) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const torch::Device gpu(torch::kCUDA, 0);
  model_->to(gpu);
  ids_ = ids_.to(gpu), labels_ = labels_.to(gpu), rows_ = Sequences::equal(2, 20, gpu);
  const std::vector<Tensor> without = train_once();
  std::vector<Tensor> with;
  const ProfileFile file = recorded([&] { with = train_once(); });
  EXPECT_TRUE(same_bits(with, without));
  Json track;
  for (const Json& name : file.events("M"))
    if (name.at("args").at("name") == "cuda:0 (GPU time)") track = name.at("tid");
  std::map<std::string, int> on_gpu;
  for (const Json& event : file.events()) {
    if (event.at("tid") != track) continue;
    ++on_gpu[event.at("name")];
    EXPECT_GE(event.at("dur").get<double>(), 0);
    EXPECT_GE(event.at("ts").get<double>(), 0);
  }
  for (const char* part : {"embedding", "norm", "head"}) EXPECT_EQ(on_gpu[part], 2) << part;  // forward and backward
  for (const char* part : {"norm1", "norm2", "mlp"}) EXPECT_EQ(on_gpu[part], 6) << part;
  for (const char* layer : {"layers.0", "layers.1", "layers.2"}) EXPECT_EQ(on_gpu[layer], 1) << layer;
}

}  // namespace model_profile_test
}  // namespace based
