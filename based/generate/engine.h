// Many texts at once, in the slots of one state of fixed size. A step draws one token for every slot; on a GPU it is one recorded graph, in
// which the token is drawn too, so texts join and leave without a new recording. A text's tokens do not depend on its neighbours, bit for
// bit, as long as the number of slots is the same.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "based/generate/pages.h"
#include "based/generate/replay.h"
#include "based/generate/sampler.h"
#include "based/models/language_model.h"
#include "based/ops/sample.h"

namespace based {

class Engine {
 public:
  // max_tokens: for models whose state grows (attention over everything), the tokens that all texts together may have; their keys and
  // values lie in pages of a pool of that size, which texts take as they grow and give back when they leave. Throws UsageError where such
  // a model is given none.
  Engine(LanguageModel& model, int64_t slots, int64_t max_tokens = 0);

  int64_t slots() const { return static_cast<int64_t>(taken_.size()); }
  int64_t free_slots() const;
  int64_t state_bytes() const;
  const ModelState& state() const { return state_; }

  // Prompts of any lengths, read together by one prefill, into free slots, which are returned. Throws Error where there are too few, for an
  // empty prompt and for an id outside the vocabulary, UsageError for wrong options and for prompts beyond max_tokens.
  std::vector<int64_t> join(const std::vector<std::vector<int64_t>>& prompts, const SamplingOptions& options);
  void leave(int64_t slot);  // frees it

  // The next token of every slot, −1 for free ones. Throws Error where a text's logits are not finite; UsageError where the texts have
  // max_tokens tokens: nothing has changed then, and the step can be made when a text has left.
  const std::vector<int64_t>& step();
  // Steps without waiting for their tokens, for measuring.
  void run(int64_t steps);

 private:
  std::vector<int64_t> check_prompts(const std::vector<std::vector<int64_t>>& prompts) const;  // their slots
  void read_prompts(const std::vector<std::vector<int64_t>>& prompts, const Tensor& slots);
  void set_options(const Tensor& slots, const SamplingOptions& options);
  void set_seen(const Tensor& slots, const std::vector<std::vector<int64_t>>& prompts);
  void record_step();
  void give_pages();  // for one more token of every text

  LanguageModel& model_;
  ModelState state_;
  std::optional<PagePool> pages_;  // of a state that grows
  Tensor all_slots_, last_;        // int64 [slots]: 0, 1, …; each text's last token, which a step reads and then replaces
  ops::SampleOptions options_;
  std::vector<bool> taken_;
  std::vector<int64_t> tokens_;
  std::unique_ptr<Replay> step_;
};

}  // namespace based
