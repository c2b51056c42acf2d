#include <cmath>

#include "based/kernels/common/cpu/vec.h"
#include "based/kernels/training/cpu/cross_entropy_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

// Independent sums and maxima, so that the addition of a vector does not wait for the previous one.
constexpr int kUnroll = 4;

template <class T>
float largest(const T* x, int64_t n) {
  Vec most[kUnroll];
  for (Vec& m : most) m = broadcast(-INFINITY);
  int64_t i = 0;
  for (; i + kUnroll * lanes <= n; i += kUnroll * lanes)
    for (int u = 0; u < kUnroll; ++u) most[u] = max(most[u], load(x + i + u * lanes));
  for (; i + lanes <= n; i += lanes) most[0] = max(most[0], load(x + i));
  float result = reduce_max(max(max(most[0], most[1]), max(most[2], most[3])));
  for (; i < n; ++i) result = to_float(x[i]) > result ? to_float(x[i]) : result;
  return result;
}

// Σ exp(x − shift)
template <class T>
float sum_of_exponentials(const T* x, int64_t n, float shift) {
  Vec sum[kUnroll] = {};
  int64_t i = 0;
  for (; i + kUnroll * lanes <= n; i += kUnroll * lanes)
    for (int u = 0; u < kUnroll; ++u) sum[u] += exp(load(x + i + u * lanes) - shift);
  for (; i + lanes <= n; i += lanes) sum[0] += exp(load(x + i) - shift);
  if (i < n) {
    float rest[lanes];
    store(rest, exp(load(x + i, static_cast<int>(n - i)) - shift));
    for (int64_t j = 0; j < n - i; ++j) sum[1][0] += rest[j];
  }
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <class T>
void row(const CrossEntropy& p, int64_t r) {
  T* x = static_cast<T*>(p.logits) + r * p.vocab;
  const int64_t label = p.label[r];
  const float most = largest(x, p.vocab), sum = sum_of_exponentials(x, p.vocab, most);
  p.loss[r] = std::log(sum) + (most - to_float(x[label]));
  if (!p.gradient) return;
  const float label_gradient = (std::exp(to_float(x[label]) - most) / sum - 1) * p.scale, factor = p.scale / sum;
  int64_t i = 0;
  for (; i + lanes <= p.vocab; i += lanes) store(x + i, exp(load(x + i) - most) * factor);
  if (i < p.vocab) store(x + i, exp(load(x + i, static_cast<int>(p.vocab - i)) - most) * factor, static_cast<int>(p.vocab - i));
  x[label] = from_float<T>(label_gradient);
}

}  // namespace

void cross_entropy_rows(const CrossEntropy& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) p.dtype == DType::f32 ? row<float>(p, r) : row<bf16>(p, r);
}

}  // namespace based::kernels::cpu::BASED_ISA
