// Taylor attention in a step program of several tokens.
#pragma once
#include "based/kernels/step/cuda/linear_tokens.cuh"
#include "based/kernels/step/cuda/taylor.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// Receives the head's queries and keys and the block's columns of its values, and stores them to t.shared.inputs: [token][q, k, v].
template <class Tokens>
__device__ __forceinline__ void receive_inputs_of_taylor(StepThread<Tokens>& t, const StepInstruction& step, const TaylorShare& share,
                                                         int each) {
  const TaylorAttention& p = step.arguments.taylor.step;
  const void* const memory[3] = {p.q, p.k, p.v};
  const int d = p.feature_dim, first_feature = share.head * d, first_column = share.head * p.head_dim + share.slice * kStepColumns;
  for (int i = t.thread; i < t.program.tokens * each; i += t.threads) {
    const int token = i / each, at = i - token * each, which = at < d ? 0 : at < 2 * d ? 1 : 2;
    const int element = which == 2 ? first_column + at - 2 * d : first_feature + at - which * d;
    const float x = receive(step.in[which], memory[which], token * step.in_stride[which] + element, t.tag);
    t.shared.inputs[i] = which == 2 ? x : rounded_product(from_float<bf16>(x), p.scale);
  }
}

// As step_taylor(), for one token after another. The state stays in registers; copies are stored after all tokens but the last.
template <class Tokens>
__device__ __forceinline__ void step_taylor_of_tokens(StepThread<Tokens>& t, const StepInstruction& step) {
  const TaylorTokens& all = step.arguments.taylor;
  const TaylorAttention& p = all.step;
  const TaylorShare share(step, t.threads, t.thread);
  if (!share.any(p)) return;
  const int features = share.features, head = share.head, d = p.feature_dim, each = 2 * d + kStepColumns, tokens = t.program.tokens;
  receive_inputs_of_taylor(t, step, share, each);
  t.compute_barrier();  // the inputs are complete
  {
    const FeaturePair pair(min(t.thread, features - 1), d);
    float updated = t.prefetched_sum;
#pragma unroll 1
    for (int token = 0; token < tokens; ++token) {
      float part = 0;
      if (t.thread < features) {
        const float *q = t.shared.inputs + token * each, *k = q + d;
        const int i = max(pair.i, 0), j = max(pair.j, 0);
        const float a = pair.value(q[i], q[j]), b = pair.value(k[i], k[j]);
        updated += b;
        t.shared.features(token, 0)[t.thread] = a, t.shared.features(token, 1)[t.thread] = b;
        part = a * updated;
        if (share.slice == 0 && token + 1 < tokens && all.kept_k_state != nullptr)
          all.kept_k_state[(token * p.heads + head) * features + t.thread] = updated;
      }
      t.store_warp_sum(token, t.warp, part);
    }
    if (share.slice == 0 && t.thread < features)
      t.deferred_store = __float_as_uint(updated),
      t.deferred_store_to = reinterpret_cast<uint32_t*>(p.k_state + share.state * features + t.thread);
  }
  t.compute_barrier();  // the features and the warps' sums are complete
  float4 held[kStepHeld];
#pragma unroll
  for (int i = 0; i < kStepHeld; ++i) held[i] = t.prefetched[i];
#pragma unroll 1
  for (int token = 0; token < tokens; ++token) {
    const float* v = t.shared.inputs + token * each + 2 * d + t.thread % 4 * 4;
    const bool is_last = token + 1 == tokens;
    float4* to = is_last ? share.vectors(p, t.thread) : nullptr;
    if (!is_last && all.kept_kv_state != nullptr)
      to = reinterpret_cast<float4*>(all.kept_kv_state + (int64_t{token * p.heads + head} * features + t.thread / 4) * p.head_dim +
                                     share.column);
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kStepHeld; ++i) {
      const int f = t.thread / 4 + i * (t.threads / 4);
      if (f >= features) continue;
      const float a = t.shared.features(token, 0)[f], b = t.shared.features(token, 1)[f];
      held[i].x = fmaf(b, v[0], held[i].x), held[i].y = fmaf(b, v[1], held[i].y);
      held[i].z = fmaf(b, v[2], held[i].z), held[i].w = fmaf(b, v[3], held[i].w);
      y.x = fmaf(a, held[i].x, y.x), y.y = fmaf(a, held[i].y, y.y), y.z = fmaf(a, held[i].z, y.z), y.w = fmaf(a, held[i].w, y.w);
      if (to != nullptr) __stcs(to + i * share.stride, held[i]);
    }
#pragma unroll
    for (int distance = 16; distance >= 4; distance /= 2) {
      y.x += __shfl_xor_sync(~0U, y.x, distance), y.y += __shfl_xor_sync(~0U, y.y, distance);
      y.z += __shfl_xor_sync(~0U, y.z, distance), y.w += __shfl_xor_sync(~0U, y.w, distance);
    }
    if (t.lane < 4) reinterpret_cast<float4*>(t.shared.parts(token))[t.warp * 4 + t.lane] = y;
  }
  t.compute_barrier();  // the warps' parts of y are complete
  for (int i = t.thread; i < tokens * kStepColumns; i += t.threads) {
    const int token = i / kStepColumns, column = i % kStepColumns;
    float y_sum = 0;
#pragma unroll 4
    for (int w = 0; w < t.threads / 32; ++w) y_sum += t.shared.parts(token)[w * kStepColumns + column];
    t.send(step, p.y, token, head * p.head_dim + share.slice * kStepColumns + column, y_sum / t.sum_of_warps(token));
  }
}

}  // namespace based::kernels::cuda::detail
#endif
