// What a mixer makes of its weights alone, such as a filter, and would make again in each step of a text.
#pragma once
#include <mutex>
#include <vector>

#include "based/ops/torch.h"

namespace based {

// On the CPU and where gradients are off, a value is made once and then again when a weight has changed. On a GPU it is made every time: to
// look whether a weight has changed would wait there.
template <class Value>
class Kept {
 public:
  // What `make` gives, which reads no tensors but the module's parameters and constants.
  template <class Make>
  Value get(const torch::nn::Module& module, Make&& make) const {
    const std::vector<torch::Tensor> weights = module.parameters();
    if (at::GradMode::is_enabled() || weights.empty() || !weights[0].is_cpu()) return make();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!same(weights)) {
      seen_.clear();
      for (const torch::Tensor& weight : weights) seen_.push_back(weight.detach().clone());
      value_ = make();
    }
    return value_;
  }

 private:
  bool same(const std::vector<torch::Tensor>& weights) const {
    if (weights.size() != seen_.size()) return false;
    for (size_t i = 0; i < weights.size(); ++i)
      if (weights[i].scalar_type() != seen_[i].scalar_type() || !weights[i].equal(seen_[i])) return false;
    return true;
  }

  mutable std::mutex mutex_;
  mutable std::vector<torch::Tensor> seen_;  // copies of the weights that `value_` was made of
  mutable Value value_;
};

}  // namespace based
