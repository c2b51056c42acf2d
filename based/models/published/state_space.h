// The parts that Mamba and Mamba-2 have in common: their authors' class MambaLMHeadModel.
#pragma once
#include <string>

#include "based/models/published/mapping.h"

namespace based::published {

// `mixer` is that of every layer.
Mapping map_state_space(ConfigReader& config, const MappedMixer& mixer);

// `layer` of the table `ssm_cfg`: "Mamba1" or "Mamba2". The first version of Mamba has no such key.
std::string state_space_layer(ConfigReader& config);

}  // namespace based::published
