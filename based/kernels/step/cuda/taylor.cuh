// Taylor attention in a step program.
#pragma once
#include "based/kernels/step/cuda/linear.cuh"
#include "based/kernels/taylor/cuda/feature_pair.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

struct StepTaylor : StepLinear {
  using StepLinear::StepLinear;

  // A block's share of a Taylor state: kStepColumns columns of a head.
  struct TaylorShare {
    int features, slices, item, head, slice, column;
    int64_t state, stride;  // index of the head's state; floats between a thread's vectors
    __device__ __forceinline__ TaylorShare(const StepInstruction& step, int threads, int thread) {
      const TaylorAttention& p = step.arguments.taylor;
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

  __device__ void prefetch_taylor(const StepInstruction& step) {
    const TaylorAttention& p = step.arguments.taylor;
    const TaylorShare share(step, threads, thread);
    if (!share.any(p)) return;
    if (thread < share.features) prefetched_sum = __ldcg(p.k_state + share.state * share.features + thread);
#pragma unroll
    for (int i = 0; i < kStepHeld; ++i)
      if (thread / 4 + i * (threads / 4) < share.features) prefetched[i] = __ldcs(share.vectors(p, thread) + i * share.stride);
  }

  __device__ void apply_taylor(const StepInstruction& step) {
    const TaylorAttention& p = step.arguments.taylor;
    const TaylorShare share(step, threads, thread);
    if (!share.any(p)) return;
    const int features = share.features, head = share.head;
    float4 held[kStepHeld];
#pragma unroll
    for (int i = 0; i < kStepHeld; ++i) held[i] = prefetched[i];
    const FeaturePair pair(min(thread, features - 1), p.feature_dim);
    float part = 0;
    if (thread < features) {
      const int first = head * p.feature_dim, i = first + max(pair.i, 0), j = first + max(pair.j, 0);
      const auto scaled = [&](int which, const void* memory, int at) {
        return rounded_product(from_float<bf16>(receive(step.in[which], memory, at, tag)), p.scale);
      };
      const float a = pair.value(scaled(0, p.q, i), scaled(0, p.q, j)), b = pair.value(scaled(1, p.k, i), scaled(1, p.k, j)),
                  updated = prefetched_sum + b;
      shared.features[0][thread] = a, shared.features[1][thread] = b;
      part = a * updated;
      if (share.slice == 0)
        deferred_store = __float_as_uint(updated),
        deferred_store_to = reinterpret_cast<uint32_t*>(p.k_state + share.state * features + thread);
    }
    const uint2 raw = receive4(step.in[2], p.v, head * p.head_dim + share.column, tag);
    const float denominator = sum_over_threads(part);
    const float v[4] = {low_float(raw.x), high_float(raw.x), low_float(raw.y), high_float(raw.y)};
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kStepHeld; ++i) {
      const int f = thread / 4 + i * (threads / 4);
      if (f >= features) continue;
      const float a = shared.features[0][f], b = shared.features[1][f];
      held[i].x = fmaf(b, v[0], held[i].x), held[i].y = fmaf(b, v[1], held[i].y);
      held[i].z = fmaf(b, v[2], held[i].z), held[i].w = fmaf(b, v[3], held[i].w);
      y.x = fmaf(a, held[i].x, y.x), y.y = fmaf(a, held[i].y, y.y), y.z = fmaf(a, held[i].z, y.z), y.w = fmaf(a, held[i].w, y.w);
      __stcs(share.vectors(p, thread) + i * share.stride, held[i]);
    }
#pragma unroll
    for (int d = 16; d >= 4; d /= 2) {
      y.x += __shfl_xor_sync(~0U, y.x, d), y.y += __shfl_xor_sync(~0U, y.y, d);
      y.z += __shfl_xor_sync(~0U, y.z, d), y.w += __shfl_xor_sync(~0U, y.w, d);
    }
    if (lane < 4) reinterpret_cast<float4*>(shared.sums)[warp * 4 + lane] = y;
    compute_barrier();
    if (thread >= kStepColumns) return;
    float y_sum = 0;
#pragma unroll 4
    for (int w = 0; w < threads / 32; ++w) y_sum += shared.sums[w * kStepColumns + thread];
    send(step, p.y, head * p.head_dim + share.slice * kStepColumns + thread, y_sum / denominator);
  }
};

}  // namespace based::kernels::cuda::detail
#endif
