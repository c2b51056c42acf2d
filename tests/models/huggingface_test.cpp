// Folders for transformers, and the way back. python/tests/test_hf.py loads such a folder.
#include "based/models/huggingface/huggingface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/json.h"
#include "based/models/quantised.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace huggingface_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kTokenizer = 0x0123456789abcdef;

ModelConfig small() {
  ModelConfig config;
  config.d_model = 32;
  config.vocab_size = 30;
  config.max_positions = 12;
  config.mlp_width = 32;
  config.norm_eps = 3e-6;
  config.layers = {"gated_conv", "narrow"};
  config.mixers["narrow"] = Config::parse_json(R"({"type": "taylor_attention", "heads": 2, "feature_dim": 4})", "test");
  return config;
}

class HuggingFace : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"hf", "back"}) make_folder(folder_.file(name));
  }
  void save(const ModelConfig& config, torch::Dtype dtype = torch::kFloat) {
    const auto model = make_model(config, 3);
    model->to(dtype);
    save_model(*model, folder_.file("ours"), kTokenizer);
  }
  void convert() { write_huggingface_model(folder_.file("ours"), folder_.file("hf"), 29); }
  std::string file(const std::string& name) const { return folder_.file(name); }
  Json config() const { return parse_json(read_file(file("hf/config.json")), "config"); }
  void store_config(const Json& json) const { write_file_atomic(file("hf/config.json"), dump_json(json)); }
  std::string refusal() const {
    return message_of<Error>([&] { read_huggingface_model(file("hf"), file("back"), {}); });
  }

  TemporaryFolder folder_;
};

TEST_F(HuggingFace, BothFilesComeBackByteByByte) {
  for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
    save(small(), dtype);
    convert();
    EXPECT_TRUE(is_huggingface_model(file("hf")));
    EXPECT_FALSE(is_huggingface_model(file("ours")));
    EXPECT_EQ(read_huggingface_model(file("hf"), file("back"), {}).norm_eps, 3e-6);
    for (const char* name : {"config.json", "model.safetensors"})
      EXPECT_EQ(read_file(file(std::string("back/") + name)), read_file(file(std::string("ours/") + name))) << name;
  }
}

TEST_F(HuggingFace, TheConfigTellsTransformersWhatItReads) {
  save(small(), torch::kBFloat16);
  convert();
  const Json json = config();
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  EXPECT_EQ(json["architectures"], Json::array({"BasedForCausalLM"}));
  EXPECT_EQ(json["auto_map"]["AutoModelForCausalLM"], "modeling_based.BasedForCausalLM");
  EXPECT_EQ(json["vocab_size"], 30);
  EXPECT_EQ(json["max_position_embeddings"], 12);
  EXPECT_EQ(json["eos_token_id"], 29);
  EXPECT_THAT(read_file(file("hf/modeling_based.py")), HasSubstr("class BasedForCausalLM("));
  EXPECT_THAT(read_file(file("hf/configuration_based.py")), HasSubstr("class BasedConfig("));
  const SafetensorsFile weights(file("hf/model.safetensors"));
  EXPECT_EQ(weights.metadata_at("format"), "pt");  // transformers refuses files without it
  EXPECT_EQ(weights.at("embedding.weight").shape, (std::vector<int64_t>{32, 32}));
  EXPECT_NE(weights.find("position_embedding.weight"), nullptr);
  EXPECT_NE(weights.find("layers.1.mixer.q_proj.weight"), nullptr);
}

// save_pretrained keeps unknown keys of the config, but not the metadata of the weights.
TEST_F(HuggingFace, TheHashOfTheTokenizerIsInTheConfig) {
  save(small());
  convert();
  read_huggingface_model(file("hf"), file("back"), 5);
  EXPECT_EQ(read_model_files(file("back")).tokenizer, "0123456789abcdef");
  Json json = config();
  json.erase("tokenizer_hash");
  store_config(json);
  read_huggingface_model(file("hf"), file("back"), 5);
  EXPECT_EQ(read_model_files(file("back")).tokenizer, "0000000000000005");
}

TEST_F(HuggingFace, ModelsThatHaveNoPythonModulesAreRefused) {
  ModelConfig config = small();
  config.layers = {"gated_conv", "many"};
  config.mixers["many"] = Config::parse_json(R"({"type": "bigbird"})", "test");
  save(config);
  EXPECT_THAT(message_of<UsageError>([&] { convert(); }), HasSubstr("layer 1 has the mixer 'bigbird'"));
  save(small());
  quantise_model(file("ours"), file("quantised"), ops::WeightForm::int8);
  EXPECT_THAT(message_of<UsageError>([&] { write_huggingface_model(file("quantised"), file("hf"), {}); }), HasSubstr("int8"));
  EXPECT_FALSE(path_exists(file("hf/config.json")));
}

// The words that match the expression in the part of `text` between `begin` and `end`.
std::set<std::string> words_between(const std::string& text, const std::string& begin, const std::string& end, const char* expression) {
  const size_t first = text.find(begin), last = text.find(end, first);
  EXPECT_TRUE(first != std::string::npos && last != std::string::npos) << begin;
  if (first == std::string::npos || last == std::string::npos) return {};
  const std::string part = text.substr(first + begin.size(), last - first - begin.size());
  const std::regex pattern(expression);
  std::set<std::string> words;
  for (std::sregex_iterator match(part.begin(), part.end(), pattern); match != std::sregex_iterator(); ++match) words.insert((*match)[1]);
  return words;
}

TEST_F(HuggingFace, TheConvertedMixersAreThoseOfThePythonPackageAndOfTheDocument) {
  ModelConfig config = small();
  config.layers = {"bigbird"};
  save(config);
  const std::string refused = message_of<UsageError>([&] { convert(); }) + "\n", root = BASED_SOURCE_DIR;
  const std::set<std::string> converted = words_between(refused, "it has ", "\n", "([a-z0-9_]+)");
  EXPECT_THAT(converted, Contains("taylor_attention"));
  EXPECT_EQ(words_between(read_file(root + "/python/based_cpp/nn/__init__.py"), "\nMIXERS", "\n}", "\"(\\w+)\":"), converted);
  EXPECT_EQ(words_between(read_file(root + "/docs/huggingface.md"), "The mixers with a Python module are", ".", "`(\\w+)`"), converted);
}

TEST_F(HuggingFace, AllTensorsThatDoNotFitAreListed) {
  save(small());
  convert();
  const SafetensorsFile weights(file("hf/model.safetensors"));
  const torch::Tensor integers = torch::zeros({32}, torch::kInt64);
  std::vector<TensorView> changed;
  for (TensorView tensor : weights.tensors()) {
    if (tensor.name == "norm.weight") continue;
    if (tensor.name == "embedding.weight") tensor.shape = {16, 64};
    if (tensor.name == "layers.0.norm1.weight") tensor = view_of(tensor.name, integers);
    changed.push_back(tensor);
  }
  changed.push_back(view_of("lm_head.weight", integers));
  write_safetensors(file("hf/model.safetensors"), changed);
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("hf/model.safetensors: does not fit "), HasSubstr("norm.weight: missing"),
                    HasSubstr("embedding.weight: shape [16,64], the model's is [32,32]"), HasSubstr("lm_head.weight: unexpected"),
                    HasSubstr("layers.0.norm1.weight: type I64"), Not(HasSubstr("q_proj"))));
}

TEST_F(HuggingFace, WrongFoldersAreRefused) {
  save(small());
  convert();
  const Json whole = config();
  Json json = whole;
  json.erase("based");
  store_config(json);
  EXPECT_THAT(refusal(), HasSubstr("has no table 'based'"));
  json = whole;
  json["based"]["norm"] = "batch_norm";
  store_config(json);
  EXPECT_THAT(refusal(), HasSubstr("batch_norm"));
  json = whole;
  json["tokenizer_hash"] = 7;
  store_config(json);
  EXPECT_THAT(refusal(), HasSubstr("tokenizer_hash must be a string"));
  store_config(whole);
  write_file_atomic(file("hf/model.safetensors.index.json"), "{}");
  EXPECT_THAT(refusal(), HasSubstr("weights in several files are not converted"));
  EXPECT_FALSE(path_exists(file("back/config.json")));
}

}  // namespace huggingface_test
}  // namespace based
