// Window attention in a step program.
#pragma once
#include "based/kernels/attention/cuda/rotary_angle.cuh"
#include "based/kernels/step/cuda/thread.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// The head of a window layer that a block computes.
struct WindowShare {
  int head, units, key, unit;
  int64_t slot, stride;
  bf16 *k_ring, *v_ring;
  __device__ __forceinline__ WindowShare(const StepInstruction& step, int thread) {
    const CausalAttentionStep& p = step.arguments.window.step;
    head = BlockShare(step.share).index, units = p.head_dim / 8, key = thread / units, unit = thread % units;
    slot = slot_of(p.slot), stride = int64_t{p.heads} * p.head_dim;
    const int64_t first = slot * p.capacity * stride + head * p.head_dim;
    k_ring = static_cast<bf16*>(p.k_ring) + first, v_ring = static_cast<bf16*>(p.v_ring) + first;
  }
};

// One element of the sum of values weighted by the softmax of the scores. value(i): the element of key i's value.
template <class Value>
__device__ __forceinline__ float weighted(const float* scores, int count, const Value& value) {
  float top = -INFINITY, total = 0, sum = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) top = fmaxf(top, scores[i]);
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float weight = exp2f(scores[i] - top);
    total += weight;
    sum = fmaf(weight, to_float(value(i)), sum);
  }
  return sum / total;
}

// Loads the thread's part of the keys and values, and computes the rotary rotations.
template <class Tokens>
__device__ __forceinline__ void prefetch_window(StepThread<Tokens>& t, const StepInstruction& step) {
  const CausalAttentionStep& p = step.arguments.window.step;
  const WindowShare share(step, t.thread);
  if (share.head >= p.heads) return;
  if (share.key < p.capacity) {
    const int64_t at = share.key * share.stride + share.unit * 8;
    t.prefetched[0] = __ldcg(reinterpret_cast<const float4*>(share.k_ring + at)),
    t.prefetched[1] = __ldcg(reinterpret_cast<const float4*>(share.v_ring + at));
  }
  const int64_t written = __ldcg(p.position);
  if (t.thread == 0) t.shared.position = written;
  const int pairs = p.head_dim / 2;
  for (int i = t.thread; i < t.program.tokens * pairs; i += t.threads) {
    const int token = Tokens::kTokens == 1 ? 0 : i / pairs, pair = i - token * pairs;
    t.shared.rotations[token][pair] = rotary_turn(written + token, rotary_frequency(pair, p.head_dim, p.rotary_base));
  }
}

__device__ inline void step_window(StepThread<OneToken>& t, const StepInstruction& step) {
  const CausalAttentionStep& p = step.arguments.window.step;
  const WindowShare share(step, t.thread);
  const int head = share.head, units = share.units, key = share.key, unit = share.unit, capacity = static_cast<int>(p.capacity);
  if (head >= p.heads) return;
  const int64_t written = t.shared.position, stride = share.stride;
  const int newest = static_cast<int>(written % capacity), count = static_cast<int>(min(written + 1, p.capacity));
  bf16 *k_ring = share.k_ring, *v_ring = share.v_ring;
  t.compute_barrier();  // all threads have read shared.sums and shared.x, which are reused
  float *query = reinterpret_cast<float*>(t.shared.x()), *newest_key = query + 128, *scores = newest_key + 128,
        *parts = t.shared.sums + 4 * kStepMostThreads;
  auto* values = reinterpret_cast<uint4*>(t.shared.sums);
  const uint4 keys = as_uint4(t.prefetched[0]);
  if (key < capacity && key != newest) values[t.thread] = as_uint4(t.prefetched[1]);
  const int at = head * p.head_dim;
  if (t.thread < 2 * units) {
    const uint2 v = receive4(step.in[2], p.v, at + 4 * t.thread, t.tag);
    reinterpret_cast<uint2*>(values + newest * units)[t.thread] = v;
    reinterpret_cast<uint2*>(v_ring + newest * stride)[t.thread] = v;
  }
  if (t.thread < p.head_dim / 2) {
    const int other = t.thread + p.head_dim / 2;
    const float2 turn = t.shared.rotations[0][t.thread];
    const float a = receive(step.in[0], p.q, at + t.thread, t.tag), b = receive(step.in[0], p.q, at + other, t.tag),
                c = receive(step.in[1], p.k, at + t.thread, t.tag), d = receive(step.in[1], p.k, at + other, t.tag);
    query[t.thread] = to_float(from_float<bf16>(a * turn.x - b * turn.y)),
    query[other] = to_float(from_float<bf16>(a * turn.y + b * turn.x));
    const bf16 low = from_float<bf16>(c * turn.x - d * turn.y), high = from_float<bf16>(c * turn.y + d * turn.x);
    newest_key[t.thread] = to_float(low), newest_key[other] = to_float(high);
    k_ring[newest * stride + t.thread] = low, k_ring[newest * stride + other] = high;
  }
  t.compute_barrier();  // the query, the newest key and the values are complete
  if (key < capacity) {
    float k[8], s = 0;
    unpack8(keys, k);
#pragma unroll
    for (int i = 0; i < 8; ++i) s = fmaf(query[unit * 8 + i], key == newest ? newest_key[unit * 8 + i] : k[i], s);
    parts[t.thread] = s;
  }
  t.compute_barrier();  // the parts of the scores are complete
  if (t.thread < capacity) {
    float s = 0;
#pragma unroll 2
    for (int i = 0; i < units; ++i) s += parts[t.thread * units + i];
    scores[t.thread] = t.thread < count ? s * p.scale * 1.44269504088896341F : -INFINITY;
  }
  t.compute_barrier();  // the scores are complete
  if (t.thread >= p.head_dim) return;
  const bf16* element = reinterpret_cast<const bf16*>(values) + t.thread;
  t.send(step, p.y, 0, at + t.thread, weighted(scores, count, [&](int i) { return element[i * p.head_dim]; }));
}

}  // namespace based::kernels::cuda::detail
#endif
