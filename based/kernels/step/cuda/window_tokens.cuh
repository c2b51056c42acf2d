// Window attention in a step program of several tokens.
#pragma once
#include "based/kernels/step/cuda/linear_tokens.cuh"
#include "based/kernels/step/cuda/window.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// A head's part of the tokens, in the shared memory of x.
struct WindowInputs {
  float *queries, *keys, *scores;  // [tokens, head_dim], rotated, twice; [tokens, kStepMostKeys]
  bf16* values;                    // [tokens, head_dim]
  template <class Tokens>
  __device__ __forceinline__ WindowInputs(StepThread<Tokens>& t, int head_dim)
      : queries(reinterpret_cast<float*>(t.shared.x())),
        keys(queries + t.program.tokens * head_dim),
        scores(keys + t.program.tokens * head_dim),
        values(reinterpret_cast<bf16*>(scores + t.program.tokens * kStepMostKeys)) {}
};

// Receives the head's queries, keys and values, rotates queries and keys, and stores the keys and values to the ring, too.
template <class Tokens>
__device__ __forceinline__ void receive_inputs_of_window(StepThread<Tokens>& t, const StepInstruction& step, const WindowShare& share,
                                                         const WindowInputs& to, int newest) {
  const CausalAttentionStep& p = step.arguments.window.step;
  const int head_dim = p.head_dim, at = share.head * head_dim, capacity = static_cast<int>(p.capacity);
  const auto place = [&](int token) { return int64_t{(newest + token) % capacity} * share.stride; };  // in the ring
  for (int i = t.thread; i < t.program.tokens * head_dim / 4; i += t.threads) {
    const int token = i / (head_dim / 4), four = i % (head_dim / 4);
    const uint2 v = receive4(step.in[2], p.v, token * step.in_stride[2] + at + 4 * four, t.tag);
    reinterpret_cast<uint2*>(to.values)[i] = v;
    reinterpret_cast<uint2*>(share.v_ring + place(token))[four] = v;
  }
  const int pairs = head_dim / 2;
  for (int i = t.thread; i < t.program.tokens * pairs; i += t.threads) {
    const int token = i / pairs, pair = i % pairs, other = pair + pairs, q = token * step.in_stride[0] + at,
              k = token * step.in_stride[1] + at;
    const float2 turn = t.shared.rotations[token][pair];
    const float a = receive(step.in[0], p.q, q + pair, t.tag), b = receive(step.in[0], p.q, q + other, t.tag),
                c = receive(step.in[1], p.k, k + pair, t.tag), e = receive(step.in[1], p.k, k + other, t.tag);
    float* query = to.queries + token * head_dim;
    query[pair] = to_float(from_float<bf16>(a * turn.x - b * turn.y)), query[other] = to_float(from_float<bf16>(a * turn.y + b * turn.x));
    const bf16 low = from_float<bf16>(c * turn.x - e * turn.y), high = from_float<bf16>(c * turn.y + e * turn.x);
    float* key = to.keys + token * head_dim;
    key[pair] = to_float(low), key[other] = to_float(high);
    bf16* ring = share.k_ring + place(token);
    ring[pair] = low, ring[other] = high;
  }
}

// As step_window(). The ring has at least kStepTokens keys, so that no token overwrites another's.
template <class Tokens>
__device__ __forceinline__ void step_window_of_tokens(StepThread<Tokens>& t, const StepInstruction& step) {
  const CausalAttentionTokens& all = step.arguments.window;
  const CausalAttentionStep& p = all.step;
  const WindowShare share(step, t.thread);
  if (share.head >= p.heads) return;
  constexpr int kAtOnce = 4;  // tokens whose parts of scores are in shared memory
  static_assert((4 + kAtOnce) * kStepMostThreads <= StepThread<Tokens>::Shared::kSums);
  const int head_dim = p.head_dim, units = share.units, key = share.key, unit = share.unit, capacity = static_cast<int>(p.capacity),
            tokens = t.program.tokens;
  const int64_t written = t.shared.position;
  const int newest = static_cast<int>(written % capacity);  // the first token's place in the ring
  // The token that overwrites a place of the ring; tokens or more: none does.
  const auto writer = [&](int at) { return at >= newest ? at - newest : at - newest + capacity; };
  t.compute_barrier();  // all threads have read shared.sums and shared.x, which are reused
  const WindowInputs inputs(t, head_dim);
  auto* old_values = reinterpret_cast<uint4*>(t.shared.sums);
  float* parts = t.shared.sums + 4 * kStepMostThreads;  // [kAtOnce, threads]
  uint4 my_key = as_uint4(t.prefetched[0]), my_value = as_uint4(t.prefetched[1]);
  if (key < capacity) old_values[t.thread] = my_value;
  receive_inputs_of_window(t, step, share, inputs, newest);
  t.compute_barrier();  // the inputs and the old values are complete
#pragma unroll 1
  for (int first = 0; first < tokens; first += kAtOnce) {
    const int count = min(kAtOnce, tokens - first);
#pragma unroll 1
    for (int i = 0; key < capacity && i < count; ++i) {
      const int token = first + i;
      if (writer(key) == token) {
        const float* k = inputs.keys + token * head_dim + unit * 8;
        my_key = make_uint4(pack_bf16(k[0], k[1]), pack_bf16(k[2], k[3]), pack_bf16(k[4], k[5]), pack_bf16(k[6], k[7]));
        my_value = reinterpret_cast<const uint4*>(inputs.values)[token * units + unit];
      }
      const float* query = inputs.queries + token * head_dim + unit * 8;
      float k[8], s = 0;
      unpack8(my_key, k);
#pragma unroll
      for (int e = 0; e < 8; ++e) s = fmaf(query[e], k[e], s);
      parts[i * t.threads + t.thread] = s;
      if (token + 1 == tokens || all.kept_k_ring == nullptr) continue;
      const int64_t at = (int64_t{token} * capacity + key) * share.stride + share.head * head_dim + unit * 8;
      *reinterpret_cast<uint4*>(static_cast<bf16*>(all.kept_k_ring) + at) = my_key;
      *reinterpret_cast<uint4*>(static_cast<bf16*>(all.kept_v_ring) + at) = my_value;
    }
    t.compute_barrier();  // the parts of the scores are complete
    for (int i = t.thread; i < count * capacity; i += t.threads) {
      const int token = i / capacity, at = i - token * capacity;
      const float* of_key = parts + token * t.threads + at * units;
      float s = 0;
#pragma unroll 2
      for (int e = 0; e < units; ++e) s += of_key[e];
      inputs.scores[(first + token) * kStepMostKeys + at] =
          at < written + first + token + 1 ? s * p.scale * 1.44269504088896341F : -INFINITY;
    }
    t.compute_barrier();  // the scores are complete, and the parts have been read
  }
  for (int i = t.thread; i < tokens * head_dim; i += t.threads) {
    const int token = i / head_dim, element = i % head_dim, count = static_cast<int>(min(written + token + 1, p.capacity));
    const auto value = [&](int at) {
      const int by = writer(at);
      return by <= token ? inputs.values[by * head_dim + element] : reinterpret_cast<const bf16*>(old_values)[at * head_dim + element];
    };
    t.send(step, p.y, token, share.head * head_dim + element, weighted(inputs.scores + token * kStepMostKeys, count, value));
  }
}

}  // namespace based::kernels::cuda::detail
#endif
