// The names of GPUs.
#pragma once
#include <string>

#include "based/runtime/torch.h"

namespace based::runtime {

// The GPU's name as its driver reports it, such as "NVIDIA H100 80GB HBM3"; empty for the CPU.
std::string card_name(torch::Device device);
// The same, and "cpu" where it is empty: for a run's results.
std::string card_or_cpu(torch::Device device);

// The function that names devices of a type; null: card_name() is empty. runtime/cuda sets it for GPUs.
using CardNamer = std::string (*)(torch::Device device);
CardNamer& card_namer_of(torch::DeviceType type);

}  // namespace based::runtime
