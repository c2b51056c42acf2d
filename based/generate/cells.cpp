#include "based/generate/cells.h"

#include "based/models/tensor_view.h"

namespace based {
namespace {

// The tensors of a state that do not grow, as views.
std::vector<Tensor> fixed_tensors(ModelState& state) {
  std::vector<Tensor> fixed;
  for (MixerState& layer : state.layers())
    for (const StateTensor& tensor : layer.tensors())
      if (!tensor.grows) fixed.push_back(tensor.value);
  fixed.push_back(state.position());
  return fixed;
}

}  // namespace

std::string describe_cells(const LanguageModel& model) {
  return std::to_string(cell_tokens(model.device().type())) + " tokens, " + dtype_name(file_dtype(model.dtype(), "the weights")) + ", " +
         torch::DeviceTypeName(model.device().type(), /*lower_case=*/true);
}

CellBegins::CellBegins(ModelState& state) : state_(state) {
  for (const Tensor& tensor : fixed_tensors(state)) kept_.push_back(torch::zeros_like(tensor));
}

void CellBegins::keep(int64_t slot) {
  const std::vector<Tensor> now = fixed_tensors(state_);
  Copies copies;
  for (size_t i = 0; i < now.size(); ++i) copies.add(kept_[i].select(0, slot), now[i].select(0, slot));
  copies.run();
}

void CellBegins::restore(int64_t slot) const {
  const std::vector<Tensor> now = fixed_tensors(state_);
  Copies copies;
  for (size_t i = 0; i < now.size(); ++i) copies.add(now[i].select(0, slot), kept_[i].select(0, slot));
  copies.run();
}

ModelState CellBegins::extract(int64_t slot, int64_t tokens) const {
  ModelState one = state_.extract(slot);
  one.trim(tokens);
  const std::vector<Tensor> at_slot = fixed_tensors(one);
  Copies copies;
  for (size_t i = 0; i < at_slot.size(); ++i) copies.add(at_slot[i], kept_[i].narrow(0, slot, 1));
  copies.run();
  return one;
}

int64_t CellBegins::bytes() const {
  int64_t sum = 0;
  for (const Tensor& tensor : kept_) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

}  // namespace based
