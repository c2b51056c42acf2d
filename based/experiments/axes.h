// What [model] and [[series]] of an experiment stand for: a table for each point.
//
//   d_model = [64, 128]                    a list is an axis (`layers` is none): one point a value, every combination of all axes
//   mixers.mixer.feature_dim = "= d_model"       tied: the value of another key, which may be computed with one integer,
//   mixers.mixer.state = "= d_model / 4"         by * / + or -
//
// A tie names a key of its own table, else of the tables around it, or with dots one from the model's root: "= mixers.mixer.heads * 2".
#pragma once
#include <string>
#include <vector>

#include "based/core/config.h"

namespace based {

Config laid_over(Config base, const Config& top);  // key by key; what is no table is replaced

struct AxisPoint {
  std::string label;  // the axes' values: "d_model=64 feature_dim=8"; of a tied key nothing
  Config model;
};
// At least one. Throws UsageError naming the key.
std::vector<AxisPoint> expand_axes(const Config& model);

// `config` without what it has in common with `defaults`.
Config without_defaults(const Config& config, const Config& defaults);

}  // namespace based
