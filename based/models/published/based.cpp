// Based, hazyresearch/based-360m and based-1b-50b: convolutions, Taylor linear attention in `alt_mixer_layers` and sliding windows in
// `alt_mixer_2_layers`. The paths of the mixers' classes changed over time, so that only the class's name decides.
#include <algorithm>

#include "based/models/published/gpt.h"

namespace based::published {
namespace {

std::string class_of(ConfigReader& mixer) {
  const std::string target = mixer.text("_target_", "");
  return target.substr(target.rfind('.') + 1);
}

MappedMixer base_conv(ConfigReader& mixer, const SourceTensors& source, const std::string& prefix) {
  const bool bias = mixer.boolean("use_bias", true);
  // The first uploads have "conv1"; the class is the same.
  const std::string filter = source.has(prefix + "conv1.conv.weight") ? "conv1.conv" : "conv.conv";
  const bool conv_bias = source.has(prefix + filter + ".bias");
  mixer.ignore({"l_max", "kernel_sizes", "use_cuda", "layer_idx"});  // the class has kernel_size, and ignores kernel_sizes
  MappedMixer mapped{"conv", {}, {}};
  mapped.option("type", std::string("gated_conv"));
  mapped.option("expansion", mixer.size("expand_proj", 2), mixer.name("expand_proj"));
  mapped.option("taps", mixer.size("kernel_size", 3), mixer.name("kernel_size"));
  mapped.option("use_bias", bias);
  mapped.option("conv_bias", conv_bias);
  mapped.add_layer("in_proj", "in_proj", bias);
  mapped.add_layer("out_proj", "out_proj", bias);
  mapped.add(filter + ".weight", "conv.weight", /*is_filter=*/true);
  if (conv_bias) mapped.add(filter + ".bias", "conv.bias");
  return mapped;
}

MappedMixer linear_attention(ConfigReader& mixer, int64_t d_model, Mapping& notes) {
  const int64_t heads = mixer.size("num_heads", 16), feature_dim = mixer.size("feature_dim", 16);
  const std::string reason = "only TaylorExp with 'input_dim' equal to 'feature_dim' is converted";
  if (ConfigReader* map = mixer.table("feature_map")) {
    if (class_of(*map) != "TaylorExp") map->refuse("_target_", reason);
    if (map->size("input_dim", feature_dim) != feature_dim) map->refuse("input_dim", reason);
    map->ignore({"temp", "head_dim_idx", "eps"});  // the class ignores further arguments
  }
  if (mixer.text("parallel_implementation", "quadratic") == "tk")
    mixer.refuse("parallel_implementation", "it adds a norm to the outputs, which this library's Taylor attention lacks");
  const double eps = mixer.number("eps", 1e-12);
  if (eps > 1e-12) {
    notes.warnings.push_back("'alt_mixer.eps' is " + dump_json(eps) +
                             ": this library adds nothing to the denominator, which is at least 1/2; outputs differ by about this much");
  }
  mixer.ignore({"l_max", "layer_idx", "causal"});
  MappedMixer mapped{"linear", {}, {}};
  mapped.option("type", std::string("taylor_attention"));
  mapped.option("heads", heads, mixer.name("num_heads"));
  mapped.option("feature_dim", feature_dim, mixer.name("feature_dim"));
  mapped.option("head_dim", mixer.size("head_dim", std::max<int64_t>(d_model / heads, 1)), mixer.name("head_dim"));
  for (const char* part : {"q", "k", "v"}) mapped.add_layer(std::string("proj_") + part, std::string(part) + "_proj", false);
  mapped.add_layer("out_proj", "o_proj", false);
  return mapped;
}

MappedMixer sliding_attention(ConfigReader& config, ConfigReader& mixer) {
  const int64_t window_size = mixer.size("window_size");
  // The keys of the whole model override those of the mixer.
  mixer.ignore(
      {"num_heads", "num_heads_kv", "causal", "l_max", "dropout", "softmax_scale", "layer_idx", "rotary_emb_dim", "use_flash_attn"});
  return softmax_attention(config, window_size / 2 + 1);  // flash attention's window: the token itself and window_size/2 before it
}

}  // namespace

Mapping map_based(ConfigReader& config, const SourceTensors& source) {
  const std::vector<int64_t> linear = config.integers("alt_mixer_layers"), windows = config.integers("alt_mixer_2_layers");
  const int64_t d_model = config.size("n_embd");
  Mapping notes;  // warnings of the mixers
  std::map<std::string, MappedMixer> known;
  const auto mixer_of_layer = [&](int64_t layer, const std::string& prefix) {
    const auto is_in = [layer](const std::vector<int64_t>& layers) {
      return std::find(layers.begin(), layers.end(), layer) != layers.end();
    };
    const std::string key = is_in(windows) ? "alt_mixer_2" : is_in(linear) ? "alt_mixer" : "mixer";
    if (const auto found = known.find(key); found != known.end()) return found->second;
    ConfigReader* const mixer = config.table(key);
    const std::string name = mixer == nullptr ? "MHA" : class_of(*mixer);
    MappedMixer mapped;
    if (mixer == nullptr) {
      mapped = softmax_attention(config, 0);
    } else if (name == "BaseConv") {
      mapped = base_conv(*mixer, source, prefix);
    } else if (name == "LinearAttention") {
      mapped = linear_attention(*mixer, d_model, notes);
    } else if (name == "SlidingAttention") {
      mapped = sliding_attention(config, *mixer);
    } else {
      mixer->refuse("_target_", "BaseConv, LinearAttention and SlidingAttention are converted");
    }
    return known.emplace(key, mapped).first->second;
  };
  Mapping mapping = map_gpt(config, source, mixer_of_layer);
  mapping.warnings.insert(mapping.warnings.end(), notes.warnings.begin(), notes.warnings.end());
  return mapping;
}

}  // namespace based::published
