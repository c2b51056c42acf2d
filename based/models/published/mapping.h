// The correspondence of a published model to a model of this library: its config, and the names of its tensors. Each family of models is
// one file of this folder.
#pragma once
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "based/core/safetensors.h"
#include "based/models/config.h"
#include "based/models/published/config_reader.h"

namespace based::published {

// The tensors of a published file by the names that the authors' loaders use: without a leading "model.", and without the counters of their
// trainer, whose names contain "metrics".
class SourceTensors {
 public:
  SourceTensors(const std::vector<TensorView>& tensors, const std::string& path);  // throws Error for a name that occurs twice

  bool has(const std::string& name) const { return by_name_.contains(name); }
  const TensorView* find(const std::string& name) const;
  int64_t rows(const std::string& name) const;  // the first dimension; 0 if absent or scalar
  const std::map<std::string, const TensorView*>& by_name() const { return by_name_; }

 private:
  std::map<std::string, const TensorView*> by_name_;
};
bool is_metric(const std::string& full_name);
std::string without_prefix(const std::string& full_name);

struct MappedName {
  std::string theirs, ours;
  bool is_filter = false;  // the filter of a depthwise convolution: [channels, 1, taps] there, [channels, taps] here
};

// Fields of this library's configs and the published keys that they are made of. Layers of several kinds may have fields of the same name.
using Origins = std::set<std::pair<std::string, std::string>>;

// A mixer of this library with its options, and the names of its tensors within the layer.
struct MappedMixer {
  std::string name;  // in ModelConfig::layers
  Config::Table options;
  std::vector<MappedName> names;
  Origins origins = {};

  // `origin`: the name of the published key that the value is made of, "" if it is made of none.
  void option(const char* key, Config::Value value, const std::string& origin = "") {
    options.emplace_back(key, Config(std::move(value)));
    if (!origin.empty()) origins.emplace(key, origin);
  }
  void add(const std::string& theirs, const std::string& ours, bool is_filter = false) { names.push_back({theirs, ours, is_filter}); }
  void add_layer(const std::string& theirs, const std::string& ours, bool bias) {  // a weight, and a bias if there is one
    add(theirs + ".weight", ours + ".weight");
    if (bias) add(theirs + ".bias", ours + ".bias");
  }
};

struct Mapping {
  std::string family;  // "based", "attention", "mamba" or "mamba2"
  ModelConfig config;
  std::vector<MappedName> names;
  std::string embedding, head;                            // the head is the embedding, under a second name that a file may lack
  std::map<std::string, std::vector<int64_t>> constants;  // tensors that do not change the outputs, and their shapes; a file may lack them
  std::vector<std::string> warnings;
  Origins origins;

  // Adds a layer with this mixer. The prefixes are those of the layer's mixer.
  void add_layer(const MappedMixer& mixer, const std::string& theirs, const std::string& ours);
};

// The families. Each throws Error for values that this library cannot express.
Mapping map_based(ConfigReader& config, const SourceTensors& source);
Mapping map_attention(ConfigReader& config, const SourceTensors& source);
Mapping map_mamba(ConfigReader& config);
Mapping map_mamba2(ConfigReader& config);

// Chooses the family by the config's keys. Throws Error that begins with the config's path for others, and for a model that
// check_model_config or a mixer refuses; where the field that is wrong is made of a published key, the message names this too.
Mapping map_published(ConfigReader& config, const SourceTensors& source);

// All reasons why the tensors are not those of the mapping, one per line: missing, unexpected, misshapen and of another type than floating
// point, and a head that differs from the embedding. Tensors without bytes, as in a list of shapes, are compared by shape alone.
std::string disagreements(const Mapping& mapping, const SourceTensors& source);

}  // namespace based::published
