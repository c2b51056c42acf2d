// AdamW's state in a form that does not depend on the number of ranks.
#include "based/core/error.h"
#include "based/train/optimizer.h"

namespace based {
namespace {

void require_saved_tensor(const std::string& what, const Tensor& saved, at::IntArrayRef sizes, torch::Dtype dtype) {
  if (!saved.defined()) throw Error("the optimizer's state has no " + what);
  if (saved.sizes() != sizes || saved.scalar_type() != dtype)
    throw Error("the optimizer's state has another shape or type for " + what + " than the model's parameter");
}

}  // namespace

// float [slots] on the CPU. With `shard` the ranks that own nothing of a parameter do not count its steps.
Tensor AdamW::steps_of_all_slots() const {
  std::vector<Tensor> counts;
  for (const Slot& slot : slots_) counts.push_back(slot.steps);
  const Tensor steps = torch::stack(counts);
  if (!shards_) return steps.cpu();
  const Tensor all = torch::empty({world() * steps.numel()}, steps.options());
  ranks_->all_gather(all, steps)->wait();
  return all.view({world(), -1}).amax(0).cpu();
}

std::vector<SavedSlot> AdamW::gather_state() {
  const torch::NoGradGuard no_grad;
  WeightShards::State whole;
  if (shards_) whole = shards_->gather_state();
  if (!shards_ && ranks_ && ranks_->rank() != 0) return {};
  const Tensor steps = steps_of_all_slots();
  if (ranks_ && ranks_->rank() != 0) return {};
  std::vector<SavedSlot> state;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    SavedSlot& saved = state.emplace_back();
    saved.name = slot.name, saved.steps = steps[static_cast<int64_t>(i)].clone();
    if (shards_) {
      saved.master = whole.masters[i], saved.first_moment = whole.first_moments[i], saved.second_moment = whole.second_moments[i];
    } else {
      if (slot.has_master()) saved.master = copy_to_host(slot.master);
      saved.first_moment = copy_to_host(slot.first_moment), saved.second_moment = copy_to_host(slot.second_moment);
    }
  }
  return state;
}

void AdamW::load_state(const std::vector<SavedSlot>& state) {
  const torch::NoGradGuard no_grad;
  if (state.size() != slots_.size())
    throw Error("the optimizer's state has " + std::to_string(state.size()) + " parameters, the model " + std::to_string(slots_.size()));
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const SavedSlot& saved = state[i];
    if (saved.name != slot.name) throw Error("the optimizer's state has '" + saved.name + "' where the model has '" + slot.name + "'");
    const at::IntArrayRef sizes = parameters_[i].sizes();
    const torch::Dtype dtype = slot.master.scalar_type();
    require_saved_tensor("first_moment." + slot.name, saved.first_moment, sizes, dtype);
    require_saved_tensor("second_moment." + slot.name, saved.second_moment, sizes, dtype);
    require_saved_tensor("steps." + slot.name, saved.steps, {}, torch::kFloat);
    if (slot.has_master() || saved.master.defined()) require_saved_tensor("master." + slot.name, saved.master, sizes, dtype);
    // Selects the slot's elements of a whole tensor.
    const auto own = [&](const Tensor& whole) { return shards_ ? whole.reshape(-1).narrow(0, slot.first, slot.master.numel()) : whole; };
    slot.first_moment.copy_(own(saved.first_moment)), slot.second_moment.copy_(own(saved.second_moment)), slot.steps.copy_(saved.steps);
    // A parameter that was trained in 16 bits and now has its master's type gets the master, which is the more exact value.
    if (slot.has_master())
      slot.master.copy_(own(saved.master));
    else if (saved.master.defined())
      parameters_[i].copy_(saved.master);
  }
}

}  // namespace based
