// The service's view of a prefix cache: states of prompts that were read before.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "based/generate/sequence.h"
#include "based/serve/service/job.h"

namespace based {

struct PrefixRequest {
  std::string owner;             // GenerationJob::owner
  std::span<const int64_t> ids;  // all tokens of the prompt, in the order of the sequence
  // For GenerationJob::prompt_log_probabilities: the index of the first token that is scored, and the number of most likely tokens at each
  // position. −1: no token is scored.
  int64_t first_scored = -1;
  int64_t top_log_probabilities = 0;
  std::vector<int64_t> boundaries = {};  // GenerationJob::boundaries, as numbers of tokens of `ids`
  int64_t max_tokens = 0;                // GenerationJob::max_tokens
};

// The log-probabilities of a prompt's tokens from the index `first` on.
struct PromptScores {
  int64_t first = 0;
  int64_t top_log_probabilities = 0;  // each token has that many; fewer if the vocabulary has fewer
  std::vector<TokenScore> scores;
};

// How a prompt is to be read.
struct PrefixPlan {
  // A state that has read the first tokens of the prompt, fewer than all of it; null: there is none. Its ids begin with these tokens; the
  // service replaces them by the prompt.
  std::shared_ptr<const SequenceState> state = {};
  // If tokens are scored that the state has read: at least the scores of the tokens from PrefixRequest::first_scored to the first one that
  // the state has not read.
  std::shared_ptr<const PromptScores> scores = {};
  // Ascending numbers of tokens, above those that `state` has read and below the prompt's length: insert() is called with the state after
  // each of them. An invariant engine rounds them down to the begins of cells (generate/cells.h).
  std::vector<int64_t> cuts = {};
  bool keep_end = false;  // insert() is also called with the state after the generated tokens
};

class PrefixSource {
 public:
  using Ready = std::function<void(PrefixPlan)>;

  virtual ~PrefixSource() = default;
  // Called on the engine's thread before a prompt is read. Returns nothing if the state must be read from disk first. `ready` is then
  // called once with the plan, by another thread; `request.ids` need not live until then.
  virtual std::optional<PrefixPlan> plan(const PrefixRequest& request, Ready ready) = 0;
  // Called on the engine's thread, with a state that nothing changes afterwards. It has read state.position() of its ids. `scores`: those
  // of its ids up to the first one that it has not read, or null.
  virtual void insert(const std::string& owner, std::shared_ptr<const SequenceState> state, std::shared_ptr<const PromptScores> scores) = 0;
};

}  // namespace based
