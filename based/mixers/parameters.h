// What mixers share beside Projection: checked options, and the filter of a short convolution.
#pragma once
#include <optional>

#include "based/mixers/projection.h"
#include "based/ops/torch.h"

namespace based {

// Throws UsageError "mixer: option must be low..high, got value" where it is outside.
void check_option(const char* mixer, const char* option, int64_t value, int64_t low, int64_t high);

// [channels, taps] uniform in ±1/√taps, or empty under SkipInitialisation.
Tensor initial_filter(torch::IntArrayRef shape, int64_t taps);

// Filter of a depthwise causal convolution: "weight" [channels, taps], the last tap weighs the present token, and "bias" [channels].
class ShortFilter : public torch::nn::Module {
 public:
  ShortFilter(int64_t channels, int64_t taps, bool bias);
  const Tensor& weight() const { return weight_; }
  std::optional<Tensor> bias() const { return bias_.defined() ? std::optional<Tensor>(bias_) : std::nullopt; }

 private:
  Tensor weight_, bias_;
};

}  // namespace based
