// Window attention in a step program.
#pragma once
#include "based/kernels/attention/cuda/rotary_angle.cuh"
#include "based/kernels/step/cuda/taylor.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

struct StepWindow : StepTaylor {
  using StepTaylor::StepTaylor;

  // The head of a window layer that a block computes.
  struct WindowShare {
    int head, units, key, unit;
    int64_t slot, stride;
    bf16 *k_ring, *v_ring;
    __device__ __forceinline__ WindowShare(const StepInstruction& step, int thread) {
      const CausalAttentionStep& p = step.arguments.window;
      head = BlockShare(step.share).index, units = p.head_dim / 8, key = thread / units, unit = thread % units;
      slot = slot_of(p.slot), stride = int64_t{p.heads} * p.head_dim;
      const int64_t first = slot * p.capacity * stride + head * p.head_dim;
      k_ring = static_cast<bf16*>(p.k_ring) + first, v_ring = static_cast<bf16*>(p.v_ring) + first;
    }
  };

  __device__ void prefetch_window(const StepInstruction& step) {
    const CausalAttentionStep& p = step.arguments.window;
    const WindowShare share(step, thread);
    if (share.head >= p.heads) return;
    if (share.key < p.capacity) {
      const int64_t at = share.key * share.stride + share.unit * 8;
      prefetched[0] = __ldcg(reinterpret_cast<const float4*>(share.k_ring + at)),
      prefetched[1] = __ldcg(reinterpret_cast<const float4*>(share.v_ring + at));
    }
    const int64_t written = __ldcg(p.position);
    if (thread == 0) shared.position = written;
    if (thread < p.head_dim / 2) shared.rotations[thread] = rotary_turn(written, rotary_frequency(thread, p.head_dim, p.rotary_base));
  }

  __device__ void apply_window(const StepInstruction& step) {
    const CausalAttentionStep& p = step.arguments.window;
    const WindowShare share(step, thread);
    const int head = share.head, units = share.units, key = share.key, unit = share.unit, capacity = static_cast<int>(p.capacity);
    if (head >= p.heads) return;
    const int64_t written = shared.position, stride = share.stride;
    const int newest = static_cast<int>(written % capacity), count = static_cast<int>(min(written + 1, p.capacity));
    bf16 *k_ring = share.k_ring, *v_ring = share.v_ring;
    compute_barrier();  // shared.sums and shared.x are no longer in use
    float *query = reinterpret_cast<float*>(shared.x), *newest_key = query + 128, *scores = newest_key + 128,
          *parts = shared.sums + 4 * kStepMostThreads;
    auto* values = reinterpret_cast<uint4*>(shared.sums);
    const uint4 keys = as_uint4(prefetched[0]);
    if (key < capacity && key != newest) values[thread] = as_uint4(prefetched[1]);
    const int at = head * p.head_dim;
    if (thread < 2 * units) {
      const uint2 v = receive4(step.in[2], p.v, at + 4 * thread, tag);
      reinterpret_cast<uint2*>(values + newest * units)[thread] = v;
      reinterpret_cast<uint2*>(v_ring + newest * stride)[thread] = v;
    }
    if (thread < p.head_dim / 2) {
      const int other = thread + p.head_dim / 2;
      const float2 t = shared.rotations[thread];
      const float a = receive(step.in[0], p.q, at + thread, tag), b = receive(step.in[0], p.q, at + other, tag),
                  c = receive(step.in[1], p.k, at + thread, tag), d = receive(step.in[1], p.k, at + other, tag);
      query[thread] = to_float(from_float<bf16>(a * t.x - b * t.y)), query[other] = to_float(from_float<bf16>(a * t.y + b * t.x));
      const bf16 low = from_float<bf16>(c * t.x - d * t.y), high = from_float<bf16>(c * t.y + d * t.x);
      newest_key[thread] = to_float(low), newest_key[other] = to_float(high);
      k_ring[newest * stride + thread] = low, k_ring[newest * stride + other] = high;
    }
    compute_barrier();
    if (key < capacity) {
      float k[8], s = 0;
      unpack8(keys, k);
#pragma unroll
      for (int i = 0; i < 8; ++i) s = fmaf(query[unit * 8 + i], key == newest ? newest_key[unit * 8 + i] : k[i], s);
      parts[thread] = s;
    }
    compute_barrier();
    if (thread < capacity) {
      float s = 0;
#pragma unroll 2
      for (int i = 0; i < units; ++i) s += parts[thread * units + i];
      scores[thread] = thread < count ? s * p.scale * 1.44269504088896341F : -INFINITY;
    }
    compute_barrier();
    if (thread < p.head_dim)
      send(step, p.y, at + thread, weighted(scores, reinterpret_cast<const bf16*>(values) + thread, count, p.head_dim));
  }
  // One element of the sum of values weighted by the softmax of the scores.
  __device__ __forceinline__ static float weighted(const float* scores, const bf16* values, int count, int stride) {
    float top = -INFINITY, total = 0, sum = 0;
#pragma unroll 4
    for (int i = 0; i < count; ++i) top = fmaxf(top, scores[i]);
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float weight = exp2f(scores[i] - top);
      total += weight;
      sum = fmaf(weight, to_float(values[i * stride]), sum);
    }
    return sum / total;
  }
};

}  // namespace based::kernels::cuda::detail
#endif
