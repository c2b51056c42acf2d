#include "based/mixers/state.h"

#include <algorithm>
#include <sstream>

#include "based/core/error.h"

namespace based {
namespace {

const StateTensor* find(const std::vector<StateTensor>& tensors, const std::string& name) {
  for (const StateTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

// Dimensions that a copy from one slot to another may not change: all but the slot, and but time where it grows.
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

// A slot of `to` becomes `row`, of as many time steps or fewer where it grows.
void write_slot(const StateTensor& to, int64_t slot, const Tensor& row) {
  Tensor target = to.value.select(0, slot);
  if (!to.grows) {
    target.copy_(row);
    return;
  }
  target.narrow(0, 0, row.size(0)).copy_(row);
  target.narrow(0, row.size(0), target.size(0) - row.size(0)).zero_();
}

}  // namespace

Tensor& MixerState::operator[](const std::string& name) { return const_cast<Tensor&>(std::as_const(*this)[name]); }

const Tensor& MixerState::operator[](const std::string& name) const {
  const StateTensor* tensor = find(tensors_, name);
  if (tensor == nullptr) throw Error("state: no tensor '" + name + "'");
  return tensor->value;
}

int64_t MixerState::slots() const { return tensors_.empty() ? 0 : tensors_.front().value.size(0); }

int64_t MixerState::bytes() const {
  int64_t sum = 0;
  for (const StateTensor& tensor : tensors_) sum += static_cast<int64_t>(tensor.value.nbytes());
  return sum;
}

bool MixerState::grows() const {
  return std::any_of(tensors_.begin(), tensors_.end(), [](const StateTensor& tensor) { return tensor.grows; });
}

void MixerState::zero(const Slots& slots) {
  for (StateTensor& tensor : tensors_) tensor.value.index_fill_(0, slots, 0);
}

void MixerState::put(const std::string& name, const Slots& slots, const Tensor& values) {
  Tensor& value = (*this)[name];
  value = write_rows(value, slots, values);
}

void MixerState::copy(int64_t from, int64_t to) {
  if (from == to) return;
  for (StateTensor& tensor : tensors_) tensor.value.select(0, to).copy_(tensor.value.select(0, from));
}

MixerState MixerState::extract(int64_t slot) const {
  MixerState one = *this;
  for (StateTensor& tensor : one.tensors_) tensor.value = tensor.value.narrow(0, slot, 1).clone();
  return one;
}

void MixerState::insert(const MixerState& one, int64_t slot) {
  if (one.tensors_.size() != tensors_.size()) {
    throw Error("state: a state of " + std::to_string(one.tensors_.size()) + " tensors does not fit one of " +
                std::to_string(tensors_.size()));
  }
  // All is checked before anything is written.
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!same_kind(one.tensors_[i], tensors_[i]) || one.tensors_[i].value.size(0) != 1) {
      throw Error("state: one slot of " + describe(one.tensors_[i]) + " does not fit " + describe(tensors_[i]));
    }
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].grows) grow(one.tensors_[i].value.size(1));
    write_slot(tensors_[i], slot, one.tensors_[i].value.select(0, 0));
  }
}

void MixerState::grow(int64_t capacity) {
  for (StateTensor& tensor : tensors_) {
    if (!tensor.grows || tensor.value.size(1) >= capacity) continue;
    std::vector<int64_t> more = tensor.value.sizes().vec();
    more[1] = std::max(capacity, 2 * more[1]) - more[1];
    tensor.value = torch::cat({tensor.value, torch::zeros(more, tensor.value.options())}, 1);
  }
}

Tensor write_rows(const Tensor& whole, const Tensor& index, const Tensor& values) {
  if (torch::GradMode::is_enabled()) return whole.index_copy(0, index, values.to(whole.scalar_type()));
  return whole.index_copy_(0, index, values.to(whole.scalar_type()));
}

}  // namespace based
