// The linear layer of models: parameters `weight` and `bias`, initialised from N(0, std), computed by ops::linear. Its weight may be
// replaced by a quantised one.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "based/core/thread_flag.h"
#include "based/ops/linear/quantised_linear.h"
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
  Tensor forward_swiglu(const Tensor& x) const;          // swiglu(forward(x)), [tokens, in] -> [tokens, out / 2]
  // [out, in]. A quantised weight is converted in each call; computations for which a quantised form exists should test quantised().
  Tensor weight() const;
  const Tensor& bias() const { return bias_; }  // undefined without a bias

  // Replaces the parameter `weight`, which must not be needed any longer: parameters() and conversions of the module no longer cover it.
  // `type` is that of the activations. Throws Error for a weight of another shape.
  void quantise(ops::QuantisedWeight weight, torch::Dtype type);
  const std::optional<ops::QuantisedWeight>& quantised() const { return quantised_; }
  // Converts a quantised weight to the type of the activations, and makes it the parameter `weight` again, without a gradient. Returns its
  // bytes, or 0 if the weight is not quantised. The quantised weight keeps its memory, because recorded steps may read it.
  int64_t use_full_weight();
  // Whether models with quantised weights may quantise this layer. False for small layers whose errors grow in a recurrence or a filter.
  bool quantisable() const { return quantisable_; }
  void keep_full_precision() { quantisable_ = false; }

 private:
  Tensor weight_, bias_;                                      // weight_ is undefined if quantised_ has a value
  std::optional<ops::QuantisedWeight> quantised_, recorded_;  // recorded_: what quantised_ was before use_full_weight()
  torch::Dtype type_ = torch::kFloat;                         // the type of the quantised layer's activations
  bool quantisable_ = true;
};

// The same layer, which keeps its precision in models with quantised weights.
inline std::shared_ptr<Projection> full_precision(std::shared_ptr<Projection> projection) {
  projection->keep_full_precision();
  return projection;
}

}  // namespace based
