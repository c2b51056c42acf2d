// A model's folder that does not fit is refused as a whole, with a list of all faults.
#include "based/models/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/models/tensor_view.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace weights_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ModelConfig tiny() {
  ModelConfig config;
  config.d_model = 8;
  config.vocab_size = 16;
  config.mlp = "none";
  config.layers = {"gated_conv"};
  return config;
}

class Weights : public testing::Test {
 protected:
  Weights() : model_(tiny()) {
    save_model(model_, folder_.path());
    for (const auto& item : model_.named_parameters()) tensors_.emplace_back(item.key(), item.value().detach().contiguous());
  }
  void store() {
    std::vector<TensorView> views;
    for (const auto& [name, tensor] : tensors_) views.push_back(view_of(name, tensor));
    write_safetensors(folder_.file("model.safetensors"), views);
  }
  std::string refusal() {
    store();
    return message_of<Error>([&] { load_model(folder_.path()); });
  }

  TemporaryFolder folder_;
  LanguageModel model_;
  std::vector<std::pair<std::string, torch::Tensor>> tensors_;
};

TEST_F(Weights, ComeBackAsTheyWere) {
  const LoadedModel loaded = load_model(folder_.path());
  const auto wanted = model_.named_parameters();
  for (const auto& item : loaded.model->named_parameters()) EXPECT_TRUE(torch::equal(item.value(), wanted[item.key()])) << item.key();
}

TEST_F(Weights, AllThatDoesNotFitIsListed) {
  ASSERT_GE(tensors_.size(), 3u);
  const auto [missing, was] = tensors_[0];
  tensors_[0] = {"stranger", torch::zeros({3})};
  auto& [misshapen, tensor] = tensors_[1];
  tensor = torch::zeros({5, 7});
  auto& [typed, integers] = tensors_[2];
  integers = torch::zeros(integers.sizes(), torch::kInt64);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model.safetensors: does not fit"), HasSubstr("missing: " + missing + " ["),
                               HasSubstr("unexpected: stranger [3]"), HasSubstr(misshapen + ": shape [5, 7], the model's is ["),
                               HasSubstr(typed + ": type I64 is no floating-point type")));
}

TEST_F(Weights, MixedTypesNeedAWord) {
  tensors_[0].second = tensors_[0].second.to(torch::kBFloat16);
  EXPECT_THAT(refusal(), HasSubstr("give --dtype to convert them"));
  EXPECT_EQ(load_model(folder_.path(), torch::kFloat).model->named_parameters().begin()->value().scalar_type(), torch::kFloat);
}

// No operator computes in fp16.
TEST_F(Weights, OfHalfPrecisionRunInFp32) {
  for (auto& [name, tensor] : tensors_) tensor = tensor.to(torch::kHalf);
  store();
  EXPECT_EQ(read_model_files(folder_.path()).dtype, torch::kHalf);
  const LoadedModel loaded = load_model(folder_.path());
  EXPECT_EQ(loaded.model->dtype(), torch::kFloat);
  for (const auto& [name, tensor] : tensors_)
    EXPECT_TRUE(torch::equal(loaded.model->named_parameters()[name], tensor.to(torch::kFloat))) << name;
  EXPECT_EQ(load_model(folder_.path(), torch::kBFloat16).model->dtype(), torch::kBFloat16);
}

TEST_F(Weights, OfOtherProgramsAreConvertedFirst) {
  for (const char* config : {R"({"n_embd": 8, "n_layer": 1, "mixer": {}})", R"({"d_model": 8, "n_layer": 1, "ssm_cfg": {}})"}) {
    write_file_atomic(folder_.file("config.json"), config);
    EXPECT_THAT(message_of<Error>([&] { load_model(folder_.path()); }),
                AllOf(HasSubstr("config.json: is of a model as its authors published it"), HasSubstr("`based convert")));
  }
}

TEST_F(Weights, ThatAreAPointerSaySo) {
  write_file_atomic(folder_.file("model.safetensors"), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n");
  EXPECT_THAT(message_of<Error>([&] { load_model(folder_.path()); }), HasSubstr("model.safetensors: is a pointer of Git LFS"));
}

TEST_F(Weights, RecordTheirTokenizer) {
  EXPECT_EQ(read_model_files(folder_.path()).tokenizer, std::nullopt);
  save_model(model_, folder_.path(), 0xabc);
  EXPECT_EQ(read_model_files(folder_.path()).tokenizer, "0000000000000abc");
  const std::string hash = load_model(folder_.path()).hash;
  save_model(model_, folder_.path(), 0xdef);
  EXPECT_NE(load_model(folder_.path()).hash, hash);
}

// H3's poles stay in fp32 in a bf16 model. Files of earlier versions store them in bf16.
TEST_F(Weights, ThoseThatStayWideMayHaveTheirOwnTypeAndNoOthers) {
  ModelConfig config = tiny();
  config.layers = {"h3"};
  LanguageModel model(config);
  model.to(torch::kBFloat16);
  save_model(model, folder_.path());
  const auto is_wide = [](const std::string& name) { return name.find(".diagonal.") != std::string::npos; };
  {
    const SafetensorsFile file(folder_.file("model.safetensors"));
    for (const auto& view : file.tensors()) EXPECT_EQ(view.dtype, is_wide(std::string(view.name)) ? DType::F32 : DType::BF16) << view.name;
  }
  EXPECT_EQ(read_model_files(folder_.path()).dtype, torch::kBFloat16);
  const auto expect_loaded = [&](const auto& values_of) {
    const LoadedModel loaded = load_model(folder_.path());
    EXPECT_EQ(loaded.model->dtype(), torch::kBFloat16);
    for (const auto& item : model.named_parameters()) {
      const torch::Tensor found = loaded.model->named_parameters()[item.key()];
      EXPECT_EQ(found.scalar_type(), is_wide(item.key()) ? torch::kFloat : torch::kBFloat16) << item.key();
      EXPECT_TRUE(found.equal(values_of(item.value()))) << item.key();
    }
  };
  expect_loaded([](const torch::Tensor& value) { return value; });

  const auto store_with = [&](const auto& type_of) {
    tensors_.clear();
    for (const auto& item : model.named_parameters())
      tensors_.emplace_back(item.key(), item.value().detach().to(type_of(item.key())).contiguous());
    store();
  };
  store_with([](const std::string&) { return torch::kBFloat16; });
  expect_loaded([](const torch::Tensor& value) { return value.to(torch::kBFloat16).to(value.scalar_type()); });

  const auto refused = [&](const std::string& name) {
    EXPECT_THAT(message_of<Error>([&] { load_model(folder_.path()); }),
                AllOf(HasSubstr("tensor '" + name + "' has type "), HasSubstr("give --dtype to convert them")));
  };
  store_with([&](const std::string& name) { return name == "norm.weight" || is_wide(name) ? torch::kFloat : torch::kBFloat16; });
  refused("norm.weight");
  store_with([&](const std::string& name) { return name == "layers.0.mixer.diagonal.D" ? torch::kDouble : torch::kBFloat16; });
  refused("layers.0.mixer.diagonal.D");
  store_with([&](const std::string& name) { return name == "layers.0.mixer.diagonal.D" ? torch::kBFloat16 : torch::kFloat; });
  refused("layers.0.mixer.diagonal.D");
}

// The config is compared with the file before the model's memory is allocated.
TEST_F(Weights, AConfigOfAHugeModelIsRefusedWithoutItsMemory) {
  Config config = write_config(tiny());
  config.set("d_model", Config(int64_t{1} << 16));
  config.set("vocab_size", Config(int64_t{1} << 24));
  config.set("layers", Config(Config::Array(1024, Config(std::string("gated_conv")))));
  write_file_atomic(folder_.file("config.json"), config.to_json());
  EXPECT_THAT(message_of<Error>([&] { load_model(folder_.path()); }),
              HasSubstr("embedding: shape [16, 8], the model's is [16777216, 65536]"));
}

TEST_F(Weights, MorePositionsThanLearntAreNamed) {
  ModelConfig config = tiny();
  config.max_positions = 4;
  LanguageModel model(config);
  EXPECT_NO_THROW(model.forward(torch::zeros({8}, torch::kInt64), Sequences::equal(2, 4)));
  EXPECT_THAT(message_of<Error>([&] { model.forward(torch::zeros({5}, torch::kInt64), Sequences::equal(1, 5)); }),
              HasSubstr("max_positions"));
}

TEST_F(Weights, AConfigOutOfBoundsIsRefusedBeforeMemoryIsAsked) {
  for (const char* key : {"d_model", "vocab_size", "max_positions", "mlp_width"}) {
    Config config = write_config(tiny());
    config.set(key, Config(int64_t{1} << 40));
    write_file_atomic(folder_.file("config.json"), config.to_json());
    EXPECT_THAT(message_of<Error>([&] { load_model(folder_.path()); }), AllOf(HasSubstr(key), HasSubstr("1099511627776"))) << key;
  }
  const std::vector<std::pair<const char*, const char*>> options = {
      {"taylor_attention", "heads"}, {"taylor_attention", "feature_dim"}, {"taylor_attention", "head_dim"}, {"attention", "heads"},
      {"sliding_window", "window"},  {"gated_conv", "expansion"},         {"gated_conv", "taps"},           {"base_conv", "kernel_size"}};
  for (const auto& [mixer, option] : options) {
    ModelConfig config = tiny();
    config.layers = {"x"};
    Config& table = config.mixers["x"] = Config(Config::Table{});
    table.set("type", Config(std::string(mixer)));
    table.set(option, Config(int64_t{1} << 40));
    EXPECT_THAT(message_of<Error>([&] { LanguageModel{config}; }),
                AllOf(HasSubstr(option), HasSubstr("1099511627776"), Not(HasSubstr("unknown key"))));
  }
}

}  // namespace weights_test
}  // namespace based
