// GPUs and the wheel, as error messages name them.
#pragma once
#include <cstdint>
#include <string>

namespace based::python {

// "the wheel based-cpp 0.1.0 (CPU only)" or "(CUDA 13.0, for compute capability 8.0 and later)"
std::string wheel_text();

// What CUDA's driver says of a GPU; zeros and "GPU <index>" where it does not answer.
struct Card {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int driver = 0;            // the newest CUDA that the driver supports: 13000 for 13.0
};
Card card_of(int32_t index);
// "NVIDIA H100 (compute capability 9.0), whose driver supports CUDA 13.0"
std::string card_text(const Card& card);

}  // namespace based::python
