#include "based/models/config.h"

#include "based/mixers/kit/mixer.h"

namespace based {
namespace {

void check_range(const char* key, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw UsageError("model." + std::string(key) + " must be " + std::to_string(low) + " to " + std::to_string(high) + ", got " +
                     std::to_string(value));
}

void check_choice(const char* key, const std::string& value, const std::vector<std::string>& choices) {
  std::string list;
  for (const auto& choice : choices) {
    if (value == choice) return;
    list += (list.empty() ? "" : ", ") + choice;
  }
  throw UsageError("model." + std::string(key) + " must be one of " + list + ", got '" + value + "'");
}

}  // namespace

void check_model_config(const ModelConfig& config) {
  check_range("d_model", config.d_model, 1, 1 << 16);
  check_range("vocab_size", config.vocab_size, 1, 1 << 24);
  check_range("pad_vocab_multiple", config.pad_vocab_multiple, 1, 1024);
  check_range("layers (their number)", static_cast<int64_t>(config.layers.size()), 1, 1024);
  check_range("mlp_width", config.mlp_width, 1, 1 << 20);
  check_range("max_positions", config.max_positions, 0, 1 << 24);
  check_choice("mlp", config.mlp, {"swiglu", "gelu", "identity", "none"});
  check_choice("norm", config.norm, {"rms_norm", "layer_norm"});
  if (!config.final_norm.empty()) check_choice("final_norm", config.final_norm, {"rms_norm", "layer_norm"});
  if (!(config.norm_eps >= 0 && config.norm_eps < 1)) throw UsageError("model.norm_eps must be 0 to 1");
  if (!(config.embedding_dropout >= 0 && config.embedding_dropout < 1)) throw UsageError("model.embedding_dropout must be 0 to 1");
  for (const auto& layer : config.layers) {
    const auto found = config.mixers.find(layer);
    if (found == config.mixers.end()) {
      find_mixer(layer);
      continue;
    }
    const Config* type = found->second.find("type");
    if (!type || !std::holds_alternative<std::string>(type->value()))
      throw UsageError(found->second.where() + "model.mixers." + layer + " needs type = \"a registered mixer\"");
    find_mixer(std::get<std::string>(type->value()));
  }
}

Config model_table(const Config& config) {
  if (config.is_null()) return Config(Config::Table{});
  config_detail::table_of(config, "model");
  return config;
}

ModelConfig read_model_config(const Config& config) {
  Config keys = config;
  ModelConfig result;
  if (const Config* preset = config.find("preset")) {
    if (!std::holds_alternative<std::string>(preset->value())) throw UsageError(preset->where() + "model.preset must be a string");
    Config merged = write_config(find_preset(std::get<std::string>(preset->value())));
    for (const auto& [key, value] : std::get<Config::Table>(config.value()))
      if (key != "preset") merged.set(key, value);
    keys = merged;
  }
  result = read_config<ModelConfig>(keys);
  check_model_config(result);
  return result;
}

void require_model_of(const ModelConfig& model, const ModelConfig& stored, const std::string& key, const std::string& folder) {
  if (write_config(model).to_json() != write_config(stored).to_json())
    throw UsageError("[model] is not the model of " + key + ", " + folder + "; leave one of them out");
}

}  // namespace based
