// What mixers share beside Projection: checked options, the type of a state's sums, and the filter of a short convolution.
#pragma once
#include <optional>

#include "based/mixers/projection.h"
#include "based/ops/torch.h"

namespace based {

// Throws UsageError "mixer: option must be low..high, got value" where it is outside.
void check_option(const char* mixer, const char* option, int64_t value, int64_t low, int64_t high);

// Throws UsageError "mixer: option must be a number of at least <least>, got value" where it is less or not finite; of the least double:
// "must be a number".
void check_number(const char* mixer, const char* option, double value, double least);

// value / divisor. Throws UsageError "mixer: d_model 64 is not a multiple of heads 5", then `advice`, where it is none.
int64_t divided(const char* mixer, const char* name, int64_t value, const char* divisor_name, int64_t divisor, const char* advice = "");

// Of a state that sums, beside this weight: fp32 whatever the activations' type, fp64 in fp64. Other states have state_options.
torch::TensorOptions sum_options(const Tensor& weight);
// Bytes of a number of the one and of the other.
int64_t sum_bytes(const Tensor& weight);
inline int64_t state_number_bytes(const Tensor& weight) { return static_cast<int64_t>(weight.element_size()); }

// Uniform in [low, high], or empty under SkipInitialisation.
Tensor initial_uniform(torch::IntArrayRef shape, double low, double high);
// Uniform in ±1/√fan_in, likewise: filters [channels, taps] with their taps, and linear layers [out, in] as torch draws them.
Tensor initial_filter(torch::IntArrayRef shape, int64_t fan_in);

// A linear layer as torch draws it, uniform in ±1/√in; that over √layers where it is the last one of a mixer.
std::shared_ptr<Projection> uniform_projection(int64_t in, int64_t out, bool bias, int64_t layers = 1);

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
