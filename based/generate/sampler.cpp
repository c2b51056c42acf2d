#include "based/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "based/core/random.h"

namespace based {
namespace {

void check(bool right, const char* name, const char* range, double value) {
  if (!right) throw UsageError(std::string(name) + " must be " + range + ", got " + std::to_string(value));
}

void penalise(std::span<float> logits, double penalty, std::span<const int64_t> text) {
  std::vector<bool> seen(logits.size());
  for (const int64_t id : text) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size() || seen[id]) continue;
    seen[id] = true;
    float& logit = logits[id];
    logit = static_cast<float>(logit > 0 ? logit / penalty : logit * penalty);
  }
}

// How many of the candidates, most likely first, with these unnormalised probabilities stay.
size_t kept(const std::vector<double>& weight, const SamplingOptions& options) {
  size_t count = weight.size();
  while (count > 1 && weight[count - 1] < options.min_p * weight[0]) --count;
  if (options.top_p >= 1) return count;
  const double whole = std::accumulate(weight.begin(), weight.begin() + static_cast<int64_t>(count), 0.0);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += weight[i];
    if (sum >= options.top_p * whole) return i + 1;
  }
  return count;
}

}  // namespace

void check_sampling_options(const SamplingOptions& options) {
  check(options.temperature >= 0 && std::isfinite(options.temperature), "temperature", "0 or more", options.temperature);
  check(options.top_k >= 0, "top-k", "0 or more", static_cast<double>(options.top_k));
  check(options.top_p > 0 && options.top_p <= 1, "top-p", "above 0, at most 1", options.top_p);
  check(options.min_p >= 0 && options.min_p <= 1, "min-p", "0 to 1", options.min_p);
  check(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty), "repetition-penalty", "above 0",
        options.repetition_penalty);
}

int64_t sample_token(std::span<float> logits, const SamplingOptions& options, std::span<const int64_t> text) {
  if (options.repetition_penalty != 1) penalise(logits, options.repetition_penalty, text);
  const bool has_nan = std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
  const auto best = std::max_element(logits.begin(), logits.end());
  if (has_nan || best == logits.end() || !std::isfinite(*best))
    throw Error("sampling: the model's logits are not finite; its weights may be damaged");
  if (options.temperature == 0) return best - logits.begin();

  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto more_likely = [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), more_likely);
    order.resize(static_cast<size_t>(options.top_k));
  } else {
    std::sort(order.begin(), order.end(), more_likely);
  }
  std::vector<double> weight(order.size());
  for (size_t i = 0; i < order.size(); ++i) weight[i] = std::exp((double{logits[order[i]]} - double{*best}) / options.temperature);
  const size_t count = kept(weight, options);
  const double whole = std::accumulate(weight.begin(), weight.begin() + static_cast<int64_t>(count), 0.0);
  double left = Random(static_cast<uint64_t>(options.seed), text.size()).uniform() * whole;
  for (size_t i = 0; i + 1 < count; ++i) {
    left -= weight[i];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace based
