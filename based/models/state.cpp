#include "based/models/state.h"

#include "based/core/error.h"

namespace based {
namespace {

// By this name a mixer's state, and the model's, counts the tokens that the slot has seen: int64 [slots].
bool counts_tokens(const std::string& name) { return name == "position" || name.ends_with(".position"); }

// `tensors`, which have the shapes of `expected`, are of one text: every count of its tokens says the same, and caches hold all of them.
void check_tokens(const std::vector<StateTensor>& tensors, const std::vector<StateTensor>& expected) {
  const int64_t seen = tensors.front().value.item<int64_t>();
  if (seen < 0) throw Error("state: tensor 'position' is negative, " + std::to_string(seen));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].name;
    const Tensor& value = tensors[i].value;
    if (counts_tokens(name) && value.item<int64_t>() != seen)
      throw Error("state: tensor '" + name + "' is " + std::to_string(value.item<int64_t>()) + ", where 'position' is " +
                  std::to_string(seen));
    if (expected[i].grows && value.size(1) < seen)
      throw Error("state: tensor '" + name + "' holds " + std::to_string(value.size(1)) + " tokens of the " + std::to_string(seen) +
                  " that 'position' says");
  }
}

}  // namespace

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

void ModelState::copy(int64_t from, int64_t to) {
  for (auto& layer : layers_) layer.copy(from, to);
  position_[to].copy_(position_[from]);
}

ModelState ModelState::extract(int64_t slot) const {
  std::vector<MixerState> layers;
  for (const auto& layer : layers_) layers.push_back(layer.extract(slot));
  return ModelState(std::move(layers), position_.narrow(0, slot, 1).clone());
}

void ModelState::insert(const ModelState& one, int64_t slot) {
  if (one.layers_.size() != layers_.size())
    throw Error("state: has " + std::to_string(one.layers_.size()) + " layers, the model " + std::to_string(layers_.size()));
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].insert(one.layers_[i], slot);
  position_[slot].copy_(one.position_[0]);
}

std::vector<StateTensor> ModelState::named() const {
  std::vector<StateTensor> all{{"position", position_, false}};
  for (size_t i = 0; i < layers_.size(); ++i)
    for (const auto& tensor : layers_[i].tensors())
      all.push_back({"layers." + std::to_string(i) + "." + tensor.name, tensor.value, tensor.grows});
  return all;
}

void ModelState::load_named(const std::vector<StateTensor>& tensors, int64_t slot) {
  ModelState one = extract(slot);
  std::vector<StateTensor> expected = one.named();
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
