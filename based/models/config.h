// The configuration of a model: a list of layers, each with a named mixer and an MLP. Stored as config.json, or as [model] in a TOML file.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/config.h"

namespace based {

struct ModelConfig {
  int64_t d_model = 128;
  int64_t vocab_size = 257;
  int64_t pad_vocab_multiple = 8;        // embedding rows are padded to a multiple; padded logits count in the loss and are never sampled
  std::vector<std::string> layers;       // names from `mixers`, or registered mixers with their defaults
  std::map<std::string, Config> mixers;  // name -> {type = "registered mixer", option = value, …}
  std::string mlp = "swiglu";            // swiglu, gelu, identity or none
  int64_t mlp_width = 256;
  std::string norm = "rms_norm";  // rms_norm or layer_norm
  std::string final_norm;         // the norm after the last layer; empty: as `norm`
  double norm_eps = 1e-5;
  int64_t max_positions = 0;  // learned positions 0 … max_positions − 1; 0: none
  double embedding_dropout = 0;

  int64_t padded_vocab() const { return (vocab_size + pad_vocab_multiple - 1) / pad_vocab_multiple * pad_vocab_multiple; }

  template <class Visitor>
  void visit(Visitor&& field) {
    field("d_model", d_model, "width of the residual stream");
    field("vocab_size", vocab_size, "token ids are 0 … vocab_size − 1");
    field("pad_vocab_multiple", pad_vocab_multiple, "embedding rows are rounded up to a multiple of this");
    field("layers", layers, "the mixer of each layer: a name out of `mixers`, or a registered mixer with its defaults");
    field("mixers", mixers, "named mixers: {type = \"a registered mixer\", and its options}");
    field("mlp", mlp, "swiglu, gelu, identity (the norm before it stays, as in the recall experiments) or none (no norm either)");
    field("mlp_width", mlp_width, "hidden width of the MLP");
    field("norm", norm, "rms_norm or layer_norm");
    field("final_norm", final_norm, "the norm behind the last layer, rms_norm or layer_norm; empty: as norm");
    field("norm_eps", norm_eps, "added to the variance");
    field("max_positions", max_positions, "learned positions; 0: none");
    field("embedding_dropout", embedding_dropout, "dropout on the embeddings while training");
  }
};

// Throws UsageError if a size is out of range or a layer's mixer is unknown.
void check_model_config(const ModelConfig& config);

// [model] of an experiment, or an empty table if it is missing. Throws UsageError if it is not a table.
Config model_table(const Config& config);
// [model] of an experiment: {preset = "name", and keys that override the preset's}, or all keys.
ModelConfig read_model_config(const Config& config);

// Throws UsageError if the model that [model] describes is not the one in `folder`, which another key names, such as "train.start".
void require_model_of(const ModelConfig& model, const ModelConfig& stored, const std::string& key, const std::string& folder);

struct Preset {
  std::string name, summary;
  ModelConfig config;
};
const std::vector<Preset>& presets();
const ModelConfig& find_preset(std::string_view name);  // throws UsageError that suggests the nearest

}  // namespace based
