#include "based/models/huggingface/huggingface.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/json.h"
#include "based/core/text.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/huggingface/python_files.h"
#include "based/models/language_model.h"
#include "based/models/weights.h"

namespace based {
namespace {

constexpr const char* kModelType = "based_cpp";
constexpr const char* kOwnConfig = "based";               // the key of this library's config
constexpr const char* kTokenizerHash = "tokenizer_hash";  // the key of the hash that model.safetensors records here

// The mixers that python/based_cpp/nn has as modules.
constexpr std::array kPythonMixers{"taylor_attention", "sliding_window",  "gated_conv", "base_conv", "hyena", "h3", "gla",
                                   "delta_net",        "gated_delta_net", "mamba",      "mamba2",    "rwkv5"};

constexpr std::array kWeightTypes{DType::F32, DType::BF16, DType::F64, DType::F16};

constexpr std::array kEmbeddings{"embedding", "position_embedding"};
constexpr const char* kWeightSuffix = ".weight";

void require_python_mixers(const ModelConfig& config, const std::string& path) {
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const auto entry = config.mixers.find(config.layers[layer]);
    const std::string type =
        entry == config.mixers.end() ? config.layers[layer] : std::get<std::string>(entry->second.find("type")->value());
    if (std::ranges::find(kPythonMixers, type) != kPythonMixers.end()) continue;
    std::string known;
    for (const char* name : kPythonMixers) known += (known.empty() ? "" : ", ") + std::string(name);
    throw UsageError(path + ": layer " + std::to_string(layer) + " has the mixer '" + type +
                     "', for which the Python package has no module; it has " + known);
  }
}

std::string transformers_type(torch::Dtype dtype) {
  if (dtype == torch::kBFloat16) return "bfloat16";
  if (dtype == torch::kHalf) return "float16";
  return dtype == torch::kDouble ? "float64" : "float32";
}

Json transformers_config(const ModelFiles& files, std::optional<int32_t> end_of_text) {
  const ModelConfig& config = files.config;
  Json root{{"architectures", Json::array({"BasedForCausalLM"})}, {"model_type", kModelType}};
  root["auto_map"] = Json{{"AutoConfig", "configuration_based.BasedConfig"}, {"AutoModelForCausalLM", "modeling_based.BasedForCausalLM"}};
  root["torch_dtype"] = transformers_type(files.dtype);
  root["vocab_size"] = config.vocab_size;
  root["hidden_size"] = config.d_model;
  root["num_hidden_layers"] = config.layers.size();
  if (config.max_positions > 0) root["max_position_embeddings"] = config.max_positions;
  if (end_of_text) root["eos_token_id"] = *end_of_text;
  if (files.tokenizer) root[kTokenizerHash] = *files.tokenizer;
  root[kOwnConfig] = parse_json(write_config(config).to_json(), files.config_path);
  return root;
}

struct HuggingFaceConfig {
  ModelConfig config;
  std::optional<std::string> tokenizer;
};

HuggingFaceConfig read_transformers_config(const std::string& path) {
  return read_stored([&] {
    const Config json = Config::parse_json_file(path);
    const Config* own = json.find(kOwnConfig);
    if (own == nullptr || !own->is_table()) throw Error(path + ": has no table '" + kOwnConfig + "' with the model's config");
    HuggingFaceConfig read{read_config<ModelConfig>(*own), {}};
    check_model_config(read.config);
    if (const Config* hash = json.find(kTokenizerHash); hash != nullptr && !hash->is_null()) {
      if (!std::holds_alternative<std::string>(hash->value())) throw Error(hash->where() + kTokenizerHash + " must be a string");
      read.tokenizer = std::get<std::string>(hash->value());
    }
    return read;
  });
}

// All reasons why tensors with names of this library do not fit the config, one per line, with the names of the file.
std::string huggingface_disagreements(const std::vector<TensorView>& weights, const ModelConfig& config) {
  const ShapesOnly nothing_else;
  const LanguageModel model(config);
  const auto parameters = model.named_parameters();
  std::set<std::string> found;
  std::string list;
  for (const TensorView& tensor : weights) {
    const std::string name = "\n  " + huggingface_name(tensor.name);
    found.insert(tensor.name);
    if (!parameters.contains(tensor.name)) {
      list += name + ": unexpected";
    } else if (const auto shape = parameters[tensor.name].sizes().vec(); tensor.shape != shape) {
      list += name + ": shape " + dump_json(Json(tensor.shape)) + ", the model's is " + dump_json(Json(shape));
    } else if (std::ranges::find(kWeightTypes, tensor.dtype) == kWeightTypes.end()) {
      list += name + ": type " + dtype_name(tensor.dtype) + " is no floating-point type";
    }
  }
  for (const auto& item : parameters)
    if (!found.contains(item.key())) list += "\n  " + huggingface_name(item.key()) + ": missing";
  return list;
}

}  // namespace

bool is_huggingface_model(const std::string& folder) {
  const std::string path = path_in(folder, "config.json");
  if (!path_exists(path)) return false;
  const Json json = parse_json(read_regular_file(path, kMaxConfigBytes), path);
  return json.is_object() && json.contains("model_type") && json["model_type"] == kModelType;
}

std::string huggingface_name(const std::string& ours) {
  return std::ranges::find(kEmbeddings, ours) == kEmbeddings.end() ? ours : ours + kWeightSuffix;
}

std::string name_from_huggingface(const std::string& theirs) {
  for (const char* name : kEmbeddings)
    if (theirs == huggingface_name(name)) return name;
  return theirs;
}

void write_huggingface_model(const std::string& folder, const std::string& out, std::optional<int32_t> end_of_text) {
  const ModelFiles files = read_model_files(folder);
  require_full_weights(files, "the conversion for transformers");
  require_python_mixers(files.config, files.config_path);
  const SafetensorsFile weights(files.weights_path);
  check_weights(weights, files);
  std::vector<TensorView> renamed = weights.tensors();
  for (TensorView& tensor : renamed) tensor.name = huggingface_name(tensor.name);
  write_safetensors(path_in(out, "model.safetensors"), std::move(renamed), {{"format", "pt"}});
  write_file_atomic(path_in(out, "configuration_based.py"), huggingface_configuration_file());
  write_file_atomic(path_in(out, "modeling_based.py"), huggingface_modeling_file());
  if (end_of_text) {
    const Json generation{{"eos_token_id", *end_of_text}, {"pad_token_id", *end_of_text}};
    write_file_atomic(path_in(out, "generation_config.json"), dump_json(generation, 2) + "\n");
  }
  write_file_atomic(path_in(out, "config.json"), dump_json(transformers_config(files, end_of_text), 2) + "\n");
}

ModelConfig read_huggingface_model(const std::string& folder, const std::string& out, std::optional<uint64_t> tokenizer) {
  const std::string config_path = path_in(folder, "config.json"), path = path_in(folder, "model.safetensors");
  const std::string index = path + ".index.json";
  if (path_exists(index))
    throw Error(index + ": weights in several files are not converted; save_pretrained(..., max_shard_size=\"1TB\") writes one file");
  const HuggingFaceConfig stored = read_transformers_config(config_path);
  const SafetensorsFile weights(path);
  std::vector<TensorView> renamed = weights.tensors();
  for (TensorView& tensor : renamed) tensor.name = name_from_huggingface(tensor.name);
  if (const std::string list = huggingface_disagreements(renamed, stored.config); !list.empty())
    throw Error(path + ": does not fit " + config_path + ":" + list);
  const std::optional<std::string> hash = stored.tokenizer || !tokenizer ? stored.tokenizer : std::optional(hex(*tokenizer));
  write_model_files(write_config(stored.config), std::move(renamed), out, hash);
  return stored.config;
}

}  // namespace based
