// A step of one sequence that reads its input token and drafts of the tokens after it, on a device where the bits of a row of a matrix
// product depend on the number of rows. The bits of a token do not depend on the number of drafts. Where one kernel computes all layers
// (kernels/step/step_program.h), the model gets a row for each token, and the bits are those of a step without drafts. Elsewhere it always
// gets kRows rows, of which some are padding, and the bits are those of such steps. Recurrences take one row after another, in one launch
// or in several. Each token is drawn from its own row, as if the drafts before it were right.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "based/decode/record.h"
#include "based/generate/sequence.h"
#include "based/mixers/kit/rounds.h"
#include "based/models/language_model.h"
#include "based/ops/sampling/sample.h"
#include "based/runtime/transfer.h"

namespace based {

enum class StepRows {
  of_tokens,  // a row for each token
  fixed,      // SequenceStep::kRows
};

class SequenceStep {
 public:
  static constexpr int64_t kRows = 1 + kMostDraftTokens;
  // How a step of `tokens` tokens is planned: as one kernel, or, in fixed rows, with fused layers.
  static decode::PlanOptions plan_options(int64_t tokens, StepRows rows) {
    if (rows == StepRows::fixed) return {.defers = false, .fusion = decode::Fusion::layers};
    return {.defers = false, .fusion = decode::Fusion::all, .tokens = tokens};
  }

  // Everything that a step reads and writes, on the model's device.
  struct Parts {
    LanguageModel& model;
    ModelState& state;             // has one slot; its addresses must not change if steps are recorded
    Tensor token;                  // int64 [1]: the input token
    Tensor log_probability;        // fp32 [1]: of the input token; undefined: not kept
    ops::SampleOptions& sampling;  // one row; `position` is not used
    // Draws the rows' tokens as ops::sample_tokens_ does; logits [rows, padded_vocab].
    std::function<void(const Tensor& logits, const Tensor& tokens, const ops::SampleOptions&, const Tensor& drafts,
                       const Tensor& seen_after)>
        draw;
    // The log-probability of each row's token, fp32 [kRows]; null if `log_probability` is undefined.
    std::function<Tensor(const Tensor& logits, const Tensor& tokens)> log_probabilities;
    bool one_row = false;  // whether run_one_row() is used
  };
  explicit SequenceStep(Parts parts);

  // Records a step of each number of tokens, as one kernel and with a row for each token. Returns false, and records nothing, where no
  // kernel computes all layers. Throws Error where steps cannot be recorded. Changes the state and the token, as record() does.
  bool record_programs();
  // Records a step of each number of tokens in fixed rows, rewritten by its plan; without `fusion` as its operators launch it. Throws Error
  // where steps cannot be recorded, or where those of different numbers of tokens would fuse different operators and so have different
  // bits.
  void record(std::optional<decode::Fusion> fusion);
  StepRows rows() const { return rows_; }

  // Reads the input token and up to kMostDraftTokens drafts, and draws a token after each of them, as if all tokens drawn before it were
  // the drafts. Without drafts it takes row 0. Asynchronous on a GPU. The results below are those of the last run().
  void run(std::span<const int64_t> drafts);
  // Reads the input token alone, by a step of one row. Where run() has fixed rows, it rounds otherwise and fuses more. Draws and takes
  // row 0.
  void run_one_row();
  // The same as run(), operator by operator, for drafts that are on the device.
  void run_operators(int64_t tokens, StepRows rows);
  // The input token becomes the one drawn from this row, with its log-probability, and the marks of seen tokens are those after this draw.
  void take(int64_t row);
  Tensor logits(int64_t row) const { return logits_.at(last_).narrow(0, row, 1); }  // [1, padded_vocab]
  Tensor position(int64_t row) const { return positions_.narrow(0, row, 1); }       // int64 [1]: the drawn token's
  int64_t tokens_read() const { return last_ == kOneRow ? 1 : static_cast<int64_t>(last_) + 1; }
  // The states after each token but the last one; overwritten by the next run().
  const std::shared_ptr<StateJournal>& journal() const { return journal_; }

  struct Drawn {
    const int64_t* tokens = nullptr;           // [tokens_read()]; −1 where the logits are not finite
    const float* log_probabilities = nullptr;  // null if they are not kept
    int64_t accepted = 0;                      // drafts
  };
  // Takes the row after the last draft that equals the token drawn before it, and sets the state to that after this draft. Waits for the
  // last run(), and not for this. The pointers are valid until the next call.
  Drawn accept_drafts();

 private:
  static constexpr size_t kOneRow = kRows;  // the index of the one-row step, after those of 1, 2, … tokens

  void step(int64_t tokens);
  void step_one_row(size_t index);
  void draw(const Tensor& logits, int64_t tokens);
  void add_recording(const std::function<void()>& body, std::optional<decode::PlanOptions> options);
  void take_now(int64_t row);

  Parts parts_;
  StepRows rows_ = StepRows::fixed;
  Tensor slots_;                             // int64 [kRows]: zeros
  Tensor places_;                            // int64 [kRows]: 1, 2, …
  Tensor drafts_;                            // int64 [kMostDraftTokens]
  Tensor drafts_at_host_;                    // the same in pinned memory; read by the step until read_back()
  Tensor tokens_, positions_;                // int64 [kRows]: the drawn tokens and their positions
  Tensor log_probabilities_;                 // fp32 [kRows], or undefined
  Tensor seen_;                              // int32 [kRows, words]: the marks after each draw
  std::vector<Tensor> logits_{kOneRow + 1};  // [kRows, padded_vocab] of a step of 1, 2, … tokens, [1, padded_vocab] of the one-row step
  size_t last_ = 0;                          // the index of the last step
  std::vector<decode::RecordedStep> recordings_;  // by the same index; empty: steps are not recorded
  runtime::ToHost tokens_at_host_;
  std::optional<runtime::ToHost> log_probabilities_at_host_;
  std::shared_ptr<StateJournal> journal_ = std::make_shared<StateJournal>(kRows);
};

}  // namespace based
