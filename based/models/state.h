// The state of a whole model: the states of its mixers, and the number of tokens that each slot has seen. A value, like MixerState.
#pragma once
#include <string>
#include <vector>

#include "based/mixers/kit/state.h"

namespace based {

class ModelState {
 public:
  ModelState() = default;
  ModelState(std::vector<MixerState> layers, Tensor position) : layers_(std::move(layers)), position_(std::move(position)) {}

  std::vector<MixerState>& layers() { return layers_; }
  const std::vector<MixerState>& layers() const { return layers_; }
  Tensor& position() { return position_; }  // int64 [slots]: tokens seen, the position of the next token in its sequence
  const Tensor& position() const { return position_; }

  int64_t slots() const { return position_.size(0); }
  int64_t bytes() const;  // all slots'
  bool grows() const;
  void use_pages(const StatePages& pages, int64_t pool);  // see MixerState::use_pages; for the layers whose state grows
  void zero(const Slots& slots);
  void trim(int64_t steps);  // keeps the first `steps` time steps of the layers whose state grows
  void copy(int64_t source, int64_t target);
  ModelState extract(int64_t slot) const;
  // One state for each slot, by one copy of each tensor that does not grow. The states share memory, which is freed with the last of them.
  std::vector<ModelState> extract(const std::vector<int64_t>& slots) const;
  void insert(const ModelState& one, int64_t slot);
  // The same for several slots, with one copy of each tensor that does not grow. A state may occur several times.
  void insert(const std::vector<const ModelState*>& states, const std::vector<int64_t>& slots);

  // Flat names for files: "position", "layers.3.kv", …
  std::vector<StateTensor> named() const;
  // The reverse of named() for a state of this shape: fills slot `slot`. Throws Error naming a tensor that is missing, unexpected or of
  // another shape. Older states have a token count for each layer; these are compared with 'position' and dropped.
  void load_named(const std::vector<StateTensor>& tensors, int64_t slot);

 private:
  Slots on_device(const std::vector<int64_t>& slots) const;

  std::vector<MixerState> layers_;
  Tensor position_;
};

}  // namespace based
