// A family of peers' mixers in golden files: which of ours computes the same, and how its bare operators are run. A family is one file,
// based/models/golden/<name>.cpp, and one line in families.def.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "based/core/config.h"
#include "based/core/error.h"
#include "based/core/json.h"
#include "based/core/safetensors.h"
#include "based/ops/torch.h"

namespace based::golden {

using torch::Tensor;

// The peer's "param.<prefix><name>" in a golden file.
class PeerParameters {
 public:
  PeerParameters(const SafetensorsFile& file, std::string prefix) : file_(&file), prefix_("param." + std::move(prefix)) {}
  bool has(const std::string& name) const { return file_->find(prefix_ + name) != nullptr; }
  int64_t size(const std::string& name, size_t dimension) const;  // throws Error where absent or of fewer dimensions
  PeerParameters below(const std::string& prefix) const;
  const std::string& path() const { return file_->path(); }
  const SafetensorsFile& file() const { return *file_; }

 private:
  const SafetensorsFile* file_;
  std::string prefix_;
};

struct PeerMixer {
  std::string name;  // the file's "mixer" ("base_conv short"), or in a recall model the class ("BaseConv")
  const Json& config;
  PeerParameters parameters;
  int64_t length = 0;  // tokens of a row
};

// One of our mixers that computes what the peer's does.
struct ReferenceMixer {
  std::string type;                                 // registered name; empty: none
  Config::Table options;                            // of ours
  std::map<std::string, std::string> names;         // the peer's parameters -> ours; empty: a constant of the peer that ours computes
  std::string skipped;                              // why there is no comparison; empty: there is
  std::map<std::string, std::string> buffers = {};  // the peer's -> ours: constants that the peer keeps in another precision, or has drawn
};

// How a file is run.
struct Place {
  torch::Device device;
  torch::Dtype dtype;
};

// What one run in one precision gives under the file's names: outputs, and the inputs that have gradients.
struct Run {
  std::vector<std::pair<std::string, Tensor>> outputs;
  std::vector<std::pair<std::string, Tensor>> inputs;
  Tensor objective;  // a scalar whose gradients the file holds
};

// How to run the file, or why not.
struct Case {
  std::function<Run(const Place&)> run;
  std::string skipped;
};

struct Family {
  // nullopt: not of this family. Either may be null.
  std::optional<ReferenceMixer> (*mixer)(const PeerMixer& peer);
  std::optional<Case> (*operators)(const SafetensorsFile& file, const std::string& mixer, const Json& config);
};
const std::vector<Family>& families();

// What families read with.

inline ReferenceMixer skipped(std::string reason) { return {"", {}, {}, std::move(reason)}; }
bool starts_with(const std::string& text, const char* start);
// "<theirs>.weight" and ".bias" are "<ours>.weight" and ".bias".
void add_pair(ReferenceMixer& mixer, const std::string& theirs, const std::string& ours);
// total / parts; throws Error naming `what` where that is none.
int64_t divide(int64_t total, int64_t parts, const char* what, const std::string& path);
Tensor read(const SafetensorsFile& file, const std::string& name);
// The same as an input whose gradient is wanted, remembered in `run`.
Tensor read_input(Run& run, const SafetensorsFile& file, const std::string& name, const Place& place);

// The file's parameters, and those of its buffers that `names` has, into ours, reshaped where the peer keeps an extra dimension of 1; all
// parameters of both sides must be covered. `prefix`: of parameters in the file.
void load_parameters(const SafetensorsFile& file, torch::nn::Module& module, const std::map<std::string, std::string>& names,
                     const char* prefix = "param.");
// Every parameter with a stored gradient, under the file's name.
void add_parameters(Run& run, const SafetensorsFile& file, torch::nn::Module& module, const std::map<std::string, std::string>& names);

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
int64_t required_int(const Json& config, const char* key, const std::string& path);  // at least 1

}  // namespace based::golden

// Ends a family's file: BASED_GOLDEN_FAMILY_DEFINE(convolutions, {mixer, nullptr})
#define BASED_GOLDEN_FAMILY_DEFINE(name, ...) \
  ::based::golden::Family golden_family_##name() { return __VA_ARGS__; }
