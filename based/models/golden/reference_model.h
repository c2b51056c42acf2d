// Translates the reference implementations' configs and parameter names into those of this library. Sizes are taken from the stored tensors
// wherever possible, so that files of any sizes work.
#pragma once
#include <map>
#include <string>

#include "based/models/config.h"
#include "based/models/golden/family.h"

namespace based::golden {

ReferenceMixer reference_mixer(const PeerMixer& peer);  // from the family that knows it; skipped if there is none

struct ReferenceModel {
  ModelConfig config;
  std::map<std::string, std::string> names;
  std::string skipped;
  std::map<std::string, std::string> buffers;
};

// For GPTLMHeadModel of the paper's code ("language model …") and LanguageModel of the recall experiments ("…, synthetic-task form").
// `mixer` and `config` are the file's metadata, `length` the number of tokens per row.
ReferenceModel reference_model(const std::string& mixer, const Json& config, const PeerParameters& parameters, int64_t length);

}  // namespace based::golden
