#include "based/kernels/sampling/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "based/kernels/common/cpu/parallel.h"

namespace based::kernels::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

float logit_at(const Sample& p, int64_t row, int64_t token) {
  const int64_t at = row * p.logits_stride + token;
  if (p.dtype == DType::f32) return static_cast<const float*>(p.logits)[at];
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(p.logits)[at]) << 16);
}

// The smallest logit that top-k, min-p and top-p keep. Changes the order of `logits`.
float least_kept(const Sample& p, int64_t row, float top, std::vector<float>& logits) {
  const int64_t at = p.options_row(row);
  const float temperature = p.temperature[at];
  float least = kNone;
  if (p.top_k[at] > 0 && p.top_k[at] < static_cast<int64_t>(logits.size())) {
    const auto last = logits.begin() + (p.top_k[at] - 1);
    std::nth_element(logits.begin(), last, logits.end(), std::greater<>());
    least = *last;
  }
  if (p.min_p[at] > 0) least = std::max(least, top + temperature * std::log(p.min_p[at]));
  if (p.top_p[at] >= 1) return least;
  logits.erase(std::partition(logits.begin(), logits.end(), [least](float logit) { return logit >= least; }), logits.end());
  std::sort(logits.begin(), logits.end(), std::greater<>());
  double whole = 0, sum = 0;
  for (const float logit : logits) whole += std::exp((logit - top) / temperature);
  for (const float logit : logits) {
    sum += std::exp((logit - top) / temperature);
    if (sum >= p.top_p[at] * whole) return logit;
  }
  return least;
}

std::vector<float> penalised_logits(const Sample& p, int64_t row, const uint32_t* seen) {
  const float penalty = p.penalty[p.options_row(row)];
  std::vector<float> logits(static_cast<size_t>(p.vocab));
  for (int64_t token = 0; token < p.vocab; ++token) {
    const float logit = logit_at(p, row, token);
    logits[static_cast<size_t>(token)] = penalty != 1 && sample_is_seen(seen, token) ? sample_penalised(logit, penalty) : logit;
  }
  return logits;
}

int64_t draw(const Sample& p, int64_t row, const uint32_t* seen) {
  const std::vector<float> logits = penalised_logits(p, row, seen);
  const bool has_nan = std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
  const auto best = std::max_element(logits.begin(), logits.end());
  if (has_nan || best == logits.end() || !std::isfinite(*best)) return -1;
  const int64_t at = p.options_row(row);
  const float temperature = p.temperature[at];
  if (temperature == 0) return best - logits.begin();
  float least = kNone;
  if (p.top_k[at] > 0 || p.min_p[at] > 0 || p.top_p[at] < 1) {
    std::vector<float> candidates = logits;
    least = least_kept(p, row, *best, candidates);
  }
  const uint64_t key = sample_key(static_cast<uint64_t>(p.seed[at]), static_cast<uint64_t>(p.position[row]));
  int64_t chosen = best - logits.begin();
  float best_score = kNone;
  for (int64_t token = 0; token < p.vocab; ++token) {
    const float logit = logits[static_cast<size_t>(token)];
    if (!(logit >= least) || logit == kNone) continue;
    const float score = (logit - *best) / temperature + sample_gumbel(sample_bits(key, static_cast<uint64_t>(token)));
    if (score > best_score) best_score = score, chosen = token;
  }
  return chosen;
}

}  // namespace

Status sample(const Sample& p) {
  parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint32_t* seen = p.seen + row * sample_seen_words(p.vocab);
      if (p.seen_before != nullptr) {
        std::copy_n(p.seen_before, sample_seen_words(p.vocab), seen);
        for (int64_t i = 0; i < row; ++i) sample_set_seen(seen, p.drafts[i]);
      }
      p.token[row] = draw(p, row, seen);
      if (p.token[row] >= 0) sample_set_seen(seen, p.token[row]);
    }
  });
  return {};
}

namespace {
const DefineLaunchers<SampleLaunchers> kSampleLaunchers(Device::cpu, {.sample = on_cpu<sample>});
}

}  // namespace based::kernels::cpu
