#include "based/kernels/common/device_code.h"

#include <array>
#include <atomic>
#include <mutex>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/wgmma.cuh"

namespace based::kernels::cuda {
namespace {

// The size of this kernel's shared memory tells for which target the loaded code was compiled. The kernel is not launched, so the query is
// allowed during stream capture.
constexpr size_t kHopperBytes = 256, kOtherBytes = 128;
__global__ void tell_target(int* to) {
  __shared__ volatile char mark[BASED_HAS_WGMMA ? kHopperBytes : kOtherBytes];
  mark[threadIdx.x] = static_cast<char>(*to);
  *to = mark[0];
}

bool is_hopper() {
  return detail::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         detail::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

bool has_loaded_hopper_code() {
  cudaFuncAttributes attributes{};
  return is_hopper() && cudaFuncGetAttributes(&attributes, tell_target) == cudaSuccess && attributes.sharedSizeBytes >= kHopperBytes;
}

}  // namespace

bool runs_hopper_code() {
  if (!gpu_kernels_choice().hopper_code) return false;
  enum Answer : char { unknown, no, yes };
  static std::array<std::atomic<Answer>, 64> answers;  // cached by device, since launchers query it before every launch
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (device >= static_cast<int>(answers.size())) return has_loaded_hopper_code();
  Answer answer = answers[device];
  if (answer == unknown) answers[device] = answer = has_loaded_hopper_code() ? yes : no;
  return answer == yes;
}

Gpu this_gpu() {
  struct Known {
    std::once_flag asked;
    Gpu gpu;
  };
  static std::array<Known, 64> known;  // cached by device, since launchers query it before every launch
  const auto ask = [] {
    const auto value = [](cudaDeviceAttr attribute) { return detail::device_attribute(attribute); };
    return Gpu{value(cudaDevAttrMultiProcessorCount), runs_hopper_code(), detail::multiprocessor_shared_memory(),
               value(cudaDevAttrReservedSharedMemoryPerBlock), detail::block_shared_memory()};
  };
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  if (device >= static_cast<int>(known.size())) return ask();
  Known& here = known[device];
  std::call_once(here.asked, [&] { here.gpu = ask(); });
  return here.gpu;
}

bool compiles_at_start() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, tell_target) == cudaSuccess && attributes.binaryVersion != attributes.ptxVersion;
}

const char* missing_code() {
  if (const char* error = gpu_kernels_choice().error) return error;
  if (!gpu_kernels_choice().hopper_code || !is_hopper() || runs_hopper_code()) return nullptr;
  return "this GPU's kernels for sm_90a were not compiled into the program, or CUDA_FORCE_PTX_JIT kept the driver from loading them: "
         "slower "
         "kernels run";
}

namespace {
const DefineLaunchers<DeviceLaunchers> kLaunchers(Device::cuda, {this_gpu, missing_code, compiles_at_start});
}

}  // namespace based::kernels::cuda
