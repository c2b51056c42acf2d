// Convolutions with filters as long as the text: filters that a small network makes from their taps' positions, and the ring of inputs that
// such a convolution keeps.
#pragma once
#include <memory>
#include <string>

#include "based/mixers/kept.h"
#include "based/mixers/pass.h"
#include "based/mixers/projection.h"
#include "based/mixers/state.h"

namespace based {

// A filter over the last size() tokens, tap 0 the present one.
class LongFilter : public torch::nn::Module {
 public:
  explicit LongFilter(int64_t size) : size_(size) {}
  int64_t size() const { return size_; }
  // The first `count` taps [channels, count], count ≤ size(), in fp32 (fp64 in fp64): in bf16 positions past 256 would fall together.
  virtual Tensor taps(int64_t count) const = 0;

 private:
  int64_t size_;
};

// One that a network makes; see Kept.
class NetworkFilter : public LongFilter {
 public:
  using LongFilter::LongFilter;
  Tensor taps(int64_t count) const final;

 protected:
  virtual Tensor make(int64_t count) const = 0;  // as taps

 private:
  Kept<Tensor> kept_;
};

// z_t = (t/(taps−1), cos(f_i w_t) …, −sin(f_i w_t) …), w_t = 2π t/taps, f from 1e-4 to bands−1 evenly, bands = (size−1)/2. [taps, size] in
// fp64; size is odd and at least 3.
Tensor position_features(int64_t taps, int64_t size);

// The network sees all positions at once, so that a few options could ask for any memory: taps · width is bounded. Throws UsageError,
// which names both as the mixer's options do.
void check_network(const char* mixer, const char* taps_name, int64_t taps, const char* width_name, int64_t width);

// In the type of sums: fp32, fp64 in fp64.
Tensor widened(const Tensor& weight);
Tensor widened_linear(const Projection& layer, const Tensor& x);

// y_t = Σ_j taps[:, j] x_{t−j} by the channels [from, from + x.size(1)) of a filter. x and y [tokens, channels].
struct LongConvolution {
  const LongFilter& filter;
  int64_t from = 0;

  Tensor forward(const Tensor& x, const Pass& pass) const;
  // `name` [slots, filter.size(), channels]: a ring of the latest inputs.
  Tensor prefill(const Tensor& x, MixerState& state, const std::string& name, const Pass& pass) const;
  Tensor step(const Tensor& x, const Tensor& ring, const Pass& pass) const;
};

}  // namespace based
