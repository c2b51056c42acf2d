// Perplexity of a model: exp of the mean negative log likelihood of the documents' tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "based/models/language_model.h"

namespace based {

struct PerplexityOptions {
  int64_t context = 0;              // tokens per context; contexts are independent of each other; 0: one context per document
  int64_t batch = 0;                // contexts that are scored at the same time; 0: 8 on the CPU, 64 on a GPU
  bool padded_columns = false;      // include the embedding's padding rows in the softmax, as published harnesses do
  std::string model = "the model";  // the model's name, for messages
};

struct Perplexity {
  int64_t tokens = 0;  // number of predicted tokens
  double nats = 0;     // sum of −log p of these tokens
  double value() const;
};

// Measures the perplexity of independent documents on the model's device. Every token but the first of a document is predicted once: like
// rolling windows, contexts overlap by one token, so that the last token of a context is the first of the next. `progress` is called with
// the number of tokens read; if it returns false, the measurement stops and the result covers the tokens scored so far. Throws Error for a
// context longer than the model's positions, and if a token's probability is not finite.
Perplexity measure_perplexity(LanguageModel& model, const std::vector<std::vector<int64_t>>& documents, const PerplexityOptions& options,
                              const std::function<bool(int64_t)>& progress = {});

}  // namespace based
