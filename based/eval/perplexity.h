// How well a model predicts texts: exp of the mean negative log likelihood of their tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "based/models/language_model.h"

namespace based {

struct PerplexityOptions {
  int64_t context = 0;              // forget everything after this many tokens; 0: one state over each document
  int64_t batch = 0;                // documents, or contexts of one, that are read side by side; 0: 8 on the CPU, 64 on a GPU
  std::string model = "the model";  // its name, for messages
};

struct Perplexity {
  int64_t tokens = 0;  // predicted: all but the first of each context
  double nats = 0;     // sum of −log p
  double value() const;
};

// Of documents that know nothing of each other, on the model's device. `progress` is told the tokens done; returning false stops and gives
// what was summed. Throws Error for a context longer than the model has positions, and where a
// token's probability is not a number.
Perplexity measure_perplexity(LanguageModel& model, const std::vector<std::vector<int64_t>>& documents, const PerplexityOptions& options,
                              const std::function<bool(int64_t)>& progress = {});

}  // namespace based
