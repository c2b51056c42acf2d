#include "based/train/run_state.h"

#include <filesystem>

#include "based/core/files.h"
#include "based/models/device.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

constexpr const char *kRandom = "random.cpu", *kDeviceRandom = "random.cuda";

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

void load_random_state(const SafetensorsFile& file, const std::string& name, torch::Device device) {
  const Tensor random = tensor_of(file.at(name));
  if (random.scalar_type() != torch::kUInt8 || random.sizes() != random_state(device).sizes()) {
    throw Error(file.path() + ": tensor '" + name + "' is no state of torch's generator");
  }
  set_random_state(device, random);
}

}  // namespace

void save_run_state(const std::string& folder, const RunState& state, const AdamW& optimizer) {
  std::vector<Tensor> kept;  // the views point into them
  std::vector<TensorView> views;
  auto tensors = tensors_of(optimizer);
  tensors.emplace_back(kRandom, random_state(torch::kCPU));
  if (optimizer.device().is_cuda()) tensors.emplace_back(kDeviceRandom, random_state(optimizer.device()));
  for (const auto& [name, tensor] : tensors) {
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
  const bool of_device = file.find(kDeviceRandom) != nullptr;
  const size_t expected = tensors.size() + (of_device ? 2 : 1);
  if (file.tensors().size() != expected) {
    throw Error(file.path() + ": holds " + std::to_string(file.tensors().size()) + " tensors, " + std::to_string(expected) +
                " are expected for this model");
  }
  load_random_state(file, kRandom, torch::kCPU);
  if (of_device && optimizer.device().is_cuda()) load_random_state(file, kDeviceRandom, optimizer.device());
}

}  // namespace based
