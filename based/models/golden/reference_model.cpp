#include "based/models/golden/reference_model.h"

#include <algorithm>

namespace based::golden {
namespace {

// Adds a layer to the model: the config entry of its mixer, and its parameters' names with the prefixes of both sides.
void add_layer(ReferenceModel& model, int64_t layer, const ReferenceMixer& mixer, const std::string& prefix) {
  if (!mixer.skipped.empty()) {
    if (model.skipped.empty()) model.skipped = mixer.skipped;
    return;
  }
  const std::string name = "layer" + std::to_string(layer);
  Config::Table entry = mixer.options;
  entry.emplace_back("type", Config(mixer.type));
  model.config.layers.push_back(name);
  model.config.mixers[name] = Config(entry);
  const std::string our_prefix = "layers." + std::to_string(layer) + ".mixer.";
  for (const auto& [theirs, ours] : mixer.names) model.names[prefix + theirs] = ours.empty() ? "" : our_prefix + ours;
  for (const auto& [theirs, ours] : mixer.buffers) model.buffers[prefix + theirs] = our_prefix + ours;
}

void add_block_names(ReferenceModel& model, int64_t layer, const std::string& theirs, const std::string& their_mlp) {
  const std::string ours = "layers." + std::to_string(layer) + ".";
  for (const char* end : {".weight", ".bias"}) {
    for (const char* norm : {"norm1", "norm2"}) model.names[theirs + norm + end] = ours + norm + end;
    for (const char* fc : {"fc1", "fc2"}) model.names[theirs + their_mlp + fc + end] = ours + "mlp." + fc + end;
  }
}

ReferenceModel gpt_model(const Json& config, const PeerParameters& parameters) {
  const std::string& path = parameters.path();
  ReferenceModel model;
  model.config.d_model = required_int(config, "n_embd", path);
  model.config.vocab_size = required_int(config, "vocab_size", path);
  model.config.pad_vocab_multiple = field<int64_t>(config, "pad_vocab_size_multiple", 1, path);
  model.config.norm_eps = field<double>(config, "layer_norm_epsilon", 1e-5, path);
  if (!field<bool>(config, "rms_norm", false, path) || field<std::string>(config, "activation_function", "", path) != "swiglu") {
    model.skipped = "the reference's norm and MLP are not RMSNorm and SwiGLU";
    return model;
  }
  if (field<int64_t>(config, "max_position_embeddings", 0, path) > 0) {
    model.skipped = "the reference adds learned positions";
    return model;
  }
  model.config.mlp_width = parameters.size("transformer.layers.0.mlp.fc1.weight", 0) / 2;
  const auto windows = field<std::vector<int64_t>>(config, "alt_mixer_2_layers", {}, path);
  const Json none = Json::object();
  const auto sub = [&](const char* key) -> const Json& { return config.contains(key) && config[key].is_object() ? config[key] : none; };
  for (int64_t layer = 0; layer < required_int(config, "n_layer", path); ++layer) {
    const std::string block = "transformer.layers." + std::to_string(layer) + ".", prefix = block + "mixer.";
    const PeerParameters own = parameters.below(prefix);
    const auto mixer_of = [&](const char* name, const Json& options) { return reference_mixer({name, options, own, 0}); };
    ReferenceMixer mixer = skipped("the mixer of layer " + std::to_string(layer) + " is not in this build");
    if (own.has("conv.conv.weight")) {
      mixer = mixer_of("gated_short_conv", none);
    } else if (own.has("proj_q.weight")) {
      mixer = mixer_of("linear_attention/taylor_exp", sub("alt_mixer"));
    } else if (own.has("Wqkv.weight") && std::find(windows.begin(), windows.end(), layer) != windows.end()) {
      mixer = mixer_of("sliding_attention", sub("alt_mixer_2"));
    } else if (own.has("Wqkv.weight")) {
      const int64_t heads = required_int(config, "n_head", path);
      const double fraction = field<double>(config, "rotary_emb_fraction", 0.0, path);
      const int64_t head_dim = divide(model.config.d_model, heads, "n_embd", path);
      mixer = mixer_of("causal_attention",
                       {{"num_heads", heads}, {"rotary_emb_dim", static_cast<int64_t>(fraction * static_cast<double>(head_dim))}});
    }
    add_layer(model, layer, mixer, prefix);
    add_block_names(model, layer, block, "mlp.");
  }
  model.names["transformer.embeddings.word_embeddings.weight"] = "embedding";
  model.names["transformer.ln_f.weight"] = "norm.weight";
  return model;
}

// The class of a layer's mixer, its options, and the prefix of its parameters within the block.
struct RecallLayer {
  std::string type;
  Json options;
  std::string prefix;
};

ReferenceMixer class_mixer(const RecallLayer& layer, const PeerParameters& parameters, int64_t length) {
  return reference_mixer({layer.type.substr(layer.type.rfind('.') + 1), layer.options, parameters, length});
}

// Reads either "layers", a list of names from "modules", or "n_layers" and the published config's "sequence_mixer"; the mixers of a Hybrid
// alternate.
std::vector<RecallLayer> recall_layers(const Json& config, const std::string& path) {
  std::vector<RecallLayer> result;
  const auto add = [&](const Json& entry, const std::string& name, const char* prefix) {
    const Json options = entry.contains("kwargs") ? entry["kwargs"] : Json::object();
    result.push_back({field<std::string>(entry, "name", name, path), options, prefix});
  };
  if (!config.contains("sequence_mixer")) {
    const Json modules = config.contains("modules") ? config["modules"] : Json::object();
    for (const auto& name : field<std::vector<std::string>>(config, "layers", {}, path))
      add(modules.contains(name) ? modules[name] : Json::object(), name, "sequence_mixer.mixer.");
    return result;
  }
  const Json& mixer = config["sequence_mixer"];
  const auto turns =
      mixer.contains("kwargs") && mixer["kwargs"].contains("configs") ? field<Json>(mixer["kwargs"], "configs", {}, path) : Json();
  if (turns.is_array() && turns.empty()) throw Error(path + ": metadata config: 'configs' of the sequence mixer is empty");
  for (int64_t layer = 0; layer < required_int(config, "n_layers", path); ++layer) {
    if (turns.is_array())
      add(turns[static_cast<size_t>(layer) % turns.size()], "", "sequence_mixer.mixer.");
    else
      add(mixer, "", "sequence_mixer.");
  }
  return result;
}

ReferenceModel recall_model(const Json& config, const PeerParameters& parameters, int64_t length) {
  const std::string& path = parameters.path();
  ReferenceModel model;
  model.config.d_model = required_int(config, "d_model", path);
  model.config.vocab_size = parameters.size("backbone.embeddings.word_embeddings.weight", 0);
  model.config.pad_vocab_multiple = 1;
  model.config.norm = "layer_norm";
  model.config.mlp = "identity";
  if (parameters.has("backbone.embeddings.position_embeddings.weight")) {
    model.config.max_positions = parameters.size("backbone.embeddings.position_embeddings.weight", 0);
  }
  const auto block_type = field<std::string>(config, "block_type", "TransformerBlock", path);
  const bool mixer_alone = block_type.starts_with("Mamba");  // after an RMSNorm, without an MLP
  if (block_type != "TransformerBlock" && !mixer_alone) {
    model.skipped = "blocks of type " + dump_json(config["block_type"]) + " are not in this build";
    return model;
  }
  if (mixer_alone) model.config.mlp = "none", model.config.norm = "rms_norm", model.config.final_norm = "layer_norm";
  std::vector<RecallLayer> layers = recall_layers(config, path);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const std::string block = "backbone.layers." + std::to_string(i) + ".";
    if (mixer_alone) {
      layers[i].prefix = "mixer.";
      model.names[block + "norm.weight"] = "layers." + std::to_string(i) + ".norm1.weight";
    }
    const std::string prefix = block + layers[i].prefix;
    add_layer(model, layer, class_mixer(layers[i], parameters.below(prefix), length), prefix);
    add_block_names(model, layer, block, "state_mixer.");
    if (parameters.has(block + "state_mixer.fc1.weight")) {
      model.config.mlp = "gelu";
      model.config.mlp_width = parameters.size(block + "state_mixer.fc1.weight", 0);
    }
  }
  model.names["backbone.embeddings.word_embeddings.weight"] = "embedding";
  model.names["backbone.embeddings.position_embeddings.weight"] = "position_embedding";
  for (const char* end : {".weight", ".bias"}) model.names[std::string("backbone.ln_f") + end] = std::string("norm") + end;
  return model;
}

}  // namespace

ReferenceMixer reference_mixer(const PeerMixer& peer) {
  for (const Family& family : families())
    if (family.mixer != nullptr)
      if (auto found = family.mixer(peer)) return *found;
  return skipped("mixer '" + peer.name + "' is not in this build");
}

ReferenceModel reference_model(const std::string& mixer, const Json& config, const PeerParameters& parameters, int64_t length) {
  const bool recall = mixer.find("synthetic-task form") != std::string::npos;
  ReferenceModel model = recall ? recall_model(config, parameters, length) : gpt_model(config, parameters);
  if (model.skipped.empty() && model.config.layers.empty()) throw Error(parameters.path() + ": metadata config names no layers");
  return model;
}

}  // namespace based::golden
