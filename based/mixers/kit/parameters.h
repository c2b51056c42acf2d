// Helpers for mixers: checks of options, the dtype of accumulating states, initial parameters, and the filter of a short convolution.
#pragma once
#include <optional>

#include "based/mixers/kit/projection.h"
#include "based/runtime/torch.h"

namespace based {

// Throws UsageError "mixer: option must be low..high, got value" if the value is outside this range.
void check_option(const char* mixer, const char* option, int64_t value, int64_t low, int64_t high);

// Throws UsageError "mixer: option must be a number of at least <minimum>, got value" if the value is smaller or not finite. The message
// leaves "of at least …" out if `minimum` is the lowest double.
void check_number(const char* mixer, const char* option, double value, double minimum);

// Returns value / divisor. Throws UsageError "mixer: d_model 64 is not a multiple of heads 5", followed by `advice`, if there is a
// remainder.
int64_t divided(const char* mixer, const char* name, int64_t value, const char* divisor_name, int64_t divisor, const char* advice = "");

// Options of an accumulating state on the weight's device: fp32 for every type of activations, fp64 for fp64 models. States that only store
// activations use state_options().
torch::TensorOptions sum_options(const Tensor& weight);
// Bytes of one element of a tensor with sum_options(), and with state_options().
int64_t sum_bytes(const Tensor& weight);
inline int64_t state_number_bytes(const Tensor& weight) { return static_cast<int64_t>(weight.element_size()); }

// Uniform in [low, high]; uninitialised under SkipInitialisation.
Tensor initial_uniform(torch::IntArrayRef shape, double low, double high);
// Uniform in ±1/√fan_in; uninitialised under SkipInitialisation. Filters [channels, taps] have fan_in = taps; linear layers [out, in] have
// fan_in = in, torch's default.
Tensor initial_filter(torch::IntArrayRef shape, int64_t fan_in);

// A linear layer with torch's default weights, uniform in ±1/√in, and a zero bias. For a mixer's output projection pass the model's number
// of layers: its weights are uniform in ±1/√(in·layers).
std::shared_ptr<Projection> uniform_projection(int64_t in, int64_t out, bool bias, int64_t layers = 1);

// Filter of a depthwise causal convolution: "weight" [channels, taps], whose last tap weighs the current token, and "bias" [channels].
class ShortFilter : public torch::nn::Module {
 public:
  ShortFilter(int64_t channels, int64_t taps, bool bias);
  const Tensor& weight() const { return weight_; }
  std::optional<Tensor> bias() const { return bias_.defined() ? std::optional<Tensor>(bias_) : std::nullopt; }

 private:
  Tensor weight_, bias_;
};

}  // namespace based
