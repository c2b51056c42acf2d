// The models' part of the selftest: a model of every mixer, in all its forms, and loaded from files in every type.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "based/runtime/torch.h"

namespace based {

struct ModelCheck {
  std::string mixer, variant;
  double tolerance = 0;
  std::function<double()> measure;  // returns the relative error; throws Error if the model does not work at all
};
std::vector<ModelCheck> model_checks(torch::Device device);

// Largest difference divided by the largest entry of the reference; infinite if shapes differ or an entry is NaN.
double relative_error(const torch::Tensor& value, const torch::Tensor& reference);

}  // namespace based
