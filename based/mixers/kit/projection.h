// The linear layer of models: parameters `weight` and `bias`, initialised from N(0, std), computed by ops::linear.
#pragma once
#include <memory>
#include <string>

#include "based/core/thread_flag.h"
#include "based/runtime/torch.h"

namespace based {

using torch::Tensor;

// While an object of this type exists on this thread, new parameters are left uninitialised: their values are about to be loaded.
struct SkipInitialisation : ThreadFlag<SkipInitialisation> {};

// N(0, std) of this shape; uninitialised under SkipInitialisation.
Tensor initial_normal(torch::IntArrayRef shape, double std);
constexpr double initial_std = 0.02;
// The standard deviation for output projections, 0.02/√(2·layers): the variance of the residual stream does not grow with depth.
double output_initial_std(int64_t layers);

class Projection : public torch::nn::Module {
 public:
  Projection(int64_t in, int64_t out, bool bias, double std = initial_std);
  explicit Projection(Tensor weight, Tensor bias = {});  // [out, in], [out]
  Tensor forward(const Tensor& x) const;                 // [tokens, in] -> [tokens, out]
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }  // undefined without a bias

 private:
  Tensor weight_, bias_;
};

}  // namespace based
