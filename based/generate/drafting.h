// Drafts: guesses of the tokens that follow a sequence, which one step of the model verifies (DecodeStep::run_drafts). The text does not
// depend on them, only the number of steps does.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "based/generate/gram_index.h"
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

// The time of steps with drafts, measured during the run: that of a plain step, a fixed part that the first draft token adds, and a part
// for each draft token. Both parts include the time to draft. A machine that runs other programs delays some steps by many times their
// length, so one step changes the averages by a limited factor.
class StepTimes {
 public:
  // A step of `sequences` sequences with `drafts` draft tokens in total took this time. Ignores a step with drafts of so many sequences
  // that no plain step had.
  void add(int64_t sequences, int64_t drafts, double seconds);
  bool knows_plain(int64_t sequences) const;
  double plain(int64_t sequences) const { return plain_.at(sequences).value; }
  // The time that this many draft tokens add to a plain step of `sequences` sequences; an assumption until it has been measured.
  double added(int64_t sequences, int64_t drafts) const;
  bool has_second() const { return drafted_ >= 2; }  // whether two steps with drafts have been measured

 private:
  struct Average {  // exponentially weighted; the first value, which may include a cold start, is replaced by the second one
    double value = 0;
    int64_t count = 0;
    void add(double next);
  };
  struct Line {
    double fixed = 0, each = 0;
  };
  Line line() const;

  std::map<int64_t, Average> plain_;  // by the number of sequences
  // Sums over the steps with drafts, weighted by age: of 1, drafts, drafts², added seconds, and drafts · added seconds.
  double steps_ = 0, drafts_ = 0, squares_ = 0, seconds_ = 0, products_ = 0;
  int64_t drafted_ = 0;  // steps with drafts; the second one replaces the first if that took more than twice as long
};

// How long drafts are. Draft token k of a sequence is accepted with probability p^k, where p is the share of the sequence's latest draft
// tokens that were accepted, so a step with L draft tokens generates 1 + p + … + p^L tokens. The draft has the length with the most tokens
// a second by StepTimes, whose added times count by a quarter more. If that length is 0, the sequence is decoded by plain steps, and a
// draft of one token is tried again after 8, 16, …, at most 128 steps, or after as many steps as make the trial cost 4 % of the time; after
// the first step with drafts, which may have been slow, after 8. So
// drafts that are not worth their time cost a few percent of it at most.
class DraftLengths {
 public:
  void add_step(int64_t sequences, int64_t drafts, double seconds);  // see StepTimes::add; `seconds` includes drafting
  void add_verified(int64_t sequence, int64_t drafts, int64_t accepted);
  // The length of the sequence's next draft in a step of `sequences` sequences. The first two steps are plain, and so is one after 64
  // steps with drafts, to measure the time of plain steps.
  int64_t next(int64_t sequence, int64_t sequences);
  void forget(int64_t sequence) { histories_.erase(sequence); }

 private:
  struct History {
    double accepted = 1, tried = 2;  // draft tokens, weighted by age
    int64_t plain_steps = 0;         // since the last draft
    int64_t pause = 0;               // plain steps until the next trial
  };
  StepTimes times_;
  int64_t steps_with_drafts_ = 0;  // since the last plain step
  std::map<int64_t, History> histories_;
};

struct DraftCounts {
  int64_t steps = 0;     // a step of n sequences counts n times
  int64_t one_row = 0;   // the number of one-row steps among them (DraftOptions::by_repetition)
  int64_t tokens = 0;    // sampled in these steps
  int64_t drafted = 0;   // draft tokens that were read
  int64_t accepted = 0;  // draft tokens that were accepted

  double tokens_per_step() const { return steps > 0 ? static_cast<double>(tokens) / static_cast<double>(steps) : 0; }
};

struct DraftOptions {
  std::shared_ptr<Drafter> drafter = {};  // null: no drafts
  int64_t most = kMostDraftTokens;        // draft tokens of a sequence in a step, 0 (the same steps without drafts) to kMostDraftTokens
  bool adapts = true;                     // drafts have the lengths of DraftLengths; otherwise always `most`
  // With steps of a fixed number of rows, as on a GPU, and without `invariant`: blocks of text that its own n-grams do not predict
  // (TextRepetition) are decoded by one-row steps (DecodeOptions::one_row_steps). Which steps decode a token depends on the text alone, so
  // the bits of a text are those of the same options with most = 0.
  bool by_repetition = false;
};

// A drafter with its lengths and counts, for one engine.
class Drafting {
 public:
  explicit Drafting(DraftOptions options) : options_(std::move(options)) {}

  // Whether a one-row step (DraftOptions::by_repetition) draws the sequence's next token, where it has `tokens` and `in_flight` more, which
  // are not known. False, too, if that depends on those.
  bool steps_one_row(int64_t sequence, const std::vector<int64_t>& tokens, int64_t in_flight);
  // Fills Request::drafts. `requests`: the sequences of a step; Request::most is the limit of the sequence itself, possibly 0.
  void draft(std::vector<Drafter::Request>& requests);
  // After the step: how many tokens it added to each sequence, 0 where it read one that was known already, and its time.
  void add_step(const std::vector<Drafter::Request>& requests, const std::vector<int64_t>& added, double seconds);
  // After a one-row step, which has added a token.
  void add_one_row_step() { ++counts_.steps, ++counts_.one_row, ++counts_.tokens; }
  void forget(int64_t sequence);
  const DraftCounts& counts() const { return counts_; }

 private:
  // The most tokens of the request's draft by DraftOptions.
  int64_t limit_of(const Drafter::Request& request, int64_t sequences);

  DraftOptions options_;
  DraftLengths lengths_;
  std::map<int64_t, TextRepetition> repetitions_;
  DraftCounts counts_;
  double drafting_seconds_ = 0;  // in the current step
};

}  // namespace based
