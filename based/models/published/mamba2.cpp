// Mamba-2: state-spaces/mamba2-*.
#include "based/models/published/state_space.h"

namespace based::published {
namespace {

void refuse_other_mamba2(ConfigReader& options, int64_t width) {
  options.require("d_ssm", width, "this library's Mamba-2 has no MLP inside a layer");
  options.require("D_has_hdim", false, "this library's Mamba-2 has one D per head");
  options.require("rmsnorm", true, "this library's Mamba-2 has a norm before the output projection");
  options.require("activation", "swish", "this library's Mamba-2 uses SiLU");
  if (options.has("dt_limit")) options.refuse("dt_limit", "this library does not clamp time steps");
  options.ignore({"layer", "conv_init", "A_init_range", "dt_min", "dt_max", "dt_init_floor", "chunk_size", "use_mem_eff_path", "layer_idx",
                  "sequence_parallel"});
}

MappedMixer mamba2_mixer(ConfigReader& config) {
  MappedMixer mixer{"mamba2", {}, {}};
  mixer.option("type", std::string("mamba2"));
  bool bias = false, conv_bias = true;
  if (ConfigReader* options = config.table("ssm_cfg")) {
    const int64_t expand = options->size("expand", 2);
    refuse_other_mamba2(*options, expand * config.size("d_model"));
    mixer.option("headdim", options->size("headdim", 64), options->name("headdim"));
    mixer.option("d_state", options->size("d_state", 128), options->name("d_state"));
    mixer.option("d_conv", options->size("d_conv", 4), options->name("d_conv"));
    mixer.option("expand", expand, options->name("expand"));
    mixer.option("ngroups", options->size("ngroups", 1), options->name("ngroups"));
    mixer.option("norm_before_gate", options->boolean("norm_before_gate", false), options->name("norm_before_gate"));
    bias = options->boolean("bias", false);
    conv_bias = options->boolean("conv_bias", true);
  }
  mixer.option("bias", bias);
  mixer.option("conv_bias", conv_bias);
  for (const char* name : {"dt_bias", "A_log", "D", "norm.weight"}) mixer.add(name, name);
  mixer.add_layer("in_proj", "in_proj", bias);
  mixer.add("conv1d.weight", "conv.weight", /*is_filter=*/true);
  if (conv_bias) mixer.add("conv1d.bias", "conv.bias");
  mixer.add_layer("out_proj", "out_proj", bias);
  return mixer;
}

}  // namespace

Mapping map_mamba2(ConfigReader& config) { return map_state_space(config, mamba2_mixer(config)); }

}  // namespace based::published
