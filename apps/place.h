// The device and the data type of a loaded model, from --device and --dtype.
#pragma once
#include <optional>
#include <string>

#include "based/models/device.h"
#include "based/models/tensor_view.h"

namespace based::apps {

struct Place {
  torch::Device device = torch::kCPU;
  std::optional<torch::Dtype> dtype;  // absent: by load_model
};

inline constexpr const char* kDtypeHelp = "fp32, bf16 or fp64 (default: as stored; fp32 for weights in fp16)";

// Throws UsageError, naming the option.
inline Place parse_place(const std::string& device, const std::string& dtype) {
  Place place{parse_device(device, "--device"), std::nullopt};
  if (!dtype.empty()) place.dtype = parse_float_type(dtype, "--dtype");
  return place;
}

}  // namespace based::apps
