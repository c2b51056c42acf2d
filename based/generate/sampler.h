// How the next token is sampled (kernels/sampling/sampling.h). Sampling has no state: its random numbers depend on the seed and the token's
// position alone, so that a sequence that continues from a saved state gets the same tokens as without the break. Presence and frequency
// penalties also need the length of the prompt before the break (SequenceOptions::first_generated).
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "based/core/config.h"

namespace based {

struct SamplingOptions {
  double temperature = 1;         // 0: the most likely token
  int64_t top_k = 0;              // keep the k most likely; 0: all
  double top_p = 1;               // keep the smallest set of most likely tokens whose probability reaches p
  double min_p = 0;               // keep tokens with at least min_p times the probability of the most likely
  double repetition_penalty = 1;  // divides positive and multiplies negative logits of tokens already in the sequence, prompt included
  int64_t seed = 0;
  // Subtracted from the logits of generated tokens, as OpenAI's API defines them: `presence_penalty` once, `frequency_penalty` as often as
  // the token has been generated. The tokens of the prompt do not count (SequenceOptions::first_generated).
  double presence_penalty = 0, frequency_penalty = 0;
  // Pairs of a token and a number that is added to its logit, before all penalties; the numbers of equal tokens add up.
  std::vector<std::pair<int64_t, double>> logit_bias = {};

  bool operator==(const SamplingOptions&) const = default;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("temperature", temperature, "0: the most likely token; 1: as the model says");
    field("top_k", top_k, "keep the k most likely tokens; 0: all");
    field("top_p", top_p, "keep the smallest set of most likely tokens whose probability reaches this");
    field("min_p", min_p, "keep tokens with at least this share of the most likely one's probability");
    field("repetition_penalty", repetition_penalty, "above 1: makes tokens already in the text less likely");
    field("seed", seed, "the same seed and text give the same tokens");
    field("presence_penalty", presence_penalty, "above 0: makes tokens that were generated less likely");
    field("frequency_penalty", frequency_penalty, "above 0: makes tokens less likely each time they are generated");
  }
};

// Throws UsageError for values out of range or not finite.
void check_sampling_options(const SamplingOptions& options);

}  // namespace based
