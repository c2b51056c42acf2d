// Models as their authors published them: the files of the collection, and small ones that are made here.
#include "based/models/published/published.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/published/expected.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/goldens.h"

namespace based {
namespace published_test {

using published::ConfigReader;
using published::Mapping;
using published::SourceTensors;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using torch::Tensor;

void expect_equal_tensors(const std::vector<TensorView>& actual, const std::vector<TensorView>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].name, expected[i].name);
    EXPECT_EQ(actual[i].dtype, expected[i].dtype) << actual[i].name;
    EXPECT_EQ(actual[i].shape, expected[i].shape) << actual[i].name;
    EXPECT_TRUE(std::ranges::equal(actual[i].bytes, expected[i].bytes)) << actual[i].name;
  }
}

class PublishedGolden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { BASED_NEEDS_FILE(source_); }
  std::string source_ = test::golden("checkpoints/" + GetParam());
  TemporaryFolder folder_;
};

TEST_P(PublishedGolden, GivesTheExpectedLogits) {
  PublishedModel(source_).save(folder_.file("ours"), {});
  const SafetensorsFile expected(path_in(source_, "expected.safetensors"));
  EXPECT_EQ(expected_dtype(expected), torch::kFloat64);
  for (const torch::Dtype dtype : {torch::kFloat64, torch::kFloat32}) {
    const LoadedModel model = load_model(folder_.file("ours"), dtype);
    const LogitsDifference result = compare_logits(*model.model, expected);
    EXPECT_TRUE(result.pass) << result.largest << ", tolerance " << result.tolerance;
    EXPECT_LE(result.tolerance, 5e-5);
    {
      const torch::NoGradGuard no_gradients;
      model.model->named_parameters()["layers.1.norm1.weight"][0] *= 1.01;
    }
    EXPECT_FALSE(compare_logits(*model.model, expected).pass);
  }
}

TEST_P(PublishedGolden, ComesBackToTheByte) {
  PublishedModel(source_).save(folder_.file("ours"), {});
  make_folder(folder_.file("theirs"));
  const TorchFile source(path_in(source_, "pytorch_model.bin"));
  const TorchFile back(write_published(folder_.file("ours"), folder_.file("theirs"), PublishedFormat::as_source));
  expect_equal_tensors(back.tensors(), source.tensors());
  EXPECT_EQ(read_file(folder_.file("theirs/config.json")), read_file(path_in(source_, "config.json")));

  make_folder(folder_.file("safetensors"));
  const SafetensorsFile also(write_published(folder_.file("ours"), folder_.file("safetensors"), PublishedFormat::safetensors));
  std::vector<TensorView> sorted;
  sorted.reserve(source.tensors().size());
  for (const TensorView& tensor : source.tensors()) sorted.push_back(also.at(tensor.name));
  expect_equal_tensors(sorted, source.tensors());

  // From there once more.
  PublishedModel(folder_.file("safetensors")).save(folder_.file("again"), {});
  EXPECT_EQ(read_file(folder_.file("again/model.safetensors")), read_file(folder_.file("ours/model.safetensors")));
}

INSTANTIATE_TEST_SUITE_P(Collection, PublishedGolden, testing::Values("based", "based_1b_style", "attn", "mamba"),
                         [](const testing::TestParamInfo<std::string>& name) { return name.param; });

// --- configs and shapes, without weights

// Names and shapes of a config's tensors, by the mapping itself.
std::vector<TensorView> shapes_of(const Mapping& mapping) {
  const ShapesOnly no_memory;
  std::vector<TensorView> tensors;
  const auto parameters = LanguageModel(mapping.config).named_parameters();
  for (const published::MappedName& name : mapping.names) {
    std::vector<int64_t> shape = parameters[name.ours].sizes().vec();
    if (name.is_filter) shape.insert(shape.begin() + 1, 1);
    tensors.push_back({name.theirs, DType::F32, shape, {}});
  }
  return tensors;
}

Mapping map(const Json& json, const std::vector<TensorView>& tensors = {}) {
  ConfigReader config(json, "config.json");
  return published::map_published(config, SourceTensors(tensors, "model.bin"));
}

std::vector<TensorView> listed_tensors(const Json& names) {
  std::vector<TensorView> tensors;
  for (const auto& [name, shape] : names.items()) tensors.push_back({name, DType::F32, shape.get<std::vector<int64_t>>(), {}});
  return tensors;
}

// Our names and shapes of a preset and of a converted config, which differ only as listed.
std::set<std::string> parameters_of(const ModelConfig& config) {
  const ShapesOnly no_memory;
  std::set<std::string> list;
  for (const auto& item : LanguageModel(config).named_parameters()) {
    std::string shape;
    for (const int64_t size : item.value().sizes()) shape += " " + std::to_string(size);
    list.insert(item.key() + shape);
  }
  return list;
}
std::vector<std::string> only_in(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::vector<std::string> list;
  std::ranges::set_difference(a, b, std::back_inserter(list));
  return list;
}

TEST(PublishedShapes, AreThoseOfTheFullSizeModels) {
  const std::string path = test::golden("checkpoints/published_shapes.json");
  BASED_NEEDS_FILE(path);
  const Json models = parse_json(read_file(path), path);
  std::map<std::string, ModelConfig> configs;
  for (const auto& [name, model] : models.items()) {
    if (!model.is_object()) continue;
    SCOPED_TRACE(name);
    const std::vector<TensorView> tensors = listed_tensors(model.at("names"));
    const Mapping mapping = map(model.at("config.json"), tensors);
    EXPECT_EQ(published::disagreements(mapping, SourceTensors(tensors, "model.bin")), "");
    EXPECT_EQ(parameter_count(mapping.config), model.at("parameters_tied_counted_once").get<int64_t>());
    EXPECT_EQ(mapping.config.padded_vocab(), model.at("padded_vocab_size").get<int64_t>());
    configs[name] = mapping.config;
  }
  ASSERT_EQ(configs.size(), 4U);
  EXPECT_EQ(parameters_of(configs["based-1b"]), parameters_of(find_preset("based-1b-50b")));
  EXPECT_EQ(parameters_of(configs["mamba-360m"]), parameters_of(find_preset("mamba-360m")));
  // The paper's presets have a bias in each convolution, and pad attention's vocabulary to a multiple of 8 instead of 16.
  const auto based = parameters_of(configs["based-360m"]), preset = parameters_of(find_preset("based-360m"));
  EXPECT_EQ(only_in(based, preset), std::vector<std::string>());
  const std::vector<std::string> biases = only_in(preset, based);
  EXPECT_EQ(biases.size(), 17U);
  for (const std::string& bias : biases) EXPECT_THAT(bias, HasSubstr("mixer.conv.bias 2048"));
  EXPECT_EQ(only_in(parameters_of(configs["attn-360m"]), parameters_of(find_preset("attn-360m"))),
            std::vector<std::string>{"embedding 50272 1024"});
}

Json gpt_config() {
  return parse_json(R"({"vocab_size": 50, "n_positions": 0, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_inner": null,
      "activation_function": "swiglu", "rms_norm": true, "mlp_fc1_bias": false, "mlp_fc2_bias": false, "qkv_proj_bias": false,
      "out_proj_bias": false, "rotary_emb_fraction": 0.5, "pad_vocab_size_multiple": 8, "layer_norm_epsilon": 1e-5})",
                    "config");
}
Json based_config() {
  Json config = gpt_config();
  config.update(parse_json(R"({"mixer": {"_target_": "x.BaseConv", "expand_proj": 4, "kernel_sizes": 3},
      "alt_mixer": {"_target_": "x.linear_attn.LinearAttention", "feature_dim": 4, "num_heads": 2,
                    "feature_map": {"_target_": "x.TaylorExp", "input_dim": 4}},
      "alt_mixer_2": {"_target_": "x.SlidingAttention", "window_size": 9}, "alt_mixer_layers": [1], "alt_mixer_2_layers": [2]})",
                           "config"));
  return config;
}
Json mamba_config() { return parse_json(R"({"d_model": 16, "n_layer": 2, "vocab_size": 50, "ssm_cfg": {}})", "config"); }

// An option of a mixer of the mapped config as JSON text.
std::string option(const Mapping& mapping, const std::string& mixer, const std::string& key) {
  return mapping.config.mixers.at(mixer).find(key)->to_json(-1);
}

TEST(PublishedConfig, GivesTheOptionsOfTheMixers) {
  const Mapping based = map(based_config());
  EXPECT_EQ(based.family, "based");
  EXPECT_EQ(based.config.layers, (std::vector<std::string>{"conv", "linear", "window"}));
  EXPECT_EQ(option(based, "window", "window"), "5") << "the token itself and 9/2 before it";
  EXPECT_EQ(option(based, "window", "rotary_dim"), "4");
  EXPECT_EQ(option(based, "conv", "taps"), "3") << "the class knows kernel_size, not kernel_sizes";
  EXPECT_EQ(based.config.mlp_width, 256);
  EXPECT_EQ(based.config.padded_vocab(), 56);

  Json config = gpt_config();
  config.update({{"rotary_emb_fraction", 0.25}, {"n_head_kv", 1}, {"qkv_proj_bias", true}, {"rms_norm", false}, {"n_positions", 20}});
  const Mapping attention = map(config);
  EXPECT_EQ(attention.family, "attention");
  EXPECT_EQ(option(attention, "attention", "rotary_dim"), "2");
  EXPECT_EQ(option(attention, "attention", "kv_heads"), "1");
  EXPECT_EQ(option(attention, "attention", "qkv_bias"), "true");
  EXPECT_EQ(attention.config.norm, "layer_norm");
  EXPECT_EQ(attention.config.max_positions, 20);

  Json state_space = mamba_config();
  state_space["ssm_cfg"] = {{"d_state", 8}, {"dt_rank", "auto"}};
  EXPECT_EQ(option(map(state_space), "mamba", "d_state"), "8");
  EXPECT_EQ(map(state_space).config.mlp, "none");
  state_space["ssm_cfg"] = {{"layer", "Mamba2"}, {"headdim", 8}, {"d_state", 4}};
  const Mapping mamba2 = map(state_space);
  EXPECT_EQ(mamba2.family, "mamba2");
  EXPECT_EQ(option(mamba2, "mamba2", "headdim"), "8");
  EXPECT_EQ(published::disagreements(mamba2, SourceTensors(shapes_of(mamba2), "x")), "");
}

TEST(PublishedConfig, NamesTheKeyThatCannotBeExpressed) {
  struct Case {
    Json config;
    std::string patch, message;
  };
  const std::vector<Case> cases{
      {gpt_config(), R"({"activation_function": "geglu"})", "'activation_function' is \"geglu\": the MLPs of this library"},
      {gpt_config(), R"({"mlp_fc1_bias": true})", "'mlp_fc1_bias' is true: a gated MLP"},
      {gpt_config(), R"({"scale_attn_by_inverse_layer_idx": true})", "'scale_attn_by_inverse_layer_idx' is true"},
      {gpt_config(), R"({"rotary_emb_fraction": 0.2})", "'rotary_emb_fraction' is 0.2: it rotates 1 of 8"},
      {gpt_config(), R"({"rotary_emb_scale_base": 512})", "'rotary_emb_scale_base' is 512"},
      {gpt_config(), R"({"n_head": 3})", "'n_head' is 3: it does not divide"},
      {gpt_config(), R"({"n_layer": 2000000000})", "'n_layer' is 2000000000: a model has at most 1024 layers"},
      {gpt_config(), R"({"parallel_block": true})", "'parallel_block' is true"},
      {gpt_config(), R"({"vocab_size": "x"})", "'vocab_size' is \"x\": it must be an integer"},
      {based_config(), R"({"mixer": {"_target_": "x.Hyena"}})", "'mixer._target_' is \"x.Hyena\": BaseConv, LinearAttention"},
      {based_config(), R"({"alt_mixer": {"_target_": "x.LinearAttention", "feature_map": {"_target_": "x.PosELU"}}})",
       "'alt_mixer.feature_map._target_' is \"x.PosELU\": only TaylorExp"},
      {based_config(), R"({"alt_mixer": {"_target_": "x.LinearAttention", "parallel_implementation": "tk"}})",
       "'alt_mixer.parallel_implementation' is \"tk\""},
      {based_config(), R"({"alt_mixer_2": {"_target_": "x.SlidingAttention"}})", "needs 'alt_mixer_2.window_size'"},
      {mamba_config(), R"({"attn_layer_idx": [1]})", "'attn_layer_idx' is [1]"},
      {mamba_config(), R"({"ssm_cfg": {"layer": "Mamba3"}})", "'ssm_cfg.layer' is \"Mamba3\""},
      {mamba_config(), R"({"ssm_cfg": {"layer": "Mamba2", "rmsnorm": false}})", "'ssm_cfg.rmsnorm' is false"},
      {mamba_config(), R"({"tie_embeddings": false})", "'tie_embeddings' is false"},
      {mamba_config(), R"({"ssm_cfg": 3})", "'ssm_cfg' must be an object"},
      {Json::object(), R"({"hidden_size": 16})", "is no config of Based and attention"},
  };
  for (const Case& bad : cases) {
    Json config = bad.config;
    config.update(parse_json(bad.patch, "patch"));
    EXPECT_THAT(message_of<Error>([&] { map(config); }), HasSubstr(bad.message)) << bad.patch;
  }
}

// This library's checks name its own fields. The message also names the file and the published key.
TEST(PublishedConfig, NamesTheKeyThatAFieldIsMadeOf) {
  struct Case {
    Json config;
    std::string patch, key;
  };
  const std::vector<Case> cases{
      {gpt_config(), R"({"vocab_size": 2147483647})", "vocab_size"},
      {gpt_config(), R"({"n_inner": 2147483647})", "n_inner"},
      {gpt_config(), R"({"pad_vocab_size_multiple": 2147483647})", "pad_vocab_size_multiple"},
      {gpt_config(), R"({"layer_norm_epsilon": -1})", "layer_norm_epsilon"},
      {gpt_config(), R"({"n_positions": -5})", "n_positions"},
      {gpt_config(), R"({"rotary_emb_base": 0})", "rotary_emb_base"},
      {gpt_config(), R"({"n_head_kv": 3})", "n_head_kv"},
      {gpt_config(), R"({"n_embd": 131072})", "n_embd"},
      {based_config(), R"({"mixer": {"_target_": "x.BaseConv", "expand_proj": 2147483647}})", "mixer.expand_proj"},
      {based_config(), R"({"mixer": {"_target_": "x.BaseConv", "kernel_size": 2147483647}})", "mixer.kernel_size"},
      {based_config(), R"({"alt_mixer": {"_target_": "x.LinearAttention", "num_heads": 1000000}})", "alt_mixer.num_heads"},
      {mamba_config(), R"({"d_model": 2147483647})", "d_model"},
      {mamba_config(), R"({"norm_epsilon": 2})", "norm_epsilon"},
      {mamba_config(), R"({"d_intermediate": 2147483000})", "d_intermediate"},
      {mamba_config(), R"({"ssm_cfg": {"d_state": 2147483647}})", "ssm_cfg.d_state"},
      {mamba_config(), R"({"ssm_cfg": {"dt_rank": -1}})", "ssm_cfg.dt_rank"},
      {mamba_config(), R"({"ssm_cfg": {"expand": 100000}})", "ssm_cfg.expand"},
      {mamba_config(), R"({"ssm_cfg": {"d_conv": 1000}})", "ssm_cfg.d_conv"},
      {mamba_config(), R"({"ssm_cfg": {"layer": "Mamba2", "headdim": 7}})", "ssm_cfg.headdim"},
  };
  for (const Case& bad : cases) {
    Json config = bad.config;
    config.update(parse_json(bad.patch, "patch"));
    EXPECT_THAT(message_of<Error>([&] { map(config); }),
                AllOf(StartsWith("config.json: "), HasSubstr("; made of "), HasSubstr("'" + bad.key + "'")))
        << bad.patch;
  }
  Json config = gpt_config();
  for (const double fraction : {1e308, -0.5, 1.25}) {
    config["rotary_emb_fraction"] = fraction;
    EXPECT_THAT(message_of<Error>([&] { map(config); }), AllOf(HasSubstr("'rotary_emb_fraction' is "), HasSubstr("it must be 0 to 1")));
  }
}

TEST(PublishedNames, SayWhichPrefixIsTooMuch) {
  const Mapping mapping = map(gpt_config());
  std::vector<TensorView> tensors = shapes_of(mapping);
  for (TensorView& tensor : tensors) tensor.name = "model.module." + tensor.name;
  EXPECT_THAT(published::disagreements(mapping, SourceTensors(tensors, "x")),
              HasSubstr("\n  the names begin with 'module.', which the authors' do not"));
}

TEST(PublishedConfig, SaysWhatHasNoEffect) {
  Json config = based_config();
  config.update({{"brand_new", 3}, {"fixed_decay", true}, {"decay_const", -3}});
  config["alt_mixer"]["brand_new"] = 4;
  config["alt_mixer"]["eps"] = 1e-6;
  const std::vector<std::string> warnings = map(config).warnings;
  EXPECT_THAT(warnings, Contains("'brand_new' is unknown and has no effect"));
  EXPECT_THAT(warnings, Contains("'alt_mixer.brand_new' is unknown and has no effect"));
  EXPECT_THAT(warnings, Contains(HasSubstr("'fixed_decay' is true")));
  EXPECT_THAT(warnings, Contains(HasSubstr("'alt_mixer.eps' is 1e-06")));
  EXPECT_TRUE(map(gpt_config()).warnings.empty());
}

TEST(PublishedNames, AreListedAllTogether) {
  Json json = based_config();
  json["fixed_decay"] = true;
  const Mapping mapping = map(json);
  std::vector<TensorView> tensors = shapes_of(mapping);
  const auto faults = [&] { return published::disagreements(mapping, SourceTensors(tensors, "x")); };
  EXPECT_EQ(faults(), "") << "the head may be missing: it is the embedding";
  tensors.push_back({"lm_head.weight", DType::F32, {56, 16}, {}});
  tensors.push_back({"transformer.decay.decay", DType::F32, {2}, {}});
  tensors.push_back({"train_metrics.num-tokens.count", DType::I64, {}, {}});
  EXPECT_EQ(faults(), "");
  for (TensorView& tensor : tensors) tensor.name = "model." + tensor.name;
  EXPECT_EQ(faults(), "") << "the prefix of the trainer";
  tensors.erase(tensors.begin() + 1);
  tensors[1].shape = {3};
  tensors[2].dtype = DType::I64;
  tensors.push_back({"model.transformer.extra", DType::F32, {2}, {}});
  const std::string list = faults();
  for (const char* line :
       {"\n  missing: ", ": shape [3], expected [", ": type I64 is no floating-point type", "\n  unexpected: transformer.extra [2]"})
    EXPECT_THAT(list, HasSubstr(line));
  EXPECT_EQ(std::ranges::count(list, '\n'), 4);
  tensors.push_back({"transformer.extra", DType::F32, {2}, {}});
  EXPECT_THAT(message_of<Error>(faults), HasSubstr("'transformer.extra' occurs twice, with and without the prefix 'model.'"));
}

// --- folders that are made here

class MadePublished : public testing::Test {
 protected:
  // Writes a folder of this config with drawn weights; `edit` may change the tensors before.
  std::string write(const Json& config, const std::function<void(std::map<std::string, Tensor>&)>& edit = {}) {
    const std::string folder = folder_.file("made" + std::to_string(made_++));
    make_folder(folder);
    write_file_atomic(path_in(folder, "config.json"), dump_json(config));
    std::map<std::string, Tensor> tensors;
    torch::manual_seed(1);
    for (const TensorView& view : shapes_of(map(config))) tensors[view.name] = torch::randn(view.shape) * 0.1;
    if (edit) edit(tensors);
    std::vector<TensorView> views;
    views.reserve(tensors.size());
    for (const auto& [name, tensor] : tensors) views.push_back(view_of(name, tensor));
    write_torch_file(path_in(folder, "pytorch_model.bin"), views);
    return folder;
  }
  TemporaryFolder folder_;
  int made_ = 0;
};

TEST_F(MadePublished, OfEveryFamilyComesBack) {
  Json gelu = gpt_config();
  gelu.update({{"activation_function", "gelu"}, {"mlp_fc1_bias", true}, {"mlp_fc2_bias", true}, {"rms_norm", false}, {"n_positions", 8}});
  Json mamba2 = mamba_config();
  mamba2["ssm_cfg"] = {{"layer", "Mamba2"}, {"headdim", 8}, {"d_state", 4}, {"ngroups", 2}};
  mamba2["d_intermediate"] = 100;
  for (const Json& config : {based_config(), gpt_config(), gelu, mamba_config(), mamba2}) {
    const std::string source = write(config), ours = folder_.file("ours" + std::to_string(made_)), theirs = ours + "back";
    PublishedModel(source).save(ours, {});
    make_folder(theirs);
    expect_equal_tensors(TorchFile(write_published(ours, theirs, PublishedFormat::as_source)).tensors(),
                         TorchFile(path_in(source, "pytorch_model.bin")).tensors());
    const LoadedModel loaded = load_model(ours);
    const Tensor ids = torch::arange(8),
                 direct = PublishedModel(source).load(torch::kFloat32)->forward(ids, Sequences::equal(1, 8, torch::kCPU));
    EXPECT_TRUE(torch::equal(loaded.model->forward(ids, Sequences::equal(1, 8, torch::kCPU)), direct));
  }
}

TEST_F(MadePublished, KeepsThePrefixTheCountersAndOldNames) {
  const std::string source = write(based_config(), [](std::map<std::string, Tensor>& tensors) {
    std::map<std::string, Tensor> renamed;
    for (const auto& [name, tensor] : tensors) {
      std::string other = "model." + name;
      if (const size_t at = other.find("mixer.conv.conv"); at != std::string::npos) other.replace(at, 15, "mixer.conv1.conv");
      renamed[other] = tensor;
    }
    renamed["val_metrics.num-tokens.count"] = torch::tensor(7);
    renamed["model.lm_head.weight"] = renamed["model.transformer.embeddings.word_embeddings.weight"].clone();
    tensors = renamed;
  });
  const PublishedModel model(source);
  EXPECT_EQ(model.dropped(), 1U);
  model.save(folder_.file("ours"), {});
  make_folder(folder_.file("back"));
  expect_equal_tensors(TorchFile(write_published(folder_.file("ours"), folder_.file("back"), PublishedFormat::torch)).tensors(),
                       TorchFile(path_in(source, "pytorch_model.bin")).tensors());
}

TEST_F(MadePublished, MustHaveATiedHead) {
  const std::string source = write(gpt_config(), [](std::map<std::string, Tensor>& tensors) {
    tensors["lm_head.weight"] = tensors["transformer.embeddings.word_embeddings.weight"] + 1;
  });
  EXPECT_THAT(message_of<Error>([&] { PublishedModel{source}; }),
              HasSubstr("pytorch_model.bin: does not fit " + source + "/config.json:\n  lm_head.weight: differs from"));
}

// A tokenizer with fewer tokens than 'vocab_size' makes the further rows padding: the embedding keeps its rows.
TEST_F(MadePublished, FitsTheVocabularyToATokenizer) {
  PublishedModel model(write(gpt_config()));
  EXPECT_EQ(model.config().padded_vocab(), 56);
  model.fit_vocabulary(43);
  EXPECT_EQ(model.config().vocab_size, 43);
  EXPECT_EQ(model.config().padded_vocab(), 56);
  model.save(folder_.file("ours"), 7);
  EXPECT_EQ(read_model_files(folder_.file("ours")).config.vocab_size, 43);
  EXPECT_THAT(message_of<Error>([&] { model.fit_vocabulary(44); }), HasSubstr("the tokenizer has 44 tokens"));
}

TEST_F(MadePublished, RefusesIncompleteFolders) {
  const auto error = [](const std::string& folder) { return message_of<Error>([&] { PublishedModel{folder}; }); };
  EXPECT_THAT(error(folder_.file("none")), HasSubstr("none: is no folder; name the folder with config.json"));
  const std::string source = write(gpt_config());
  write_file_atomic(path_in(source, "model.safetensors"), "x");
  EXPECT_THAT(error(source), HasSubstr("holds both pytorch_model.bin and model.safetensors"));
  write_file_atomic(path_in(source, "model.safetensors.index.json"), "{}");
  EXPECT_THAT(error(source), HasSubstr("index.json: weights in several files are not converted; in Python, load the files"));
  const auto back_error = [&](const std::string& folder) {
    return message_of<Error>([&] { write_published(folder, folder_.file("x"), PublishedFormat::as_source); });
  };
  EXPECT_THAT(back_error(source), HasSubstr("holds no source.safetensors"));
}

TEST_F(MadePublished, ComparesLogitsByTheFilesTolerance) {
  const auto model = PublishedModel(write(gpt_config())).load(torch::kFloat64);
  const Tensor ids = torch::arange(12).view({2, 6});
  const torch::NoGradGuard no_gradients;
  Tensor logits = model->logits(model->forward(ids.flatten(), Sequences::equal(2, 6, torch::kCPU))).view({2, 6, 56}).contiguous();
  const auto compare = [&](const Tensor& some_ids, const Tensor& some_logits, const std::map<std::string, std::string>& metadata) {
    write_safetensors(folder_.file("e.safetensors"), {view_of("ids", some_ids), view_of("logits", some_logits)}, metadata);
    return compare_logits(*model, SafetensorsFile(folder_.file("e.safetensors")));
  };
  EXPECT_TRUE(compare(ids, logits, {}).pass);
  EXPECT_EQ(compare(ids, logits, {}).tolerance, 1e-11);
  EXPECT_TRUE(compare(ids, logits.narrow(2, 0, 50).contiguous(), {}).pass) << "without the padding";
  logits[1][5][55] += 1e-6 * logits.abs().max().item<double>();
  EXPECT_FALSE(compare(ids, logits, {}).pass);
  EXPECT_NEAR(compare(ids, logits, {}).largest, 1e-6, 1e-8);
  EXPECT_TRUE(compare(ids, logits, {{"tolerance", "1e-5 in float64"}}).pass);
  logits[0][0][0] = NAN;
  EXPECT_FALSE(compare(ids, logits, {{"tolerance", "1e-5 in float64"}}).pass);
  EXPECT_THAT(message_of<Error>([&] { compare(ids + 50, logits, {}); }), HasSubstr("'ids' must be 0 to 55"));
  EXPECT_THAT(message_of<Error>([&] { compare(ids, logits.narrow(2, 0, 9).contiguous(), {}); }),
              HasSubstr("'logits' must be [rows, tokens, 56]"));
}

}  // namespace published_test
}  // namespace based
