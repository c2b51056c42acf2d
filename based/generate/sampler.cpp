#include "based/generate/sampler.h"

#include "based/core/json.h"

namespace based {
namespace {

void check(bool right, const char* name, const char* range, double value) {
  if (!right) throw UsageError(std::string(name) + " must be " + range + ", got " + dump_json(value));
}

}  // namespace

void check_sampling_options(const SamplingOptions& options) {
  check(options.temperature >= 0 && options.temperature <= 1e3, "temperature", "0 to 1000", options.temperature);
  check(options.top_k >= 0, "top-k", "0 or more", static_cast<double>(options.top_k));
  check(options.top_p > 0 && options.top_p <= 1, "top-p", "above 0, at most 1", options.top_p);
  check(options.min_p >= 0 && options.min_p <= 1, "min-p", "0 to 1", options.min_p);
  // In fp32 a factor far from 1 could make logits infinite, which would look like damaged weights.
  check(options.repetition_penalty >= 1e-3 && options.repetition_penalty <= 1e3, "repetition-penalty", "0.001 to 1000",
        options.repetition_penalty);
  check(options.presence_penalty >= -2 && options.presence_penalty <= 2, "presence-penalty", "-2 to 2", options.presence_penalty);
  check(options.frequency_penalty >= -2 && options.frequency_penalty <= 2, "frequency-penalty", "-2 to 2", options.frequency_penalty);
  for (const auto& [id, bias] : options.logit_bias) check(bias >= -100 && bias <= 100, "logit-bias", "-100 to 100", bias);
}

}  // namespace based
