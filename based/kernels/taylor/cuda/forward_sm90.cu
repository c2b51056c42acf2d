// Taylor attention forward on Hopper: bf16, feature_dim 8 or 16, no decay. docs/kernels/taylor-attention.md describes it.
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/taylor/cuda/launchers.h"
#include "based/kernels/taylor/cuda/sm90.cuh"

namespace based::kernels::cuda::detail {
namespace {

// Offsets in the shared memory of attend_segments: two tiles of v, the features of k, the state rounded to bf16, its rounding error as
// bf16, the tile of y.
constexpr uint32_t kAtFeatures = 2 * kValueBytes, kAtHigh = kAtFeatures + kFeatureBytes, kAtLow = kAtHigh + kFeatureBytes,
                   kAtOutput = kAtLow + kFeatureBytes, kOutputShared = kAtOutput + kValueBytes + 1024;

// Whether states are parked in scratch memory: between the segments of long rows, and where several slices of a head update the state in
// place. All slices read the state's denominator part and one of them overwrites it, so they must start from a parked copy.
bool needs_parking(const TaylorAttention& p, const SegmentPlan& plan) {
  return plan.segment <= p.tokens || (plan.slices > 1 && p.kv_state != nullptr);
}

#if BASED_HAS_WGMMA
__device__ __forceinline__ PackedState packed_state(const TaylorAttention& p, const SegmentPlan& plan, const ChunkBlock& block,
                                                    int64_t row) {
  const int64_t slot = p.slot != nullptr ? p.slot[row] : row, features = plan.features;
  const int64_t at = (slot * p.heads + block.head) * features;
  return {p.kv_state + at * p.head_dim, p.k_state + at, p.feature_dim, p.head_dim, block.first, block.width};
}

// The state's part of the denominators of the thread's two query rows, count + q·(Σk + ½ Σkkᵀ q), without count and over this thread's
// columns only.
__device__ __forceinline__ float2 state_denominators(const RegisterState& s, const uint32_t (&q)[4]) {
  float u[2][4];
  sums_product(s, q, 0.5F, u);
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    sum.x += low_float(q[2 * n]) * u[n][0] + high_float(q[2 * n]) * u[n][1];
    sum.y += low_float(q[2 * n + 1]) * u[n][2] + high_float(q[2 * n + 1]) * u[n][3];
  }
  return sum;
}

// Computes w(a) = 1 + a + a²/2 under the causal mask, as the A operand of w·v, and adds the row sums of the thread's columns to `sum`.
__device__ __forceinline__ void weights(const float (&score)[32], uint32_t (&w)[16], float2& sum) {
  const int row = 16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4, column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = score[4 * j + i];
      const bool visible = 8 * j + column + (i & 1) <= row + (i & 2 ? 8 : 0);
      x[i] = visible ? fmaf(a, fmaf(a, 0.5F, 1.0F), 1.0F) : 0.0F;
    }
    sum.x += x[0] + x[1], sum.y += x[2] + x[3];
    w[2 * j] = pack_bf16(x[0], x[1]), w[2 * j + 1] = pack_bf16(x[2], x[3]);
  }
}

// Computes the outputs of tokens [begin, end). On entry `s` is the state before them, on return the state after them.
__device__ __forceinline__ void attend_tokens(const TaylorAttention& p, const ChunkBlock& block, RegisterState& s, int64_t begin,
                                              int64_t end) {
  const uint32_t base = shared_base(), features = base + kAtFeatures, high = base + kAtHigh, low = base + kAtLow;
  const int token = threadIdx.x % kChunk, half = threadIdx.x / kChunk, lane = threadIdx.x % 32;
  const int row = 16 * (threadIdx.x / 32) + lane / 4;  // within the chunk; the thread's other row is row + 8
  Row16 k, qa, qb;
  k.load(block.k + (begin + token) * block.qk_stride, p.feature_dim, begin + token < end);
  qa.load(block.q + (begin + row) * block.qk_stride, p.feature_dim, begin + row < end);
  qb.load(block.q + (begin + row + 8) * block.qk_stride, p.feature_dim, begin + row + 8 < end);
  copy_value_tile(base, block.v + begin * block.v_stride, block.v_stride, static_cast<int>(min(end - begin, int64_t{kChunk})), block.width);
  copy_async_commit();
  store_state<true>(s, high, low);
  uint32_t stage = 0;
  for (int64_t at = begin; at < end; at += kChunk, stage ^= kValueBytes) {
    const int64_t next = at + kChunk;
    const int tokens = static_cast<int>(min(end - at, int64_t{kChunk}));
    store_features(features, k, token, half);
    if (next < end) {
      copy_value_tile(base + (stage ^ kValueBytes), block.v + next * block.v_stride, block.v_stride,
                      static_cast<int>(min(end - next, int64_t{kChunk})), block.width);
      k.load(block.k + (next + token) * block.qk_stride, p.feature_dim, next + token < end);
    }
    copy_async_commit();
    copy_async_wait<1>();
    fence_shared_proxy();
    __syncthreads();
    const Row16 a = qa.rotated(lane % 4), b = qb.rotated(lane % 4);
    const uint32_t query[4] = {a.x[0], b.x[0], a.x[4], b.x[4]};
    float score[32], out[32];
    wgmma_begin();
    wgmma_64x64x16<0>(score, query, operand(features + 18 * kUnitColumn, kUnitColumn, 128, Swizzle::none), false);
    wgmma_commit();
    add_chunk(s, base + stage, features);
    float2 sum = state_denominators(s, query);
    const float before = s.count;
    add_chunk_sums<false>(s, features, tokens, 0);
    wgmma_wait<1>();
    accumulator_fence(score);
    uint32_t w[16];
    weights(score, w, sum);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t part[4] = {w[4 * step], w[4 * step + 1], w[4 * step + 2], w[4 * step + 3]};
      wgmma_64x64x16<1>(out, part, operand(base + stage + step * 2048, 0, 1024, Swizzle::bytes128), step != 0);
    }
#pragma unroll
    for (int o = 0; o < kColumns / 16; ++o) {
      uint32_t f[4];
      query_features(f, a, b, o);
      wgmma_begin();
      wgmma_64x64x16<0>(out, f, operand(high + 2 * o * kUnitColumn, kUnitColumn, 128, Swizzle::none), true);
      wgmma_64x64x16<0>(out, f, operand(low + 2 * o * kUnitColumn, kUnitColumn, 128, Swizzle::none), true);
    }
    wgmma_commit();
    if (next < end) {
      qa.load(block.q + (next + row) * block.qk_stride, p.feature_dim, next + row < end);
      qb.load(block.q + (next + row + 8) * block.qk_stride, p.feature_dim, next + row + 8 < end);
    }
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      sum.x += __shfl_xor_sync(~0U, sum.x, distance), sum.y += __shfl_xor_sync(~0U, sum.y, distance);
    }
    sum.x += before, sum.y += before;
    if (p.denominator != nullptr && block.first == 0 && lane % 4 == 0) {
      if (row < tokens) p.denominator[(at + row) * p.heads + block.head] = sum.x;
      if (row + 8 < tokens) p.denominator[(at + row + 8) * p.heads + block.head] = sum.y;
    }
    wgmma_wait<0>();
    accumulator_fence(out);
    __syncthreads();
    if (next < end) store_state<true>(s, high, low);
    store_output(block.y, block.y_stride, block, base + kAtOutput, out, make_float2(1.0F / sum.x, 1.0F / sum.y), at, tokens);
  }
}
#endif

// Parks the parts of the states at the starts of segments: segment j of a row gets the sum over segment j − 1 alone, and segment 0 the
// row's initial state. attend_segments adds up the parts.
__global__ void __launch_bounds__(kThreads, 3) sum_segments(const __grid_constant__ TaylorAttention p, const SegmentPlan plan) {
#if BASED_HAS_WGMMA
  Work work;
  if (!find_work<kThreads>(p, plan.segment, blockIdx.x, work)) return;
  if (work.segment == 0 && p.kv_state == nullptr) return;
  const ChunkBlock block(p, plan, blockIdx.z);
  RegisterState s;
  if (work.segment == 0) {
    packed_state(p, plan, block, work.row).load(s);
  } else {
    s.clear();
    const int64_t begin = work.begin + (work.segment - 1) * plan.segment;
    sum_tokens<false>({block.k, block.v, block.v_stride, nullptr}, p, block, s, begin, begin + plan.segment);
  }
  s.park(parked_state(p, plan, blockIdx.x, blockIdx.z));
#else
  __trap();
#endif
}

__global__ void __launch_bounds__(kThreads, 2) attend_segments(const __grid_constant__ TaylorAttention p, const SegmentPlan plan) {
#if BASED_HAS_WGMMA
  Work work;
  if (!find_work<kThreads>(p, plan.segment, blockIdx.x, work)) return;
  const ChunkBlock block(p, plan, blockIdx.z);
  RegisterState s;
  if (plan.parked == nullptr && p.kv_state != nullptr) {
    packed_state(p, plan, block, work.row).load(s);
  } else {
    s.clear();
    if (plan.parked != nullptr) {
      for (int64_t j = p.kv_state != nullptr ? 0 : 1; j <= work.segment; ++j) {
        s.add(parked_state(p, plan, blockIdx.x - work.segment + j, blockIdx.z));
      }
    }
  }
  const int64_t begin = work.begin + work.segment * plan.segment;
  attend_tokens(p, block, s, begin, min(begin + plan.segment, work.end));
  if (p.kv_state != nullptr && work.segment == work.segments - 1) packed_state(p, plan, block, work.row).store(s);
#else
  __trap();
#endif
}

}  // namespace

bool taylor_forward_sm90_supports(const TaylorAttention& p) {
  return p.dtype == DType::bf16 && p.decay == nullptr && (p.feature_dim == 8 || p.feature_dim == 16) && p.head_dim % 8 == 0 &&
         p.qk_stride % 8 == 0 && p.v_stride % 8 == 0 && p.v_stride <= kLargestStride && aligned16(p.q) && aligned16(p.k) &&
         aligned16(p.v) && aligned16(p.y) && runs_hopper_code();
}

int64_t taylor_forward_sm90_scratch(const TaylorAttention& p) {
  const SegmentPlan plan = plan_segments(p, 1);
  return needs_parking(p, plan) ? parked_floats(p, plan) * 4 : 0;
}

Status taylor_forward_sm90(const TaylorAttention& arguments, void* scratch, Queue queue) {
  const TaylorAttention p = with_strides(arguments);
  SegmentPlan plan = plan_segments(p, 1);
  if (plan.numbers > 0x7fffffff) return {"taylor_attention: too many rows for one launch"};
  const dim3 grid(static_cast<unsigned>(plan.numbers), p.heads, plan.slices);
  if (needs_parking(p, plan)) {
    plan.parked = static_cast<float*>(scratch);
    if (const cudaError_t e = allow_shared_memory(sum_segments, kSumShared); e != cudaSuccess) return status_of(e);
    sum_segments<<<grid, kThreads, kSumShared, stream_of(queue)>>>(p, plan);
  }
  if (const cudaError_t e = allow_shared_memory(attend_segments, kOutputShared); e != cudaSuccess) return status_of(e);
  attend_segments<<<grid, kThreads, kOutputShared, stream_of(queue)>>>(p, plan);
  return launched();
}

}  // namespace based::kernels::cuda::detail
