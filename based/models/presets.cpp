// The models of the paper's tables of training settings, and small models for the demo and the tests.
#include "based/models/config.h"

namespace based {
namespace {

Config options(std::initializer_list<std::pair<const char*, Config::Value>> pairs) {
  Config::Table table;
  for (const auto& [key, value] : pairs) table.emplace_back(key, Config(value));
  return Config(table);
}

// Gated convolutions in all layers except the given ones.
std::vector<std::string> hybrid_layers(size_t count, std::initializer_list<size_t> linear, std::initializer_list<size_t> window) {
  std::vector<std::string> layers(count, "conv");
  for (const size_t at : linear) layers[at] = "linear";
  for (const size_t at : window) layers[at] = "window";
  return layers;
}

struct BasedSizes {
  int64_t d_model, heads, feature_dim, window;
};

ModelConfig based_model(const BasedSizes& sizes, std::vector<std::string> layers) {
  ModelConfig config;
  config.d_model = sizes.d_model;
  config.layers = std::move(layers);
  config.mlp_width = 2 * sizes.d_model;
  config.mixers = {
      {"conv", options({{"type", std::string("gated_conv")}, {"expansion", int64_t{4}}, {"taps", int64_t{3}}})},
      {"linear", options({{"type", std::string("taylor_attention")}, {"heads", sizes.heads}, {"feature_dim", sizes.feature_dim}})},
      {"window", options({{"type", std::string("sliding_window")}, {"heads", sizes.heads}, {"window", sizes.window}})}};
  return config;
}

// The released form of a Based model: its convolutions have no biases.
ModelConfig released(ModelConfig config) {
  config.mixers["conv"].set("conv_bias", Config(false));
  return config;
}

// Transformer++: rotary positions on half of each head (rounded down to pairs), and a gated MLP of width 8/3·d, rounded up to a multiple of
// 256.
ModelConfig attention_model(int64_t d_model, int64_t heads, size_t count) {
  ModelConfig config;
  config.d_model = d_model;
  config.layers.assign(count, "attention");
  config.mlp_width = (8 * d_model / 3 + 255) / 256 * 256;
  config.mixers = {{"attention", options({{"type", std::string("attention")}, {"heads", heads}, {"rotary_dim", d_model / heads / 4 * 2}})}};
  return config;
}

// Mamba: blocks without MLPs, and GPT-NeoX's vocabulary, padded to a multiple of 16.
ModelConfig mamba_model(int64_t d_model, size_t count) {
  ModelConfig config;
  config.d_model = d_model;
  config.layers.assign(count, "mamba");
  config.mlp = "none";
  config.pad_vocab_multiple = 16;
  config.mixers = {{"mamba", options({{"type", std::string("mamba")}})}};
  return config;
}

// Identical blocks of a mixer and an MLP.
ModelConfig uniform_model(size_t count, const Config& mixer, int64_t mlp_width, const char* mlp = "swiglu") {
  ModelConfig config;
  config.d_model = 1024;
  config.layers.assign(count, "mixer");
  config.mlp = mlp;
  config.mlp_width = mlp_width;
  config.mixers = {{"mixer", mixer}};
  return config;
}

// RWKV's MLP, the channel mix, has a state, so it is a layer like the time mix.
ModelConfig rwkv_model(size_t blocks) {
  ModelConfig config = uniform_model(0, Config(Config::Table{}), 1, "none");
  for (size_t block = 0; block < blocks; ++block) config.layers.insert(config.layers.end(), {"rwkv5", "rwkv5_channel_mix"});
  config.norm = "layer_norm";
  config.mixers = {{"rwkv5", options({{"type", std::string("rwkv5")}})},
                   {"rwkv5_channel_mix", options({{"type", std::string("rwkv5_channel_mix")}})}};
  return config;
}

// Pythia: rotary positions on a quarter of each head, biases, LayerNorm and GELU.
ModelConfig pythia_model() {
  ModelConfig config = uniform_model(24,
                                     options({{"type", std::string("attention")},
                                              {"heads", int64_t{16}},
                                              {"rotary_dim", int64_t{16}},
                                              {"qkv_bias", true},
                                              {"out_bias", true}}),
                                     4096, "gelu");
  config.norm = "layer_norm";
  return config;
}

ModelConfig hyena_model() {
  return uniform_model(29, options({{"type", std::string("hyena")}, {"l_max", int64_t{2048}}, {"w", 14.0}, {"slow_decay", 1.2}}), 2048);
}

ModelConfig h3_model() {
  ModelConfig config =
      uniform_model(24, options({{"type", std::string("h3")}, {"d_state", int64_t{64}}, {"head_dim", int64_t{64}}}), 4096, "gelu");
  config.norm = "layer_norm";
  return config;
}

ModelConfig with_vocab(ModelConfig config, int64_t vocab_size) {
  config.vocab_size = vocab_size;
  return config;
}

constexpr int64_t gpt2_vocab = 50257, mamba_vocab = 50277;

std::vector<Preset> make_presets() {
  return {
      {"based-360m", "the paper's Based at 363M: 5 linear, 5 window (64), 17 convolution layers",
       with_vocab(based_model({1024, 16, 16, 64}, hybrid_layers(27, {1, 6, 11, 16, 21}, {2, 7, 12, 17, 22})), gpt2_vocab)},
      {"based-1.4b", "the paper's Based at 1.35B: 7 linear, 7 window (16), 22 convolution layers",
       with_vocab(based_model({1792, 16, 16, 16}, hybrid_layers(36, {1, 6, 11, 16, 21, 27, 33}, {2, 7, 12, 17, 22, 28, 34})), gpt2_vocab)},
      {"based-1b-50b", "hazyresearch/based-1b-50b, as released: as based-1.4b, but with windows of 129 keys and no biases in convolutions",
       with_vocab(released(based_model({1792, 16, 16, 129}, hybrid_layers(36, {1, 6, 11, 16, 21, 27, 33}, {2, 7, 12, 17, 22, 28, 34}))),
                  gpt2_vocab)},
      {"attn-360m", "the paper's Transformer++ at 360M", with_vocab(attention_model(1024, 16, 24), gpt2_vocab)},
      {"attn-1.4b", "the paper's Transformer++ at 1.33B", with_vocab(attention_model(1680, 24, 36), gpt2_vocab)},
      {"mamba-360m", "the paper's Mamba at 358M", with_vocab(mamba_model(1024, 46), mamba_vocab)},
      {"mamba-1.3b", "the paper's Mamba at 1.32B", with_vocab(mamba_model(2048, 46), mamba_vocab)},
      {"based-demo", "the language model of `make demo`: trains in two minutes on two cores",
       with_vocab(based_model({192, 4, 16, 64}, hybrid_layers(5, {1, 4}, {2})), 1024)},
      {"based-tiny", "for tests: one layer of each kind", with_vocab(based_model({32, 2, 4, 8}, hybrid_layers(3, {1}, {2})), 257)},
      {"attn-tiny", "for tests: two layers of attention", with_vocab(attention_model(32, 2, 2), 257)},
      {"hyena-360m", "the paper's Hyena at 360M: 29 layers", with_vocab(hyena_model(), gpt2_vocab)},
      {"h3-360m", "the paper's H3 at 362M: 24 layers, none of attention", with_vocab(h3_model(), gpt2_vocab)},
      {"rwkv5-360m", "the paper's RWKV v5 at 362M: 19 time mixes and channel mixes; embedding and head are one",
       with_vocab(rwkv_model(19), gpt2_vocab)},
      {"gla-360m", "the paper's GLA at 362M: 24 layers of 4 heads; embedding and head are one",
       with_vocab(uniform_model(24, options({{"type", std::string("gla")}, {"heads", int64_t{4}}}), 2048), gpt2_vocab)},
      {"pythia-360m", "Pythia's shape at 356M: LayerNorm, GELU, biases", with_vocab(pythia_model(), gpt2_vocab)},
      {"mamba-tiny", "for tests: two layers of Mamba", with_vocab(mamba_model(32, 2), 257)},
  };
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = make_presets();
  return all;
}

const ModelConfig& find_preset(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& preset : presets()) {
    if (preset.name == name) return preset.config;
    names.push_back(preset.name);
  }
  const std::string close = nearest(name, names);
  throw UsageError("no preset '" + std::string(name) + "'" + (close.empty() ? "" : "; did you mean '" + close + "'?") +
                   " `based presets` lists them");
}

}  // namespace based
