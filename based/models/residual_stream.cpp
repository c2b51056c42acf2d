#include "based/models/residual_stream.h"

#include <tuple>
#include <utility>

#include "based/core/error.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/norm/layer_norm.h"
#include "based/ops/norm/rms_norm.h"

namespace based {

Norm::Norm(const std::string& kind, const ModelConfig& config) : eps_(config.norm_eps) {
  weight_ = register_parameter("weight", torch::ones({config.d_model}, parameter_device()));
  if (kind == "layer_norm") bias_ = register_parameter("bias", torch::zeros({config.d_model}, parameter_device()));
}

ResidualStream ResidualStream::from_sum(Tensor sum) { return {std::move(sum), {}}; }
ResidualStream ResidualStream::from_output(Tensor output) { return {{}, std::move(output)}; }

Tensor ResidualStream::norm(const Norm& norm, bool skip_sum_write) {
  if (deferred_norm_ != nullptr) return norm_after_deferred(norm, /*keeps_sum=*/true);
  const Tensor &weight = norm.weight(), &bias = norm.bias();
  const double eps = norm.eps();
  const Tensor added = std::exchange(pending_, Tensor()), unwritten = std::exchange(unwritten_, Tensor());
  const bool gradients = torch::GradMode::is_enabled();
  if (added.defined() && norm.is_layer_norm() && (gradients || sum_.defined())) {
    BASED_ASSERT(!unwritten.defined());  // only RMSNorm skips writing the sum
    if (!gradients) return ops::layer_norm_add_(sum_, added, weight, bias, eps);
    Tensor y;
    std::tie(sum_, y) = ops::layer_norm_add(ops::if_defined(sum_), added, weight, bias, eps);
    return y;
  }
  if (added.defined() && (gradients || sum_.defined())) {
    if (!gradients && skip_sum_write && !unwritten.defined()) {
      unwritten_ = added;
      return ops::rms_norm_of_sum(sum_, added, weight, eps);
    }
    if (!gradients) return ops::rms_norm_add_(sum_, added, weight, eps, ops::if_defined(unwritten));
    Tensor y;
    std::tie(sum_, y) = ops::rms_norm_add(ops::if_defined(sum_), added, weight, eps);
    return y;
  }
  if (!sum_.defined()) sum_ = added.to(ops::sum_type(added));
  return norm.is_layer_norm() ? ops::layer_norm(sum_, weight, bias, eps) : ops::rms_norm(sum_, weight, eps);
}

Tensor ResidualStream::norm_after_deferred(const Norm& norm, bool keeps_sum) {
  if (!norm.is_layer_norm()) {
    run_deferred_norm();
    return this->norm(norm);
  }
  const Norm& first = *std::exchange(deferred_norm_, nullptr);
  const Tensor added = std::exchange(pending_, Tensor());
  const ops::OptionalTensor sum = ops::if_defined(sum_);
  Tensor y;
  std::tie(sum_, y) =
      ops::layer_norm_add_twice({sum, added, first.weight(), first.bias(), norm.weight(), norm.bias(), norm.eps(), keeps_sum});
  return y;
}

void ResidualStream::run_deferred_norm() {
  if (const Norm* const deferred = std::exchange(deferred_norm_, nullptr)) pending_ = norm(*deferred);
}

void ResidualStream::add_norm(const Norm& norm, bool skip_sum_write) {
  if (norm.is_layer_norm() && pending_.defined() && torch::GradMode::is_enabled()) {
    deferred_norm_ = &norm;
  } else {
    pending_ = this->norm(norm, skip_sum_write);
  }
}

Tensor ResidualStream::last_norm(const Norm& norm) {
  return deferred_norm_ != nullptr ? norm_after_deferred(norm, /*keeps_sum=*/false) : this->norm(norm);
}

Tensor ResidualStream::total() {
  run_deferred_norm();
  const Tensor sum = std::exchange(sum_, Tensor()), pending = std::exchange(pending_, Tensor());
  return sum.defined() ? sum + pending : pending.to(ops::sum_type(pending));
}

ResidualStream ResidualStream::select(const Tensor& rows) const {
  BASED_ASSERT(!unwritten_.defined() && deferred_norm_ == nullptr);
  return {sum_.index_select(0, rows), pending_.index_select(0, rows)};
}

}  // namespace based
