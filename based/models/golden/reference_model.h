// How the reference implementations name what is ours: their configs as our mixers' options, their parameters as ours. Sizes are taken from
// the stored tensors wherever these tell them, so that files of any sizes work.
#pragma once
#include <map>
#include <string>

#include "based/models/config.h"
#include "based/models/golden/family.h"

namespace based::golden {

ReferenceMixer reference_mixer(const PeerMixer& peer);  // of whichever family knows it; skipped where none does

struct ReferenceModel {
  ModelConfig config;
  std::map<std::string, std::string> names;
  std::string skipped;
  std::map<std::string, std::string> buffers;
};

// GPTLMHeadModel of the paper's code ("language model …") and the recall experiments' LanguageModel ("…, synthetic-task form"). `mixer` and
// `config`: the file's metadata. `length`: tokens of a row.
ReferenceModel reference_model(const std::string& mixer, const Json& config, const PeerParameters& parameters, int64_t length);

}  // namespace based::golden
