// Gradients within a chunk, where the channels of a head share a decay or there is none. docs/kernels/gated-delta-rule.md
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/backward.cuh"

namespace based::kernels::cuda::detail {
namespace {

// Byte offsets in shared memory. After the last slice of value channels, tiles of 64 x 64 tokens overwrite the slice's memory.
template <int kKeys, bool kDelta>
struct Offsets {
  using Slice = SliceOffsets<kKeys, kDelta>;
  static constexpr int kPitch = kKeys + 8, kFloats = kRuleChunk * 4;
  static constexpr int kSums = 0, kBeta = kFloats, kDecayGrad = 2 * kFloats, kBetaGrad = 4 * kFloats, kStateGradDot = 6 * kFloats,
                       kQ = kStateGradDot + kBackWarps * 4 + 96, kK = kQ + kRuleChunk * kPitch * 2, kInverse = kK + kRuleChunk * kPitch * 2,
                       kSlice = kInverse + (kDelta ? Slice::kTileBytes : 0), kEnd = kSlice + Slice::kEnd;
  static constexpr int kScores = kSlice, kLower = kSlice + Slice::kTileBytes, kLowerBeta = kLower + Slice::kTileBytes;
  static_assert(kQ % 128 == 0 && kLowerBeta + Slice::kTileBytes <= kSlice + Slice::kState + 2 * Slice::kStateBytes);
};

// The gradients of a block's chunk. With r = v − Sᵀk, where S is the decayed state before the chunk, and grad_r the gradient of beta · r:
// `reader` is grad_r Sᵀ and `lower` is grad_r uᵀ.
template <int kKeys, bool kDelta>
struct ChunkGradients {
  using At = Offsets<kKeys, kDelta>;
  using Slice = SliceOffsets<kKeys, kDelta>;
  static constexpr int kTiles = ChunkSums<kKeys>::kTiles;
  const ChunkedBackward& call;
  const GatedDeltaRule& p;
  const ChunkBlock& block;
  const BackWarp warp;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  ChunkSums<kKeys> sum;
  float reader[kDelta ? kTiles : 1][4] = {}, lower[kDelta ? kPairTiles : 1][4] = {};
  float decay_grad[2] = {}, beta_grad[2] = {};  // for the thread's two rows
  float state_grad_dot = 0;                     // Σ S ⊙ grad_S after the chunk, the thread's part

  __device__ __forceinline__ ChunkGradients(const ChunkedBackward& c, const ChunkBlock& at) : call(c), p(c.forward.params), block(at) {}

  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(shared + at); }
  __device__ __forceinline__ float decay(int row) const { return exp2_approx(floats(At::kSums)[row]); }
  __device__ __forceinline__ float decay_to_end(int row) const {
    return exp2_approx(floats(At::kSums)[kRuleChunk - 1] - floats(At::kSums)[row]);
  }

  __device__ __forceinline__ void request_chunk() const {
    const int64_t stride = static_cast<int64_t>(p.key_heads) * kKeys, line = block.key_line(p) * kKeys;
    request_tile<kKeys, kBackThreads>(base + At::kQ, static_cast<const bf16*>(p.q) + line, stride, block.range.tokens);
    request_tile<kKeys, kBackThreads>(base + At::kK, static_cast<const bf16*>(p.k) + line, stride, block.range.tokens);
    if constexpr (kDelta)
      request_tile<kRuleChunk, kBackThreads>(base + At::kInverse, call.forward.inverse + block.at(p) * kRuleChunk * kRuleChunk, kRuleChunk,
                                             kRuleChunk);
  }

  // grad_r = inverseᵀ grad_u of the slice; also computes the gradient of v and a part of beta's.
  __device__ __forceinline__ void compute_grad_r() {
    float r[kPairTiles][4] = {};
    add_transposed<kPairTiles>(r, base + At::kInverse, kScorePitch, warp.line, base + At::kSlice + Slice::kGradU, kScorePitch,
                               32 * warp.half, warp.line, kRuleChunk);
    const float beta[2] = {floats(At::kBeta)[warp.row], floats(At::kBeta)[warp.row + 8]};
#pragma unroll
    for (int n = 0; n < kPairTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp.row + 8 * i, column = 32 * warp.half + 8 * n + warp.column;
        const float left = r[n][2 * i], right = r[n][2 * i + 1];
        uint32_t* const v = pair_of(shared + At::kSlice + Slice::kV, kScorePitch, row, column);
        beta_grad[i] += left * low_float(*v) + right * high_float(*v);
        *v = pack_bf16(beta[i] * left, beta[i] * right);  // grad_v
        *pair_of(shared + At::kSlice + Slice::kGradR, kScorePitch, row, column) = pack_bf16(left, right);
      }
    }
  }

  __device__ __forceinline__ void add_slice_sums(int slice) {
    add_slice<kKeys, kDelta>(sum, base + At::kSlice, warp);
    const uint32_t state = base + At::kSlice + Slice::kState, grad_state = base + At::kSlice + Slice::kGradState;
    for (int at = static_cast<int>(threadIdx.x); at < kKeys * kOutputSlice / 8; at += kBackThreads) {
      const int offset = (at / 8 * kScorePitch + at % 8 * 8) * 2;
      state_grad_dot += state_product(state + offset, grad_state + offset);
    }
    if constexpr (kDelta) {
      compute_grad_r();
      __syncthreads();
      const uint32_t grad_r = base + At::kSlice + Slice::kGradR;
      add_by_n(reader, grad_r, kScorePitch, warp.line, state, kScorePitch, warp.half * kKeys / 2, kOutputSlice);
      add_by_n(lower, grad_r, kScorePitch, warp.line, base + At::kSlice + Slice::kU, kScorePitch, 32 * warp.half, kOutputSlice);
      store_lines<kOutputSlice, kRuleChunk, kBackThreads>(
          static_cast<bf16*>(call.params.grad_v) + block.line(p) * p.value_dim + slice * kOutputSlice,
          static_cast<int64_t>(p.heads) * p.value_dim, base + At::kSlice + Slice::kV, kScorePitch, 0, block.range.tokens,
          static_cast<int>(threadIdx.x));
    }
  }

  // Stores the gradients of the products of tokens as tiles.
  __device__ __forceinline__ void write_pairs() const {
    const float* const sums = floats(At::kSums);
#pragma unroll
    for (int n = 0; n < kPairTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp.row + 8 * i, column = 32 * warp.half + 8 * n + warp.column;
        float score[2], below[2] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float decayed = column + j <= row ? exp2_approx(sums[row] - sums[column + j]) : 0.0F;
          score[j] = column + j <= row ? sum.scores[n][2 * i + j] * decayed * p.scale : 0.0F;
          if constexpr (kDelta) below[j] = column + j < row ? lower[n][2 * i + j] * decayed : 0.0F;
        }
        *pair_of(shared + At::kScores, kScorePitch, row, column) = pack_bf16(score[0], score[1]);
        if constexpr (kDelta) {
          const float beta = floats(At::kBeta)[row];
          *pair_of(shared + At::kLower, kScorePitch, row, column) = pack_bf16(below[0], below[1]);
          *pair_of(shared + At::kLowerBeta, kScorePitch, row, column) = pack_bf16(beta * below[0], beta * below[1]);
        }
      }
    }
  }

  // Completes the gradients of q and k in `sum`. The gradient of the sum of log decays up to a token is, for each channel, that of the
  // token's reads minus that of its write: q grad_q + k (grad_k of reading the state − grad_k of writing it).
  __device__ __forceinline__ void finish() {
    const int keys = warp.half * kKeys / 2;
    const uint32_t q_tile = base + At::kQ, k_tile = base + At::kK;
    const float to_end[2] = {decay_to_end(warp.row), decay_to_end(warp.row + 8)}, since[2] = {decay(warp.row), decay(warp.row + 8)};
    each([&](int n, int i, uint32_t, uint32_t k) {
      float *const dq = &sum.q[n][2 * i], *const dk = &sum.k[n][2 * i];
      dq[0] *= p.scale * since[i], dq[1] *= p.scale * since[i];
      dk[0] *= to_end[i], dk[1] *= to_end[i];
      state_grad_dot += low_float(k) * dk[0] + high_float(k) * dk[1];
      if constexpr (kDelta) reader[n][2 * i] *= since[i], reader[n][2 * i + 1] *= since[i];
    });
    add_by_k(sum.q, base + At::kScores, kScorePitch, warp.line, k_tile, At::kPitch, keys, warp.line + 16);
    add_transposed<kTiles>(sum.k, base + At::kScores, kScorePitch, warp.line, q_tile, At::kPitch, keys, warp.line, kRuleChunk);
    if constexpr (kDelta) {
      add_by_k(reader, base + At::kLower, kScorePitch, warp.line, k_tile, At::kPitch, keys, warp.line + 16);
      add_transposed<kTiles, true>(sum.k, base + At::kLowerBeta, kScorePitch, warp.line, k_tile, At::kPitch, keys, warp.line, kRuleChunk);
    }
    const float beta[2] = {floats(At::kBeta)[warp.row], floats(At::kBeta)[warp.row + 8]};
    each([&](int n, int i, uint32_t q, uint32_t k) {
      const float x[2] = {low_float(k), high_float(k)}, y[2] = {low_float(q), high_float(q)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& dk = sum.k[n][2 * i + j];
        float read = 0;
        if constexpr (kDelta) beta_grad[i] -= x[j] * reader[n][2 * i + j], read = -beta[i] * reader[n][2 * i + j];
        decay_grad[i] += y[j] * sum.q[n][2 * i + j] + x[j] * (read - dk);
        dk += read;
      }
    });
  }
  // Calls visit(tile, half, pair of q, pair of k) for each pair of elements of the sums that the thread holds.
  template <class Visit>
  __device__ __forceinline__ void each(Visit&& visit) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp.row + 8 * i, column = warp.half * kKeys / 2 + 8 * n + warp.column;
        visit(n, i, *pair_of(shared + At::kQ, At::kPitch, row, column), *pair_of(shared + At::kK, At::kPitch, row, column));
      }
    }
  }

  // Reduces the sums over channels within the warp and stores them to shared memory.
  __device__ __forceinline__ void reduce_sums() {
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
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (warp.lane % 4 != 0) break;
      floats(At::kDecayGrad)[warp.half * kRuleChunk + warp.row + 8 * i] = decay_grad[i];
      floats(At::kBetaGrad)[warp.half * kRuleChunk + warp.row + 8 * i] = beta_grad[i];
    }
    if (warp.lane == 0) floats(At::kStateGradDot)[threadIdx.x / 32] = state_grad_dot;
  }
  // Writes the gradients of the decays and betas. The gradient of a token's log decay is the sum over the tokens from it on, plus the part
  // of the state after the chunk.
  __device__ __forceinline__ void write_gates() const {
    const int t = static_cast<int>(threadIdx.x) % kRuleChunk;
    if (t >= block.range.tokens) return;
    const int64_t line = block.line(p) + static_cast<int64_t>(t) * p.heads;
    if (threadIdx.x < kRuleChunk && call.params.grad_log_decay != nullptr) {
      float sum_after = 0;
      for (int i = 0; i < kBackWarps; ++i) sum_after += floats(At::kStateGradDot)[i];
      for (int later = kRuleChunk - 1; later >= t; --later)
        sum_after += floats(At::kDecayGrad)[later] + floats(At::kDecayGrad)[kRuleChunk + later];
      call.params.grad_log_decay[line] = sum_after;
    } else if (threadIdx.x / kRuleChunk == 1 && call.params.grad_beta != nullptr) {
      call.params.grad_beta[line] = floats(At::kBetaGrad)[t] + floats(At::kBetaGrad)[kRuleChunk + t];
    }
  }
};

template <int kKeys, bool kDelta>
__global__ void __launch_bounds__(kBackThreads) gradients(const __grid_constant__ ChunkedBackward call) {
  using At = Offsets<kKeys, kDelta>;
  overlap_kernels();
  const GatedDeltaRule& p = call.forward.params;
  const ChunkBlock block(p, blockIdx.x);
  if (block.range.tokens == 0) return;
  ChunkGradients<kKeys, kDelta> chunk(call, block);
  char* const shared = chunk.shared;
  const uint32_t base = chunk.base;
  chunk.request_chunk();
  request_slice<kKeys, kDelta>(call, block, base + At::kSlice, 0);
  read_head_gates(p, block, chunk.floats(At::kSums), chunk.floats(At::kBeta));
  for (int slice = 0; slice * kOutputSlice < p.value_dim; ++slice) {
    if (slice > 0) request_slice<kKeys, kDelta>(call, block, base + At::kSlice, slice);
    copy_async_wait<0>();
    __syncthreads();
    chunk.add_slice_sums(slice);
    __syncthreads();
  }
  chunk.state_grad_dot *= exp2_approx(chunk.floats(At::kSums)[kRuleChunk - 1]);
  chunk.write_pairs();
  __syncthreads();
  chunk.finish();
  chunk.reduce_sums();
  __syncthreads();  // all warps have read q and k
  store_sums(shared + At::kQ + chunk.warp.half * kKeys, At::kPitch, chunk.warp.line, chunk.sum.q);
  store_sums(shared + At::kK + chunk.warp.half * kKeys, At::kPitch, chunk.warp.line, chunk.sum.k);
  __syncthreads();
  const int64_t line = block.line(p) * kKeys, stride = static_cast<int64_t>(p.heads) * kKeys;
  const int thread = static_cast<int>(threadIdx.x), lines = block.range.tokens;
  store_lines<kKeys, kRuleChunk, kBackThreads>(static_cast<bf16*>(call.params.grad_q) + line, stride, base + At::kQ, At::kPitch, 0, lines,
                                               thread);
  store_lines<kKeys, kRuleChunk, kBackThreads>(static_cast<bf16*>(call.params.grad_k) + line, stride, base + At::kK, At::kPitch, 0, lines,
                                               thread);
  chunk.write_gates();
}

template <int kKeys, bool kDelta>
Status launch_gradients(const ChunkedBackward& p, Queue queue) {
  constexpr int kBytes = Offsets<kKeys, kDelta>::kEnd;
  if (const cudaError_t e = allow_shared_memory(gradients<kKeys, kDelta>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.forward.params.tokens, p.forward.params.rows) * p.forward.params.heads;
  return launch_overlapped(gradients<kKeys, kDelta>, {static_cast<unsigned>(blocks), kBackThreads, kBytes}, queue, p);
}

}  // namespace

Status gated_delta_rule_backward_heads(const ChunkedBackward& p, Queue queue) {
  const bool delta = p.forward.params.delta;
  if (p.forward.params.key_dim == 64) return delta ? launch_gradients<64, true>(p, queue) : launch_gradients<64, false>(p, queue);
  return delta ? launch_gradients<128, true>(p, queue) : launch_gradients<128, false>(p, queue);
}

}  // namespace based::kernels::cuda::detail
