// Parts that the tensor-core kernels of Taylor attention share: how rows are cut into segments, and the packed numbers of features.
#pragma once
#include <algorithm>

#include "based/kernels/common/cuda/device.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/gpu.h"
#include "based/kernels/taylor/taylor.h"

namespace based::kernels::cuda::detail {

// Replaces strides of 0 by the contiguous ones, so that the kernels, which are short of registers, can use the parameters as they are.
inline TaylorAttention with_strides(TaylorAttention p) {
  if (p.qk_stride == 0) p.qk_stride = p.heads * p.feature_dim;
  if (p.v_stride == 0) p.v_stride = p.heads * p.head_dim;
  return p;
}

// How rows are split among blocks.
struct SegmentPlan {
  int64_t segment;        // tokens of a segment
  int64_t numbers;        // number of segment numbers (see find_work)
  int64_t features;       // packed_features(feature_dim)
  float* parked;          // states at the borders of segments, or null where every row is one segment
  int32_t slices, width;  // slices of the head dimension and their width
};

struct SegmentOptions {
  int64_t chunk, slice_width;  // tokens of a chunk; most columns of the head dimension in one block
  int64_t blocks;              // blocks that the GPU runs at a time
  int jobs;                    // blocks for each segment, head and slice
};
// Chooses the segment length so that about as many blocks are started as run at a time.
inline SegmentPlan plan_segments(const TaylorAttention& p, const SegmentOptions& options) {
  SegmentPlan plan{};
  plan.features = packed_features(p.feature_dim);
  plan.slices = static_cast<int32_t>(ceil_div(p.head_dim, options.slice_width));
  plan.width = static_cast<int32_t>(round_up(ceil_div(p.head_dim, plan.slices), 8));
  const int64_t parts = options.blocks / (p.rows * p.heads * plan.slices * options.jobs), mean = ceil_div(p.tokens, p.rows);
  plan.segment = std::max(parts < 2 ? p.tokens + 1 : round_up(ceil_div(mean, parts), options.chunk), 2 * options.chunk);
  if (p.rows == 1 && plan.segment >= p.tokens) plan.segment = p.tokens + 1;
  plan.numbers = p.tokens / plan.segment + p.rows;
  return plan;
}

// The row and segment that a block works on.
struct Work {
  int64_t row, begin, end;    // tokens [begin, end) of the row
  int64_t segment, segments;  // index of the segment within the row, and the row's number of segments
};

// Finds the row and segment of a segment number. Row r owns the numbers from floor(row_start[r] / length) + r up to the next row's first; a
// few numbers have no segment, but the host need not know the rows' lengths. Returns false where the number has no segment. Contains a
// block-wide barrier: all kThreads threads must call it.
template <int kThreads>
__device__ __forceinline__ bool find_work(const TaylorAttention& p, int64_t length, int64_t number, Work& work) {
  int64_t row = -1;
  for (int64_t base = 0; base < p.rows; base += kThreads) {
    const int64_t r = base + threadIdx.x;
    const bool before = r < p.rows && p.row_start[r] / length + r <= number;
    const int count = __syncthreads_count(before);
    row += count;
    if (count < kThreads) break;
  }
  row = warp_uniform(row);
  if (row < 0) return false;
  const int64_t start = p.row_start[row], stop = p.row_start[row + 1];
  work.row = row;
  work.segments = (stop - start + length - 1) / length;
  work.segment = number - (start / length + row);
  work.begin = start;
  work.end = stop;
  return work.segment < work.segments;
}

constexpr float kSqrt2 = 1.41421356237309505F;

// The packed feature of a feature column: its number (−1 where there is none) and the scale for packed = column / scale.
struct Packed {
  int number;
  float scale;
};
__device__ __forceinline__ Packed packed_pair(int i, int j, int d) {
  const int low = min(i, j), high = max(i, j);
  if (high >= d) return {-1, 0};
  return {1 + d + low * d - low * (low - 1) / 2 + high - low, low == high ? kSqrt2 : 1.0F};
}
}  // namespace based::kernels::cuda::detail
