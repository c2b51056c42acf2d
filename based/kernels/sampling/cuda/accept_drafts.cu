// Every block compares the drafts with the drawn tokens, a few numbers that are in L2, and copies its chunk of one value. Where all drafts
// are right, nothing but the token and its marks is copied.
#include "based/kernels/sampling/accept_drafts.h"

#include "based/kernels/common/cuda/device.cuh"
#include "based/kernels/common/cuda/tensor_table.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256;
constexpr int kUnroll = 4;                                               // accesses that a thread has in flight
constexpr int64_t kChunk = int64_t{kThreads} * kUnroll * sizeof(uint4);  // bytes of a block
constexpr int kTableValues = 128;                                        // most values of a launch

struct Drafts {
  const int64_t *tokens, *drafts;
  int64_t count;
};
using Table = TensorTable<AcceptedRow, Drafts, kTableValues>;

// Copies `bytes`, a multiple of the size of T, at most kChunk.
template <typename T>
__device__ __forceinline__ void copy_chunk(char* to, const char* from, int64_t bytes) {
  const auto count = static_cast<int>(bytes / sizeof(T));
  for (int begin = 0; begin < count; begin += kThreads * kUnroll) {
    T x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (const int i = begin + u * kThreads + static_cast<int>(threadIdx.x); i < count) x[u] = reinterpret_cast<const T*>(from)[i];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (const int i = begin + u * kThreads + static_cast<int>(threadIdx.x); i < count) reinterpret_cast<T*>(to)[i] = x[u];
  }
}

__global__ void __launch_bounds__(kThreads) accept(const __grid_constant__ Table table) {
  const int index = find_tensor(table);
  overlap_kernels();
  const AcceptedRow& value = table.tensors[index];
  const int64_t accepted = accepted_drafts(table.shared.tokens, table.shared.drafts, table.shared.count);
  if (accepted >= value.rows) return;
  const int64_t at = int64_t{blockIdx.x - table.first_block[index]} * kChunk, bytes = min(kChunk, value.count - at);
  char* const to = static_cast<char*>(value.to) + at;
  const char* const from = static_cast<const char*>(value.from) + accepted * value.count + at;
  const auto aligned_to = [&](size_t size) {
    return (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) % size == 0;
  };
  if (aligned_to(sizeof(uint4)))
    copy_chunk<uint4>(to, from, bytes);
  else if (aligned_to(sizeof(uint32_t)))
    copy_chunk<uint32_t>(to, from, bytes);
  else
    copy_chunk<char>(to, from, bytes);
}

}  // namespace

Status accept_drafts(const AcceptDrafts& p, Queue queue) {
  Table table;
  table.shared = {p.tokens, p.drafts, p.draft_count};
  return each_table(table, p.values, p.value_count, kChunk, [&](const Table& part, unsigned blocks) {
    return launch_overlapped(accept, {blocks, kThreads}, queue, part);
  });
}

namespace {
const DefineLaunchers<AcceptDraftsLaunchers> kLaunchers(Device::cuda, {.accept = accept_drafts});
}

}  // namespace based::kernels::cuda
