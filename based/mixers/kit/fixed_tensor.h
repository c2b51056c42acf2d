// A constant tensor of a mixer, such as the positions of a filter's taps.
#pragma once
#include "based/runtime/torch.h"

namespace based {

// Follows its module to another device but keeps its own dtype: a conversion of the model to bf16 would round it. It is not a parameter and
// is not saved with the weights.
class FixedTensor : public torch::nn::Module {
 public:
  explicit FixedTensor(const torch::Tensor& value) : value_(register_buffer("value", value)) {}
  const torch::Tensor& value() const { return value_; }

  using torch::nn::Module::to;
  void to(torch::Device device, torch::Dtype /*dtype*/, bool non_blocking) override { Module::to(device, non_blocking); }
  void to(torch::Dtype /*dtype*/, bool /*non_blocking*/) override {}

 private:
  torch::Tensor value_;
};

}  // namespace based
