// One token for sequences in the slots of a state: the model's step, and the draw behind it, on the model's device.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/decode/record.h"
#include "based/generate/sampler.h"
#include "based/models/language_model.h"
#include "based/ops/sample.h"
#include "based/ops/transfer.h"

namespace based {

// How steps are made where a device can record them.
enum class Steps {
  fused,     // as a recording whose kernels are joined; where they cannot be, recorded; where that cannot be, plain; it says so once
  recorded,  // as a recording of what the operators launch
  plain,     // the model's operators one by one, of no other slots than those that are named
};

struct DecodeOptions {
  Steps steps = Steps::fused;
  // What a step does in a slot depends on the slot's state and token alone: steps are always made of `invariant_width` slots, and no state
  // has buffers. An engine then reads sequences in cells, too (generate/cells.h).
  bool invariant = false;
  bool log_probabilities = false;
};

class DecodeStep {
 public:
  static constexpr int64_t invariant_width = 128;
  // The slots that a state must have for so many sequences.
  static int64_t width(int64_t slots, const DecodeOptions& options, torch::Device device);

  // Of a state that is zeroed, and is zeroed again afterwards. The state must outlive this and keep its addresses where steps are recorded.
  DecodeStep(LanguageModel& model, ModelState& state, const DecodeOptions& options);

  // run() steps all slots, whatever is named: where steps are recorded, and where a GPU's are invariant.
  bool steps_all() const { return !recordings_.empty() || (decode_.invariant && !model_.device().is_cpu()); }
  bool keeps_log_probabilities() const { return log_probability_.defined(); }

  void set_sampling(const std::vector<int64_t>& slots, const std::vector<SamplingOptions>& options);
  // The last token of each slot's sequence, which the next step reads, and the tokens that a repetition penalty is for.
  void set_texts(const std::vector<int64_t>& slots, const std::vector<const std::vector<int64_t>*>& texts);

  // The next step reads these tokens there; no text gains them.
  void set_tokens(const std::vector<int64_t>& slots, const std::vector<int64_t>& tokens);

  // The state's value at these slots; and what it is where another sequence's state is put there. See decode/pending.h.
  void flush(const std::vector<int64_t>& slots);
  void forget_pending(const std::vector<int64_t>& slots);
  int64_t pending_bytes() const;  // beside the state's; 0: nothing is pending

  // A step of all slots, operator by operator.
  void run_all() { step({}); }
  // A step of these slots, in ascending order; asynchronous on a GPU.
  void run(const std::vector<int64_t>& slots);
  // Begins to bring what the last run drew to the host; at most `kFetches` of them may be under way, so that a step can be launched before
  // the tokens of the one before are looked at.
  void fetch();
  struct Fetched {
    const int64_t* tokens = nullptr;           // of each slot of the state, −1 where its logits are not finite
    const float* log_probabilities = nullptr;  // of these, by the model's own softmax; null where they are not kept
  };
  // What the oldest fetch brought; waits for it alone. Of slots that were not stepped the entry means nothing. Good until the next fetch().
  Fetched fetched();
  static constexpr size_t kFetches = 2;

 private:
  Slots on_device(const std::vector<int64_t>& slots) const;
  // Of the named slots alone; undefined: of all.
  void step(const Slots& slots);
  void draw(const Slots& slots, Tensor token, ops::SampleOptions options, Tensor log_probability);
  void record_all();
  bool try_recording(bool fused, std::string& reason);

  LanguageModel& model_;
  ModelState& state_;
  DecodeOptions decode_;
  Tensor all_slots_, token_, log_probability_;  // [slots]: 0, 1, …; each sequence's last token, int64; its own, fp32 (undefined: not kept)
  std::vector<ops::ToHost> token_at_host_, log_probability_at_host_;  // each fetch takes the next one
  size_t begun_ = 0, ended_ = 0;                                      // fetches
  ops::SampleOptions options_;
  std::vector<decode::RecordedStep> recordings_;                 // one after the other they step all slots
  std::vector<std::shared_ptr<decode::PendingTokens>> pending_;  // of their plans
};

}  // namespace based
