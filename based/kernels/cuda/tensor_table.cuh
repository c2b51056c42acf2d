// Launches over the elements of many tensors, a block a chunk of one of them. The tensors' addresses travel in the kernel's parameters, so
// that nothing has to be copied to the device, and a recorded launch holds them.
#pragma once
#include <cstdint>

#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda::detail {

// Of one launch. Entry is a tensor, with its `count` of elements; Shared is what is the same for all.
template <typename Entry, typename Shared, int kTensors>
struct TensorTable {
  static constexpr int kMost = kTensors;
  Entry tensors[kTensors];
  uint32_t first_block[kTensors + 1];  // tensor i has the blocks first_block[i] to first_block[i + 1]
  int32_t count;
  Shared shared;
};

// The tensor that this block belongs to.
template <typename Table>
__device__ __forceinline__ int find_tensor(const Table& table) {
  int low = 0, high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_block[middle] <= blockIdx.x ? low : high) = middle;
  }
  return low;
}

// launch(table, blocks) for as many tables as the tensors fill, in their order; tensors without elements are passed over.
template <typename Table, typename Entry, typename Launch>
Status each_table(Table& table, const Entry* tensors, int64_t tensor_count, int64_t chunk, Launch&& launch) {
  static_assert(sizeof(Table) <= 32764, "the most that parameters of a kernel may take");
  table.first_block[0] = 0;
  for (int64_t next = 0; next < tensor_count;) {
    table.count = 0;
    for (; next < tensor_count && table.count < Table::kMost; ++next) {
      const Entry& tensor = tensors[next];
      if (tensor.count == 0) continue;
      const int64_t blocks = table.first_block[table.count] + ceil_div(tensor.count, chunk);
      if (blocks > INT32_MAX) {
        if (table.count == 0) return {"a tensor has more elements than a launch takes"};
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
