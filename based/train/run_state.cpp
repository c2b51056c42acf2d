#include "based/train/run_state.h"

#include <array>

#include "based/core/files.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

// Tensors in files of earlier versions: states of random generators. Random numbers now depend only on the seed and the step.
constexpr std::array kObsolete{"random.cpu", "random.cuda"};

// The optimizer's tensors and their names in the file.
std::vector<std::pair<std::string, Tensor>> tensors_of(const AdamW& optimizer) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const AdamW::Slot& slot : optimizer.slots()) {
    tensors.emplace_back("first_moment." + slot.name, slot.first_moment);
    tensors.emplace_back("second_moment." + slot.name, slot.second_moment);
    tensors.emplace_back("steps." + slot.name, slot.steps);
    if (slot.has_master()) tensors.emplace_back("master." + slot.name, slot.master);
  }
  return tensors;
}

}  // namespace

void save_run_state(const std::string& folder, const RunState& state, const AdamW& optimizer) {
  std::vector<Tensor> copies;  // the views point into them
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors_of(optimizer)) {
    copies.push_back(tensor.detach().cpu().contiguous());
    views.push_back(view_of(name, copies.back()));
  }
  write_safetensors(path_in(folder, "optimizer.safetensors"), views);
  write_file_atomic(path_in(folder, "trainer.json"), write_config(state).to_json() + "\n");
}

RunState load_run_state(const std::string& folder) {
  const std::string path = path_in(folder, "trainer.json");
  const RunState state = read_stored([&] { return read_config<RunState>(Config::parse_json_file(path)); });
  if (state.loop.step < 0 || state.metrics.metrics < 0 || state.metrics.tensorboard < 0) {
    throw Error(path + ": loop.step and the positions in the metrics must not be negative");
  }
  return state;
}

void load_optimizer(const std::string& folder, AdamW& optimizer) {
  const SafetensorsFile file(path_in(folder, "optimizer.safetensors"));
  const torch::NoGradGuard no_grad;
  const auto tensors = tensors_of(optimizer);
  for (const auto& [name, tensor] : tensors) {
    const TensorView& view = file.at(name);
    if (view.shape != tensor.sizes().vec() || torch_dtype(view.dtype) != tensor.scalar_type()) {
      throw Error(file.path() + ": tensor '" + name + "' has another shape or type than the model's parameter");
    }
    Tensor target = tensor;
    target.copy_(tensor_of(view));
  }
  size_t expected = tensors.size();
  // If the checkpoint was trained in 16 bits and the parameter now has its master's type, load the master: it is the more exact value.
  for (const AdamW::Slot& slot : optimizer.slots()) {
    const TensorView* master = slot.has_master() ? nullptr : file.find("master." + slot.name);
    if (master == nullptr) continue;
    if (master->shape != slot.parameter.sizes().vec())
      throw Error(file.path() + ": tensor '" + master->name + "' has another shape than the model's parameter");
    Tensor parameter = slot.parameter;
    parameter.copy_(tensor_of(*master));
    ++expected;
  }
  for (const char* name : kObsolete) expected += file.find(name) != nullptr;
  if (file.tensors().size() != expected) {
    throw Error(file.path() + ": holds " + std::to_string(file.tensors().size()) + " tensors, " + std::to_string(expected) +
                " are expected for this model");
  }
}

}  // namespace based
