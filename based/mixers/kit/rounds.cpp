#include "based/mixers/kit/rounds.h"

#include "based/core/error.h"

namespace based {

void StateJournal::keep(const std::vector<Tensor>& states, const Pass& pass, size_t round) {
  if (round + 1 >= pass.rounds().size()) return;
  const Slots& slots = pass.rounds()[round + 1].pass->slots();  // the other sequences have no later token
  for (const Tensor& state : states) {
    Kept& kept = kept_[{state.const_data_ptr(), round}];
    if (kept.copies.defined() && kept.copies.size(0) == slots.size(0))
      at::index_select_out(kept.copies, state, 0, slots);
    else
      kept = {state, state.index_select(0, slots)};
  }
}

void StateJournal::restore(int64_t sequence, int64_t slot, int64_t tokens) const {
  const auto round = static_cast<size_t>(tokens - 1);
  struct Copies {
    std::vector<Tensor> to, from;
  };
  std::map<torch::Dtype, Copies> by_type;  // a GPU copies all tensors of a type by one launch
  for (const auto& [place, kept] : kept_) {
    if (place.second != round) continue;
    BASED_ASSERT(sequence < kept.copies.size(0));
    Copies& copies = by_type[kept.state.scalar_type()];
    copies.to.push_back(kept.state.select(0, slot)), copies.from.push_back(kept.copies.select(0, sequence));
  }
  for (const auto& [type, copies] : by_type) at::_foreach_copy_(copies.to, copies.from);
}

Tensor rows_of(const Tensor& rows, const Pass::Round& round) {
  if (!rows.defined()) return rows;
  const Tensor some = rows.narrow(0, round.begin, round.rows);
  constexpr int64_t alignment = 32;  // bytes of ATen's largest vector
  const bool differs = rows.dim() > 1 && rows.stride(0) * rows.element_size() % alignment != 0;
  return rows.is_cuda() && differs ? some.clone(at::MemoryFormat::Contiguous) : some;
}

Tensor join_rounds(std::vector<Tensor> outputs, const Pass& pass) {
  if (pass.padding() > 0) {
    const Tensor& last = outputs.back();
    std::vector<int64_t> shape = last.sizes().vec();
    shape[0] = pass.padding();
    outputs.push_back(last.narrow(0, last.size(0) - 1, 1).expand(shape));
  }
  return torch::cat(outputs);
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
