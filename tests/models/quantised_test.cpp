// Models with int8 and int4 weights: the stored files, refusals of loading, and equal results of all forms of a model.
#include "based/models/quantised.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>

#include "based/core/files.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace quantised_test {

using ops::WeightForm;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ModelConfig small_config(const std::string& mlp = "swiglu") {
  ModelConfig config;
  config.d_model = 64;
  config.vocab_size = 40;
  config.layers = {"gated_conv", "taylor_attention", "mamba"};
  config.mlp = mlp;
  config.mlp_width = 96;
  config.mixers["taylor_attention"] =
      Config::parse_json(R"({"type": "taylor_attention", "heads": 4, "feature_dim": 8, "decay": true})", "test");
  return config;
}

class Quantised : public testing::Test {
 protected:
  void make(const ModelConfig& config, torch::Dtype type = torch::kFloat) {
    model_ = make_model(config, 3);
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : model_->parameters()) parameter.normal_(0, 0.1);
    model_->to(type);
    model_->eval();
    save_model(*model_, full(), 0xabc);
  }
  std::string full() const { return folder_.file("full"); }
  std::string out() const { return folder_.file("out"); }

  TemporaryFolder folder_;
  std::shared_ptr<LanguageModel> model_;
};

TEST_F(Quantised, StoresLinearLayersAndTheEmbeddingAndSaysSo) {
  make(small_config(), torch::kBFloat16);
  const QuantisedFolder made = quantise_model(full(), out(), WeightForm::int8);
  const SafetensorsFile before(full() + "/model.safetensors"), after(out() + "/model.safetensors");
  EXPECT_EQ(after.at("layers.0.mlp.fc1.weight.int8").dtype, DType::I8);
  EXPECT_EQ(after.at("layers.0.mlp.fc1.weight.scale").shape, std::vector<int64_t>{192});
  EXPECT_EQ(after.at("embedding.int8").shape, before.at("embedding").shape);
  EXPECT_EQ(after.at("embedding.scale").dtype, DType::F32);
  for (const char* kept : {"layers.1.mixer.head_scale.weight", "layers.2.mixer.dt_proj.weight", "layers.2.mixer.x_proj.weight",
                           "layers.0.mixer.conv.weight", "layers.0.norm1.weight"}) {
    ASSERT_NE(after.find(kept), nullptr) << kept;
    EXPECT_TRUE(std::ranges::equal(after.at(kept).bytes, before.at(kept).bytes)) << kept;
  }
  EXPECT_EQ(made.layers, 14);  // 2 of gated_conv, 4 of taylor_attention, 2 of mamba, 2 of each MLP
  EXPECT_EQ(made.kept, 0);
  EXPECT_LT(made.bytes_after, made.bytes_before);
  EXPECT_THAT(read_file(out() + "/config.json"), HasSubstr("\"weights\": \"int8\""));
  const ModelFiles files = read_model_files(out());
  EXPECT_EQ(files.form, WeightForm::int8);
  EXPECT_EQ(files.dtype, torch::kBFloat16);
  EXPECT_EQ(files.tokenizer, "0000000000000abc");
  const auto loaded = load_model(out()).model;
  EXPECT_EQ(loaded->parameter_count(), model_->parameter_count());
  EXPECT_EQ(loaded->dtype(), torch::kBFloat16);
}

// The reference is a full model whose weights are the dequantised ones, in fp32, where the conversion is exact up to rounding.
TEST_F(Quantised, ComputesAsTheModelOfItsRoundedWeights) {
  for (const std::string mlp : {"swiglu", "gelu"})
    for (const WeightForm form : {WeightForm::int8, WeightForm::int4}) {
      SCOPED_TRACE(mlp + " " + weight_form_name(form));
      make(small_config(mlp));
      quantise_model(full(), out(), form);
      const auto quantised = load_model(out()).model;
      const torch::NoGradGuard no_grad;
      const auto parameters = model_->named_parameters();
      for (const auto& [name, layer] : quantisable_layers(*quantised)) {
        ASSERT_TRUE(layer->quantised()) << name;
        parameters[name].copy_(layer->weight());
      }
      ASSERT_TRUE(quantised->quantised_head());
      const torch::Tensor embedding = quantised->named_parameters()["embedding"];
      EXPECT_GT((embedding - parameters["embedding"]).abs().max().item<double>(), 0);
      parameters["embedding"].copy_(embedding);
      const torch::Tensor ids = torch::randint(40, {90}, torch::kInt64);
      const auto rows = Sequences::packed({0, 80, 90}, 90);
      const torch::Tensor wanted = model_->forward(ids, rows), got = quantised->forward(ids, rows);
      EXPECT_LT((got - wanted).abs().max().item<double>(), 1e-4 * wanted.abs().max().item<double>());

      ModelState state = quantised->make_state(1);
      const torch::Tensor slots = torch::zeros({1}, torch::kInt64);
      const torch::Tensor read = quantised->prefill(ids.narrow(0, 0, 79), Sequences::packed({0, 79}, 79), state, slots);
      const torch::Tensor last = quantised->step(ids.narrow(0, 79, 1), state, slots);
      EXPECT_LT((read - wanted.narrow(0, 0, 79)).abs().max().item<double>(), 1e-4 * wanted.abs().max().item<double>());
      EXPECT_LT((last - wanted.narrow(0, 79, 1)).abs().max().item<double>(), 1e-4 * wanted.abs().max().item<double>());
      for (const int64_t few : {1, 80}) {
        const torch::Tensor hidden = wanted.narrow(0, 0, few), scores = model_->logits(hidden);
        EXPECT_LT((quantised->logits(hidden) - scores).abs().max().item<double>(), 1e-4 * scores.abs().max().item<double>()) << few;
      }
    }
}

TEST_F(Quantised, ComputesWithInt8OnAGpuAsOnTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  make(small_config());
  quantise_model(full(), out(), WeightForm::int8);
  const torch::NoGradGuard no_grad;
  const torch::Tensor ids = torch::randint(40, {90}, torch::kInt64);
  const auto results = [&](torch::Device device) {
    const auto model = load_model(out(), {}, device).model;
    ModelState state = model->make_state(1);
    const torch::Tensor slots = torch::zeros({1}, torch::dtype(torch::kInt64).device(device)), all = ids.to(device);
    std::vector<torch::Tensor> rows{model->prefill(all.narrow(0, 0, 79), Sequences::equal(1, 79, device), state, slots)};
    for (int64_t t = 79; t < 90; ++t) rows.push_back(model->step(all.narrow(0, t, 1), state, slots));
    return torch::cat(rows).cpu();
  };
  const torch::Tensor wanted = results(torch::kCPU), got = results(torch::Device(torch::kCUDA, 0));
  EXPECT_LT((got - wanted).abs().max().item<double>(), 1e-3 * wanted.abs().max().item<double>());
}

// The model of full weights is then the same as one of the rounded weights, bit for bit.
TEST_F(Quantised, ComputesWithFullWeightsWhereAsked) {
  for (const WeightForm form : {WeightForm::int8, WeightForm::int4}) {
    SCOPED_TRACE(weight_form_name(form));
    make(small_config(), torch::kBFloat16);
    quantise_model(full(), out(), form);
    const auto quantised = load_model(out()).model, same = load_model(out()).model, rounded = load_model(full()).model;
    const torch::NoGradGuard no_grad;
    const auto parameters = rounded->named_parameters();
    for (const auto& [name, layer] : quantisable_layers(*same)) parameters[name].copy_(layer->weight());
    parameters["embedding"].copy_(same->named_parameters()["embedding"]);
    const int64_t count = quantised->parameter_count();
    int64_t bytes = 0;
    for (const auto& [name, layer] : quantisable_layers(*same)) bytes += layer->weight().numel() * 2;
    EXPECT_EQ(quantised->use_full_weights(), bytes);
    EXPECT_EQ(quantised->use_full_weights(), 0);
    EXPECT_EQ(quantised->parameter_count(), count);
    for (const auto& parameter : quantised->parameters()) EXPECT_FALSE(parameter.requires_grad());
    const torch::Tensor ids = torch::randint(40, {9}, torch::kInt64);
    const auto rows = Sequences::packed({0, 9}, 9);
    const torch::Tensor wanted = rounded->forward(ids, rows), got = quantised->forward(ids, rows);
    EXPECT_TRUE(torch::equal(got, wanted));
    EXPECT_TRUE(torch::equal(quantised->logits(got), rounded->logits(wanted)));
  }
}

TEST_F(Quantised, KeepsLayersThatInt4CannotStore) {
  ModelConfig config = small_config();
  config.layers = {"gated_conv"};
  config.mlp_width = 80;  // the rows of fc2
  make(config);
  EXPECT_EQ(quantise_model(full(), out(), WeightForm::int4).kept, 1);
  EXPECT_NE(SafetensorsFile(out() + "/model.safetensors").find("layers.0.mlp.fc2.weight"), nullptr);
  EXPECT_EQ(load_model(out()).model->parameter_count(), model_->parameter_count());
}

TEST_F(Quantised, RefusesOtherUses) {
  make(small_config());
  quantise_model(full(), out(), WeightForm::int4);
  const auto refusal = [&](const auto& run) { return message_of<UsageError>(run); };
  EXPECT_THAT(refusal([&] { load_model(out(), torch::kDouble); }), HasSubstr("runs in fp32 or bf16, not in fp64"));
  EXPECT_THAT(refusal([&] { load_model(out(), {}, torch::Device(torch::kCUDA, 0)); }), HasSubstr("runs on the CPU only"));
  EXPECT_THAT(refusal([&] { require_full_weights(read_model_files(out()), "training"); }), HasSubstr("training needs the model"));
  EXPECT_THAT(refusal([&] { quantise_model(out(), folder_.file("twice"), WeightForm::int8); }), HasSubstr("are int4 already"));
}

TEST_F(Quantised, ListsTensorsThatDoNotFit) {
  make(small_config());
  quantise_model(full(), out(), WeightForm::int8);
  const std::string path = out() + "/model.safetensors", layer = "layers.0.mlp.fc1.weight";
  const SafetensorsFile file(path);
  const auto refusal_with = [&](const auto& change) {
    std::vector<TensorView> tensors;
    for (const TensorView& tensor : file.tensors()) {
      TensorView changed = tensor;
      if (change(changed)) tensors.push_back(changed);
    }
    write_safetensors(path, tensors);
    return message_of<Error>([&] { load_model(out()); });
  };
  EXPECT_THAT(refusal_with([&](TensorView& t) { return t.name != layer + ".scale"; }), HasSubstr(layer + ".int8: has no scales"));
  EXPECT_THAT(refusal_with([&](TensorView& t) {
                if (t.name == layer + ".int8") std::swap(t.shape[0], t.shape[1]);
                return true;
              }),
              HasSubstr(layer + ".int8: has values or scales of a shape"));
  EXPECT_THAT(refusal_with([&](TensorView& t) { return t.name != "embedding.scale"; }), HasSubstr("embedding.int8: has no scales"));
  EXPECT_THAT(refusal_with([&](TensorView& t) {
                if (t.name == "embedding.int8") t.name = "embedding.int4";
                return true;
              }),
              HasSubstr("embedding.int4: must be int8"));
  EXPECT_THAT(refusal_with([&](TensorView& t) { return t.name != layer + ".int8"; }),
              AllOf(HasSubstr("missing: " + layer + " ["), HasSubstr("unexpected: " + layer + ".scale")));
  quantise_model(full(), out(), WeightForm::int8);
  write_file_atomic(out() + "/config.json", read_file(full() + "/config.json"));  // does not name the form
  EXPECT_THAT(message_of<Error>([&] { load_model(out()); }), HasSubstr("unexpected: " + layer + ".int8"));
}

// "weights" in config.json decides the form of every layer.
TEST_F(Quantised, ListsLayersOfAnotherForm) {
  make(small_config());
  quantise_model(full(), out(), WeightForm::int8);
  const std::string path = out() + "/model.safetensors", layer = "layers.0.mlp.fc1.weight";
  const std::string config = read_file(out() + "/config.json");
  std::string other = config;
  other.replace(other.find("int8"), 4, "int4");
  write_file_atomic(out() + "/config.json", other);
  EXPECT_THAT(message_of<Error>([&] { load_model(out()); }),
              AllOf(HasSubstr(layer + ".int8: must be int4"), Not(HasSubstr("embedding")), Not(HasSubstr("unexpected"))));
  write_file_atomic(out() + "/config.json", config);
  const SafetensorsFile file(path), before(full() + "/model.safetensors");
  for (const std::string& name : {std::string("embedding"), layer}) {
    std::vector<TensorView> tensors{before.at(name)};
    for (const TensorView& tensor : file.tensors())
      if (tensor.name != name + ".int8" && tensor.name != name + ".scale") tensors.push_back(tensor);
    write_safetensors(path, tensors);
    EXPECT_THAT(message_of<Error>([&] { load_model(out()); }), HasSubstr(name + ": is F32, must be int8"));
  }
}

TEST_F(Quantised, NamesTheTensorThatCannotBeStored) {
  for (const double number : {std::nan(""), HUGE_VAL, -3e38})
    for (const char* name : {"embedding", "layers.0.mlp.fc1.weight"}) {
      make(small_config());
      {
        const torch::NoGradGuard no_grad;
        model_->named_parameters()[name][1][2] = number;
      }
      save_model(*model_, full());
      EXPECT_THAT(message_of<Error>([&] { quantise_model(full(), out(), WeightForm::int4); }),
                  AllOf(HasSubstr("model.safetensors: tensor '" + std::string(name) + "': 1 of "), HasSubstr("not finite or above 1e38")));
    }
}

}  // namespace quantised_test
}  // namespace based
