// Taylor attention in a step program.
#pragma once
#include "based/kernels/step/cuda/thread.cuh"
#include "based/kernels/taylor/cuda/feature_pair.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// A block's share of a Taylor state: kStepColumns columns of a head.
struct TaylorShare {
  int features, slices, item, head, slice, column;
  int64_t state, stride;  // index of the head's state; floats between a thread's vectors
  __device__ __forceinline__ TaylorShare(const StepInstruction& step, int threads, int thread) {
    const TaylorAttention& p = step.arguments.taylor.step;
    features = static_cast<int>(packed_features(p.feature_dim)), slices = p.head_dim / kStepColumns;
    item = BlockShare(step.share).index, head = item / slices, slice = item % slices;
    column = slice * kStepColumns + thread % 4 * 4, state = slot_of(p.slot) * p.heads + head;
    stride = int64_t{threads} / 16 * p.head_dim;
  }
  __device__ __forceinline__ bool any(const TaylorAttention& p) const { return item < p.heads * slices; }
  __device__ __forceinline__ float4* vectors(const TaylorAttention& p, int thread) const {
    return reinterpret_cast<float4*>(p.kv_state + (state * features + thread / 4) * p.head_dim + column);
  }
};

// Loads the thread's part of the state.
template <class Tokens>
__device__ __forceinline__ void prefetch_taylor(StepThread<Tokens>& t, const StepInstruction& step) {
  const TaylorAttention& p = step.arguments.taylor.step;
  const TaylorShare share(step, t.threads, t.thread);
  if (!share.any(p)) return;
  if (t.thread < share.features) t.prefetched_sum = __ldcg(p.k_state + share.state * share.features + t.thread);
#pragma unroll
  for (int i = 0; i < kStepHeld; ++i)
    if (t.thread / 4 + i * (t.threads / 4) < share.features) t.prefetched[i] = __ldcs(share.vectors(p, t.thread) + i * share.stride);
}

__device__ inline void step_taylor(StepThread<OneToken>& t, const StepInstruction& step) {
  const TaylorAttention& p = step.arguments.taylor.step;
  const TaylorShare share(step, t.threads, t.thread);
  if (!share.any(p)) return;
  const int features = share.features, head = share.head;
  float4 held[kStepHeld];
#pragma unroll
  for (int i = 0; i < kStepHeld; ++i) held[i] = t.prefetched[i];
  const FeaturePair pair(min(t.thread, features - 1), p.feature_dim);
  float part = 0;
  if (t.thread < features) {
    const int first = head * p.feature_dim, i = first + max(pair.i, 0), j = first + max(pair.j, 0);
    const auto scaled = [&](int which, const void* memory, int at) {
      return rounded_product(from_float<bf16>(receive(step.in[which], memory, at, t.tag)), p.scale);
    };
    const float a = pair.value(scaled(0, p.q, i), scaled(0, p.q, j)), b = pair.value(scaled(1, p.k, i), scaled(1, p.k, j)),
                updated = t.prefetched_sum + b;
    t.shared.features(0, 0)[t.thread] = a, t.shared.features(0, 1)[t.thread] = b;
    part = a * updated;
    if (share.slice == 0)
      t.deferred_store = __float_as_uint(updated),
      t.deferred_store_to = reinterpret_cast<uint32_t*>(p.k_state + share.state * features + t.thread);
  }
  const uint2 raw = receive4(step.in[2], p.v, head * p.head_dim + share.column, t.tag);
  t.store_warp_sum(0, t.warp, part);
  t.compute_barrier();  // the features and the warps' sums are complete
  const float denominator = t.sum_of_warps(0);
  const float v[4] = {low_float(raw.x), high_float(raw.x), low_float(raw.y), high_float(raw.y)};
  float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kStepHeld; ++i) {
    const int f = t.thread / 4 + i * (t.threads / 4);
    if (f >= features) continue;
    const float a = t.shared.features(0, 0)[f], b = t.shared.features(0, 1)[f];
    held[i].x = fmaf(b, v[0], held[i].x), held[i].y = fmaf(b, v[1], held[i].y);
    held[i].z = fmaf(b, v[2], held[i].z), held[i].w = fmaf(b, v[3], held[i].w);
    y.x = fmaf(a, held[i].x, y.x), y.y = fmaf(a, held[i].y, y.y), y.z = fmaf(a, held[i].z, y.z), y.w = fmaf(a, held[i].w, y.w);
    __stcs(share.vectors(p, t.thread) + i * share.stride, held[i]);
  }
#pragma unroll
  for (int d = 16; d >= 4; d /= 2) {
    y.x += __shfl_xor_sync(~0U, y.x, d), y.y += __shfl_xor_sync(~0U, y.y, d);
    y.z += __shfl_xor_sync(~0U, y.z, d), y.w += __shfl_xor_sync(~0U, y.w, d);
  }
  if (t.lane < 4) reinterpret_cast<float4*>(t.shared.parts(0))[t.warp * 4 + t.lane] = y;
  t.compute_barrier();  // the warps' parts of y are complete
  if (t.thread >= kStepColumns) return;
  float y_sum = 0;
#pragma unroll 4
  for (int w = 0; w < t.threads / 32; ++w) y_sum += t.shared.parts(0)[w * kStepColumns + t.thread];
  t.send(step, p.y, 0, head * p.head_dim + share.slice * kStepColumns + t.thread, y_sum / denominator);
}
}  // namespace based::kernels::cuda::detail
#endif
