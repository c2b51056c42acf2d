// Launches over the elements of many tensors; a block handles a chunk of one tensor. The tensors' addresses are kernel parameters, so
// nothing has to be copied to the device, and a recorded launch contains them.
#pragma once
#include <cstdint>

#include "based/kernels/common/cuda/launch.h"

namespace based::kernels::cuda::detail {

// The parameters of one launch. Entry describes a tensor and has its number of elements, `count`; Shared is common to all tensors.
template <typename Entry, typename Shared, int kTensors>
struct TensorTable {
  static constexpr int kMost = kTensors;
  Entry tensors[kTensors];
  uint32_t first_block[kTensors + 1];  // tensor i has the blocks first_block[i] to first_block[i + 1]
  int32_t count;
  Shared shared;
};

// The index of the tensor of this block.
template <typename Table>
__device__ __forceinline__ int find_tensor(const Table& table) {
  int low = 0, high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_block[middle] <= blockIdx.x ? low : high) = middle;
  }
  return low;
}

// Calls launch(table, blocks) for as many tables as the tensors need, in order; tensors without elements are skipped.
template <typename Table, typename Entry, typename Launch>
Status each_table(Table& table, const Entry* tensors, int64_t tensor_count, int64_t chunk, Launch&& launch) {
  static_assert(sizeof(Table) <= 32764, "the limit of a kernel's parameters");
  table.first_block[0] = 0;
  for (int64_t next = 0; next < tensor_count;) {
    table.count = 0;
    for (; next < tensor_count && table.count < Table::kMost; ++next) {
      const Entry& tensor = tensors[next];
      if (tensor.count == 0) continue;
      const int64_t blocks = table.first_block[table.count] + ceil_div(tensor.count, chunk);
      if (blocks > INT32_MAX) {
        if (table.count == 0) return {"a tensor has too many elements for one launch"};
        break;
      }
      table.tensors[table.count] = tensor;
      table.first_block[++table.count] = static_cast<uint32_t>(blocks);
    }
    if (table.count == 0) continue;
    const Status status = launch(table, table.first_block[table.count]);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace based::kernels::cuda::detail
