// The part of the selftest that is of models: one of every mixer, in its forms, and from files in every type.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "based/ops/torch.h"

namespace based {

struct ModelCheck {
  std::string mixer, variant;
  double tolerance = 0;
  std::function<double()> measure;  // the relative error; throws Error where something does not work at all
};
std::vector<ModelCheck> model_checks(torch::Device device);

// Largest difference over the largest entry of the reference; infinite where shapes differ or anything is not a number.
double relative_error(const torch::Tensor& value, const torch::Tensor& reference);

}  // namespace based
