// One forward pass of a model over rows of tokens: the arguments of all layers besides their input, and values that the first layer
// computes for all others.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "based/mixers/kit/sequences.h"
#include "based/ops/training/dropout.h"
#include "based/runtime/torch.h"

namespace based {

struct StepHistoryPlan;  // defined in mixers/kit/step_history.cpp
class StateJournal;      // mixers/kit/rounds.h

class Pass {
 public:
  // A parallel pass without a state: every row is a sequence from its beginning. Training steps with dropout give `draws`.
  explicit Pass(Sequences rows, ops::Draws draws = {});
  // A parallel pass that continues from slots of a state. `seen`, int64 [rows]: the number of tokens that each row's slot has processed.
  Pass(Sequences rows, Slots slots, Tensor seen);
  // One token for each slot, with `seen` as above.
  static Pass step(Slots slots, Tensor seen);
  // A step of several consecutive tokens of each sequence, as rounds: round i has token i of each sequence with more than i tokens. Rows
  // are ordered by round; round i has the first round_rows[i] of the sequences, so these numbers do not increase. slots and seen as above,
  // one entry a row. `journal`, if not null, receives the states between rounds and must outlive the pass. The last `padding` rows belong
  // to no round. No recurrence reads them, and their results mean nothing: they give all passes the same number of rows where the bits of a
  // matrix product depend on it.
  static Pass step_rounds(Slots slots, Tensor seen, const std::vector<int64_t>& round_rows, StateJournal* journal, int64_t padding = 0);
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  const Sequences& rows() const;  // parallel passes only
  const Tensor& cu_seqlens() const { return rows().cu_seqlens(); }
  const Slots& slots() const { return slots_; }  // undefined without a state
  Tensor positions() const;                      // int64 [tokens]: each token's position in its sequence, from 0

  // The random draws of dropout. Place 0 belongs to the embeddings, place 1 + layer to a layer. Throws Error with advice if none were
  // given.
  const ops::Draws& draws() const;

  // The slots, and the number of tokens that each has processed, on the host. The first call of a pass synchronises with the device, so a
  // step that is captured into a CUDA graph must not call them.
  const std::vector<int64_t>& slots_on_host() const;
  const std::vector<int64_t>& seen_on_host() const;
  int64_t longest() const;  // tokens of the longest sequence, this pass included; 0 without rows

  // One round of a step of several tokens: the rows begin, begin + 1, … of the whole pass, as a pass of one token a slot.
  struct Round;
  const std::vector<Round>& rounds() const { return rounds_; }  // empty for all other passes
  StateJournal* journal() const { return journal_; }
  int64_t padding() const { return padding_; }  // rows after those of the last round

  // Returns make(), which is called once per pass and key.
  using PlanKey = std::tuple<int64_t, int64_t, int64_t>;
  template <class Make>
  std::shared_ptr<const StepHistoryPlan> plan(const PlanKey& key, Make&& make) const {
    std::shared_ptr<const StepHistoryPlan>& known = plans_[key];
    if (!known) known = make();
    return known;
  }

 private:
  Pass(std::optional<Sequences> rows, Slots slots, Tensor seen, const std::vector<int64_t>& round_rows = {},
       StateJournal* journal = nullptr, int64_t padding = 0);
  std::optional<Sequences> rows_;
  Slots slots_;
  Tensor seen_;
  ops::Draws draws_;
  std::vector<Round> rounds_;
  StateJournal* journal_ = nullptr;
  int64_t padding_ = 0;
  // Computed on demand. Only passes with a state use these: such a pass belongs to one thread.
  mutable Tensor positions_;
  mutable std::optional<std::vector<int64_t>> slots_on_host_, seen_on_host_;
  mutable std::map<PlanKey, std::shared_ptr<const StepHistoryPlan>> plans_;
};

struct Pass::Round {
  int64_t begin = 0, rows = 0;
  std::shared_ptr<const Pass> pass;
};

}  // namespace based
