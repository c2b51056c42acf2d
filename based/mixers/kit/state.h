// The recurrent state of a mixer: named tensors whose first dimension is the slot. A mixer keeps nothing else between calls.
#pragma once
#include <string>
#include <vector>

#include "based/mixers/kit/copies.h"
#include "based/mixers/kit/sequences.h"
#include "based/runtime/torch.h"

namespace based {

struct StateTensor {
  std::string name;
  Tensor value;        // [slots, …]
  bool grows = false;  // dimension 1 is time and grows with the sequence (attention's cache)
};

// A page table for growing tensors in a memory pool of fixed size: page i of a slot, with `tokens` time steps, is page table[slot, i] of
// the pool.
struct StatePages {
  Tensor table;        // int64 [slots, maximum pages per slot], shared by the layers of a model; −1: no page
  int64_t tokens = 0;  // time steps per page, a power of two
};

class MixerState {
 public:
  MixerState() = default;
  explicit MixerState(std::vector<StateTensor> tensors) : tensors_(std::move(tensors)) {}

  Tensor& operator[](const std::string& name);  // throws Error if there is no such tensor
  const Tensor& operator[](const std::string& name) const;
  bool has(const std::string& name) const;
  std::vector<StateTensor>& tensors() { return tensors_; }
  const std::vector<StateTensor>& tensors() const { return tensors_; }

  // Writes `values`, cast to the tensor's type, to its rows `slots`. With gradients on, the tensor is replaced, so that the old one stays
  // valid for the backward pass. With gradients off, it is written in place.
  void put(const std::string& name, const Slots& slots, const Tensor& values);

  int64_t slots() const;
  int64_t bytes() const;                      // the size of all slots
  bool grows() const;                         // whether any tensor grows
  bool grows(const std::string& name) const;  // whether this tensor grows

  void zero(const Slots& slots);           // resets slots to the initial state
  void copy(int64_t from, int64_t to);     // forks a sequence: copies slot `from` to slot `to`
  MixerState extract(int64_t slot) const;  // a copy of one slot
  // The same, copied when `copies` run, so that one launch on a GPU copies the states of all layers.
  MixerState extract(int64_t slot, Copies& copies) const;
  // One state for each slot. Those of tensors that do not grow share memory: one copy of each tensor. `indices`: the slots on the state's
  // device.
  std::vector<MixerState> extract(const std::vector<int64_t>& slots, const Slots& indices) const;
  // The inverse of extract(). Throws Error if names or shapes differ. Growing tensors grow as needed.
  void insert(const MixerState& one, int64_t slot);
  void insert(const MixerState& one, int64_t slot, Copies& copies);  // tensors that do not grow are copied when `copies` run
  // The same for several slots, which must differ; `indices` are the same slots on the state's device. Without growing tensors, it is one
  // copy of each tensor.
  void insert(const std::vector<const MixerState*>& states, const std::vector<int64_t>& slots, const Slots& indices);
  void grow(int64_t capacity);  // enlarges growing tensors to at least this many time steps, by doubling
  void trim(int64_t steps);     // cuts growing tensors down to their first `steps` time steps

  // Replaces the growing tensors of a new state by pools of zeros, [pool, pages.tokens, …], of fixed size. The owner of the table must give
  // a slot its pages before they are written. The operations above then read and write a slot's pages.
  void use_pages(const StatePages& pages, int64_t pool);
  bool paged() const { return pages_.table.defined(); }
  const StatePages& pages() const { return pages_; }

 private:
  void check_fits(const MixerState& one, int64_t slot) const;
  Tensor row(const StateTensor& tensor, int64_t slot) const;
  void write_time_steps(StateTensor& tensor, int64_t slot, const Tensor& row);
  std::vector<StateTensor> tensors_;
  StatePages pages_;
};

}  // namespace based
