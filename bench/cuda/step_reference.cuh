// A step of a small Based model in double, on the host.
#pragma once
#include "bench/cuda/harness.cuh"

namespace based::bench {

struct StepSizes {
  int64_t width, heads, feature_dim, window, vocabulary;
};

// The weights and the state of a layer: 'c' gated convolution, 't' Taylor attention, 'w' window.
struct StepLayer {
  char kind = 'c';
  Buffer norm1, norm2, fc1, fc2;
  Buffer in, in_bias, value, taps, taps_bias, out, out_bias;  // in: q and k, without v, where the layer has a `value`
  Buffer state, sums, position;                               // a window's keys, then its values
};

class StepReference {
 public:
  StepReference(const StepSizes& sizes, const std::vector<StepLayer>& layers, const Buffer& norm, const Buffer& vocabulary)
      : s_(sizes), layers_(layers), norm_(norm), vocabulary_(vocabulary) {}
  void start(const Buffer& x);  // downloads the residual stream and all states as they are
  void step();
  const std::vector<double>& logits() const { return logits_; }

 private:
  using Vector = std::vector<double>;
  Vector normalised(const Buffer& weight) const;
  Vector mix(size_t layer, const Vector& y);
  Vector convolve(size_t layer, const Vector& u);
  Vector attend_taylor(size_t layer, const Vector& qk, const Vector& v);
  Vector attend_window(size_t layer, const Vector& qkv);

  const StepSizes s_;
  const std::vector<StepLayer>& layers_;
  const Buffer &norm_, &vocabulary_;
  Vector x_, logits_;
  std::vector<Vector> states_, sums_;
  std::vector<int64_t> positions_;
};

}  // namespace based::bench
