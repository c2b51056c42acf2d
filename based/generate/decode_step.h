// One decoding step for the sequences in the slots of a state: the model's step and the sampling of the next token, on the model's device.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/decode/record.h"
#include "based/generate/sampler.h"
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
};

class DecodeStep {
 public:
  static constexpr int64_t invariant_width = 128;
  // The slots that a state must have to decode `slots` sequences.
  static int64_t width(int64_t slots, const DecodeOptions& options, torch::Device device);

  // `state` must be zero; it is zero again afterwards. It must outlive this, and keep its addresses if steps are recorded.
  DecodeStep(LanguageModel& model, ModelState& state, const DecodeOptions& options);

  // run() steps all slots, not only the given ones: if steps are recorded, and if a GPU's steps are invariant.
  bool steps_all() const { return !recordings_.empty() || (decode_.invariant && !model_.device().is_cpu()); }
  bool keeps_log_probabilities() const { return log_probability_.defined(); }

  void set_sampling(const std::vector<int64_t>& slots, const std::vector<SamplingOptions>& options);
  // `sequences`: all tokens of the sequence in each slot. Its last token becomes the next step's input; all of them are marked as seen, for
  // the repetition penalty.
  void load_last_tokens(const std::vector<int64_t>& slots, const std::vector<const std::vector<int64_t>*>& sequences);
  // Sets the next step's input tokens, without marking them as seen.
  void set_tokens(const std::vector<int64_t>& slots, const std::vector<int64_t>& tokens);

  // Adds the pending tokens of these slots to the state; forget_pending() drops them, for a slot that receives another sequence's state.
  // See decode/pending.h.
  void flush(const std::vector<int64_t>& slots);
  void forget_pending(const std::vector<int64_t>& slots);
  int64_t pending_bytes() const;  // in addition to the state's; 0: there are no buffers for pending tokens

  // A step of all slots, operator by operator.
  void run_all() { step({}); }
  // A step of these slots, in ascending order; asynchronous on a GPU.
  void run(const std::vector<int64_t>& slots);
  // Starts the copy of the last step's tokens to the host. At most `kReadbacks` copies may be in flight, so that the next step can be
  // launched before the tokens of this one are read.
  void begin_readback();
  struct Readback {
    const int64_t* tokens = nullptr;           // [slots]; −1 if the slot's logits are not finite
    const float* log_probabilities = nullptr;  // [slots], under the model's softmax; null if they are not kept
  };
  // Waits for the oldest copy in flight, and for nothing else. The entries of slots that were not stepped are undefined. The pointers are
  // valid until the next begin_readback().
  Readback finish_readback();
  static constexpr size_t kReadbacks = 2;

 private:
  Slots on_device(const std::vector<int64_t>& slots) const;
  // A step of these slots; undefined: of all.
  void step(const Slots& slots);
  void sample(const Slots& slots, Tensor token, ops::SampleOptions options, Tensor log_probability);
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
  std::vector<decode::RecordedStep> recordings_;                 // run one after another, they step all slots
  std::vector<std::shared_ptr<decode::PendingTokens>> pending_;  // the buffers of the recordings' plans
};

}  // namespace based
