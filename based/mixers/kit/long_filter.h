// Causal convolutions whose filters are as long as the sequence: implicit filters, which a small network computes from the positions of the
// taps, and the ring buffer of past inputs that decoding needs.
#pragma once
#include <memory>
#include <string>

#include "based/mixers/kit/derived_weight_cache.h"
#include "based/mixers/kit/pass.h"
#include "based/mixers/kit/projection.h"
#include "based/mixers/kit/state.h"

namespace based {

// A filter over the last size() tokens. Tap 0 weighs the current token.
class LongFilter : public torch::nn::Module {
 public:
  explicit LongFilter(int64_t size) : size_(size) {}
  int64_t size() const { return size_; }
  // The first `count` taps [channels, count], count ≤ size(), in fp32 (fp64 for fp64 models): bf16 cannot tell positions past 256 apart.
  virtual Tensor taps(int64_t count) const = 0;

 private:
  int64_t size_;
};

// An implicit filter, computed by a network and cached by DerivedWeightCache.
class NetworkFilter : public LongFilter {
 public:
  using LongFilter::LongFilter;
  Tensor taps(int64_t count) const final;

 protected:
  virtual Tensor make(int64_t count) const = 0;  // computes taps(count)

 private:
  DerivedWeightCache<Tensor> cache_;
};

// Position features z_t = (t/(taps−1), cos(f_i w_t) …, −sin(f_i w_t) …) with w_t = 2π t/taps and `bands` = (size−1)/2 frequencies f_i
// spaced evenly from 1e-4 to bands−1. Returns [taps, size] in fp64; size is odd and at least 3.
Tensor position_features(int64_t taps, int64_t size);

// Bounds taps · width: the network evaluates all positions in one batch, so options alone could request any amount of memory. Throws
// UsageError that names both by the mixer's options.
void check_network(const char* mixer, const char* taps_name, int64_t taps, const char* width_name, int64_t width);

// Floating-point operations a token of one channel's convolution with a filter as long as the row, computed by FFTs over twice the row:
// one real transform of the input and one of the output, at 2.5·n·log2(n) each. The filter's transform is shared by all rows and not
// counted.
double long_convolution_flops(int64_t tokens);

// In the accumulation type: fp32, or fp64 for fp64 models.
Tensor widened(const Tensor& weight);
Tensor widened_linear(const Projection& layer, const Tensor& x);

// y_t = Σ_j taps[:, j] x_{t−j} with the channels [first_channel, first_channel + x.size(1)) of a filter. x and y are [tokens, channels].
struct LongConvolution {
  const LongFilter& filter;
  int64_t first_channel = 0;

  Tensor forward(const Tensor& x, const Pass& pass) const;
  // The state tensor `name` [slots, filter.size(), channels] is a ring buffer of the latest inputs.
  Tensor prefill(const Tensor& x, MixerState& state, const std::string& name, const Pass& pass) const;
  Tensor step(const Tensor& x, const Tensor& ring, const Pass& pass) const;
};

}  // namespace based
