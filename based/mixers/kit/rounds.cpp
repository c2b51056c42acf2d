#include "based/mixers/kit/rounds.h"

#include <algorithm>

#include "based/core/error.h"
#include "based/mixers/kit/copies.h"
#include "based/ops/framework/tokens_step.h"

namespace based {

namespace {

// The memory of a state. A state without memory, in a plan, has its storage's address.
const void* key_of(const Tensor& state) {
  const void* memory = state.const_data_ptr();
  return memory != nullptr ? memory : state.storage().unsafeGetStorageImpl();
}

}  // namespace

Tensor StateJournal::rows_for(const Tensor& state, int64_t tokens) {
  Kept& kept = memory_[key_of(state)];
  kept.state = state;
  if (!kept.copies.defined() || kept.copies.size(0) < tokens - 1) {
    std::vector<int64_t> shape = state.sizes().vec();
    shape[0] = std::max(tokens, most_tokens_) - 1;
    kept.copies = torch::empty(shape, state.options());
  }
  return kept.copies;
}

void StateJournal::keep(const std::vector<Tensor>& states, const Pass& pass, size_t round) {
  if (round + 1 >= pass.rounds().size()) return;
  const Slots& slots = pass.rounds()[round + 1].pass->slots();  // the other sequences have no later token
  const bool is_one_sequence = pass.rounds()[0].rows == 1;
  for (const Tensor& state : states) {
    Kept& kept = kept_[{key_of(state), round}];
    if (is_one_sequence)
      kept = {state, rows_for(state, static_cast<int64_t>(pass.rounds().size())).narrow(0, static_cast<int64_t>(round), 1)};
    if (kept.copies.defined() && kept.copies.size(0) == slots.size(0))
      at::index_select_out(kept.copies, state, 0, slots);
    else
      kept = {state, state.index_select(0, slots)};
  }
}

std::vector<Tensor> StateJournal::memory_for(const std::vector<Tensor>& states, int64_t tokens) {
  std::vector<Tensor> all;
  for (const Tensor& state : states) {
    all.push_back(rows_for(state, tokens));
    for (int64_t round = 0; round + 1 < tokens; ++round)
      kept_[{key_of(state), static_cast<size_t>(round)}] = {state, all.back().narrow(0, round, 1)};
  }
  return all;
}

void StateJournal::restore(int64_t sequence, int64_t slot, int64_t tokens) const {
  const auto round = static_cast<size_t>(tokens - 1);
  Copies copies;
  for (const auto& [place, kept] : kept_) {
    if (place.second != round) continue;
    BASED_ASSERT(sequence < kept.copies.size(0));
    copies.add(kept.state.select(0, slot), kept.copies.select(0, sequence));
  }
  copies.run();
}

std::vector<ops::AcceptedValue> StateJournal::values_of_sequence(int64_t slot, int64_t tokens) const {
  std::vector<ops::AcceptedValue> values;
  values.reserve(memory_.size());
  for (const auto& [key, kept] : memory_) values.push_back({kept.state.select(0, slot), kept.copies.narrow(0, 0, tokens - 1)});
  return values;
}

std::optional<TokensOfSequence> tokens_of_sequence(const Pass& pass, const std::vector<Tensor>& states) {
  if (pass.rounds().empty() || pass.rounds()[0].rows != 1) return {};
  TokensOfSequence found{pass.rounds()[0].pass->slots(), static_cast<int64_t>(pass.rounds().size()), {}};
  if (pass.journal() != nullptr)
    found.kept = pass.journal()->memory_for(states, found.tokens);
  else
    for (const Tensor& state : states) found.kept.push_back(state.narrow(0, 0, 0));
  return found;
}

Tensor rows_of(const Tensor& rows, const Pass::Round& round) {
  if (!rows.defined()) return rows;
  const Tensor some = rows.narrow(0, round.begin, round.rows);
  constexpr int64_t alignment = 32;  // bytes of ATen's largest vector
  const bool differs = rows.dim() > 1 && rows.stride(0) * rows.element_size() % alignment != 0;
  return rows.is_cuda() && differs ? some.clone(at::MemoryFormat::Contiguous) : some;
}

Tensor join_rounds(std::vector<Tensor> outputs, const Pass& pass) { return ops::cat_with_padding(std::move(outputs), pass.padding()); }

Tensor step_any(Mixer& mixer, const Tensor& x, MixerState& state, const Pass& pass) {
  if (pass.rounds().empty() || mixer.steps_in_rounds()) return mixer.step(x, state, pass);
  std::vector<Tensor> states;
  for (const StateTensor& tensor : state.tensors())
    if (!tensor.grows) states.push_back(tensor.value);
  const auto step = [&](const Pass& round, const Tensor& rows) { return mixer.step(rows, state, round); };
  return step_in_rounds(pass, states, step, x);
}

}  // namespace based
