// Numbers that a mixer computes with and does not learn, such as the positions of a filter's taps.
#pragma once
#include "based/ops/torch.h"

namespace based {

// Moves with the module that it is part of, but keeps its type, which the weights' would round. It is not among the weights that are saved.
class Constant : public torch::nn::Module {
 public:
  explicit Constant(const torch::Tensor& value) : value_(register_buffer("value", value)) {}
  const torch::Tensor& value() const { return value_; }

  using torch::nn::Module::to;
  void to(torch::Device device, torch::Dtype /*dtype*/, bool non_blocking) override { Module::to(device, non_blocking); }
  void to(torch::Dtype /*dtype*/, bool /*non_blocking*/) override {}

 private:
  torch::Tensor value_;
};

}  // namespace based
