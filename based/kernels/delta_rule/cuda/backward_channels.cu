// Gradients within a chunk, without `delta`, where each key channel has a decay of its own. docs/kernels/gated-delta-rule.md
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/backward.cuh"
#include "based/kernels/delta_rule/cuda/channels.cuh"

namespace based::kernels::cuda::detail {
namespace {

// The gradients of q and k.
template <int kKeys>
struct KeyGradients {
  float q[kRuleChunk][kKeys + 8], k[kRuleChunk][kKeys + 8];
};
template <int kKeys>
struct SharedStorage {
  SharedTile<kRuleChunk, kKeys> q, k;
  ChunkTile scores;                         // gradients of the products q·k of tokens
  float decay_sums[kRuleChunk][kKeys + 8];  // sums of log2 decays up to each token
  float decays[kRuleChunk][kKeys + 8];      // overwritten by the gradients of these sums
  float state_grad_dots[kBackThreads];      // Σ S ⊙ grad_S, each thread's part
  float key_grad_dots[kBlocks][kKeys];      // Σ k grad_k over a block's tokens for the part of grad_k that comes from the state
  union {
    SliceStorage<kKeys, false> slice;
    KeyGradients<kKeys> grads;  // after the last slice
  };

  // A token's sums. decay_sums[token], with a 64-bit index, needs 34 more registers for 128 keys.
  __device__ __forceinline__ float* sums(int token) { return &decay_sums[0][0] + token * (kKeys + 8); }
  __device__ __forceinline__ float query(int token, int c) const { return to_float(q.lines[token][c]); }
  __device__ __forceinline__ float key(int token, int c) const { return to_float(k.lines[token][c]); }
};

// Computes the gradients of a block's chunk.
template <int kKeys>
__global__ void __launch_bounds__(kBackThreads) gradients(const __grid_constant__ ChunkedBackward call) {
  overlap_kernels();
  constexpr int kTiles = ChunkSums<kKeys>::kTiles, kParts = kBackThreads / kKeys;  // kParts: threads of a channel
  const GatedDeltaRule& p = call.forward.params;
  const ChunkBlock block(p, blockIdx.x);
  if (block.range.tokens == 0) return;
  auto& shared = *reinterpret_cast<SharedStorage<kKeys>*>(dynamic_shared());
  auto& slice = shared.slice;
  const BackWarp warp;
  const int thread = static_cast<int>(threadIdx.x), channel = thread % kKeys, part = thread / kKeys, first_key = warp.half * kKeys / 2;

  const int64_t key_stride = static_cast<int64_t>(p.key_heads) * kKeys, key_line = block.key_line(p) * kKeys;
  shared.q.request(static_cast<const bf16*>(p.q) + key_line, key_stride, block.range.tokens);
  shared.k.request(static_cast<const bf16*>(p.k) + key_line, key_stride, block.range.tokens);
  request_slice(call, block, slice, 0);
  read_channel_decays<kKeys, kBackThreads>(p, block, shared, shared.state_grad_dots,
                                           [&](int token, int c, float log2_decay) { shared.decays[token][c] = exp2_approx(log2_decay); });

  // Sum over the value channels, slice by slice.
  ChunkSums<kKeys> sum;
  float state_grad_dot = 0;  // Σ S ⊙ grad_S over the thread's part of its channel
  for (int number = 0; number * kOutputSlice < p.value_dim; ++number) {
    if (number > 0) request_slice(call, block, slice, number);
    copy_async_wait<0>();
    __syncthreads();  // the slice has arrived, and at first the decays, q and k
    add_slice(sum, slice, warp);
    constexpr int kChannelsPerThread = kOutputSlice / kParts;
    const uint32_t offset = (channel * kScorePitch + part * kChannelsPerThread) * 2;
#pragma unroll
    for (int c = 0; c < kChannelsPerThread; c += 8)
      state_grad_dot += state_product(slice.state.address() + offset + c * 2, slice.grad_state.address() + offset + c * 2);
    __syncthreads();  // all warps have read the slice, whose memory is overwritten next
  }
  shared.state_grad_dots[thread] = state_grad_dot;

  // Store the gradients of the products q·k of tokens as a tile.
#pragma unroll
  for (int n = 0; n < kPairTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp.row + 8 * i, column = 32 * warp.half + 8 * n + warp.column;
      shared.scores.pair(row, column) =
          pack_bf16(column <= row ? sum.scores[n][2 * i] * p.scale : 0.0F, column < row ? sum.scores[n][2 * i + 1] * p.scale : 0.0F);
    }
  }
  // Apply the decays to the gradients that come from the states.
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int c = first_key + 8 * n + warp.column + j;
        const float upto = shared.sums(warp.row + 8 * i)[c], remaining = shared.sums(kRuleChunk - 1)[c] - upto;
        sum.q[n][2 * i + j] *= p.scale * exp2_approx(upto), sum.k[n][2 * i + j] *= exp2_approx(remaining);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int c = first_key + 8 * n + warp.column + j;
      float key_grad_dot = shared.key(warp.row, c) * sum.k[n][j] + shared.key(warp.row + 8, c) * sum.k[n][2 + j];
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) key_grad_dot += __shfl_xor_sync(~0U, key_grad_dot, distance);
      if (warp.lane < 4) shared.key_grad_dots[warp.block][c] = key_grad_dot;
    }
  }
  __syncthreads();  // `scores` is complete

  // Add the gradients between different blocks of 16 tokens. The decay is split at the beginning of the later block, so that no exponent is
  // positive.
  const int t = warp.column, c = first_key + warp.lane / 4;
  uint32_t a[4];
  float partial_dq[kTiles][4] = {};
  for (int other = 0; other < warp.line; other += kBlock) {
    load_a_by_m(a, shared.scores.address(), kScorePitch, warp.line, other);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const auto at = [&](int token) {
        return shared.key(other + token, c + 8 * n) *
               exp2_approx(shared.sums(warp.line - 1)[c + 8 * n] - shared.sums(other + token)[c + 8 * n]);
      };
      mma_16x8x16(partial_dq[n], a, pack_bf16(at(t), at(t + 1)), pack_bf16(at(t + 8), at(t + 9)));
    }
  }
  if (warp.line > 0) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = first_key + 8 * n + warp.column + i % 2;
        sum.q[n][i] += partial_dq[n][i] * exp2_approx(shared.sums(warp.row + i / 2 * 8)[column] - shared.sums(warp.line - 1)[column]);
      }
    }
  }
  for (int other = warp.line + kBlock; other < kRuleChunk; other += kBlock) {
    load_a_by_k(a, shared.scores.address(), kScorePitch, warp.line, other);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const auto at = [&](int token) {
        return shared.query(other + token, c + 8 * n) *
               exp2_approx(shared.sums(other + token)[c + 8 * n] - shared.sums(other - 1)[c + 8 * n]);
      };
      float partial_dk[4] = {};
      mma_16x8x16(partial_dk, a, pack_bf16(at(t), at(t + 1)), pack_bf16(at(t + 8), at(t + 9)));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = first_key + 8 * n + warp.column + i % 2;
        sum.k[n][i] += partial_dk[i] * exp2_approx(shared.sums(other - 1)[column] - shared.sums(warp.row + i / 2 * 8)[column]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp.row + 8 * i, column = first_key + 8 * n + warp.column;
      *reinterpret_cast<float2*>(&shared.grads.q[row][column]) = {sum.q[n][2 * i], sum.q[n][2 * i + 1]};
      *reinterpret_cast<float2*>(&shared.grads.k[row][column]) = {sum.k[n][2 * i], sum.k[n][2 * i + 1]};
    }
  }
  __syncthreads();  // the gradients are in shared memory, where a thread continues with a whole channel

  // Add the gradients between the tokens of a block; a thread handles a channel. After that both gradients are complete. The gradient of
  // the sum of log decays up to a token, q grad_q − k grad_k, then overwrites the token's decay.
  for (int at = part; at < kBlocks; at += kParts) {
    const int first = at * kBlock;
    float q[kBlock], k[kBlock], decay[kBlock], dq[kBlock], dk[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      q[i] = shared.query(first + i, channel), k[i] = shared.key(first + i, channel), decay[i] = shared.decays[first + i][channel];
      dq[i] = shared.grads.q[first + i][channel], dk[i] = shared.grads.k[first + i][channel];
    }
#pragma unroll
    for (int j = 0; j < kBlock; ++j) {
      float remaining_decay = 1;  // from token j to token i
#pragma unroll
      for (int i = j; i < kBlock; ++i) {
        if (i > j) remaining_decay *= decay[i];
        const float score = to_float(shared.scores.lines[first + i][first + j]) * remaining_decay;
        dq[i] = fmaf(score, k[j], dq[i]), dk[j] = fmaf(score, q[i], dk[j]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      shared.grads.q[first + i][channel] = dq[i], shared.grads.k[first + i][channel] = dk[i];
      shared.decays[first + i][channel] = q[i] * dq[i] - k[i] * dk[i];
    }
  }
  __syncthreads();  // all gradients are complete

  // The gradient of a token's log decay is the sum over the tokens from it on, plus the part of the state after the chunk.
  if (call.params.grad_log_decay != nullptr && part == 0) {
    float sum_after = 0;
    for (int i = 0; i < kParts; ++i) sum_after += shared.state_grad_dots[i * kKeys + channel];
    sum_after *= exp2_approx(shared.sums(kRuleChunk - 1)[channel]);
    for (int i = 0; i < kBlocks; ++i) sum_after += shared.key_grad_dots[i][channel];
    for (int token = kRuleChunk - 1; token >= 0; --token) {
      sum_after += shared.decays[token][channel];
      if (token < block.range.tokens)
        call.params.grad_log_decay[(block.line(p) + static_cast<int64_t>(token) * p.heads) * kKeys + channel] = sum_after;
    }
  }
  constexpr int kPieces = kKeys / 8;
#pragma unroll 1
  for (int at = thread; at < block.range.tokens * kPieces; at += kBackThreads) {
    const int row = at / kPieces, column = at % kPieces * 8;
    const int64_t line = (block.line(p) + static_cast<int64_t>(row) * p.heads) * kKeys + column;
    float x[8];
    load_floats<8>(&shared.grads.q[row][column], x);
    store_floats<8>(static_cast<bf16*>(call.params.grad_q) + line, x);
    load_floats<8>(&shared.grads.k[row][column], x);
    store_floats<8>(static_cast<bf16*>(call.params.grad_k) + line, x);
  }
}

template <int kKeys>
Status launch_gradients(const ChunkedBackward& p, Queue queue) {
  constexpr int kBytes = sizeof(SharedStorage<kKeys>);
  if (const cudaError_t e = allow_shared_memory(gradients<kKeys>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.forward.params.tokens, p.forward.params.rows) * p.forward.params.heads;
  return launch_overlapped(gradients<kKeys>, {static_cast<unsigned>(blocks), kBackThreads, kBytes}, queue, p);
}

}  // namespace

int backward_channels_shared(const GatedDeltaRule& p) {
  return static_cast<int>(p.key_dim == 64 ? sizeof(SharedStorage<64>) : sizeof(SharedStorage<128>));
}

Status gated_delta_rule_backward_channels(const ChunkedBackward& p, Queue queue) {
  return p.forward.params.key_dim == 64 ? launch_gradients<64>(p, queue) : launch_gradients<128>(p, queue);
}

}  // namespace based::kernels::cuda::detail
