// Tensor maps for TMA.
#pragma once
#include <cuda.h>

#include "based/kernels/common/cuda/launch.h"

namespace based::kernels::cuda::detail {

// Describes a bf16 tensor, whose fastest dimension comes first, as tiles of sizes `boxes` with 128-byte swizzling. Strides are in bytes and
// start with that of the second dimension. Elements outside of the tensor are read as 0.
template <int kRank>
Status describe_tiles(CUtensorMap& map, const void* data, const cuuint64_t (&sizes)[kRank], const cuuint64_t (&strides)[kRank - 1],
                      const cuuint32_t (&boxes)[kRank]) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static void* const entry = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : nullptr;
  }();
  if (entry == nullptr) return {"the driver has no cuTensorMapEncodeTiled"};
  cuuint32_t steps[kRank];
  for (cuuint32_t& step : steps) step = 1;
  const CUresult done = reinterpret_cast<Encode>(entry)(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(data), sizes,
                                                        strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return done == CUDA_SUCCESS ? Status{} : Status{"the driver refused to describe a tensor to TMA"};
}

// Describes [tokens, heads, head_dim] as tiles of 64 elements of one head of `box` tokens; `stride` elements from one token to the next.
inline Status describe_heads(CUtensorMap& map, const void* data, int64_t tokens, int64_t stride, int heads, int head_dim, int box) {
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(tokens)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(head_dim) * 2, static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t boxes[3] = {64, 1, static_cast<cuuint32_t>(box)};
  return describe_tiles(map, data, sizes, strides, boxes);
}

// Describes [height, width] as tiles of `box` rows of 64 elements; `stride` elements from one row to the next.
inline Status describe_matrix(CUtensorMap& map, const void* data, int64_t height, int64_t width, int64_t stride, int box) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(height)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t boxes[2] = {64, static_cast<cuuint32_t>(box)};
  return describe_tiles(map, data, sizes, strides, boxes);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void load_box(uint32_t shared, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
               "l"(&map), "r"(column), "r"(row), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void load_heads(uint32_t shared, const CUtensorMap& map, int column, int head, int token, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
               "l"(&map), "r"(column), "r"(head), "r"(token), "r"(barrier)
               : "memory");
}
#endif

}  // namespace based::kernels::cuda::detail
