// One pass of a model over rows of tokens: what its layers are told beside their input, and what one of them works out for all.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "based/mixers/sequences.h"
#include "based/ops/dropout.h"
#include "based/ops/torch.h"

namespace based {

struct PastPlan;  // mixers/past.cpp

class Pass {
 public:
  // The parallel form without a state: every row is a sequence from its beginning. `draws`: of a training step.
  explicit Pass(Sequences rows, ops::Draws draws = {});
  // The parallel form from slots of a state. `seen`, int64 [rows]: the tokens that each row's slot has seen before.
  Pass(Sequences rows, Slots slots, Tensor seen);
  // One token for each slot; `seen` as above.
  static Pass step(Slots slots, Tensor seen);
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  const Sequences& rows() const;  // of the parallel forms; a step has none
  const Tensor& cu_seqlens() const { return rows().cu_seqlens(); }
  const Slots& slots() const { return slots_; }  // undefined without a state
  Tensor positions() const;                      // int64 [tokens]: each token's place in its sequence, from 0

  // What dropout draws from; place 0 is the embeddings', 1 + layer a layer's. Throws Error, saying what to do, where none were given.
  const ops::Draws& draws() const;

  // Slots and tokens seen on the host. A device is waited for, once a pass; in a step that is to be recorded nobody may ask.
  const std::vector<int64_t>& slots_on_host() const;
  const std::vector<int64_t>& seen_on_host() const;
  int64_t longest() const;  // tokens of the longest sequence, this pass included; 0 without rows

  // What `make` gives, made once a pass for each key.
  using PlanKey = std::tuple<int64_t, int64_t, int64_t>;
  template <class Make>
  std::shared_ptr<const PastPlan> plan(const PlanKey& key, Make&& make) const {
    std::shared_ptr<const PastPlan>& known = plans_[key];
    if (!known) known = make();
    return known;
  }

 private:
  Pass(std::optional<Sequences> rows, Slots slots, Tensor seen);
  std::optional<Sequences> rows_;
  Slots slots_;
  Tensor seen_;
  ops::Draws draws_;
  // Worked out when asked for, which passes with a state alone keep: they belong to one thread.
  mutable Tensor positions_;
  mutable std::optional<std::vector<int64_t>> slots_on_host_, seen_on_host_;
  mutable std::map<PlanKey, std::shared_ptr<const PastPlan>> plans_;
};

}  // namespace based
