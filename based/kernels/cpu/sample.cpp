#include "based/kernels/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "based/kernels/cpu/parallel.h"

namespace based::kernels::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

float logit_at(const Sample& p, int64_t row, int64_t token) {
  const int64_t at = row * p.logits_stride + token;
  if (p.dtype == DType::f32) return static_cast<const float*>(p.logits)[at];
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(p.logits)[at]) << 16);
}

// The smallest logit that top-k, min-p and top-p leave; `sorted` largest first.
float least_kept(const Sample& p, int64_t row, const std::vector<float>& sorted) {
  const float top = sorted.front(), temperature = p.temperature[row];
  float least = kNone;
  if (p.top_k[row] > 0 && p.top_k[row] < static_cast<int64_t>(sorted.size())) least = sorted[static_cast<size_t>(p.top_k[row] - 1)];
  if (p.min_p[row] > 0) least = std::max(least, top + temperature * std::log(p.min_p[row]));
  if (p.top_p[row] >= 1) return least;
  double whole = 0, sum = 0;
  for (const float logit : sorted)
    if (logit >= least) whole += std::exp((logit - top) / temperature);
  for (const float logit : sorted) {
    sum += std::exp((logit - top) / temperature);
    if (sum >= p.top_p[row] * whole) return logit;
  }
  return least;
}

int64_t draw(const Sample& p, int64_t row) {
  std::vector<float> logits(static_cast<size_t>(p.vocab));
  for (int64_t token = 0; token < p.vocab; ++token) logits[static_cast<size_t>(token)] = logit_at(p, row, token);
  const bool has_nan = std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
  const auto best = std::max_element(logits.begin(), logits.end());
  if (has_nan || best == logits.end() || !std::isfinite(*best)) return -1;
  const float temperature = p.temperature[row];
  if (temperature == 0) return best - logits.begin();
  float least = kNone;
  if (p.top_k[row] > 0 || p.min_p[row] > 0 || p.top_p[row] < 1) {
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    least = least_kept(p, row, sorted);
  }
  int64_t chosen = best - logits.begin();
  float best_score = kNone;
  for (int64_t token = 0; token < p.vocab; ++token) {
    const float logit = logits[static_cast<size_t>(token)];
    if (!(logit >= least) || logit == kNone) continue;
    const auto bits = sample_bits(static_cast<uint64_t>(p.seed[row]), static_cast<uint64_t>(p.position[row]), static_cast<uint64_t>(token));
    const float score = (logit - *best) / temperature - std::log(-std::log(sample_uniform(bits)));
    if (score > best_score) best_score = score, chosen = token;
  }
  return chosen;
}

}  // namespace

Status sample(const Sample& p) {
  parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) p.token[row] = draw(p, row);
  });
  return {};
}

}  // namespace based::kernels::cpu
