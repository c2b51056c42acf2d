// How well a model predicts texts: exp of the mean negative log likelihood of their tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "based/models/language_model.h"

namespace based {

struct PerplexityOptions {
  int64_t context = 0;              // tokens of a context, which knows nothing of those before it; 0: one state over each document
  int64_t batch = 0;                // documents, or contexts of one, that are read side by side; 0: 8 on the CPU, 64 on a GPU
  bool padded_columns = false;      // the softmax counts the padding rows of the embedding, too, as published harnesses do
  std::string model = "the model";  // its name, for messages
};

struct Perplexity {
  int64_t tokens = 0;  // predicted
  double nats = 0;     // sum of −log p
  double value() const;
};

// Perplexity of independent documents, on the model's device. Every token but the first of a document is predicted once: contexts
// overlap by one token, the last of one being the first of the next, as rolling windows do. `progress` is told the tokens done; returning
// false stops and gives what was summed. Throws Error for a context longer than the model has positions, and where a token's probability is
// not a number.
Perplexity measure_perplexity(LanguageModel& model, const std::vector<std::vector<int64_t>>& documents, const PerplexityOptions& options,
                              const std::function<bool(int64_t)>& progress = {});

}  // namespace based
