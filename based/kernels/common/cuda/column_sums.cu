// A block adds up part of the rows for some columns, 16 bytes a thread; a second kernel adds up the partial sums. Bound by reading the
// matrix.
#include "based/kernels/common/column_sums.h"

#include <algorithm>

#include "based/kernels/common/cuda/column_sums.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kWarps = 8;   // warps of a block; each adds up other rows
constexpr int kUnroll = 8;  // rows that a thread has in flight
constexpr int kBlocks = 4;  // resident blocks of a multiprocessor
constexpr int kThreads = 32 * kWarps;

template <typename T>
constexpr int kUnit = 16 / sizeof(T);

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks) sum_rows(const __grid_constant__ ColumnSums p, float* partial) {
  constexpr int kCount = kUnit<T>;
  __shared__ float shared[kWarps][32][kCount + 1];
  overlap_kernels();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t column = (blockIdx.x * int64_t{32} + lane) * kCount;
  const int64_t first = p.rows * blockIdx.y / gridDim.y, last = p.rows * (blockIdx.y + 1) / gridDim.y;
  float sum[kCount] = {};
  if (column < p.columns) {
    const T* x = static_cast<const T*>(p.x) + column;
    for (int64_t row = first + warp; row < last; row += kWarps * kUnroll) {
      uint4 unit[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        unit[i] = row + i * kWarps < last ? __ldg(reinterpret_cast<const uint4*>(x + (row + i * kWarps) * p.x_stride)) : uint4{};
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        Elements<T, kCount> e;
        memcpy(&e, &unit[i], 16);
#pragma unroll
        for (int c = 0; c < kCount; ++c) sum[c] += to_float(e.x[c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kCount; ++c) shared[warp][lane][c] = sum[c];
  __syncthreads();
  // A thread adds up one of the kCount · 32 columns.
  for (int i = threadIdx.x; i < 32 * kCount; i += kThreads) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w][i / kCount][i % kCount];
    const int64_t to = blockIdx.x * int64_t{32} * kCount + i;
    if (to < p.columns) partial[blockIdx.y * p.columns + to] = total;
  }
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads) sum_parts(const float* partial, int64_t parts, int64_t columns, T* sums) {
  overlap_kernels();
  const float sum = sum_column_of_warp(partial, parts, columns);
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + threadIdx.x / 32;
  if (threadIdx.x % 32 == 0 && column < columns) sums[column] = from_float<T>(sum);
}

int64_t column_blocks(const ColumnSums& p) { return ceil_div(p.columns * dtype_size(p.dtype), 32 * 16); }

// Number of blocks that divide the rows among them.
int64_t parts_of(const ColumnSums& p) {
  const int64_t wanted = ceil_div(int64_t{kBlocks} * multiprocessors(), std::max<int64_t>(column_blocks(p), 1));
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(ceil_div(p.rows, kWarps * kUnroll), 1));
}

template <typename T>
Status run(const ColumnSums& p, float* partial, Queue queue) {
  const int64_t parts = parts_of(p);
  const dim3 grid(static_cast<unsigned>(column_blocks(p)), static_cast<unsigned>(parts));
  if (const Status s = launch_overlapped(sum_rows<T>, {grid, kThreads}, queue, p, partial); !s.ok()) return s;
  const Launch sums{static_cast<unsigned>(ceil_div(p.columns, kSumColumns)), kSumThreads};
  return launch_overlapped(sum_parts<T>, sums, queue, partial, parts, p.columns, static_cast<T*>(p.sums));
}

}  // namespace

bool column_sums_supports(const ColumnSums& p) {
  const int64_t unit = 16 / dtype_size(p.dtype);
  return p.columns % unit == 0 && p.x_stride % unit == 0 && aligned16(p.x);
}

int64_t column_sums_scratch(const ColumnSums& p) { return parts_of(p) * p.columns * 4; }

Status column_sums(const ColumnSums& p, void* scratch, Queue queue) {
  if (p.columns == 0) return {};
  if (!column_sums_supports(p)) return {"column_sums: rows must be multiples of 16 bytes, aligned to 16 bytes"};
  auto* partial = static_cast<float*>(scratch);
  return p.dtype == DType::bf16 ? run<bf16>(p, partial, queue) : run<float>(p, partial, queue);
}

}  // namespace based::kernels::cuda
