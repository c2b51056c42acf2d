#include "bench/cuda/step_reference.cuh"

#include <algorithm>
#include <cmath>

#include "based/kernels/taylor_attention.h"

namespace based::bench {
namespace {

using kernels::DType;
using Vector = std::vector<double>;

Vector linear(const Vector& x, const Buffer& weight, const Buffer* bias) {
  const auto in = static_cast<int64_t>(x.size()), out = weight.bytes() / 2 / in;
  const Vector w = download(weight.as(), DType::bf16, in * out);
  Vector y = bias != nullptr ? download(bias->as(), DType::bf16, out) : Vector(static_cast<size_t>(out), 0.0);
  for (int64_t o = 0; o < out; ++o)
    for (int64_t i = 0; i < in; ++i) y[o] += w[o * in + i] * x[i];
  return y;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

Vector features_of(const double* x, int64_t d) {
  Vector f{1};
  for (int64_t i = 0; i < d; ++i) f.push_back(x[i]);
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = i; j < d; ++j) f.push_back(x[i] * x[j] * (i == j ? std::sqrt(0.5) : 1));
  return f;
}

void turn(double* x, int64_t d, double position) {
  for (int64_t i = 0; i < d / 2; ++i) {
    const double angle = position * std::pow(10000, -2.0 * double(i) / double(d)), a = x[i], b = x[i + d / 2];
    x[i] = a * std::cos(angle) - b * std::sin(angle), x[i + d / 2] = a * std::sin(angle) + b * std::cos(angle);
  }
}

void add_to(Vector& x, const Vector& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

void StepReference::start(const Buffer& x) {
  x_ = download(x.as(), DType::f32, s_.width);
  for (const StepLayer& layer : layers_) {
    const DType dtype = layer.kind == 'w' ? DType::bf16 : DType::f32;
    states_.push_back(download(layer.state.as(), dtype, layer.state.bytes() / kernels::dtype_size(dtype)));
    sums_.push_back(layer.kind == 't' ? download(layer.sums.as(), DType::f32, layer.sums.bytes() / 4) : Vector());
    positions_.push_back(s_.window + 3);
  }
}

Vector StepReference::normalised(const Buffer& weight) const {
  Vector y = download(weight.as(), DType::bf16, s_.width);
  double squares = 0;
  for (const double v : x_) squares += v * v;
  for (size_t i = 0; i < y.size(); ++i) y[i] *= x_[i] / std::sqrt(squares / double(s_.width) + 1e-5);
  return y;
}

Vector StepReference::convolve(size_t layer, const Vector& u) {
  const int64_t channels = 2 * s_.width;
  const Vector taps = download(layers_[layer].taps.as(), DType::bf16, 3 * channels);
  Vector y = download(layers_[layer].taps_bias.as(), DType::bf16, channels);
  for (int64_t c = 0; c < channels; ++c) {
    double* old = &states_[layer][2 * c];
    y[c] = silu(y[c] + taps[3 * c] * old[0] + taps[3 * c + 1] * old[1] + taps[3 * c + 2] * u[c]) * u[channels + c];
    old[0] = old[1], old[1] = u[c];
  }
  return y;
}

Vector StepReference::attend_taylor(size_t layer, const Vector& qk, const Vector& v) {
  const int64_t features = kernels::packed_features(s_.feature_dim), d = s_.width / s_.heads;
  Vector y(v.size(), 0.0);
  for (int64_t h = 0; h < s_.heads; ++h) {
    const Vector q = features_of(&qk[h * s_.feature_dim], s_.feature_dim),
                 k = features_of(&qk[(s_.heads + h) * s_.feature_dim], s_.feature_dim);
    double denominator = 0;
    for (int64_t f = 0; f < features; ++f) {
      double& sum = sums_[layer][h * features + f];
      sum += k[f], denominator += q[f] * sum;
      for (int64_t c = 0; c < d; ++c) {
        double& state = states_[layer][(h * features + f) * d + c];
        state += k[f] * v[h * d + c], y[h * d + c] += q[f] * state;
      }
    }
    for (int64_t c = 0; c < d; ++c) y[h * d + c] /= denominator;
  }
  return y;
}

Vector StepReference::attend_window(size_t layer, const Vector& qkv) {
  const int64_t d = s_.width / s_.heads, position = positions_[layer]++, newest = position % s_.window;
  Vector y(static_cast<size_t>(s_.width), 0.0);
  for (int64_t h = 0; h < s_.heads; ++h) {
    Vector q(&qkv[h * d], &qkv[h * d] + d), k(&qkv[s_.width + h * d], &qkv[s_.width + h * d] + d), weight;
    turn(q.data(), d, double(position)), turn(k.data(), d, double(position));
    double *keys = &states_[layer][h * d], *values = keys + s_.window * s_.width, total = 0;
    std::copy(k.begin(), k.end(), keys + newest * s_.width);
    std::copy(&qkv[2 * s_.width + h * d], &qkv[2 * s_.width + h * d] + d, values + newest * s_.width);
    const int64_t count = std::min(position + 1, s_.window);
    for (int64_t i = 0; i < count; ++i) {
      double score = 0;
      for (int64_t c = 0; c < d; ++c) score += q[c] * keys[i * s_.width + c];
      weight.push_back(std::exp(score / std::sqrt(double(d)))), total += weight.back();
    }
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < d; ++c) y[h * d + c] += weight[i] / total * values[i * s_.width + c];
  }
  return y;
}

Vector StepReference::mix(size_t i, const Vector& y) {
  const StepLayer& layer = layers_[i];
  if (layer.kind == 'c') return linear(convolve(i, linear(y, layer.in, &layer.in_bias)), layer.out, &layer.out_bias);
  const Vector in = linear(y, layer.in, nullptr);
  return linear(layer.kind == 't' ? attend_taylor(i, in, linear(y, layer.value, nullptr)) : attend_window(i, in), layer.out, nullptr);
}

void StepReference::step() {
  for (size_t i = 0; i < layers_.size(); ++i) {
    add_to(x_, mix(i, normalised(layers_[i].norm1)));
    const Vector h = linear(normalised(layers_[i].norm2), layers_[i].fc1, nullptr);
    Vector gated(h.begin(), h.begin() + 2 * s_.width);
    for (size_t c = 0; c < gated.size(); ++c) gated[c] *= silu(h[gated.size() + c]);
    add_to(x_, linear(gated, layers_[i].fc2, nullptr));
  }
  logits_ = linear(normalised(norm_), vocabulary_, nullptr);
}

}  // namespace based::bench
