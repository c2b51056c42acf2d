#include "based/models/golden_reference.h"

#include <algorithm>
#include <cmath>

namespace based {
namespace {

// A field of a peer's config; null counts as absent.
template <class T>
T field(const Json& config, const char* key, T fallback, const std::string& path) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return fallback;
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    throw Error(path + ": metadata config: '" + key + "' has the wrong type: " + dump_json(*found));
  }
}

int64_t required_int(const Json& config, const char* key, const std::string& path) {
  const auto value = field<int64_t>(config, key, -1, path);
  if (value < 1) throw Error(path + ": metadata config needs a positive '" + key + "'");
  return value;
}

int64_t divide(int64_t total, int64_t parts, const char* what, const std::string& path) {
  if (parts < 1 || total % parts != 0) {
    throw Error(path + ": " + what + " " + std::to_string(total) + " is not a multiple of " + std::to_string(parts));
  }
  return total / parts;
}

void add_pair(ReferenceMixer& mixer, const std::string& theirs, const std::string& ours) {
  mixer.names[theirs + ".weight"] = ours + ".weight";
  mixer.names[theirs + ".bias"] = ours + ".bias";
}

ReferenceMixer gated_conv(const ReferenceParameters& parameters) {
  ReferenceMixer mixer{"gated_conv", {}, {}, ""};
  const int64_t expansion =
      divide(parameters.size("in_proj.weight", 0), parameters.size("in_proj.weight", 1), "in_proj rows", parameters.path());
  mixer.options = {{"expansion", Config(expansion)},
                   {"taps", Config(parameters.size("conv.conv.weight", 2))},
                   {"use_bias", Config(parameters.has("in_proj.bias"))},
                   {"conv_bias", Config(parameters.has("conv.conv.bias"))}};
  add_pair(mixer, "in_proj", "in_proj");
  add_pair(mixer, "out_proj", "out_proj");
  add_pair(mixer, "conv.conv", "conv");
  return mixer;
}

ReferenceMixer taylor_attention(const Json& config, const ReferenceParameters& parameters) {
  const std::string& path = parameters.path();
  const int64_t heads = required_int(config, "num_heads", path);
  if (!field<bool>(config, "causal", true, path)) return {"", {}, {}, "the reference sums over the whole sequence: not causal"};
  if (field<bool>(config, "apply_rotary", false, path))
    return {"", {}, {}, "the reference rotates q and k; taylor_attention has no positions"};
  const int64_t kv_heads = field<int64_t>(config, "num_key_value_heads", heads, path);
  if (kv_heads != heads) return {"", {}, {}, "the reference shares keys between heads; taylor_attention does not"};
  if (field<double>(config, "eps", 1e-12, path) > 1e-12) {
    return {"", {}, {}, "the reference adds an eps above 1e-12 to the denominator; ours is at least 1/2 and needs none"};
  }
  ReferenceMixer mixer{"taylor_attention", {}, {}, ""};
  mixer.options = {{"heads", Config(heads)},
                   {"feature_dim", Config(divide(parameters.size("proj_q.weight", 0), heads, "proj_q rows", path))},
                   {"head_dim", Config(divide(parameters.size("proj_v.weight", 0), heads, "proj_v rows", path))}};
  for (const char* part : {"q", "k", "v", "o"}) add_pair(mixer, std::string("proj_") + part, std::string(part) + "_proj");
  add_pair(mixer, "out_proj", "o_proj");
  return mixer;
}

// All softmax attentions of the peers: "Wqkv" and "out_proj". window 0: all keys.
ReferenceMixer softmax_attention(const Json& config, const ReferenceParameters& parameters, int64_t heads, int64_t window) {
  const std::string& path = parameters.path();
  ReferenceMixer mixer{window > 0 ? "sliding_window" : "attention", {}, {}, ""};
  const int64_t head_dim = divide(parameters.size("Wqkv.weight", 1), heads, "d_model", path);
  const double scale = field<double>(config, "softmax_scale", 0.0, path);
  if (scale != 0 && std::abs(scale * std::sqrt(static_cast<double>(head_dim)) - 1) > 1e-12) {
    return {"", {}, {}, "the reference scales scores by " + std::to_string(scale) + "; ours are divided by the root of head_dim"};
  }
  if (config.contains("rotary_emb_scale_base") && !config["rotary_emb_scale_base"].is_null()) {
    return {"", {}, {}, "the reference scales its rotary positions; ours does not"};
  }
  if (!field<bool>(config, "causal", true, path)) return {"", {}, {}, "the reference is not causal"};
  mixer.options = {{"heads", Config(heads)},
                   {"kv_heads", Config(field<int64_t>(config, "num_heads_kv", heads, path))},
                   {"rotary_dim", Config(field<int64_t>(config, "rotary_emb_dim", 0, path))},
                   {"rotary_base", Config(field<double>(config, "rotary_emb_base", 10000.0, path))},
                   {"rotary_interleaved", Config(field<bool>(config, "rotary_emb_interleaved", false, path))},
                   {"qkv_bias", Config(parameters.has("Wqkv.bias"))},
                   {"out_bias", Config(parameters.has("out_proj.bias"))}};
  if (window > 0) mixer.options.emplace_back("window", Config(window));
  add_pair(mixer, "Wqkv", "qkv_proj");
  add_pair(mixer, "out_proj", "out_proj");
  return mixer;
}

ReferenceMixer base_conv(const Json& config, const ReferenceParameters& parameters, int64_t length) {
  ReferenceMixer mixer{"base_conv", {}, {}, ""};
  mixer.options = {{"use_act", Config(field<bool>(config, "use_act", false, parameters.path()))}};
  const auto option = [&](const char* key, auto value) { mixer.options.emplace_back(key, Config(value)); };
  add_pair(mixer, "projection", "projection");
  if (parameters.has("conv.conv.weight")) {
    option("kernel_size", parameters.size("conv.conv.weight", 2));
    add_pair(mixer, "conv.conv", "conv");
    return mixer;
  }
  option("kernel_size", int64_t{-1});
  if (parameters.has("conv.filter")) {
    const int64_t taps = parameters.size("conv.filter", 1);
    if (taps > length + 1) {
      return {"",
              {},
              {},
              "the reference wraps around where its filter (" + std::to_string(taps) + " taps) is longer than the text (" +
                  std::to_string(length) + " tokens): not causal"};
    }
    option("l_max", taps);
    mixer.names["conv.filter"] = "filter.taps";
    return mixer;
  }
  option("implicit", true);
  option("l_max", parameters.size("conv.pos_emb.z", 1));
  option("d_emb", parameters.size("conv.pos_emb.z", 2));
  option("d_hidden", parameters.size("conv.mlp.0.weight", 0));
  add_pair(mixer, "conv.mlp.0", "filter.hidden");
  add_pair(mixer, "conv.mlp.2", "filter.out");
  mixer.names["conv.pos_emb.z"] = "";
  return mixer;
}

// The library that the paper's code calls sees the present key and window_size/2 before it.
int64_t window_of(const Json& config, const std::string& path) { return required_int(config, "window_size", path) / 2 + 1; }

// By a class of the recall experiments' code ("zoology.mixers.based.Based").
ReferenceMixer module_mixer(const std::string& name, const Json& config, const ReferenceParameters& parameters, int64_t length) {
  const std::string& path = parameters.path();
  const std::string type = name.substr(name.rfind('.') + 1);
  if (type == "BaseConv") return base_conv(config, parameters, length);
  if (type == "Based" && field<std::string>(config, "feature_name", "taylor_exp", path) == "taylor_exp")
    return taylor_attention(config, parameters);
  if (type == "MHA") return softmax_attention(config, parameters, field<int64_t>(config, "num_heads", 1, path), 0);
  if (type == "SlidingAttn") return softmax_attention(config, parameters, 1, required_int(config, "block_size", path) + 1);
  return {"", {}, {}, "mixer '" + name + "' is not in this build"};
}

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

// A layer of the model: its mixer's config entry and names, with the prefixes of both sides.
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
  for (const auto& [theirs, ours] : mixer.names) {
    model.names[prefix + theirs] = ours.empty() ? "" : "layers." + std::to_string(layer) + ".mixer." + ours;
  }
}

void add_block_names(ReferenceModel& model, int64_t layer, const std::string& theirs, const std::string& their_mlp) {
  const std::string ours = "layers." + std::to_string(layer) + ".";
  for (const char* end : {".weight", ".bias"}) {
    for (const char* norm : {"norm1", "norm2"}) model.names[theirs + norm + end] = ours + norm + end;
    for (const char* fc : {"fc1", "fc2"}) model.names[theirs + their_mlp + fc + end] = ours + "mlp." + fc + end;
  }
}

ReferenceModel gpt_model(const Json& config, const ReferenceParameters& parameters) {
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
    const ReferenceParameters own = parameters.below(prefix);
    ReferenceMixer mixer{"", {}, {}, "the mixer of layer " + std::to_string(layer) + " is not in this build"};
    if (own.has("conv.conv.weight")) {
      mixer = gated_conv(own);
    } else if (own.has("proj_q.weight")) {
      mixer = taylor_attention(sub("alt_mixer"), own);
    } else if (own.has("Wqkv.weight") && std::find(windows.begin(), windows.end(), layer) != windows.end()) {
      const Json& options = sub("alt_mixer_2");
      mixer = softmax_attention(options, own, required_int(options, "num_heads", path), window_of(options, path));
    } else if (own.has("Wqkv.weight")) {
      const int64_t heads = required_int(config, "n_head", path);
      const double fraction = field<double>(config, "rotary_emb_fraction", 0.0, path);
      const int64_t head_dim = divide(model.config.d_model, heads, "n_embd", path);
      mixer = softmax_attention({{"rotary_emb_dim", static_cast<int64_t>(fraction * static_cast<double>(head_dim))}}, own, heads, 0);
    }
    add_layer(model, layer, mixer, prefix);
    add_block_names(model, layer, block, "mlp.");
  }
  model.names["transformer.embeddings.word_embeddings.weight"] = "embedding";
  model.names["transformer.ln_f.weight"] = "norm.weight";
  return model;
}

// A layer's mixer by its class, its options, and the prefix of its parameters within the block.
struct RecallLayer {
  std::string type;
  Json options;
  std::string prefix;
};

// Either "layers", names out of "modules"; or "n_layers" times the published config's "sequence_mixer", of which a Hybrid takes turns.
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

ReferenceModel recall_model(const Json& config, const ReferenceParameters& parameters, int64_t length) {
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
  if (field<std::string>(config, "block_type", "TransformerBlock", path) != "TransformerBlock") {
    model.skipped = "blocks of type " + dump_json(config["block_type"]) + " are not in this build";
    return model;
  }
  const std::vector<RecallLayer> layers = recall_layers(config, path);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const std::string block = "backbone.layers." + std::to_string(i) + ".", prefix = block + layers[i].prefix;
    add_layer(model, layer, module_mixer(layers[i].type, layers[i].options, parameters.below(prefix), length), prefix);
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

int64_t ReferenceParameters::size(const std::string& name, size_t dimension) const {
  const TensorView& tensor = file_->at(prefix_ + name);
  if (dimension >= tensor.shape.size()) throw Error(path() + ": tensor '" + prefix_ + name + "' has too few dimensions");
  return tensor.shape[dimension];
}

ReferenceParameters ReferenceParameters::below(const std::string& prefix) const {
  ReferenceParameters result = *this;
  result.prefix_ += prefix;
  return result;
}

ReferenceMixer reference_mixer(const std::string& mixer, const Json& config, const ReferenceParameters& parameters, int64_t length) {
  const std::string& path = parameters.path();
  if (starts_with(mixer, "gated_short_conv")) return gated_conv(parameters);
  if (mixer.find("with fixed decay") != std::string::npos)
    return {"", {}, {}, "the reference decays the numerator alone, ours the denominator too"};
  if (starts_with(mixer, "linear_attention/taylor_exp")) return taylor_attention(config, parameters);
  if (starts_with(mixer, "base_conv")) return base_conv(config, parameters, length);
  if (mixer == "causal_attention" || mixer == "attention") {
    return softmax_attention(config, parameters, field<int64_t>(config, "num_heads", 1, path), 0);
  }
  if (mixer == "sliding_attention") {
    return softmax_attention(config, parameters, required_int(config, "num_heads", path), window_of(config, path));
  }
  if (starts_with(mixer, "sliding_attention (synthetic-task form")) {
    return softmax_attention(config, parameters, 1, required_int(config, "block_size", path) + 1);
  }
  return {"", {}, {}, "mixer '" + mixer + "' is not in this build"};
}

ReferenceModel reference_model(const std::string& mixer, const Json& config, const ReferenceParameters& parameters, int64_t length) {
  const bool recall = mixer.find("synthetic-task form") != std::string::npos;
  ReferenceModel model = recall ? recall_model(config, parameters, length) : gpt_model(config, parameters);
  if (model.skipped.empty() && model.config.layers.empty()) throw Error(parameters.path() + ": metadata config names no layers");
  return model;
}

}  // namespace based
