#include "based/generate/sampler.h"

#include "based/core/json.h"
#include "based/kernels/sample.h"

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
  // In fp32 a factor far from 1 makes logits infinite, as damaged weights do.
  check(options.repetition_penalty >= 1e-3 && options.repetition_penalty <= 1e3, "repetition-penalty", "0.001 to 1000",
        options.repetition_penalty);
}

int64_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::span<const int64_t> text) {
  const auto vocab = static_cast<int64_t>(logits.size()), position = static_cast<int64_t>(text.size());
  std::vector<uint32_t> seen(static_cast<size_t>(kernels::sample_seen_words(vocab)));
  // Not read without a penalty, and a long text takes long to mark.
  for (const int64_t id : options.repetition_penalty != 1 ? text : std::span<const int64_t>())
    if (id >= 0 && id < vocab) kernels::sample_set_seen(seen.data(), id);
  const auto temperature = static_cast<float>(options.temperature), top_p = static_cast<float>(options.top_p),
             min_p = static_cast<float>(options.min_p), penalty = static_cast<float>(options.repetition_penalty);
  int64_t token = -1;
  kernels::Sample to;
  to.logits = logits.data();
  to.token = &token;
  to.position = &position;
  to.seed = &options.seed;
  to.temperature = &temperature;
  to.top_k = &options.top_k;
  to.top_p = &top_p;
  to.min_p = &min_p;
  to.penalty = &penalty;
  to.seen = seen.data();
  to.rows = 1, to.vocab = vocab;
  if (const kernels::Status status = kernels::cpu::sample(to); !status.ok()) throw Error(status.what);
  if (token < 0) throw Error("sampling: the model's logits are not finite; its weights may be damaged");
  return token;
}

}  // namespace based
