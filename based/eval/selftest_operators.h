// The operators' part of the selftest: one entry an operator and path.
#pragma once
#include <functional>
#include <vector>

#include "based/runtime/torch.h"

namespace based {

// An operator as a function of floating-point inputs. The reference runs in double, the operator in the type under test.
struct OperatorCheck {
  using Tensors = std::vector<torch::Tensor>;
  const char* name;
  std::function<Tensors()> inputs;  // fp32 values that bf16 represents exactly
  std::function<torch::Tensor(const Tensors&)> op, reference;
  bool gradients = true;
};
std::vector<OperatorCheck> operator_checks();

// Largest relative error of the output and, if check.gradients, of the gradients of Σ y·g.
double operator_error(const OperatorCheck& check, torch::Device device, torch::Dtype type);

}  // namespace based
