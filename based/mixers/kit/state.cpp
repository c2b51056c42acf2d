#include "based/mixers/kit/state.h"

#include <algorithm>
#include <sstream>

#include "based/core/error.h"
#include "based/ops/framework/rows.h"

namespace based {
namespace {

const StateTensor* find(const std::vector<StateTensor>& tensors, const std::string& name) {
  for (const StateTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

// Whether a slot of one tensor can be copied to the other: all dimensions must agree, except the slot and the time of growing tensors.
bool same_kind(const StateTensor& a, const StateTensor& b) {
  if (a.name != b.name || a.grows != b.grows || a.value.scalar_type() != b.value.scalar_type() || a.value.dim() != b.value.dim()) {
    return false;
  }
  for (int64_t d = a.grows ? 2 : 1; d < a.value.dim(); ++d) {
    if (a.value.size(d) != b.value.size(d)) return false;
  }
  return true;
}

std::string describe(const StateTensor& tensor) {
  std::ostringstream text;
  text << "'" << tensor.name << "' " << torch::toString(tensor.value.scalar_type()) << ' ' << tensor.value.sizes();
  return text.str();
}

// The pages that are assigned to a slot.
Tensor given_pages(const Tensor& table, int64_t slot) {
  const Tensor pages = table.select(0, slot);
  return pages.masked_select(pages >= 0);
}

}  // namespace

Tensor& MixerState::operator[](const std::string& name) { return const_cast<Tensor&>(std::as_const(*this)[name]); }

const Tensor& MixerState::operator[](const std::string& name) const {
  const StateTensor* tensor = find(tensors_, name);
  if (tensor == nullptr) throw Error("state: no tensor '" + name + "'");
  return tensor->value;
}

bool MixerState::has(const std::string& name) const { return find(tensors_, name) != nullptr; }

void MixerState::put(const std::string& name, const Slots& slots, const Tensor& values) { ops::write_rows((*this)[name], slots, values); }

int64_t MixerState::slots() const {
  if (paged()) return pages_.table.size(0);
  return tensors_.empty() ? 0 : tensors_.front().value.size(0);
}

int64_t MixerState::bytes() const {
  int64_t sum = 0;
  for (const StateTensor& tensor : tensors_) sum += static_cast<int64_t>(tensor.value.nbytes());
  return sum;
}

bool MixerState::grows(const std::string& name) const {
  const StateTensor* tensor = find(tensors_, name);
  return tensor != nullptr && tensor->grows;
}

bool MixerState::grows() const {
  return std::any_of(tensors_.begin(), tensors_.end(), [](const StateTensor& tensor) { return tensor.grows; });
}

void MixerState::zero(const Slots& slots) {
  for (StateTensor& tensor : tensors_) {
    if (!tensor.grows || !paged()) {
      tensor.value.index_fill_(0, slots, 0);
      continue;
    }
    const Tensor pages = pages_.table.index_select(0, slots);
    tensor.value.index_fill_(0, pages.masked_select(pages >= 0), 0);
  }
}

void MixerState::copy(int64_t from, int64_t to) {
  if (from == to) return;
  if (paged()) return insert(extract(from), to);
  Copies copies;
  for (StateTensor& tensor : tensors_) copies.add(tensor.value.select(0, to), tensor.value.select(0, from));
  copies.run();
}

// One slot of a tensor.
Tensor MixerState::row(const StateTensor& tensor, int64_t slot) const {
  if (!tensor.grows || !paged()) return tensor.value.select(0, slot);
  return tensor.value.index_select(0, given_pages(pages_.table, slot)).flatten(0, 1);
}

// Writes `row` to a slot of a tensor that grows. It may have fewer time steps than the slot; the remaining steps are zeroed.
void MixerState::write_time_steps(StateTensor& tensor, int64_t slot, const Tensor& row) {
  Tensor target = this->row(tensor, slot);  // a copy if the state is paged
  target.narrow(0, 0, row.size(0)).copy_(row);
  target.narrow(0, row.size(0), target.size(0) - row.size(0)).zero_();
  if (paged()) tensor.value.index_copy_(0, given_pages(pages_.table, slot), target.unflatten(0, {-1, pages_.tokens}));
}

MixerState MixerState::extract(int64_t slot) const {
  Copies copies;
  MixerState one = extract(slot, copies);
  copies.run();
  return one;
}

MixerState MixerState::extract(int64_t slot, Copies& copies) const {
  MixerState one;
  for (const StateTensor& tensor : tensors_)
    one.tensors_.push_back({tensor.name, copies.add_clone(row(tensor, slot).unsqueeze(0)), tensor.grows});
  return one;
}

std::vector<MixerState> MixerState::extract(const std::vector<int64_t>& slots, const Slots& indices) const {
  std::vector<MixerState> each(slots.size());
  for (const StateTensor& tensor : tensors_) {
    const Tensor together = tensor.grows ? Tensor() : tensor.value.index_select(0, indices);
    for (size_t i = 0; i < slots.size(); ++i) {
      const Tensor one = tensor.grows ? row(tensor, slots[i]).unsqueeze(0).clone() : together.narrow(0, static_cast<int64_t>(i), 1);
      each[i].tensors_.push_back({tensor.name, one, tensor.grows});
    }
  }
  return each;
}

// Throws Error if one slot of `one` does not fit, before anything is written.
void MixerState::check_fits(const MixerState& one, int64_t slot) const {
  if (one.tensors_.size() != tensors_.size()) {
    throw Error("state: a state of " + std::to_string(one.tensors_.size()) + " tensors does not fit one of " +
                std::to_string(tensors_.size()));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!same_kind(one.tensors_[i], tensors_[i]) || one.tensors_[i].value.size(0) != 1) {
      throw Error("state: one slot of " + describe(one.tensors_[i]) + " does not fit " + describe(tensors_[i]));
    }
    if (!paged() || !tensors_[i].grows) continue;
    const int64_t room = given_pages(pages_.table, slot).size(0) * pages_.tokens;
    if (one.tensors_[i].value.size(1) > room) {
      throw Error("state: one slot of " + describe(one.tensors_[i]) + " does not fit the slot's pages, which hold " + std::to_string(room) +
                  " time steps");
    }
  }
}

void MixerState::insert(const MixerState& one, int64_t slot) {
  Copies copies;
  insert(one, slot, copies);
  copies.run();
}

void MixerState::insert(const MixerState& one, int64_t slot, Copies& copies) {
  check_fits(one, slot);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor from = one.tensors_[i].value.select(0, 0);
    if (!tensors_[i].grows) {
      copies.add(tensors_[i].value.select(0, slot), from);
      continue;
    }
    if (!paged()) grow(one.tensors_[i].value.size(1));
    write_time_steps(tensors_[i], slot, from);
  }
}

void MixerState::insert(const std::vector<const MixerState*>& states, const std::vector<int64_t>& slots, const Slots& indices) {
  for (size_t row = 0; row < states.size(); ++row) check_fits(*states[row], slots[row]);
  if (grows()) {
    for (size_t row = 0; row < states.size(); ++row) insert(*states[row], slots[row]);
    return;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    std::vector<Tensor> rows;
    for (const MixerState* one : states) rows.push_back(one->tensors_[i].value);
    tensors_[i].value.index_copy_(0, indices, torch::cat(rows));
  }
}

void MixerState::use_pages(const StatePages& pages, int64_t pool) {
  BASED_ASSERT(grows() && !paged() && pages.table.size(0) == slots());
  for (StateTensor& tensor : tensors_) {
    if (!tensor.grows) continue;
    std::vector<int64_t> shape = tensor.value.sizes().vec();
    shape[0] = pool, shape[1] = pages.tokens;
    tensor.value = torch::zeros(shape, tensor.value.options());
  }
  pages_ = pages;
}

void MixerState::grow(int64_t capacity) {
  BASED_ASSERT(!paged());
  for (StateTensor& tensor : tensors_) {
    if (!tensor.grows || tensor.value.size(1) >= capacity) continue;
    std::vector<int64_t> more = tensor.value.sizes().vec();
    more[1] = std::max(capacity, 2 * more[1]) - more[1];
    tensor.value = torch::cat({tensor.value, torch::zeros(more, tensor.value.options())}, 1);
  }
}

void MixerState::trim(int64_t steps) {
  BASED_ASSERT(!paged());
  for (StateTensor& tensor : tensors_)
    if (tensor.grows && tensor.value.size(1) > steps) tensor.value = tensor.value.narrow(1, 0, steps).clone();
}

}  // namespace based
