// What the CUDA launchers share: statuses, the stream, facts of the current device.
#pragma once
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#include "based/kernels/device_code.h"
#include "based/kernels/gpu.h"
#include "based/kernels/kernel.h"

namespace based::kernels::cuda::detail {

inline cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

inline Status status_of(cudaError_t error) { return Status{error == cudaSuccess ? nullptr : cudaGetErrorString(error)}; }

// The status of the launches made since the last call; launches are asynchronous, so this says only whether they could be made.
inline Status launched() { return status_of(cudaGetLastError()); }

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) return 0;
  return value;
}

inline int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

// A launch that may begin while kernels before it on the stream still run (programmatic dependent launch), so that one kernel's start
// hides behind another's end. Such a kernel calls wait_for_earlier_kernels() before it touches memory that they read or write. Code for
// other targets than sm_90a may have no such wait: its kernels run one after the other.
struct Launch {
  dim3 grid, block;
  int64_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks of a cluster, which divides grid.x; more than one on Hopper alone
};
template <typename... Params>
Status launch_overlapped(void (*kernel)(Params...), const Launch& launch, Stream stream, const std::type_identity_t<Params>&... params) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {launch.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = launch.grid, config.blockDim = launch.block, config.stream = stream_of(stream);
  config.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes);
  config.attrs = attributes, config.numAttrs = !runs_hopper_code() ? 0 : launch.cluster == 1 ? 1 : 2;
  return status_of(cudaLaunchKernelEx(&config, kernel, params...));
}

// More than 48 KB of dynamic shared memory has to be asked for, on each device. What was allowed once stays: another thread may be about to
// launch the same kernel with more than this one needs.
inline cudaError_t allow_shared_memory(const void* kernel, int bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> allowed;
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  const std::lock_guard lock(mutex);
  int& most = allowed[{device, kernel}];
  if (bytes <= most) return cudaSuccess;
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (e == cudaSuccess) most = bytes;
  return e;
}
template <typename Kernel>
cudaError_t allow_shared_memory(Kernel* kernel, int bytes) {
  return allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace based::kernels::cuda::detail
