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

class Pass {
 public:
  // A parallel pass without a state: every row is a sequence from its beginning. Training steps with dropout give `draws`.
  explicit Pass(Sequences rows, ops::Draws draws = {});
  // A parallel pass that continues from slots of a state. `seen`, int64 [rows]: the number of tokens that each row's slot has processed.
  Pass(Sequences rows, Slots slots, Tensor seen);
  // One token for each slot, with `seen` as above.
  static Pass step(Slots slots, Tensor seen);
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

  // Returns make(), which is called once per pass and key.
  using PlanKey = std::tuple<int64_t, int64_t, int64_t>;
  template <class Make>
  std::shared_ptr<const StepHistoryPlan> plan(const PlanKey& key, Make&& make) const {
    std::shared_ptr<const StepHistoryPlan>& known = plans_[key];
    if (!known) known = make();
    return known;
  }

 private:
  Pass(std::optional<Sequences> rows, Slots slots, Tensor seen);
  std::optional<Sequences> rows_;
  Slots slots_;
  Tensor seen_;
  ops::Draws draws_;
  // Computed on demand. Only passes with a state use these: such a pass belongs to one thread.
  mutable Tensor positions_;
  mutable std::optional<std::vector<int64_t>> slots_on_host_, seen_on_host_;
  mutable std::map<PlanKey, std::shared_ptr<const StepHistoryPlan>> plans_;
};

}  // namespace based
