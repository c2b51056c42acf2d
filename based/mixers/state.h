// Recurrent state as a value: named tensors whose first dimension is the slot. Nothing else of a mixer depends on what came before.
#pragma once
#include <string>
#include <vector>

#include "based/mixers/sequences.h"
#include "based/ops/torch.h"

namespace based {

struct StateTensor {
  std::string name;
  Tensor value;        // [slots, …]
  bool grows = false;  // dimension 1 is time and grows with the sequence (attention's cache)
};

// Where growing tensors lie when their memory is fixed: page i of a slot, `tokens` time steps of it, is page table[slot, i] of a pool.
struct StatePages {
  Tensor table;        // int64 [slots, most pages of a slot], shared by the layers of a model; −1: none
  int64_t tokens = 0;  // time steps of a page, a power of two
};

class MixerState {
 public:
  MixerState() = default;
  explicit MixerState(std::vector<StateTensor> tensors) : tensors_(std::move(tensors)) {}

  Tensor& operator[](const std::string& name);  // throws Error where absent
  const Tensor& operator[](const std::string& name) const;
  bool has(const std::string& name) const;
  std::vector<StateTensor>& tensors() { return tensors_; }
  const std::vector<StateTensor>& tensors() const { return tensors_; }

  // Rows `slots` of a tensor become `values`, cast to its type. Where gradients are on the tensor is replaced, so that the old one stays
  // valid for the backward; where they are off it is written in place.
  void put(const std::string& name, const Slots& slots, const Tensor& values);

  int64_t slots() const;
  int64_t bytes() const;                      // of all slots
  bool grows() const;                         // any of its tensors
  bool grows(const std::string& name) const;  // this one

  void zero(const Slots& slots);           // as make_state leaves them
  void copy(int64_t from, int64_t to);     // fork: slot `to` becomes slot `from`
  MixerState extract(int64_t slot) const;  // one slot, in memory of its own
  // The reverse; shapes and names must agree (Error), growing ones grow.
  void insert(const MixerState& one, int64_t slot);
  void grow(int64_t capacity);  // growing tensors to at least this many time steps (doubling)
  void trim(int64_t steps);     // growing tensors to at most this many, the first ones

  // A new state's growing tensors become pools of zeros, [pool, pages.tokens, …], which never grow: whoever owns the table gives a slot the
  // pages that it needs before they are written. The operations above then read and write a slot's pages.
  void use_pages(const StatePages& pages, int64_t pool);
  bool paged() const { return pages_.table.defined(); }
  const StatePages& pages() const { return pages_; }

 private:
  Tensor row(const StateTensor& tensor, int64_t slot) const;
  void write_row(StateTensor& tensor, int64_t slot, const Tensor& row);
  std::vector<StateTensor> tensors_;
  StatePages pages_;
};

}  // namespace based
