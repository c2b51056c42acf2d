// Transformer++ as the authors of Based trained it, hazyresearch/attn-360m and attn-1b: softmax attention in every layer, with one matrix
// for queries, keys and values and rotary positions on a part of each head.
#include "based/models/published/gpt.h"

namespace based::published {

MappedMixer softmax_attention(ConfigReader& config, int64_t window) {
  const int64_t heads = config.size("n_head"), d_model = config.size("n_embd");
  if (d_model % heads != 0) config.refuse("n_head", "it does not divide 'n_embd', " + std::to_string(d_model));
  const int64_t head_dim = d_model / heads;
  config.require("head_dim", head_dim, "this library's heads have the size n_embd / n_head, " + std::to_string(head_dim));
  config.require("scale_attn_weights", true, "this library divides scores by the root of head_dim");
  config.require("scale_attn_by_inverse_layer_idx", false, "this library divides scores by the root of head_dim in every layer");
  config.require("rotary_emb_scale_base", nullptr, "this library does not scale rotary positions");
  const double rotary_fraction = config.number("rotary_emb_fraction", 0);
  if (!(rotary_fraction >= 0 && rotary_fraction <= 1)) config.refuse("rotary_emb_fraction", "it must be 0 to 1");
  const auto rotary_dim = static_cast<int64_t>(rotary_fraction * static_cast<double>(head_dim));
  if (rotary_dim % 2 != 0)
    config.refuse("rotary_emb_fraction", "it rotates " + std::to_string(rotary_dim) + " of " + std::to_string(head_dim) +
                                             " dimensions, which must be an even number of them");
  const bool qkv_bias = config.boolean("qkv_proj_bias", true), out_bias = config.boolean("out_proj_bias", true);
  MappedMixer mixer{window > 0 ? "window" : "attention", {}, {}};
  mixer.option("type", std::string(window > 0 ? "sliding_window" : "attention"));
  mixer.option("heads", heads, "n_head");
  mixer.option("kv_heads", config.size("n_head_kv", heads), "n_head_kv");
  mixer.option("rotary_dim", rotary_dim, "rotary_emb_fraction");
  mixer.option("rotary_base", config.number("rotary_emb_base", 10000), "rotary_emb_base");
  mixer.option("rotary_interleaved", config.boolean("rotary_emb_interleaved", false));
  mixer.option("qkv_bias", qkv_bias);
  mixer.option("out_bias", out_bias);
  if (window > 0) mixer.option("window", window, "alt_mixer_2.window_size");
  mixer.add_layer("Wqkv", "qkv_proj", qkv_bias);
  mixer.add_layer("out_proj", "out_proj", out_bias);
  return mixer;
}

Mapping map_attention(ConfigReader& config, const SourceTensors& source) {
  config.require("window_size", Json::array({-1, -1}), "a window in every layer is not converted");
  return map_gpt(config, source, [&](int64_t /*layer*/, const std::string& /*prefix*/) { return softmax_attention(config, 0); });
}

}  // namespace based::published
