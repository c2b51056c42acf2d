#include "based/mixers/kit/projection.h"

#include <cmath>
#include <utility>

#include "based/mixers/kit/shapes_only.h"
#include "based/ops/linear/linear.h"

namespace based {

Tensor initial_normal(torch::IntArrayRef shape, double std) {
  if (SkipInitialisation::active() || ShapesOnly::active()) return torch::empty(shape, parameter_device());
  return torch::randn(shape) * std;
}

double output_initial_std(int64_t layers) { return initial_std / std::sqrt(2.0 * static_cast<double>(layers)); }

Projection::Projection(int64_t in, int64_t out, bool bias, double std)
    : Projection(initial_normal({out, in}, std), bias ? torch::zeros({out}, parameter_device()) : Tensor()) {}

Projection::Projection(Tensor weight, Tensor bias) {
  weight_ = register_parameter("weight", std::move(weight));
  if (bias.defined()) bias_ = register_parameter("bias", std::move(bias));
}

Tensor Projection::forward(const Tensor& x) const {
  const std::optional<Tensor> bias = bias_.defined() ? std::optional<Tensor>(bias_) : std::nullopt;
  return quantised_ ? ops::quantised_linear(x, *quantised_, bias) : ops::linear(x, weight_, bias);
}

Tensor Projection::forward_swiglu(const Tensor& x) const {
  const std::optional<Tensor> bias = bias_.defined() ? std::optional<Tensor>(bias_) : std::nullopt;
  return quantised_ ? ops::quantised_linear_swiglu(x, *quantised_, bias) : ops::linear_swiglu(x, weight_, bias);
}

Tensor Projection::weight() const { return quantised_ ? ops::dequantised(*quantised_, 0, quantised_->out(), type_) : weight_; }

void Projection::quantise(ops::QuantisedWeight weight, torch::Dtype type) {
  ops::check_quantised(weight);
  if (weight_.defined() && (weight.out() != weight_.size(0) || weight.in() != weight_.size(1)))
    throw Error("the quantised weight is [" + std::to_string(weight.out()) + ", " + std::to_string(weight.in()) + "], the layer's is [" +
                std::to_string(weight_.size(0)) + ", " + std::to_string(weight_.size(1)) + "]");
  quantised_ = std::move(weight);
  type_ = type;
  if (weight_.defined()) parameters_.erase("weight");
  weight_ = Tensor();
}

int64_t Projection::use_full_weight() {
  if (!quantised_) return 0;
  const torch::InferenceMode ordinary_tensors(false);
  weight_ = register_parameter("weight", weight(), /*requires_grad=*/false);
  recorded_ = std::exchange(quantised_, std::nullopt);
  return static_cast<int64_t>(weight_.nbytes());
}

}  // namespace based
