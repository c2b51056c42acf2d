// The state of a whole model: its mixers' states and, once for all of them, the number of tokens each slot has seen. A value like theirs.
#pragma once
#include <string>
#include <vector>

#include "based/mixers/state.h"

namespace based {

class ModelState {
 public:
  ModelState() = default;
  ModelState(std::vector<MixerState> layers, Tensor position) : layers_(std::move(layers)), position_(std::move(position)) {}

  std::vector<MixerState>& layers() { return layers_; }
  const std::vector<MixerState>& layers() const { return layers_; }
  Tensor& position() { return position_; }  // int64 [slots], tokens seen: the place of the next one in its sequence
  const Tensor& position() const { return position_; }

  int64_t slots() const { return position_.size(0); }
  int64_t bytes() const;  // of all slots
  bool grows() const;
  void use_pages(const StatePages& pages, int64_t pool);  // of the layers whose state grows
  void zero(const Slots& slots);
  void trim(int64_t steps);  // of the layers whose state grows, to the first `steps`
  void copy(int64_t from, int64_t to);
  ModelState extract(int64_t slot) const;
  void insert(const ModelState& one, int64_t slot);

  // Flat names for files: "position", "layers.3.kv", …
  std::vector<StateTensor> named() const;
  // The reverse of named() for a state of this shape: fills slot `slot`. Throws Error naming what is missing, unexpected or misshapen.
  // Counts of single layers, which older states had, are compared with 'position' and left out.
  void load_named(const std::vector<StateTensor>& tensors, int64_t slot);

 private:
  std::vector<MixerState> layers_;
  Tensor position_;
};

}  // namespace based
