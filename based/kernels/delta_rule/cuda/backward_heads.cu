// Gradients within a chunk, where the channels of a head share a decay or there is none. docs/kernels/gated-delta-rule.md
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/backward.cuh"

namespace based::kernels::cuda::detail {
namespace {

template <bool kDelta>
struct InverseTile {};
template <>
struct InverseTile<true> {
  ChunkTile inverse;  // the inverse of I + lower
};
// Gradients of the products of tokens, with their decays. scores: of q·k. With `delta`, lower is grad_r uᵀ, and lower_beta = beta · lower.
struct PairTiles {
  ChunkTile scores, lower, lower_beta;
};
template <int kKeys, bool kDelta>
struct SharedStorage : InverseTile<kDelta> {
  float sums[kRuleChunk], beta[kRuleChunk];                   // sums of log2 decays up to each token
  float decay_grad[2][kRuleChunk], beta_grad[2][kRuleChunk];  // sums over each half of the keys
  float state_grad_dot[kBackWarps];                           // each warp's part
  alignas(128) SharedTile<kRuleChunk, kKeys> q, k;            // overwritten by their gradients
  union {
    SliceStorage<kKeys, kDelta> slice;
    PairTiles pairs;  // after the last slice
  };
};

// Computes the gradients of a block's chunk.
template <int kKeys, bool kDelta>
__global__ void __launch_bounds__(kBackThreads) gradients(const __grid_constant__ ChunkedBackward call) {
  overlap_kernels();
  constexpr int kTiles = ChunkSums<kKeys>::kTiles;
  const GatedDeltaRule& p = call.forward.params;
  const ChunkBlock block(p, blockIdx.x);
  if (block.range.tokens == 0) return;
  auto& shared = *reinterpret_cast<SharedStorage<kKeys, kDelta>*>(dynamic_shared());
  auto& slice = shared.slice;
  const BackWarp warp;
  const int thread = static_cast<int>(threadIdx.x), tokens = block.range.tokens, first_key = warp.half * kKeys / 2;

  const int64_t key_stride = static_cast<int64_t>(p.key_heads) * kKeys, key_line = block.key_line(p) * kKeys;
  shared.q.request(static_cast<const bf16*>(p.q) + key_line, key_stride, tokens);
  shared.k.request(static_cast<const bf16*>(p.k) + key_line, key_stride, tokens);
  if constexpr (kDelta) shared.inverse.request(call.forward.inverse + block.at(p) * kRuleChunk * kRuleChunk, kRuleChunk, kRuleChunk);
  request_slice(call, block, slice, 0);
  read_head_gates(p, block, shared.sums, shared.beta);

  // Sum over the value channels, slice by slice.
  ChunkSums<kKeys> sum;
  float reader[kDelta ? kTiles : 1][4] = {}, lower[kDelta ? kPairTiles : 1][4] = {};  // grad_r Sᵀ, grad_r uᵀ
  float decay_grad[2] = {}, beta_grad[2] = {};                                        // for the thread's two rows
  float state_grad_dot = 0;                                                           // Σ S ⊙ grad_S after the chunk, the thread's part
  for (int number = 0; number * kOutputSlice < p.value_dim; ++number) {
    if (number > 0) request_slice(call, block, slice, number);
    copy_async_wait<0>();
    __syncthreads();  // the slice has arrived, and at first the gates, q and k
    add_slice(sum, slice, warp);
    for (int at = thread; at < kKeys * kOutputSlice / 8; at += kBackThreads) {
      const int offset = (at / 8 * kScorePitch + at % 8 * 8) * 2;
      state_grad_dot += state_product(slice.state.address() + offset, slice.grad_state.address() + offset);
    }
    if constexpr (kDelta) {
      // grad_r = inverseᵀ grad_u; from it the gradient of v and a part of beta's.
      float r[kPairTiles][4] = {};
      add_transposed(r, shared.inverse, warp.line, slice.grad_u, 32 * warp.half, warp.line, kRuleChunk);
      const float beta[2] = {shared.beta[warp.row], shared.beta[warp.row + 8]};
#pragma unroll
      for (int n = 0; n < kPairTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = warp.row + 8 * i, column = 32 * warp.half + 8 * n + warp.column;
          const float left = r[n][2 * i], right = r[n][2 * i + 1];
          uint32_t& v = slice.v.pair(row, column);
          beta_grad[i] += left * low_float(v) + right * high_float(v);
          v = pack_bf16(beta[i] * left, beta[i] * right);  // grad_v
          slice.grad_r.pair(row, column) = pack_bf16(left, right);
        }
      }
      __syncthreads();  // grad_r and the gradient of v are complete
      add_by_n(reader, slice.grad_r, warp.line, slice.state, first_key, kOutputSlice);
      add_by_n(lower, slice.grad_r, warp.line, slice.u, 32 * warp.half, kOutputSlice);
      store_lines<kOutputSlice, kRuleChunk, kBackThreads>(
          static_cast<bf16*>(call.params.grad_v) + block.line(p) * p.value_dim + number * kOutputSlice,
          static_cast<int64_t>(p.heads) * p.value_dim, slice.v.address(), kScorePitch, 0, tokens, thread);
    }
    __syncthreads();  // all warps have read the slice, whose memory is overwritten next
  }
  state_grad_dot *= exp2_approx(shared.sums[kRuleChunk - 1]);

  // Store the gradients of the products of tokens as tiles.
#pragma unroll
  for (int n = 0; n < kPairTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp.row + 8 * i, column = 32 * warp.half + 8 * n + warp.column;
      float score[2], below[2] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float decayed = column + j <= row ? exp2_approx(shared.sums[row] - shared.sums[column + j]) : 0.0F;
        score[j] = column + j <= row ? sum.scores[n][2 * i + j] * decayed * p.scale : 0.0F;
        if constexpr (kDelta) below[j] = column + j < row ? lower[n][2 * i + j] * decayed : 0.0F;
      }
      shared.pairs.scores.pair(row, column) = pack_bf16(score[0], score[1]);
      if constexpr (kDelta) {
        const float beta = shared.beta[row];
        shared.pairs.lower.pair(row, column) = pack_bf16(below[0], below[1]);
        shared.pairs.lower_beta.pair(row, column) = pack_bf16(beta * below[0], beta * below[1]);
      }
    }
  }
  __syncthreads();  // the tiles are complete

  // Complete the gradients of q and k in `sum`: decay the parts that come from the states, and add those between the chunk's tokens.
  const float to_end[2] = {exp2_approx(shared.sums[kRuleChunk - 1] - shared.sums[warp.row]),
                           exp2_approx(shared.sums[kRuleChunk - 1] - shared.sums[warp.row + 8])};
  const float since[2] = {exp2_approx(shared.sums[warp.row]), exp2_approx(shared.sums[warp.row + 8])};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t k = shared.k.pair(warp.row + 8 * i, first_key + 8 * n + warp.column);
      float *const dq = &sum.q[n][2 * i], *const dk = &sum.k[n][2 * i];
      dq[0] *= p.scale * since[i], dq[1] *= p.scale * since[i];
      dk[0] *= to_end[i], dk[1] *= to_end[i];
      state_grad_dot += low_float(k) * dk[0] + high_float(k) * dk[1];
      if constexpr (kDelta) reader[n][2 * i] *= since[i], reader[n][2 * i + 1] *= since[i];
    }
  }
  add_by_k(sum.q, shared.pairs.scores, warp.line, shared.k, first_key, warp.line + 16);
  add_transposed(sum.k, shared.pairs.scores, warp.line, shared.q, first_key, warp.line, kRuleChunk);
  if constexpr (kDelta) {
    add_by_k(reader, shared.pairs.lower, warp.line, shared.k, first_key, warp.line + 16);
    add_transposed<true>(sum.k, shared.pairs.lower_beta, warp.line, shared.k, first_key, warp.line, kRuleChunk);
  }

  // The gradient of the sum of log decays up to a token is, for each channel, that of the token's reads minus that of its write:
  // q grad_q + k (grad_k of reading the state − grad_k of writing it).
  const float beta[2] = {shared.beta[warp.row], shared.beta[warp.row + 8]};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp.row + 8 * i, column = first_key + 8 * n + warp.column;
      const uint32_t q = shared.q.pair(row, column), k = shared.k.pair(row, column);
      const float x[2] = {low_float(k), high_float(k)}, y[2] = {low_float(q), high_float(q)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& dk = sum.k[n][2 * i + j];
        float read = 0;
        if constexpr (kDelta) beta_grad[i] -= x[j] * reader[n][2 * i + j], read = -beta[i] * reader[n][2 * i + j];
        decay_grad[i] += y[j] * sum.q[n][2 * i + j] + x[j] * (read - dk);
        dk += read;
      }
    }
  }

  // Reduce the sums over channels within the warp and store them to shared memory.
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      decay_grad[i] += __shfl_xor_sync(~0U, decay_grad[i], distance);
      beta_grad[i] += __shfl_xor_sync(~0U, beta_grad[i], distance);
    }
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) state_grad_dot += __shfl_xor_sync(~0U, state_grad_dot, distance);
  if (warp.lane % 4 == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      shared.decay_grad[warp.half][warp.row + 8 * i] = decay_grad[i];
      shared.beta_grad[warp.half][warp.row + 8 * i] = beta_grad[i];
    }
  }
  if (warp.lane == 0) shared.state_grad_dot[thread / 32] = state_grad_dot;
  __syncthreads();  // all warps have read q and k, which their gradients overwrite

  store_sums(reinterpret_cast<char*>(&shared.q.lines[0][first_key]), shared.q.kPitch, warp.line, sum.q);
  store_sums(reinterpret_cast<char*>(&shared.k.lines[0][first_key]), shared.k.kPitch, warp.line, sum.k);
  __syncthreads();  // the gradients are complete

  const int64_t line = block.line(p) * kKeys, stride = static_cast<int64_t>(p.heads) * kKeys;
  store_lines<kKeys, kRuleChunk, kBackThreads>(static_cast<bf16*>(call.params.grad_q) + line, stride, shared.q.address(), shared.q.kPitch,
                                               0, tokens, thread);
  store_lines<kKeys, kRuleChunk, kBackThreads>(static_cast<bf16*>(call.params.grad_k) + line, stride, shared.k.address(), shared.k.kPitch,
                                               0, tokens, thread);
  // Write the gradients of the decays and betas. The gradient of a token's log decay is the sum over the tokens from it on, plus the part
  // of the state after the chunk.
  const int t = thread % kRuleChunk;
  if (t >= tokens) return;
  const int64_t gate = block.line(p) + static_cast<int64_t>(t) * p.heads;
  if (thread < kRuleChunk && call.params.grad_log_decay != nullptr) {
    float sum_after = 0;
    for (int i = 0; i < kBackWarps; ++i) sum_after += shared.state_grad_dot[i];
    for (int later = kRuleChunk - 1; later >= t; --later) sum_after += shared.decay_grad[0][later] + shared.decay_grad[1][later];
    call.params.grad_log_decay[gate] = sum_after;
  } else if (thread / kRuleChunk == 1 && call.params.grad_beta != nullptr) {
    call.params.grad_beta[gate] = shared.beta_grad[0][t] + shared.beta_grad[1][t];
  }
}

template <int kKeys, bool kDelta>
Status launch_gradients(const ChunkedBackward& p, Queue queue) {
  constexpr int kBytes = sizeof(SharedStorage<kKeys, kDelta>);
  if (const cudaError_t e = allow_shared_memory(gradients<kKeys, kDelta>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.forward.params.tokens, p.forward.params.rows) * p.forward.params.heads;
  return launch_overlapped(gradients<kKeys, kDelta>, {static_cast<unsigned>(blocks), kBackThreads, kBytes}, queue, p);
}

template <int kKeys>
constexpr int shared_of(bool delta) {
  return static_cast<int>(delta ? sizeof(SharedStorage<kKeys, true>) : sizeof(SharedStorage<kKeys, false>));
}

}  // namespace

int backward_heads_shared(const GatedDeltaRule& p) { return p.key_dim == 64 ? shared_of<64>(p.delta) : shared_of<128>(p.delta); }

Status gated_delta_rule_backward_heads(const ChunkedBackward& p, Queue queue) {
  const bool delta = p.forward.params.delta;
  if (p.forward.params.key_dim == 64) return delta ? launch_gradients<64, true>(p, queue) : launch_gradients<64, false>(p, queue);
  return delta ? launch_gradients<128, true>(p, queue) : launch_gradients<128, false>(p, queue);
}

}  // namespace based::kernels::cuda::detail
