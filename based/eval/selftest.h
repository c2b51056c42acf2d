// `based selftest`: compares every operator and code path on this machine with its double-precision reference.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "based/runtime/torch.h"

namespace based {

// The kernels that a GPU runs, as far as BASED_GPU_KERNELS (based/kernels/common/gpu_kernels_choice.h) permits.
struct GpuKernels {
  std::string card;
  bool hopper_code = false;        // Hopper's kernels; else those of all GPUs
  int block_shared_bytes = 0;      // the shared memory that a block may have
  bool compiles_at_start = false;  // the driver compiles kernels from PTX at their first call
};
std::optional<GpuKernels> gpu_kernels_of(torch::Device device);  // none for the CPU

struct SelfTestResult {
  std::string name;     // operator or path
  std::string variant;  // instruction set and type
  double error = 0;     // largest difference divided by the largest entry of the reference
  double tolerance = 0;
  bool pass = false;
  std::string message;  // the exception's message, if it could not run
};

struct SelfTestSummary {
  int64_t passed = 0, failed = 0;
  double compile_seconds = 0;  // where the driver compiles from PTX: how much longer the operators' first calls took than the second ones
};
// Calls `report` after each check. References run on the CPU, checked operators on `device`.
SelfTestSummary run_selftest(torch::Device device, const std::function<void(const SelfTestResult&)>& report);

}  // namespace based
