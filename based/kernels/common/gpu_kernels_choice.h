// The environment variable BASED_GPU_KERNELS restricts the kernels that GPUs run. With it, tests and timings on a Hopper GPU cover the
// kernels of other GPUs.
#pragma once
#include <cstdlib>
#include <string_view>

namespace based::kernels {

struct GpuKernelsChoice {
  const char* name = "";  // the variable's value, which results of measurements state; empty: no restriction
  bool hopper_code = true;
  int block_shared_bytes = 0;   // the most shared memory that a block may have; 0: as much as the GPU has
  const char* error = nullptr;  // the message for a value that is not known; else null
};

// unset or empty: no restriction; "portable": no kernels for Hopper; "portable-99k": also at most 99 KB of shared memory for each block, as
// GPUs of compute capability 8.6, 8.9 and 12.x have. `value` may be null.
inline GpuKernelsChoice parse_gpu_kernels(const char* value) {
  const std::string_view text = value != nullptr ? value : "";
  if (text.empty()) return {};
  if (text == "portable") return {"portable", false, 0};
  if (text == "portable-99k") return {"portable-99k", false, 99 * 1024};
  return {"", true, 0, "BASED_GPU_KERNELS is neither 'portable' nor 'portable-99k': unset it, or set it to one of these"};
}

// The choice of the environment, which is read once.
inline const GpuKernelsChoice& gpu_kernels_choice() {
  static const GpuKernelsChoice choice = parse_gpu_kernels(std::getenv("BASED_GPU_KERNELS"));
  return choice;
}

}  // namespace based::kernels
