#include "based/models/state.h"

#include <algorithm>

#include "based/core/error.h"
#include "based/runtime/transfer.h"

namespace based {
namespace {

using Named = std::vector<StateTensor>;

bool same(const Tensor& a, const Tensor& b) { return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && torch::equal(a, b); }

// Older states also have a token count for each layer with a ring or a cache: "layers.3.position". Drops those that the model's state does
// not have. Throws Error if one differs from 'position'.
Named without_counts_of_layers(const Named& tensors, const Named& expected) {
  const auto is_expected = [&](const std::string& name) {
    return std::any_of(expected.begin(), expected.end(), [&](const StateTensor& tensor) { return tensor.name == name; });
  };
  Named kept;
  for (const StateTensor& tensor : tensors) {
    if (!tensor.name.starts_with("layers.") || !tensor.name.ends_with(".position") || is_expected(tensor.name)) {
      kept.push_back(tensor);
      continue;
    }
    if (kept.empty() || kept.front().name != "position" || !same(tensor.value, kept.front().value))
      throw Error("state: tensor '" + tensor.name + "' says another number of tokens than 'position'");
  }
  return kept;
}

// Checks that the caches among `tensors` have all tokens that 'position' counts. `tensors` must have the shapes of `expected`.
void check_tokens(const Named& tensors, const Named& expected) {
  const int64_t seen = tensors.front().value.item<int64_t>();
  if (seen < 0) throw Error("state: tensor 'position' is negative, " + std::to_string(seen));
  for (size_t i = 0; i < tensors.size(); ++i)
    if (expected[i].grows && tensors[i].value.size(1) < seen)
      throw Error("state: tensor '" + tensors[i].name + "' holds " + std::to_string(tensors[i].value.size(1)) + " tokens of the " +
                  std::to_string(seen) + " that 'position' says");
}

}  // namespace

Slots ModelState::on_device(const std::vector<int64_t>& slots) const {
  return runtime::to_device(torch::tensor(slots, torch::kInt64), position_.device());
}

int64_t ModelState::bytes() const {
  int64_t sum = position_.defined() ? static_cast<int64_t>(position_.nbytes()) : 0;
  for (const auto& layer : layers_) sum += layer.bytes();
  return sum;
}

bool ModelState::grows() const {
  for (const auto& layer : layers_)
    if (layer.grows()) return true;
  return false;
}

void ModelState::use_pages(const StatePages& pages, int64_t pool) {
  for (auto& layer : layers_)
    if (layer.grows()) layer.use_pages(pages, pool);
}

void ModelState::zero(const Slots& slots) {
  for (auto& layer : layers_) layer.zero(slots);
  position_.index_fill_(0, slots, 0);
}

void ModelState::trim(int64_t steps) {
  for (auto& layer : layers_)
    if (layer.grows()) layer.trim(steps);
}

void ModelState::copy(int64_t source, int64_t target) {
  for (auto& layer : layers_) layer.copy(source, target);
  position_[target].copy_(position_[source]);
}

ModelState ModelState::extract(int64_t slot) const {
  Copies copies;
  std::vector<MixerState> layers;
  for (const auto& layer : layers_) layers.push_back(layer.extract(slot, copies));
  ModelState one(std::move(layers), copies.add_clone(position_.narrow(0, slot, 1)));
  copies.run();
  return one;
}

std::vector<ModelState> ModelState::extract(const std::vector<int64_t>& slots) const {
  const Slots indices = on_device(slots);
  const Tensor positions = position_.index_select(0, indices);
  std::vector<ModelState> each(slots.size());
  for (const MixerState& layer : layers_) {
    std::vector<MixerState> rows = layer.extract(slots, indices);
    for (size_t i = 0; i < slots.size(); ++i) each[i].layers_.push_back(std::move(rows[i]));
  }
  for (size_t i = 0; i < slots.size(); ++i) each[i].position_ = positions.narrow(0, static_cast<int64_t>(i), 1);
  return each;
}

void ModelState::insert(const ModelState& one, int64_t slot) {
  if (one.layers_.size() != layers_.size())
    throw Error("state: has " + std::to_string(one.layers_.size()) + " layers, the model " + std::to_string(layers_.size()));
  Copies copies;
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].insert(one.layers_[i], slot, copies);
  copies.add(position_[slot], one.position_[0]);
  copies.run();
}

void ModelState::insert(const std::vector<const ModelState*>& states, const std::vector<int64_t>& slots) {
  if (states.size() == 1) return insert(*states.front(), slots.front());
  for (const ModelState* one : states) {
    if (one->layers_.size() == layers_.size()) continue;
    throw Error("state: has " + std::to_string(one->layers_.size()) + " layers, the model " + std::to_string(layers_.size()));
  }
  const Slots indices = on_device(slots);
  std::vector<const MixerState*> rows(states.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (size_t row = 0; row < states.size(); ++row) rows[row] = &states[row]->layers_[i];
    layers_[i].insert(rows, slots, indices);
  }
  std::vector<Tensor> positions;
  for (const ModelState* one : states) positions.push_back(one->position_);
  position_.index_copy_(0, indices, torch::cat(positions));
}

std::vector<StateTensor> ModelState::named() const {
  std::vector<StateTensor> all{{"position", position_, false}};
  for (size_t i = 0; i < layers_.size(); ++i)
    for (const auto& tensor : layers_[i].tensors())
      all.push_back({"layers." + std::to_string(i) + "." + tensor.name, tensor.value, tensor.grows});
  return all;
}

void ModelState::load_named(const std::vector<StateTensor>& given_tensors, int64_t slot) {
  ModelState one = extract(slot);
  const Named expected = one.named(), tensors = without_counts_of_layers(given_tensors, expected);
  if (tensors.size() != expected.size())
    throw Error("state: holds " + std::to_string(tensors.size()) + " tensors, the model has " + std::to_string(expected.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& given = tensors[i];
    const auto& wanted = expected[i];
    if (given.name != wanted.name) throw Error("state: tensor '" + given.name + "' where '" + wanted.name + "' is expected");
    if (given.value.scalar_type() != wanted.value.scalar_type())
      throw Error("state: tensor '" + given.name + "' has type " + toString(given.value.scalar_type()) + ", the model's is " +
                  toString(wanted.value.scalar_type()));
    auto shape = given.value.sizes().vec(), expected_shape = wanted.value.sizes().vec();
    if (wanted.grows && shape.size() > 1 && expected_shape.size() > 1) shape[1] = expected_shape[1] = 0;
    if (shape != expected_shape) throw Error("state: tensor '" + given.name + "' has another shape than the model's");
  }
  check_tokens(tensors, expected);
  size_t next = 1;
  for (auto& layer : one.layers_)
    for (auto& tensor : layer.tensors()) tensor.value = tensors[next++].value;
  one.position_ = tensors[0].value;
  insert(one, slot);
}

}  // namespace based
