// Drafts: guesses of the tokens that follow a sequence, which one step of the model verifies (DecodeStep::run_drafts). The text does not
// depend on them, only the number of steps does.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "based/generate/sequence.h"

namespace based {

class Drafter {
 public:
  struct Request {
    int64_t sequence = 0;                          // the engine's number
    const std::vector<int64_t>* tokens = nullptr;  // the whole sequence
    const SamplingOptions* sampling = nullptr;     // its next tokens are sampled with these
    int64_t most = 0;
    std::vector<int64_t> drafts = {};  // the answer: up to `most` tokens, possibly none
  };
  Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;
  virtual ~Drafter() = default;
  virtual void draft(std::vector<Request>& requests) = 0;
  virtual void forget(int64_t sequence) = 0;  // the sequence has ended
};

// Looks for the last 4, 3 or 2 tokens of the sequence earlier in it, and drafts the tokens that followed their latest occurrence.
std::unique_ptr<Drafter> make_ngram_drafter();

// Continues each sequence by a smaller model of the same tokenizer, with the sequence's own sampling options. Since the random numbers
// depend on seed and position alone, both models tend to draw the same token where their distributions are similar. `sequences`: as many
// are drafted at the same time at most. Penalties of generated tokens and biases do not enter the drafts. For the CPU.
std::unique_ptr<Drafter> make_model_drafter(std::shared_ptr<LanguageModel> model, int64_t sequences);

// How long drafts are. Draft token k of a sequence is accepted with probability p^k, where p is the share of the sequence's latest draft
// tokens that were accepted. Reading and drafting a token costs time in which plain steps would generate c tokens, as measured during the
// run. A draft has the tokens for which p^k > 1.25 c. If there are none, the sequence is decoded by plain steps, and a draft of one token
// is tried again after 8, 16, …, at most 128 steps. So drafts that are not accepted cost a few percent of the time at most.
class DraftLengths {
 public:
  // A step of `sequences` sequences with `drafts` draft tokens in total took this time.
  void add_step(int64_t sequences, int64_t drafts, double seconds);
  void add_drafting(int64_t drafts, double seconds);  // the time to draft them
  void add_verified(int64_t sequence, int64_t drafts, int64_t accepted);
  // The length of the sequence's next draft in a step of `sequences` sequences. The first steps are plain, to measure their time.
  int64_t next(int64_t sequence, int64_t sequences);
  void forget(int64_t sequence) { histories_.erase(sequence); }

 private:
  struct Average {  // exponentially weighted; the first value, which may include a cold start, counts little
    double value = 0;
    int64_t count = 0;
    void add(double next);
  };
  struct History {
    double accepted = 1, tried = 2;  // draft tokens, weighted by age
    int64_t plain_steps = 0;         // since the last draft
    int64_t pause = 8;               // plain steps until the next trial
  };
  std::map<int64_t, Average> plain_;  // number of sequences -> seconds of a plain step
  Average row_, drafting_;            // seconds of a draft token's row in a step, and to draft the token
  std::map<int64_t, History> histories_;
};

struct DraftCounts {
  int64_t steps = 0;     // a step of n sequences counts n times
  int64_t tokens = 0;    // sampled in these steps
  int64_t drafted = 0;   // draft tokens that were read
  int64_t accepted = 0;  // draft tokens that were accepted

  double tokens_per_step() const { return steps > 0 ? static_cast<double>(tokens) / static_cast<double>(steps) : 0; }
};

struct DraftOptions {
  std::shared_ptr<Drafter> drafter = {};  // null: no drafts
  int64_t most = kMostDraftTokens;        // draft tokens of a sequence in a step, 1 to kMostDraftTokens
  bool adapts = true;                     // drafts have the lengths of DraftLengths; otherwise always `most`
};

// A drafter with its lengths and counts, for one engine.
class Drafting {
 public:
  explicit Drafting(DraftOptions options) : options_(std::move(options)) {}

  // Fills Request::drafts. `requests`: the sequences of a step; Request::most is the limit of the sequence itself, possibly 0.
  void draft(std::vector<Drafter::Request>& requests);
  // After the step: how many tokens it added to each sequence, 0 where it read one that was known already, and its time.
  void add_step(const std::vector<Drafter::Request>& requests, const std::vector<int64_t>& added, double seconds);
  void forget(int64_t sequence);
  const DraftCounts& counts() const { return counts_; }

 private:
  DraftOptions options_;
  DraftLengths lengths_;
  DraftCounts counts_;
};

}  // namespace based
