// A family of reference mixers ("peers") in golden files: the corresponding mixers of this library, and functions that run their operators
// alone. Each family is one file, based/models/golden/<name>.cpp, and one line in families.def.
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
#include "based/runtime/torch.h"

namespace based::golden {

using torch::Tensor;

// The peer's parameters in a golden file, with names "param.<prefix><name>".
class PeerParameters {
 public:
  PeerParameters(const SafetensorsFile& file, std::string prefix) : file_(&file), prefix_("param." + std::move(prefix)) {}
  bool has(const std::string& name) const { return file_->find(prefix_ + name) != nullptr; }
  int64_t size(const std::string& name, size_t dimension) const;  // throws Error if it is absent or has fewer dimensions
  PeerParameters below(const std::string& prefix) const;
  const std::string& path() const { return file_->path(); }
  const SafetensorsFile& file() const { return *file_; }

 private:
  const SafetensorsFile* file_;
  std::string prefix_;
};

struct PeerMixer {
  std::string name;  // "mixer" of the file's metadata ("base_conv short"), or the class in a recall model ("BaseConv")
  const Json& config;
  PeerParameters parameters;
  int64_t length = 0;  // tokens per row
};

// The mixer of this library that corresponds to a peer's.
struct ReferenceMixer {
  std::string type;                                 // registered name, or empty if there is none
  Config::Table options;                            // options of this library's mixer
  std::map<std::string, std::string> names;         // the peer's parameter names -> ours; "" for constants that are computed here
  std::string skipped;                              // the reason if there is no comparison, otherwise empty
  std::map<std::string, std::string> buffers = {};  // the peer's buffer names -> ours: random constants, or constants in another precision
};

// The device and precision of a run.
struct Place {
  torch::Device device;
  torch::Dtype dtype;
};

// The results of one run in one precision, under the file's names: outputs, and the inputs that have gradients.
struct Run {
  std::vector<std::pair<std::string, Tensor>> outputs;
  std::vector<std::pair<std::string, Tensor>> inputs;
  Tensor objective;  // a scalar, whose gradients are in the file
};

// The function that runs a file, or the reason why it is skipped.
struct Case {
  std::function<Run(const Place&)> run;
  std::string skipped;
};

struct Family {
  // Both return nullopt for mixers of other families. Either may be null.
  std::optional<ReferenceMixer> (*mixer)(const PeerMixer& peer);
  std::optional<Case> (*operators)(const SafetensorsFile& file, const std::string& mixer, const Json& config);
};
const std::vector<Family>& families();

// Helpers for families.

inline ReferenceMixer skipped(std::string reason) { return {"", {}, {}, std::move(reason)}; }
bool starts_with(const std::string& text, const char* start);
// Maps "<theirs>.weight" and "<theirs>.bias" to "<ours>.weight" and "<ours>.bias".
void add_pair(ReferenceMixer& mixer, const std::string& theirs, const std::string& ours);
// total / parts. Throws Error with the name `what` unless parts divides total.
int64_t divide(int64_t total, int64_t parts, const char* what, const std::string& path);
Tensor read(const SafetensorsFile& file, const std::string& name);
// Reads a tensor as an input that requires a gradient, and adds it to run.inputs.
Tensor read_input(Run& run, const SafetensorsFile& file, const std::string& name, const Place& place);

// Copies the file's parameters, and the buffers that are in `names`, into the module. Extra dimensions of size 1 are removed. All
// parameters of both sides must be covered. `prefix` is that of parameters in the file.
void load_parameters(const SafetensorsFile& file, torch::nn::Module& module, const std::map<std::string, std::string>& names,
                     const char* prefix = "param.");
// Adds every parameter with a stored gradient to run.inputs, under the file's name.
void add_parameters(Run& run, const SafetensorsFile& file, torch::nn::Module& module, const std::map<std::string, std::string>& names);

// A field of a peer's config, or `fallback` if it is absent or null.
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

// The last line of a family's file: BASED_GOLDEN_FAMILY_DEFINE(convolutions, {mixer, nullptr})
#define BASED_GOLDEN_FAMILY_DEFINE(name, ...) \
  ::based::golden::Family golden_family_##name() { return __VA_ARGS__; }
