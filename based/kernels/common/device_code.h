// Which of the program's compiled device code a GPU runs.
#pragma once
#include "based/kernels/common/gpu.h"
#include "based/kernels/common/launchers.h"

namespace based::kernels {

// Queries about a device and the program's code for it. There is no table for the CPU.
struct DeviceLaunchers {
  Gpu (*current_gpu)();           // cuda::this_gpu
  const char* (*missing_code)();  // cuda::missing_code
  bool (*compiles_at_start)();    // cuda::compiles_at_start
};

}  // namespace based::kernels

namespace based::kernels::cuda {

// Whether the current device runs the code for sm_90a: it is a Hopper GPU, the driver has loaded that code, and BASED_GPU_KERNELS
// permits it. Launchers use only this test to choose between Hopper's kernels and the generic ones.
bool runs_hopper_code();

// Whether the driver compiled the loaded code from PTX, because the program has no machine code for the device.
bool compiles_at_start();

// The message for the user, a static string, where the device is a Hopper GPU but does not run that code; else null.
const char* missing_code();

}  // namespace based::kernels::cuda
