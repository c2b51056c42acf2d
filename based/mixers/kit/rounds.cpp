#include "based/mixers/kit/rounds.h"

#include "based/core/error.h"

namespace based {

void StateJournal::keep(const std::vector<Tensor>& states, const Pass& pass, size_t round) {
  if (round + 1 >= pass.rounds().size()) return;
  const Slots& slots = pass.rounds()[round + 1].pass->slots();  // the other sequences have no later token
  for (const Tensor& state : states) kept_.push_back({state, state.index_select(0, slots), round});
}

void StateJournal::restore(int64_t sequence, int64_t slot, int64_t tokens) const {
  const auto round = static_cast<size_t>(tokens - 1);
  for (const Kept& kept : kept_) {
    if (kept.round != round) continue;
    BASED_ASSERT(sequence < kept.copies.size(0));
    kept.state.select(0, slot).copy_(kept.copies.select(0, sequence));
  }
}

Tensor step_any(Mixer& mixer, const Tensor& x, MixerState& state, const Pass& pass) {
  if (pass.rounds().empty() || mixer.steps_in_rounds()) return mixer.step(x, state, pass);
  std::vector<Tensor> states;
  for (const StateTensor& tensor : state.tensors())
    if (!tensor.grows) states.push_back(tensor.value);
  const auto step = [&](const Pass& round, const Tensor& rows) { return mixer.step(rows, state, round); };
  return step_in_rounds(pass, states, step, x);
}

}  // namespace based
