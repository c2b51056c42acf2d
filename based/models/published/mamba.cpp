// Mamba: state-spaces/mamba-* and the Mamba models of the authors of Based, hazyresearch/mamba-360m and mamba-1b.
#include "based/models/published/state_space.h"

namespace based::published {
namespace {

// Settings of initial weights and of kernels.
void ignore_initial_values(ConfigReader& options) {
  options.ignore({"layer", "dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path", "layer_idx"});
}

MappedMixer mamba_mixer(ConfigReader& config) {
  MappedMixer mixer{"mamba", {}, {}};
  mixer.option("type", std::string("mamba"));
  bool bias = false, conv_bias = true;
  if (ConfigReader* options = config.table("ssm_cfg")) {
    ignore_initial_values(*options);
    mixer.option("d_state", options->size("d_state", 16), options->name("d_state"));
    mixer.option("d_conv", options->size("d_conv", 4), options->name("d_conv"));
    mixer.option("expand", options->size("expand", 2), options->name("expand"));
    const bool automatic = options->is_text("dt_rank", "auto");
    mixer.option("dt_rank", automatic ? int64_t{0} : options->integer("dt_rank", 0), options->name("dt_rank"));
    bias = options->boolean("bias", false);
    conv_bias = options->boolean("conv_bias", true);
  }
  mixer.option("bias", bias);
  mixer.option("conv_bias", conv_bias);
  mixer.add("A_log", "A_log");
  mixer.add("D", "D");
  mixer.add_layer("in_proj", "in_proj", bias);
  mixer.add("conv1d.weight", "conv.weight", /*is_filter=*/true);
  if (conv_bias) mixer.add("conv1d.bias", "conv.bias");
  mixer.add_layer("x_proj", "x_proj", false);
  mixer.add("dt_proj.weight", "dt_proj.weight");
  mixer.add("dt_proj.bias", "dt_bias");
  mixer.add_layer("out_proj", "out_proj", bias);
  return mixer;
}

}  // namespace

std::string state_space_layer(ConfigReader& config) {
  ConfigReader* options = config.table("ssm_cfg");
  return options == nullptr ? "Mamba1" : options->text("layer", "Mamba1");
}

Mapping map_state_space(ConfigReader& config, const MappedMixer& mixer) {
  Mapping mapping;
  ModelConfig& model = mapping.config;
  model.d_model = config.size("d_model");
  model.vocab_size = config.size("vocab_size");
  model.pad_vocab_multiple = config.size("pad_vocab_size_multiple", 8);
  model.norm = config.boolean("rms_norm", true) ? "rms_norm" : "layer_norm";
  model.norm_eps = config.number("norm_epsilon", 1e-5);
  const int64_t inner = config.integer("d_intermediate", 0);
  model.mlp = inner == 0 ? "none" : "swiglu";
  if (inner != 0) model.mlp_width = (config.size("d_intermediate") + 127) / 128 * 128;
  if (!config.integers("attn_layer_idx").empty())
    config.refuse("attn_layer_idx", "its attention has a convolution, which this library's has not");
  config.require("tie_embeddings", true, "the head of this library is the embedding");
  config.ignore({"attn_cfg", "residual_in_fp32", "fused_add_norm", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx",
                 "n_positions", "n_embd", "n_head", "use_flash_attn", "fused_dropout_add_ln", "fused_mlp", "fused_bias_fc",
                 "use_fast_path"});

  mapping.origins = {{"d_model", "d_model"},
                     {"vocab_size", "vocab_size"},
                     {"pad_vocab_multiple", "pad_vocab_size_multiple"},
                     {"norm_eps", "norm_epsilon"},
                     {"mlp_width", "d_intermediate"}};

  mapping.embedding = "backbone.embedding.weight";
  mapping.head = "lm_head.weight";
  mapping.names.push_back({mapping.embedding, "embedding"});
  const auto add_norm = [&](const std::string& theirs, const std::string& ours) {
    mapping.names.push_back({theirs + ".weight", ours + ".weight"});
    if (model.norm == "layer_norm") mapping.names.push_back({theirs + ".bias", ours + ".bias"});
  };
  for (int64_t layer = 0; layer < config.layers("n_layer"); ++layer) {
    const std::string ours = "layers." + std::to_string(layer) + ".", theirs = "backbone." + ours;
    mapping.add_layer(mixer, theirs + "mixer.", ours + "mixer.");
    add_norm(theirs + "norm", ours + "norm1");
    if (inner == 0) continue;
    add_norm(theirs + "norm2", ours + "norm2");
    for (const char* fc : {"mlp.fc1.weight", "mlp.fc2.weight"}) mapping.names.push_back({theirs + fc, ours + fc});
  }
  add_norm("backbone.norm_f", "norm");
  return mapping;
}

Mapping map_mamba(ConfigReader& config) { return map_state_space(config, mamba_mixer(config)); }

}  // namespace based::published
