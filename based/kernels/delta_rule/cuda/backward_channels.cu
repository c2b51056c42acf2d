// Gradients within a chunk, without `delta`, where each key channel has a decay of its own. docs/kernels/gated-delta-rule.md
#include <algorithm>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/backward.cuh"
#include "based/kernels/delta_rule/cuda/channels.cuh"

namespace based::kernels::cuda::detail {
namespace {

// Byte offsets in shared memory. After the last slice of value channels, the fp32 gradients of q and k overwrite the slice's memory.
template <int kKeys>
struct Offsets {
  static constexpr int kPitch = kKeys + 8, kFloatBytes = kRuleChunk * kPitch * 4;
  static constexpr int kQ = 0, kK = kRuleChunk * kPitch * 2, kScores = 2 * kK, kSums = kScores + kRuleChunk * kScorePitch * 2,
                       kDecays = kSums + kFloatBytes, kStateGradDots = kDecays + kFloatBytes,
                       kKeyGradDots = kStateGradDots + kBackThreads * 4, kSlice = kKeyGradDots + kBlocks * kKeys * 4, kGradQ = kSlice,
                       kGradK = kSlice + kFloatBytes, kEnd = kSlice + std::max(SliceOffsets<kKeys, false>::kEnd, 2 * kFloatBytes);
};

template <int kKeys>
struct ChunkGradients : ChannelTile<Offsets<kKeys>> {
  using At = Offsets<kKeys>;
  using Slice = SliceOffsets<kKeys, false>;
  using Tile = ChannelTile<At>;
  using Tile::shared, Tile::sums, Tile::floats;
  static constexpr int kTiles = ChunkSums<kKeys>::kTiles, kParts = kBackThreads / kKeys;  // kParts: threads of a channel
  const ChunkedBackward& call;
  const GatedDeltaRule& p;
  const ChunkBlock& block;
  const BackWarp warp;
  const uint32_t base = shared_address(shared);
  const int channel = static_cast<int>(threadIdx.x) % kKeys, part = static_cast<int>(threadIdx.x) / kKeys;
  ChunkSums<kKeys> sum;
  float state_grad_dot = 0;  // Σ S ⊙ grad_S over the thread's part of its channel

  __device__ __forceinline__ ChunkGradients(const ChunkedBackward& c, const ChunkBlock& at)
      : Tile{dynamic_shared()}, call(c), p(c.forward.params), block(at) {}

  __device__ __forceinline__ float query(int token, int c) const { return element(At::kQ, token, c); }
  __device__ __forceinline__ float key(int token, int c) const { return element(At::kK, token, c); }
  __device__ __forceinline__ float element(int tile, int token, int c) const {
    return to_float(reinterpret_cast<const bf16*>(shared + tile)[token * At::kPitch + c]);
  }
  __device__ __forceinline__ float* decays(int token) const { return floats(At::kDecays) + token * At::kPitch; }
  __device__ __forceinline__ float* grad_q(int token) const { return floats(At::kGradQ) + token * At::kPitch; }
  __device__ __forceinline__ float* grad_k(int token) const { return floats(At::kGradK) + token * At::kPitch; }

  __device__ __forceinline__ void request_chunk() const {
    const int64_t stride = static_cast<int64_t>(p.key_heads) * kKeys, line = block.key_line(p) * kKeys;
    request_tile<kKeys, kBackThreads>(base + At::kQ, static_cast<const bf16*>(p.q) + line, stride, block.range.tokens);
    request_tile<kKeys, kBackThreads>(base + At::kK, static_cast<const bf16*>(p.k) + line, stride, block.range.tokens);
  }
  __device__ __forceinline__ void add_slice_sums() {
    add_slice<kKeys, false>(sum, base + At::kSlice, warp);
    constexpr int kChannelsPerThread = kOutputSlice / kParts;
    const uint32_t address = base + At::kSlice + (channel * kScorePitch + part * kChannelsPerThread) * 2;
#pragma unroll
    for (int c = 0; c < kChannelsPerThread; c += 8)
      state_grad_dot += state_product(address + Slice::kState + c * 2, address + Slice::kGradState + c * 2);
  }

  // Calls visit(sum of q, sum of k, row, channel) for each pair of neighbouring channels of the thread.
  template <class Visit>
  __device__ __forceinline__ void each(Visit&& visit) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) visit(&sum.q[n][2 * i], &sum.k[n][2 * i], warp.row + 8 * i, first_channel() + 8 * n + warp.column);
    }
  }
  __device__ __forceinline__ int first_channel() const { return warp.half * kKeys / 2; }

  // Stores the gradients of the products q·k of tokens as a tile, applies the decays to the sums of q and k, and computes Σ k grad_k over a
  // block's tokens for the part of grad_k that comes from the state.
  __device__ __forceinline__ void decay_sums() {
#pragma unroll
    for (int n = 0; n < kPairTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp.row + 8 * i, column = 32 * warp.half + 8 * n + warp.column;
        *pair_of(shared + At::kScores, kScorePitch, row, column) =
            pack_bf16(column <= row ? sum.scores[n][2 * i] * p.scale : 0.0F, column < row ? sum.scores[n][2 * i + 1] * p.scale : 0.0F);
      }
    }
    each([&](float* dq, float* dk, int row, int c) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float upto = sums(row)[c + j];
        dq[j] *= p.scale * exp2_approx(upto), dk[j] *= exp2_approx(sums(kRuleChunk - 1)[c + j] - upto);
      }
    });
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int c = first_channel() + 8 * n + warp.column + j;
        float key_grad_dot = key(warp.row, c) * sum.k[n][j] + key(warp.row + 8, c) * sum.k[n][2 + j];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) key_grad_dot += __shfl_xor_sync(~0U, key_grad_dot, distance);
        if (warp.lane < 4) floats(At::kKeyGradDots)[warp.block * kKeys + c] = key_grad_dot;
      }
    }
  }

  // Adds the gradients between different blocks of 16 tokens. The decay is split at the beginning of the later block, so that no exponent
  // is positive.
  __device__ __forceinline__ void add_across_blocks() {
    const uint32_t scores = base + At::kScores;
    const int t = warp.column, c = first_channel() + warp.lane / 4;
    uint32_t a[4];
    float partial_dq[kTiles][4] = {};
    for (int other = 0; other < warp.line; other += kBlock) {
      load_a_by_m(a, scores, kScorePitch, warp.line, other);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const auto at = [&](int token) {
          return key(other + token, c + 8 * n) * exp2_approx(sums(warp.line - 1)[c + 8 * n] - sums(other + token)[c + 8 * n]);
        };
        mma_16x8x16(partial_dq[n], a, pack_bf16(at(t), at(t + 1)), pack_bf16(at(t + 8), at(t + 9)));
      }
    }
    if (warp.line > 0) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = first_channel() + 8 * n + warp.column + i % 2;
          sum.q[n][i] += partial_dq[n][i] * exp2_approx(sums(warp.row + i / 2 * 8)[column] - sums(warp.line - 1)[column]);
        }
      }
    }
    for (int other = warp.line + kBlock; other < kRuleChunk; other += kBlock) {
      load_a_by_k(a, scores, kScorePitch, warp.line, other);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const auto at = [&](int token) {
          return query(other + token, c + 8 * n) * exp2_approx(sums(other + token)[c + 8 * n] - sums(other - 1)[c + 8 * n]);
        };
        float partial_dk[4] = {};
        mma_16x8x16(partial_dk, a, pack_bf16(at(t), at(t + 1)), pack_bf16(at(t + 8), at(t + 9)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = first_channel() + 8 * n + warp.column + i % 2;
          sum.k[n][i] += partial_dk[i] * exp2_approx(sums(other - 1)[column] - sums(warp.row + i / 2 * 8)[column]);
        }
      }
    }
  }

  // Adds the gradients between the tokens of a block; a thread handles a channel. After that both gradients are complete. The gradient of
  // the sum of log decays up to a token, q grad_q − k grad_k, then overwrites the token's decay.
  __device__ __forceinline__ void add_within_block(int first) {
    float q[kBlock], k[kBlock], decay[kBlock], dq[kBlock], dk[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      q[i] = query(first + i, channel), k[i] = key(first + i, channel), decay[i] = decays(first + i)[channel];
      dq[i] = grad_q(first + i)[channel], dk[i] = grad_k(first + i)[channel];
    }
#pragma unroll
    for (int j = 0; j < kBlock; ++j) {
      float remaining_decay = 1;  // from token j to token i
#pragma unroll
      for (int i = j; i < kBlock; ++i) {
        if (i > j) remaining_decay *= decay[i];
        const float score =
            to_float(reinterpret_cast<const bf16*>(shared + At::kScores)[(first + i) * kScorePitch + first + j]) * remaining_decay;
        dq[i] = fmaf(score, k[j], dq[i]), dk[j] = fmaf(score, q[i], dk[j]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      grad_q(first + i)[channel] = dq[i], grad_k(first + i)[channel] = dk[i];
      decays(first + i)[channel] = q[i] * dq[i] - k[i] * dk[i];
    }
  }

  // The gradient of a token's log decay is the sum over the tokens from it on, plus the part of the state after the chunk.
  __device__ __forceinline__ void write_decays() const {
    if (call.params.grad_log_decay == nullptr || part > 0) return;
    float sum_after = 0;
    for (int i = 0; i < kParts; ++i) sum_after += floats(At::kStateGradDots)[i * kKeys + channel];
    sum_after *= exp2_approx(sums(kRuleChunk - 1)[channel]);
    for (int i = 0; i < kBlocks; ++i) sum_after += floats(At::kKeyGradDots)[i * kKeys + channel];
    for (int t = kRuleChunk - 1; t >= 0; --t) {
      sum_after += decays(t)[channel];
      if (t < block.range.tokens)
        call.params.grad_log_decay[(block.line(p) + static_cast<int64_t>(t) * p.heads) * kKeys + channel] = sum_after;
    }
  }
  __device__ __forceinline__ void write_keys() const {
    constexpr int kPieces = kKeys / 8;
    for (int at = static_cast<int>(threadIdx.x); at < block.range.tokens * kPieces; at += kBackThreads) {
      const int row = at / kPieces, c = at % kPieces * 8;
      const int64_t line = (block.line(p) + static_cast<int64_t>(row) * p.heads) * kKeys + c;
      float x[8];
      load_floats<8>(grad_q(row) + c, x);
      store_floats<8>(static_cast<bf16*>(call.params.grad_q) + line, x);
      load_floats<8>(grad_k(row) + c, x);
      store_floats<8>(static_cast<bf16*>(call.params.grad_k) + line, x);
    }
  }
};

template <int kKeys>
__global__ void __launch_bounds__(kBackThreads) gradients(const __grid_constant__ ChunkedBackward call) {
  using At = Offsets<kKeys>;
  overlap_kernels();
  const GatedDeltaRule& p = call.forward.params;
  const ChunkBlock block(p, blockIdx.x);
  if (block.range.tokens == 0) return;
  ChunkGradients<kKeys> chunk(call, block);
  chunk.request_chunk();
  request_slice<kKeys, false>(call, block, chunk.base + At::kSlice, 0);
  read_channel_decays<kKeys, kBackThreads>(p, block, chunk, chunk.floats(At::kStateGradDots),
                                           [&](int token, int c, float log2_decay) { chunk.decays(token)[c] = exp2_approx(log2_decay); });
  for (int slice = 0; slice * kOutputSlice < p.value_dim; ++slice) {
    if (slice > 0) request_slice<kKeys, false>(call, block, chunk.base + At::kSlice, slice);
    copy_async_wait<0>();
    __syncthreads();
    chunk.add_slice_sums();
    __syncthreads();
  }
  chunk.floats(At::kStateGradDots)[threadIdx.x] = chunk.state_grad_dot;
  chunk.decay_sums();
  __syncthreads();
  chunk.add_across_blocks();
  chunk.each([&](const float* dq, const float* dk, int row, int c) {
    *reinterpret_cast<float2*>(chunk.grad_q(row) + c) = {dq[0], dq[1]};
    *reinterpret_cast<float2*>(chunk.grad_k(row) + c) = {dk[0], dk[1]};
  });
  __syncthreads();
  for (int at = chunk.part; at < kBlocks; at += ChunkGradients<kKeys>::kParts) chunk.add_within_block(at * kBlock);
  __syncthreads();
  chunk.write_decays();
  chunk.write_keys();
}

template <int kKeys>
Status launch_gradients(const ChunkedBackward& p, Queue queue) {
  constexpr int kBytes = Offsets<kKeys>::kEnd;
  if (const cudaError_t e = allow_shared_memory(gradients<kKeys>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.forward.params.tokens, p.forward.params.rows) * p.forward.params.heads;
  return launch_overlapped(gradients<kKeys>, {static_cast<unsigned>(blocks), kBackThreads, kBytes}, queue, p);
}

}  // namespace

Status gated_delta_rule_backward_channels(const ChunkedBackward& p, Queue queue) {
  return p.forward.params.key_dim == 64 ? launch_gradients<64>(p, queue) : launch_gradients<128>(p, queue);
}

}  // namespace based::kernels::cuda::detail
