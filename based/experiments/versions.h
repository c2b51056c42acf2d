// Which arithmetic a kept result is of. A number by hand, not a hash of sources: what a comment or a new key changes, no result does. Tests
// pin what a small run comes to, so that a change of the arithmetic is not missed.
#pragma once
#include "based/models/config.h"

namespace based {

// The mixers of a model by their registered names, each with its version: 1, or what versions.cpp says.
Config mixer_versions(const ModelConfig& model);

// A model's config as a run's key has it: without what has its default, options of mixers in the order of their names.
Config model_key(const ModelConfig& model);

}  // namespace based
