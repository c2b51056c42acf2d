// Version numbers of the arithmetic, stored with results. They are raised by hand instead of hashing the sources, because a new comment or
// key does not change results. Tests compare the losses of small runs with recorded ones, so that no change of the arithmetic is missed.
#pragma once
#include "based/models/config.h"

namespace based {

// The mixers of a model by their registered names, each with its version: 1, or what versions.cpp says.
Config mixer_versions(const ModelConfig& model);

// A model's config for the keys of runs: without keys that have their default, and with the options of mixers sorted by name.
Config model_key(const ModelConfig& model);

}  // namespace based
