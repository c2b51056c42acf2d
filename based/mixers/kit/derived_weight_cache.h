// A cache for values that a mixer computes from its weights alone, such as a filter. Without it, every decoding step would compute them
// again.
#pragma once
#include <mutex>
#include <vector>

#include "based/runtime/torch.h"

namespace based {

// On the CPU and with gradients off, the value is computed once, and again when a weight has changed. On a GPU it is computed in every
// call: comparing the weights would synchronise with the device.
template <class Value>
class DerivedWeightCache {
 public:
  // Returns make(), or its cached result. `make` must read no tensors other than the module's parameters and constants. Thread-safe.
  template <class Make>
  Value get(const torch::nn::Module& module, Make&& make) const {
    const std::vector<torch::Tensor> weights = module.parameters();
    if (at::GradMode::is_enabled() || weights.empty() || !weights[0].is_cpu()) return make();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!unchanged(weights)) {
      weights_.clear();
      for (const torch::Tensor& weight : weights) weights_.push_back(weight.detach().clone());
      value_ = make();
    }
    return value_;
  }

 private:
  bool unchanged(const std::vector<torch::Tensor>& weights) const {
    if (weights.size() != weights_.size()) return false;
    for (size_t i = 0; i < weights.size(); ++i)
      if (weights[i].scalar_type() != weights_[i].scalar_type() || !weights[i].equal(weights_[i])) return false;
    return true;
  }

  mutable std::mutex mutex_;
  mutable std::vector<torch::Tensor> weights_;  // copies of the weights that `value_` was computed from
  mutable Value value_;
};

}  // namespace based
