// Scores and generates after given contexts, for evaluations and servers: many requests fill the slots of an engine, and prefixes that
// requests share are read once.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "based/generate/engine.h"
#include "based/generate/prefix_tree.h"
#include "based/generate/text_generator.h"

namespace based {

struct ScorerOptions {
  // Requests that are read at the same time; 0: 8 on the CPU, 64 to 256 on a GPU, as its state's bytes allow, and of those that share no
  // prefix as many as have 4,096 tokens, 32,768 on a GPU.
  int64_t batch = 0;
  bool fork = true;             // a shared prefix is read once and its state copied; false: every request is read from its first token
  int64_t least_saved = 0;      // tokens that the sharing of a prefix must save; 0: 8 on the CPU, 256 on a GPU, more for a large state
  bool invariant = false;       // a request's bits do not depend on the other requests, nor on `batch` and `fork` (generate/cells.h)
  bool padded_columns = false;  // the softmax and the most likely token include the embedding's padding rows, as published harnesses do
  // The most tokens of a request with its generated tokens; sizes the cache of invariant steps on a GPU for a state that grows.
  int64_t max_length = 2048;
  std::string model = "the model";  // the model's name, for messages
};

// log p(continuation | context). Neither may be empty.
struct ScoreRequest {
  std::vector<int64_t> context, continuation;
};

struct ContinuationScore {
  std::vector<float> log_probabilities;  // one for each token of the continuation
  double log_likelihood = 0;             // their sum, in nats
  bool greedy = false;                   // each token is the most likely one
};

// Greedy decoding after a context that is not empty.
struct GenerationRequest {
  std::vector<int64_t> context;
  std::vector<std::string> stops;  // the text ends before the first of these, or at the end-of-text token
  int64_t max_tokens = 0;
};

class Scorer {
 public:
  // Receives the number of tokens of the requests that this call has answered; if it returns false, the call returns nothing.
  using Progress = std::function<bool(int64_t tokens)>;

  // `model` and `tokenizer` must outlive this. Requests that share no prefix, and those of a model without a recurrent form, are scored by
  // the parallel form, which needs no state; with `invariant`, by the recurrent form as all others.
  Scorer(LanguageModel& model, const Tokenizer& tokenizer, const ScorerOptions& options);
  ~Scorer();

  // One result for each request, in their order. Throws Error for an empty context or continuation, an id outside the vocabulary, a request
  // longer than the model's positions, and a probability that is not a number.
  std::vector<ContinuationScore> score(std::span<const ScoreRequest> requests, const Progress& progress = {});
  // Returns the generated strings. Throws Error for a model without a recurrent form, otherwise as score().
  std::vector<std::string> generate(std::span<const GenerationRequest> requests, const Progress& progress = {});

  bool recurrent() const { return recurrent_; }
  bool forks() const { return options_.fork && recurrent_; }
  // The tokens of the requests so far, and the number of these that were read: without forks, all. Calls that `progress` stopped do not
  // count.
  int64_t tokens() const { return tokens_; }
  int64_t tokens_read() const { return tokens_read_; }

 private:
  template <class Run>
  bool run(Run& run, std::unique_ptr<Engine>& engine, const Progress& progress);
  // Writes scores[i] for each i of `order`. Returns the number of tokens read; none if `progress` asked to stop.
  std::optional<int64_t> score_in_parallel(std::span<const ScoreRequest> requests, std::vector<size_t> order,
                                           std::vector<ContinuationScore>& scores, const Progress& progress);
  ContinuationScore checked(ContinuationScore score, size_t wanted) const;
  std::unique_ptr<Engine> make_engine(Steps steps) const;

  LanguageModel& model_;
  const Tokenizer& tokenizer_;
  ScorerOptions options_;
  bool recurrent_ = true;
  std::optional<SharingCosts> sharing_;  // none: requests share nothing
  std::string no_state_;                 // why the model has no recurrent form
  std::unique_ptr<Engine> scoring_, generating_;
  int64_t tokens_ = 0, tokens_read_ = 0;
};

}  // namespace based
