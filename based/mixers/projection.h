// A linear layer as models use it: plain names in files (weight, bias), N(0, std) at the start, ops::linear in every form.
#pragma once
#include <memory>
#include <string>

#include "based/core/thread_flag.h"
#include "based/ops/torch.h"

namespace based {

using torch::Tensor;

// While one lives on this thread, parameters are left empty instead of drawn: for a model whose weights are about to be loaded.
struct SkipInitialisation : ThreadFlag<SkipInitialisation> {};

// N(0, std) of this shape, or empty under SkipInitialisation.
Tensor initial_normal(torch::IntArrayRef shape, double std);
constexpr double initial_std = 0.02;
// Of output projections, so that the residual stream's variance does not grow with depth: 0.02/√(2·layers).
double output_initial_std(int64_t layers);

class Projection : public torch::nn::Module {
 public:
  Projection(int64_t in, int64_t out, bool bias, double std = initial_std);
  explicit Projection(Tensor weight, Tensor bias = {});  // [out, in], [out]
  Tensor forward(const Tensor& x) const;                 // [tokens, in] -> [tokens, out]
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }  // undefined: none

 private:
  Tensor weight_, bias_;
};

}  // namespace based
