// The parts that Based and attention have in common: their authors' class GPTLMHeadModel, whose config is GPT-2's with further keys.
#pragma once
#include <functional>

#include "based/models/published/mapping.h"

namespace based::published {

// The mixer of a layer; `prefix` is that of its tensors in the source.
using MixerOfLayer = std::function<MappedMixer(int64_t layer, const std::string& prefix)>;
Mapping map_gpt(ConfigReader& config, const SourceTensors& source, const MixerOfLayer& mixer_of_layer);

// Softmax attention by the keys of the whole model, over all keys (window 0) or the latest `window`, the token's own included.
MappedMixer softmax_attention(ConfigReader& config, int64_t window);

}  // namespace based::published
