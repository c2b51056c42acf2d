// How the reference implementations name what is ours: their configs as our mixers' options, their parameters as ours. Sizes are taken from
// the stored tensors wherever these tell them, so that files of any sizes work.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/core/safetensors.h"
#include "based/models/config.h"

namespace based {

// The peer's "param.<prefix><name>" in a golden file.
class ReferenceParameters {
 public:
  ReferenceParameters(const SafetensorsFile& file, std::string prefix) : file_(&file), prefix_("param." + std::move(prefix)) {}
  bool has(const std::string& name) const { return file_->find(prefix_ + name) != nullptr; }
  int64_t size(const std::string& name, size_t dimension) const;  // throws Error where absent or of fewer dimensions
  ReferenceParameters below(const std::string& prefix) const;
  const std::string& path() const { return file_->path(); }

 private:
  const SafetensorsFile* file_;
  std::string prefix_;
};

// One of our mixers that computes what the peer's does.
struct ReferenceMixer {
  std::string type;                          // registered name; empty: none
  Config::Table options;                     // of ours
  std::map<std::string, std::string> names;  // the peer's parameters -> ours; empty: a constant of the peer that ours computes
  std::string skipped;                       // why there is no comparison; empty: there is
};

// By the file's "mixer" and "config" metadata. `length`: tokens of a row.
ReferenceMixer reference_mixer(const std::string& mixer, const Json& config, const ReferenceParameters& parameters, int64_t length);

struct ReferenceModel {
  ModelConfig config;
  std::map<std::string, std::string> names;
  std::string skipped;
};

// GPTLMHeadModel of the paper's code ("language model …") and the recall experiments' LanguageModel ("…, synthetic-task form").
ReferenceModel reference_model(const std::string& mixer, const Json& config, const ReferenceParameters& parameters, int64_t length);

}  // namespace based
