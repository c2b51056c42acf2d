// What the CUDA launchers share: statuses, the stream, facts of the current device.
#pragma once
#include <cuda_runtime.h>

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

// Kernels with wgmma are built for sm_90a, which runs on compute capability 9.0 and nothing else.
inline bool is_hopper() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 && device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

// More than 48 KB of dynamic shared memory has to be asked for, on each device.
template <typename Kernel>
cudaError_t allow_shared_memory(Kernel* kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

inline bool aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace based::kernels::cuda::detail
