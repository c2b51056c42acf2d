// Expands [model] and [[series]] of an experiment into one model table for each point.
//
//   d_model = [64, 128]                      a list is an axis (except `layers`); the points are all combinations of the axes' values
//   mixers.mixer.feature_dim = "= d_model"   a tie: the value of another key
//   mixers.mixer.state = "= d_model / 4"     a tie may apply one of * / + - with an integer
//
// The key of a tie is looked up in its own table, then in the enclosing tables. A dotted key is looked up from the model's root:
// "= mixers.mixer.heads * 2".
#pragma once
#include <string>
#include <vector>

#include "based/core/config.h"

namespace based {

Config merged(Config base, const Config& top);  // `base` with the keys of `top`: tables are merged recursively, other values replaced

struct AxisPoint {
  std::string label;  // the axes' values: "d_model=64 feature_dim=8"; tied keys are not listed
  Config model;
};
// Returns at least one point. Throws UsageError naming the key.
std::vector<AxisPoint> expand_axes(const Config& model);

// `config` without the keys whose values equal those in `defaults`.
Config without_defaults(const Config& config, const Config& defaults);

}  // namespace based
