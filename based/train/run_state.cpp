#include "based/train/run_state.h"

#include <array>
#include <filesystem>

#include "based/core/files.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

// Generators' states, which earlier versions kept; what is drawn now depends on the seed and the step alone.
constexpr std::array kFormerlyKept{"random.cpu", "random.cuda"};

std::string in(const std::string& folder, const char* name) { return (std::filesystem::path(folder) / name).string(); }

// Every tensor of the optimizer under the name it has in the file.
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
  std::vector<Tensor> kept;  // the views point into them
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors_of(optimizer)) {
    kept.push_back(tensor.detach().cpu().contiguous());
    views.push_back(view_of(name, kept.back()));
  }
  write_safetensors(in(folder, "optimizer.safetensors"), views);
  write_file_atomic(in(folder, "trainer.json"), write_config(state).to_json() + "\n");
}

RunState load_run_state(const std::string& folder) {
  const std::string path = in(folder, "trainer.json");
  const RunState state = read_stored([&] { return read_config<RunState>(Config::parse_json_file(path)); });
  if (state.loop.step < 0 || state.metrics.metrics < 0 || state.metrics.tensorboard < 0) {
    throw Error(path + ": loop.step and the positions in the metrics must not be negative");
  }
  return state;
}

void load_optimizer(const std::string& folder, AdamW& optimizer) {
  const SafetensorsFile file(in(folder, "optimizer.safetensors"));
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
  // A parameter that was stored in 16 bits and now has its master's type takes the master's value, which was trained.
  for (const AdamW::Slot& slot : optimizer.slots()) {
    const TensorView* master = slot.has_master() ? nullptr : file.find("master." + slot.name);
    if (master == nullptr) continue;
    if (master->shape != slot.parameter.sizes().vec())
      throw Error(file.path() + ": tensor '" + master->name + "' has another shape than the model's parameter");
    Tensor parameter = slot.parameter;
    parameter.copy_(tensor_of(*master));
    ++expected;
  }
  for (const char* name : kFormerlyKept) expected += file.find(name) != nullptr;
  if (file.tensors().size() != expected) {
    throw Error(file.path() + ": holds " + std::to_string(file.tensors().size()) + " tensors, " + std::to_string(expected) +
                " are expected for this model");
  }
}

}  // namespace based
