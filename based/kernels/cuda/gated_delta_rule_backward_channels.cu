// Gradients of what is inside of a chunk, where each channel of the keys decays by itself; without correction.
// docs/kernels/gated-delta-rule.md
#include <algorithm>

#include "based/kernels/cuda/gated_delta_rule_backward.cuh"
#include "based/kernels/cuda/gated_delta_rule_channels.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda::detail {
namespace {

// Places in shared memory, in bytes. Once the value channels are through, the gradients of q and of k lie in fp32 where a slice was.
template <int kKeys>
struct Places {
  static constexpr int kPitch = kKeys + 8, kFloatBytes = kRuleChunk * kPitch * 4;
  static constexpr int kQ = 0, kK = kRuleChunk * kPitch * 2, kScores = 2 * kK, kSums = kScores + kRuleChunk * kScorePitch * 2,
                       kDecays = kSums + kFloatBytes, kHeld = kDecays + kFloatBytes, kWritten = kHeld + kBackThreads * 4,
                       kSlice = kWritten + kBlocks * kKeys * 4, kGradQ = kSlice, kGradK = kSlice + kFloatBytes,
                       kEnd = kSlice + std::max(SlicePlaces<kKeys, false>::kEnd, 2 * kFloatBytes);
};

template <int kKeys>
struct ChunkGradients : ChannelTile<Places<kKeys>> {
  using At = Places<kKeys>;
  using Slice = SlicePlaces<kKeys, false>;
  using Tile = ChannelTile<At>;
  using Tile::shared, Tile::sums, Tile::floats;
  static constexpr int kTiles = ChunkSums<kKeys>::kTiles, kParts = kBackThreads / kKeys;  // threads of a channel
  const RuleBackward& from;
  const GatedDeltaRule& p;
  const ChunkBlock& block;
  const BackWarp warp;
  const uint32_t base = shared_address(shared);
  const int channel = static_cast<int>(threadIdx.x) % kKeys, part = static_cast<int>(threadIdx.x) / kKeys;
  ChunkSums<kKeys> sum;
  float held = 0;  // Σ S ⊙ grad_S over the thread's channel, a part of it

  __device__ __forceinline__ ChunkGradients(const RuleBackward& of, const ChunkBlock& at)
      : Tile{dynamic_shared()}, from(of), p(of.call.of), block(at) {}

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
    request_tile<kKeys, kBackThreads>(base + At::kQ, static_cast<const bf16*>(p.q) + line, stride, block.place.tokens);
    request_tile<kKeys, kBackThreads>(base + At::kK, static_cast<const bf16*>(p.k) + line, stride, block.place.tokens);
  }
  __device__ __forceinline__ void take_slice() {
    add_slice<kKeys, false>(sum, base + At::kSlice, warp);
    constexpr int kOfThread = kOutputSlice / kParts;
    const uint32_t place = base + At::kSlice + (channel * kScorePitch + part * kOfThread) * 2;
#pragma unroll
    for (int c = 0; c < kOfThread; c += 8) held += product_of_states(place + Slice::kState + c * 2, place + Slice::kGradState + c * 2);
  }

  // visit(sum of q, sum of k, row, channel) for the pairs of neighbours that the thread has.
  template <class Visit>
  __device__ __forceinline__ void each(Visit&& visit) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) visit(&sum.q[n][2 * i], &sum.k[n][2 * i], warp.row + 8 * i, first_channel() + 8 * n + warp.column);
    }
  }
  __device__ __forceinline__ int first_channel() const { return warp.half * kKeys / 2; }

  // Gradients of the products of tokens as a tile, the sums decayed, and Σ k grad_k over a block's tokens as far as it is by the state.
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
    each([&](float* of_q, float* of_k, int row, int c) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float upto = sums(row)[c + j];
        of_q[j] *= p.scale * exp2_approx(upto), of_k[j] *= exp2_approx(sums(kRuleChunk - 1)[c + j] - upto);
      }
    });
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int c = first_channel() + 8 * n + warp.column + j;
        float written = key(warp.row, c) * sum.k[n][j] + key(warp.row + 8, c) * sum.k[n][2 + j];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) written += __shfl_xor_sync(~0U, written, distance);
        if (warp.lane < 4) floats(At::kWritten)[warp.block * kKeys + c] = written;
      }
    }
  }

  // What blocks of 16 tokens give each other, by way of where the later one begins: no exponent is above 0.
  __device__ __forceinline__ void add_blocks() {
    const uint32_t scores = base + At::kScores;
    const int t = warp.column, c = first_channel() + warp.lane / 4;
    uint32_t a[4];
    float part_of[kTiles][4] = {};
    for (int other = 0; other < warp.line; other += kBlock) {
      load_a_by_m(a, scores, kScorePitch, warp.line, other);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const auto at = [&](int token) {
          return key(other + token, c + 8 * n) * exp2_approx(sums(warp.line - 1)[c + 8 * n] - sums(other + token)[c + 8 * n]);
        };
        mma_16x8x16(part_of[n], a, pack_bf16(at(t), at(t + 1)), pack_bf16(at(t + 8), at(t + 9)));
      }
    }
    if (warp.line > 0) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = first_channel() + 8 * n + warp.column + i % 2;
          sum.q[n][i] += part_of[n][i] * exp2_approx(sums(warp.row + i / 2 * 8)[column] - sums(warp.line - 1)[column]);
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
        float part_of_block[4] = {};
        mma_16x8x16(part_of_block, a, pack_bf16(at(t), at(t + 1)), pack_bf16(at(t + 8), at(t + 9)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = first_channel() + 8 * n + warp.column + i % 2;
          sum.k[n][i] += part_of_block[i] * exp2_approx(sums(other - 1)[column] - sums(warp.row + i / 2 * 8)[column]);
        }
      }
    }
  }

  // Inside of a block, a thread a channel. Then both gradients are whole, and what a decay's sum up to a token gets of it, q grad_q − k
  // grad_k, takes the place of the token's decay.
  __device__ __forceinline__ void add_inside(int first) {
    float q[kBlock], k[kBlock], decay[kBlock], of_q[kBlock], of_k[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      q[i] = query(first + i, channel), k[i] = key(first + i, channel), decay[i] = decays(first + i)[channel];
      of_q[i] = grad_q(first + i)[channel], of_k[i] = grad_k(first + i)[channel];
    }
#pragma unroll
    for (int j = 0; j < kBlock; ++j) {
      float left = 1;  // of token j
#pragma unroll
      for (int i = j; i < kBlock; ++i) {
        if (i > j) left *= decay[i];
        const float score = to_float(reinterpret_cast<const bf16*>(shared + At::kScores)[(first + i) * kScorePitch + first + j]) * left;
        of_q[i] = fmaf(score, k[j], of_q[i]), of_k[j] = fmaf(score, q[i], of_k[j]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      grad_q(first + i)[channel] = of_q[i], grad_k(first + i)[channel] = of_k[i];
      decays(first + i)[channel] = q[i] * of_q[i] - k[i] * of_k[i];
    }
  }

  // A decay counts for all tokens from its own on, and for the state after the chunk.
  __device__ __forceinline__ void write_decays() const {
    if (from.of.grad_log_decay == nullptr || part > 0) return;
    float all = 0;
    for (int i = 0; i < kParts; ++i) all += floats(At::kHeld)[i * kKeys + channel];
    all *= exp2_approx(sums(kRuleChunk - 1)[channel]);
    for (int i = 0; i < kBlocks; ++i) all += floats(At::kWritten)[i * kKeys + channel];
    for (int t = kRuleChunk - 1; t >= 0; --t) {
      all += decays(t)[channel];
      if (t < block.place.tokens) from.of.grad_log_decay[(block.line(p) + static_cast<int64_t>(t) * p.heads) * kKeys + channel] = all;
    }
  }
  __device__ __forceinline__ void write_keys() const {
    constexpr int kPieces = kKeys / 8;
    for (int at = static_cast<int>(threadIdx.x); at < block.place.tokens * kPieces; at += kBackThreads) {
      const int row = at / kPieces, c = at % kPieces * 8;
      const int64_t line = (block.line(p) + static_cast<int64_t>(row) * p.heads) * kKeys + c;
      float x[8];
      load_floats<8>(grad_q(row) + c, x);
      store_floats<8>(static_cast<bf16*>(from.of.grad_q) + line, x);
      load_floats<8>(grad_k(row) + c, x);
      store_floats<8>(static_cast<bf16*>(from.of.grad_k) + line, x);
    }
  }
};

template <int kKeys>
__global__ void __launch_bounds__(kBackThreads) gradients(const __grid_constant__ RuleBackward from) {
  using At = Places<kKeys>;
  overlap_kernels();
  const GatedDeltaRule& p = from.call.of;
  const ChunkBlock block(p, blockIdx.x);
  if (block.place.tokens == 0) return;
  ChunkGradients<kKeys> chunk(from, block);
  chunk.request_chunk();
  request_slice<kKeys, false>(from, block, chunk.base + At::kSlice, 0);
  read_channel_decays<kKeys, kBackThreads>(p, block, chunk, chunk.floats(At::kHeld),
                                           [&](int token, int c, float log2_decay) { chunk.decays(token)[c] = exp2_approx(log2_decay); });
  for (int slice = 0; slice * kOutputSlice < p.value_dim; ++slice) {
    if (slice > 0) request_slice<kKeys, false>(from, block, chunk.base + At::kSlice, slice);
    copy_async_wait<0>();
    __syncthreads();
    chunk.take_slice();
    __syncthreads();
  }
  chunk.floats(At::kHeld)[threadIdx.x] = chunk.held;
  chunk.decay_sums();
  __syncthreads();
  chunk.add_blocks();
  chunk.each([&](const float* of_q, const float* of_k, int row, int c) {
    *reinterpret_cast<float2*>(chunk.grad_q(row) + c) = {of_q[0], of_q[1]};
    *reinterpret_cast<float2*>(chunk.grad_k(row) + c) = {of_k[0], of_k[1]};
  });
  __syncthreads();
  for (int at = chunk.part; at < kBlocks; at += ChunkGradients<kKeys>::kParts) chunk.add_inside(at * kBlock);
  __syncthreads();
  chunk.write_decays();
  chunk.write_keys();
}

template <int kKeys>
Status launch_gradients(const RuleBackward& p, Stream stream) {
  constexpr int kBytes = Places<kKeys>::kEnd;
  if (const cudaError_t e = allow_shared_memory(gradients<kKeys>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.call.of.tokens, p.call.of.rows) * p.call.of.heads;
  return launch_overlapped(gradients<kKeys>, {static_cast<unsigned>(blocks), kBackThreads, kBytes}, stream, p);
}

}  // namespace

Status gated_delta_rule_backward_channels(const RuleBackward& p, Stream stream) {
  return p.call.of.key_dim == 64 ? launch_gradients<64>(p, stream) : launch_gradients<128>(p, stream);
}

}  // namespace based::kernels::cuda::detail
