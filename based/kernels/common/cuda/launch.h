// Helpers of the CUDA launchers: statuses, streams, attributes of the current device, launches.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#include "based/kernels/common/device_code.h"
#include "based/kernels/common/gpu.h"
#include "based/kernels/common/gpu_kernels_choice.h"
#include "based/kernels/common/kernel.h"

namespace based::kernels::cuda::detail {

inline cudaStream_t stream_of(Queue queue) { return static_cast<cudaStream_t>(queue.stream); }

inline Status status_of(cudaError_t error) { return Status{error == cudaSuccess ? nullptr : cudaGetErrorString(error)}; }

// The status of the launches since the last call. Launches are asynchronous, so it does not contain errors of the kernels' execution.
inline Status launched() { return status_of(cudaGetLastError()); }

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) return 0;
  return value;
}

inline int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

// Bytes of shared memory of a block and of a multiprocessor, within the limit of BASED_GPU_KERNELS. GPUs with 99 KB for a block have 100 KB
// for a multiprocessor: the system reserves 1 KB for each block.
inline int block_shared_memory() {
  const int bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), most = gpu_kernels_choice().block_shared_bytes;
  return most == 0 ? bytes : std::min(bytes, most);
}
inline int multiprocessor_shared_memory() {
  const int bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor), most = gpu_kernels_choice().block_shared_bytes;
  return most == 0 ? bytes : std::min(bytes, most + device_attribute(cudaDevAttrReservedSharedMemoryPerBlock));
}

// A launch that may start while previous kernels on the stream still run (programmatic dependent launch), so that a kernel's start overlaps
// with another one's end. Such a kernel must call wait_for_earlier_kernels() before it accesses memory that they write, or writes memory
// that they read. Where the device does not run the code for sm_90a, kernels run one after the other.
struct Launch {
  dim3 grid, block;
  int64_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks of a cluster, a divisor of grid.x; more than one only on Hopper
};
template <typename... Params>
Status launch_overlapped(void (*kernel)(Params...), const Launch& launch, Queue queue, const std::type_identity_t<Params>&... params) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {launch.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = launch.grid, config.blockDim = launch.block, config.stream = stream_of(queue);
  config.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes);
  config.attrs = attributes, config.numAttrs = !runs_hopper_code() ? 0 : launch.cluster == 1 ? 1 : 2;
  return status_of(cudaLaunchKernelEx(&config, kernel, params...));
}

// Allows a kernel `bytes` of dynamic shared memory, which CUDA requires above 48 KB, for each device. Fails above block_shared_memory().
// The limit is never lowered, since another thread may be about to launch the same kernel with more bytes.
inline cudaError_t allow_shared_memory(const void* kernel, int bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> allowed;
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  const std::lock_guard lock(mutex);
  int& most = allowed[{device, kernel}];
  if (bytes <= most) return cudaSuccess;
  if (bytes > block_shared_memory()) return cudaErrorInvalidValue;
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (e == cudaSuccess) most = bytes;
  return e;
}
template <typename Kernel>
cudaError_t allow_shared_memory(Kernel* kernel, int bytes) {
  return allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace based::kernels::cuda::detail
