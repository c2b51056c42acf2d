// How well a model predicts a text: exp of the mean negative log likelihood of its tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "based/models/language_model.h"

namespace based {

struct PerplexityOptions {
  int64_t context = 0;              // forget everything after this many tokens; 0: one state carried over the whole text
  std::string model = "the model";  // its name, for messages
  int64_t piece = 1024;             // tokens that go through the parallel form at once; bounds memory, does not change the result
};

struct Perplexity {
  int64_t tokens = 0;  // predicted: all but the first of each context
  double nats = 0;     // sum of −log p
  double value() const;
};

// Throws Error, before anything runs, where a context is longer than the positions that the model learns, and where the loss is not finite.
// `progress` is told the tokens done; returning false stops and gives what was summed.
Perplexity measure_perplexity(LanguageModel& model, const std::vector<int64_t>& ids, const PerplexityOptions& options,
                              const std::function<bool(int64_t)>& progress = {});

}  // namespace based
