// One decoding step for the sequences in the slots of a state: the model's step and the sampling of the next token, on the model's device.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "based/decode/record.h"
#include "based/generate/logit_adjustments.h"
#include "based/generate/sequence.h"
#include "based/generate/sequence_step.h"
#include "based/mixers/kit/rounds.h"
#include "based/models/language_model.h"
#include "based/ops/sampling/sample.h"
#include "based/runtime/transfer.h"

namespace based {

// How steps run on a device that can record them.
enum class Steps {
  fused,     // a recording whose kernels are fused; falls back to recorded and then to plain, with one warning
  recorded,  // a recording of the kernels that the operators launch
  plain,     // the model's operators one by one, on the given slots only
};

struct DecodeOptions {
  Steps steps = Steps::fused;
  // A slot's result depends on the slot's state and token alone: every step has `invariant_width` slots, and no state has buffers. An
  // engine then also reads prompts in cells (generate/cells.h).
  bool invariant = false;
  bool log_probabilities = false;
  bool padded_columns = false;  // EngineOptions::padded_columns, which sets it
  // Steps of one slot whose bits do not depend on the number of drafts (generate/sequence_step.h), which run_drafts() needs on a GPU. Where
  // one kernel computes a `fused` step, and without `invariant`, they have the bits of steps without this option. Else they have a fixed
  // number of rows and their own bits, of which `fused` steps may have others than `recorded` and `plain` ones; `invariant` does not change
  // them. See drafts_keep_bits().
  bool fixed_rows = false;
  // With fixed_rows: also one-row steps, by run(). They fuse the operators that the steps of an engine without drafts fuse, which makes
  // them faster than a step of one token in a fixed number of rows and gives them bits of their own.
  bool one_row_steps = false;
};

class DecodeStep {
 public:
  static constexpr int64_t invariant_width = 128;
  // The slots that a state must have to decode `slots` sequences; with DecodeOptions::fixed_rows one.
  static int64_t width(int64_t slots, const DecodeOptions& options, torch::Device device);

  // `state` must be zero; it is zero again afterwards. It must outlive this, and keep its addresses if steps are recorded.
  DecodeStep(LanguageModel& model, ModelState& state, const DecodeOptions& options);

  // run() steps all slots, not only the given ones: if steps are recorded, and if a GPU's steps are invariant.
  bool steps_all() const { return !recordings_.empty() || (decode_.invariant && !decode_.fixed_rows && !model_.device().is_cpu()); }
  // Whether a token drawn by run_drafts() has the bits that it has without drafts. Else it has those of steps with fixed_rows.
  bool drafts_keep_bits() const {
    return sequence_step_ == nullptr || sequence_step_->rows() == StepRows::of_tokens || model_.device().is_cpu();
  }
  bool keeps_log_probabilities() const { return log_probability_.defined(); }

  void set_sampling(const std::vector<int64_t>& slots, const std::vector<SamplingOptions>& options);
  // Loads the options that only some sequences have: the penalties of generated tokens, the biases and top_log_probabilities. `generated`:
  // the tokens that count as generated.
  void set_adjustments(int64_t slot, const SequenceOptions& options, std::span<const int64_t> generated);
  // Restricts the slot's tokens from the next step on, until the next call or set_adjustments(); see AllowedTokens.
  // Returns false, and changes nothing, if no token is allowed.
  bool allow(int64_t slot, std::span<const uint64_t> allowed) { return adjustments_.allow(slot, allowed); }
  // `sequences`: all tokens of the sequence in each slot. Its last token becomes the next step's input; all of them are marked as seen, for
  // the repetition penalty.
  void load_last_tokens(const std::vector<int64_t>& slots, const std::vector<const std::vector<int64_t>*>& sequences);
  // Sets the next step's input tokens, without marking them as seen.
  void set_tokens(const std::vector<int64_t>& slots, const std::vector<int64_t>& tokens);

  // Adds the pending tokens of these slots to the state; forget_pending() drops them, for a slot that receives another sequence's state.
  // See decode/pending.h.
  void flush(const std::vector<int64_t>& slots);
  void forget_pending(const std::vector<int64_t>& slots);
  int64_t pending_bytes() const;   // in addition to the state's; 0: there are no buffers for pending tokens
  int64_t rounded_bytes() const;   // the part of pending_bytes() that is rounded copies of states
  int64_t replaced_bytes() const;  // the part of the state that steps do not access; they access half as many of pending_bytes()

  // A step of all slots, operator by operator.
  void run_all() { step({}); }
  // A step of one slot that reads its input token and drafts, operator by operator; needs fixed_rows.
  void run_tokens(int64_t tokens, StepRows rows) { sequence_step_->run_operators(tokens, rows); }
  // A step of these slots, in ascending order; asynchronous on a GPU. `one_row`: a one-row step, which needs DecodeOptions::one_row_steps.
  void run(const std::vector<int64_t>& slots, bool one_row = false);
  // Starts the copy of the last step's tokens to the host. At most `kReadbacks` copies may be in flight, so that the next step can be
  // launched before the tokens of this one are read.
  void begin_readback();
  struct TopTokens {
    float log_probability = 0;                       // the log-probability of the slot's token
    std::vector<TokenProbability> most_likely = {};  // top_log_probabilities of them, the most likely first
  };
  struct Readback {
    const int64_t* tokens = nullptr;           // [slots]; −1 if the slot's logits are not finite
    const float* log_probabilities = nullptr;  // [slots], under the model's softmax; null if they are not kept
    std::map<int64_t, TopTokens> top = {};     // for each stepped slot with top_log_probabilities
  };
  // Waits for the oldest copy in flight, and for nothing else. The entries of slots that were not stepped are undefined. The pointers are
  // valid until the next begin_readback().
  Readback finish_readback();
  static constexpr size_t kReadbacks = 2;

  // A slot's part of a step of several tokens: the slot's input token, then `drafts`, guesses of the tokens that follow it.
  struct DraftedSlot {
    int64_t slot = 0;
    std::vector<int64_t> drafts = {};
    std::span<const int64_t> stop_tokens = {};  // no draft is read after one of these
  };
  // The tokens drawn for a slot: one from the logits after the input token, and one after each draft that equals the token drawn before it.
  // Log-probabilities and lists of likely tokens as in Readback, one for each token; empty if they are not kept.
  struct DrawnTokens {
    std::vector<int64_t> tokens = {};  // ends after the first token that is a stop token, −1 or not equal to the draft
    std::vector<float> log_probabilities = {};
    std::vector<TopTokens> top = {};
  };
  // One step of these slots, in ascending order, each with up to kMostDraftTokens drafts. Tokens, states and marks are, bit for bit, those
  // of steps of one token, because a row's bits do not depend on the other rows and each token is drawn from its own logits at its own
  // position. A slot's state has read as many tokens as were drawn. Without drafts it is run() and a readback. On a GPU it needs
  // DecodeOptions::fixed_rows.
  std::vector<DrawnTokens> run_drafts(const std::vector<DraftedSlot>& slots);
  // Sets a slot of the last run_drafts() to its state after it has read `tokens` tokens of that step, at least 1.
  void roll_back(int64_t slot, int64_t tokens);

 private:
  Slots on_device(const std::vector<int64_t>& slots) const;
  int64_t sum_pending(int64_t (decode::PendingTokens::*bytes)() const) const;
  struct Rows {  // some slots of a step, and their rows of the step's logits
    std::vector<int64_t> slots, rows;
  };
  // The most likely tokens of some slots after a step, on the device.
  struct TopOnDevice {
    std::vector<int64_t> slots;
    Tensor ids;                // int64 [slots, k]
    Tensor log_probabilities;  // fp32 [slots, 1 + k]: of the slot's token, and of `ids`
  };
  struct RollBack {  // the place of a slot's states between the tokens of the last run_drafts()
    std::shared_ptr<const StateJournal> journal;
    int64_t sequence = 0, tokens = 0;  // its index in the journal; the tokens that the slot's state has read
  };
  struct TopAtHost {
    std::vector<int64_t> slots = {};
    std::optional<runtime::ToHost> ids = {}, log_probabilities = {};
  };

  // A step of these slots; undefined: of all. Returns its logits, [slots, padded_vocab].
  Tensor step(const Slots& slots);
  Tensor sample(const Slots& slots, Tensor token, ops::SampleOptions options, Tensor log_probability);
  Tensor sampled_columns(const Tensor& padded) const;  // the logits to draw from, in fp32 if they are fp64, which draws do not have
  // Draws tokens from the logits of these slots, [slots, padded_vocab], at options.position.
  void draw(const Tensor& padded, Tensor token, const ops::SampleOptions& options, Tensor log_probability);
  void store(const Slots& slots, const Tensor& token, const Tensor& seen, const Tensor& log_probability);
  ops::SampleOptions options_of(const Slots& slots) const;
  void run_parts(const std::vector<int64_t>& slots, bool one_row);
  template <class Condition>
  Rows rows_where(const std::vector<int64_t>& slots, const Condition& condition) const {
    Rows found;
    for (size_t i = 0; i < slots.size(); ++i)
      if (condition(slots[i])) found.slots.push_back(slots[i]), found.rows.push_back(steps_all() ? slots[i] : static_cast<int64_t>(i));
    return found;
  }
  Tensor logits_of(const Rows& rows) const;
  Tensor log_probabilities_of(const Rows& rows) const;
  void draw_adjusted(const Rows& rows, const Tensor& seen, const Tensor& position);
  Readback read_back();
  static void append(Readback& from, int64_t slot, DrawnTokens& drawn);
  void run_drafts_together(const std::vector<DraftedSlot>& slots, std::vector<size_t> together, std::vector<DrawnTokens>& drawn);
  void draw_round(const std::vector<int64_t>& slots, const Tensor& padded, const Tensor& position);
  void find_top(const Rows& rows);
  std::map<int64_t, TopTokens> finish_top(TopAtHost& copy) const;
  int64_t columns() const { return decode_.padded_columns ? model_.config().padded_vocab() : model_.config().vocab_size; }
  void use_fixed_rows();
  DrawnTokens run_drafts_of_sequence(const DraftedSlot& slot);
  void take_row(int64_t row);
  void redraw_row(int64_t row, const Tensor& seen);
  void record_all();
  bool try_recording(bool fused, std::string& reason);

  LanguageModel& model_;
  ModelState& state_;
  DecodeOptions decode_;
  Tensor all_slots_;        // int64 [slots]: 0, 1, …
  Tensor token_;            // int64 [slots]: each sequence's last token, the next step's input
  Tensor log_probability_;  // fp32 [slots]: of that token; undefined: not kept
  std::vector<runtime::ToHost> token_at_host_, log_probability_at_host_;  // kReadbacks each, used in turn
  size_t readbacks_begun_ = 0, readbacks_finished_ = 0;
  ops::SampleOptions options_;
  LogitAdjustments adjustments_;
  std::vector<int64_t> top_counts_;  // [slots]: SequenceOptions::top_log_probabilities
  std::optional<TopOnDevice> top_;   // set by the last step
  std::vector<TopAtHost> top_at_host_{kReadbacks};
  std::vector<Tensor> logits_;                                   // the last step's, or one for each recording
  std::map<int64_t, RollBack> roll_backs_;                       // for the slots of the last run_drafts()
  std::unique_ptr<SequenceStep> sequence_step_;                  // null unless DecodeOptions::fixed_rows
  std::vector<decode::RecordedStep> recordings_;                 // run one after another, they step all slots
  std::vector<std::shared_ptr<decode::PendingTokens>> pending_;  // the buffers of the recordings' plans
};

}  // namespace based
