// Perplexity of a model: exp of the mean negative log likelihood of the predicted tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "based/data/loader.h"
#include "based/models/language_model.h"

namespace based {

struct PerplexityOptions {
  int64_t context = 0;              // tokens per context; contexts are independent of each other; 0: one context per document
  int64_t batch = 0;                // contexts that are scored at the same time; 0: 8 on the CPU, 64 on a GPU
  bool padded_columns = false;      // include the embedding's padding rows in the softmax, as published harnesses do
  int64_t unlabelled = -1;          // a token that is read and not predicted, as [PAD] in DNA; -1: none
  std::string model = "the model";  // the model's name, for messages
};

struct Perplexity {
  int64_t tokens = 0;  // number of predicted tokens
  double nats = 0;     // sum of −log p of these tokens
  double value() const;
  // `labelled`: the number of predicted tokens among `token_nats`; the others are 0. Throws Error that names the model if one is not
  // finite.
  void add(std::span<const float> token_nats, int64_t labelled, const std::string& model);
};

// A part of a document that the model scores independently of other parts.
struct DocumentContext {
  int64_t document = 0, first = 0;    // the document's index, and the index of the context's first token in it
  std::span<const int64_t> ids = {};  // at least two; all but the first are predicted
};
// Calls `visit` for all contexts of the documents in order; `length` is PerplexityOptions::context. Each context of a document begins with
// the last token of the previous one.
void for_each_context(const std::vector<std::vector<int64_t>>& documents, int64_t length,
                      const std::function<void(const DocumentContext&)>& visit);

// Receives −log p of the tokens ids[1], ids[2], … of a context, 0 for PerplexityOptions::unlabelled: of all of them, or of the first ones
// if the measurement was stopped.
using DocumentSink = std::function<void(const DocumentContext&, std::span<const float> nats)>;

// Measures the perplexity of independent documents on the model's device. Every labelled token but the first of a document is predicted
// once: like rolling windows, contexts overlap by one token, so that the last token of a context is the first of the next. `progress` is
// called with the number of tokens read; if it returns false, the measurement stops and the result covers the tokens scored so far. `sink`
// receives the contexts in the order in which they end. Throws Error for a context longer than the model's positions, and if a token's
// probability is not finite.
Perplexity measure_perplexity(LanguageModel& model, const std::vector<std::vector<int64_t>>& documents, const PerplexityOptions& options,
                              const std::function<bool(int64_t)>& progress = {}, const DocumentSink& sink = {});

struct WindowOptions {
  int64_t length = 2048;            // inputs per window, each of which predicts the next token
  int64_t batch = 0;                // windows per batch; 0: as many as have 4,096 tokens on the CPU, 32,768 on a GPU, and at least one
  bool documents = false;           // contexts end with their document, and no token is predicted over its end (LoaderConfig::documents)
  bool padded_columns = false;      // as in PerplexityOptions
  std::string model = "the model";  // the model's name, for messages
};

// Calls `visit` for the consecutive windows of the data in order, in batches; the last batch may have fewer rows. Stops if `visit` returns
// false. The tokens after the last whole window are left out, as in training. Throws Error for data without a window.
void for_each_window_batch(const std::shared_ptr<const TokenDataset>& data, const WindowOptions& options, torch::Device device,
                           const std::function<bool(const TokenBatch&)>& visit);

// Receives −log p of a batch's targets, [rows · length], 0 for kNoLabel. Batches come in order.
using WindowSink = std::function<void(const TokenBatch&, std::span<const float> nats)>;

// Measures the perplexity of the windows by the model's parallel form, as training and its evaluations do; works for models without a
// recurrent form too. The model must be in evaluation mode. `progress`: as above, with the number of tokens scored. Throws Error for data
// without a window, windows longer than the model's positions, and if a token's probability is not finite.
Perplexity measure_windows(LanguageModel& model, const std::shared_ptr<const TokenDataset>& data, const WindowOptions& options,
                           const std::function<bool(int64_t)>& progress = {}, const WindowSink& sink = {});

}  // namespace based
