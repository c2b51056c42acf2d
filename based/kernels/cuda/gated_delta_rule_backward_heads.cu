// Gradients of what is inside of a chunk, where a head's channels decay alike or not at all. docs/kernels/gated-delta-rule.md
#include "based/kernels/cuda/gated_delta_rule_backward.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda::detail {
namespace {

// Places in shared memory, in bytes. Once the value channels are through, tiles of tokens by tokens lie where a slice was.
template <int kKeys, bool kDelta>
struct Places {
  using Slice = SlicePlaces<kKeys, kDelta>;
  static constexpr int kPitch = kKeys + 8, kFloats = kRuleChunk * 4;
  static constexpr int kSums = 0, kBeta = kFloats, kOfGate = 2 * kFloats, kOfBeta = 4 * kFloats, kTail = 6 * kFloats,
                       kQ = kTail + kBackWarps * 4 + 96, kK = kQ + kRuleChunk * kPitch * 2, kInverse = kK + kRuleChunk * kPitch * 2,
                       kSlice = kInverse + (kDelta ? Slice::kTileBytes : 0), kEnd = kSlice + Slice::kEnd;
  static constexpr int kScores = kSlice, kLower = kSlice + Slice::kTileBytes, kLowerBeta = kLower + Slice::kTileBytes;
  static_assert(kQ % 128 == 0 && kLowerBeta + Slice::kTileBytes <= kSlice + Slice::kState + 2 * Slice::kStateBytes);
};

// A block's chunk; with grad_r the gradient of beta (v − what the state before the chunk holds), and `held` grad_r Sᵀ, `lower` grad_r uᵀ.
template <int kKeys, bool kDelta>
struct ChunkGradients {
  using At = Places<kKeys, kDelta>;
  using Slice = SlicePlaces<kKeys, kDelta>;
  static constexpr int kTiles = ChunkSums<kKeys>::kTiles;
  const RuleBackward& from;
  const GatedDeltaRule& p;
  const ChunkBlock& block;
  const BackWarp warp;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  ChunkSums<kKeys> sum;
  float held[kDelta ? kTiles : 1][4] = {}, lower[kDelta ? kPairTiles : 1][4] = {};
  float of_gate[2] = {}, of_beta[2] = {};  // of the thread's two rows
  float tail = 0;                          // Σ S ⊙ grad_S after the chunk, the thread's part

  __device__ __forceinline__ ChunkGradients(const RuleBackward& of, const ChunkBlock& at) : from(of), p(of.call.of), block(at) {}

  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(shared + at); }
  __device__ __forceinline__ float decay(int row) const { return exp2_approx(floats(At::kSums)[row]); }
  __device__ __forceinline__ float decay_to_end(int row) const {
    return exp2_approx(floats(At::kSums)[kRuleChunk - 1] - floats(At::kSums)[row]);
  }

  __device__ __forceinline__ void request_chunk() const {
    const int64_t stride = static_cast<int64_t>(p.key_heads) * kKeys, line = block.key_line(p) * kKeys;
    request_tile<kKeys, kBackThreads>(base + At::kQ, static_cast<const bf16*>(p.q) + line, stride, block.place.tokens);
    request_tile<kKeys, kBackThreads>(base + At::kK, static_cast<const bf16*>(p.k) + line, stride, block.place.tokens);
    if constexpr (kDelta)
      request_tile<kRuleChunk, kBackThreads>(base + At::kInverse, from.call.inverse + block.at(p) * kRuleChunk * kRuleChunk, kRuleChunk,
                                             kRuleChunk);
  }

  // grad_r = inverseᵀ grad_u of the slice, which also gives the gradients of v and a part of beta's.
  __device__ __forceinline__ void find_grad_r() {
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
        of_beta[i] += left * low_float(*v) + right * high_float(*v);
        *v = pack_bf16(beta[i] * left, beta[i] * right);  // grad_v
        *pair_of(shared + At::kSlice + Slice::kGradR, kScorePitch, row, column) = pack_bf16(left, right);
      }
    }
  }

  __device__ __forceinline__ void take_slice(int slice) {
    add_slice<kKeys, kDelta>(sum, base + At::kSlice, warp);
    const uint32_t state = base + At::kSlice + Slice::kState, grad_state = base + At::kSlice + Slice::kGradState;
    for (int at = static_cast<int>(threadIdx.x); at < kKeys * kOutputSlice / 8; at += kBackThreads) {
      const int place = (at / 8 * kScorePitch + at % 8 * 8) * 2;
      tail += product_of_states(state + place, grad_state + place);
    }
    if constexpr (kDelta) {
      find_grad_r();
      __syncthreads();
      const uint32_t grad_r = base + At::kSlice + Slice::kGradR;
      add_by_n(held, grad_r, kScorePitch, warp.line, state, kScorePitch, warp.half * kKeys / 2, kOutputSlice);
      add_by_n(lower, grad_r, kScorePitch, warp.line, base + At::kSlice + Slice::kU, kScorePitch, 32 * warp.half, kOutputSlice);
      store_lines<kOutputSlice, kRuleChunk, kBackThreads>(
          static_cast<bf16*>(from.of.grad_v) + block.line(p) * p.value_dim + slice * kOutputSlice,
          static_cast<int64_t>(p.heads) * p.value_dim, base + At::kSlice + Slice::kV, kScorePitch, 0, block.place.tokens,
          static_cast<int>(threadIdx.x));
    }
  }

  // Gradients of the products of tokens, as tiles.
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

  // The sums become the gradients of q and of k. What a decay's sum up to a token gets is, of each channel, what the token reads with it
  // less what it writes: q grad_q + k (grad_k as a reader − grad_k as a writer).
  __device__ __forceinline__ void finish() {
    const int keys = warp.half * kKeys / 2;
    const uint32_t q_tile = base + At::kQ, k_tile = base + At::kK;
    const float to_end[2] = {decay_to_end(warp.row), decay_to_end(warp.row + 8)}, since[2] = {decay(warp.row), decay(warp.row + 8)};
    each([&](int n, int i, uint32_t, uint32_t k) {
      float *const of_q = &sum.q[n][2 * i], *const of_k = &sum.k[n][2 * i];
      of_q[0] *= p.scale * since[i], of_q[1] *= p.scale * since[i];
      of_k[0] *= to_end[i], of_k[1] *= to_end[i];
      tail += low_float(k) * of_k[0] + high_float(k) * of_k[1];
      if constexpr (kDelta) held[n][2 * i] *= since[i], held[n][2 * i + 1] *= since[i];
    });
    add_by_k(sum.q, base + At::kScores, kScorePitch, warp.line, k_tile, At::kPitch, keys, warp.line + 16);
    add_transposed<kTiles>(sum.k, base + At::kScores, kScorePitch, warp.line, q_tile, At::kPitch, keys, warp.line, kRuleChunk);
    if constexpr (kDelta) {
      add_by_k(held, base + At::kLower, kScorePitch, warp.line, k_tile, At::kPitch, keys, warp.line + 16);
      add_transposed<kTiles, true>(sum.k, base + At::kLowerBeta, kScorePitch, warp.line, k_tile, At::kPitch, keys, warp.line, kRuleChunk);
    }
    const float beta[2] = {floats(At::kBeta)[warp.row], floats(At::kBeta)[warp.row + 8]};
    each([&](int n, int i, uint32_t q, uint32_t k) {
      const float x[2] = {low_float(k), high_float(k)}, y[2] = {low_float(q), high_float(q)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& of_k = sum.k[n][2 * i + j];
        float read = 0;
        if constexpr (kDelta) of_beta[i] -= x[j] * held[n][2 * i + j], read = -beta[i] * held[n][2 * i + j];
        of_gate[i] += y[j] * sum.q[n][2 * i + j] + x[j] * (read - of_k);
        of_k += read;
      }
    });
  }
  // visit(tile, half, pair of q, pair of k) for what the thread has of the sums.
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

  // The thread's parts of sums over channels into shared memory.
  __device__ __forceinline__ void share_sums() {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        of_gate[i] += __shfl_xor_sync(~0U, of_gate[i], distance);
        of_beta[i] += __shfl_xor_sync(~0U, of_beta[i], distance);
      }
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) tail += __shfl_xor_sync(~0U, tail, distance);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (warp.lane % 4 != 0) break;
      floats(At::kOfGate)[warp.half * kRuleChunk + warp.row + 8 * i] = of_gate[i];
      floats(At::kOfBeta)[warp.half * kRuleChunk + warp.row + 8 * i] = of_beta[i];
    }
    if (warp.lane == 0) floats(At::kTail)[threadIdx.x / 32] = tail;
  }
  // Gradients of the gates: a decay counts for all tokens from its own on, and for the state after the chunk.
  __device__ __forceinline__ void write_gates() const {
    const int t = static_cast<int>(threadIdx.x) % kRuleChunk;
    if (t >= block.place.tokens) return;
    const int64_t line = block.line(p) + static_cast<int64_t>(t) * p.heads;
    if (threadIdx.x < kRuleChunk && from.of.grad_log_decay != nullptr) {
      float all = 0;
      for (int i = 0; i < kBackWarps; ++i) all += floats(At::kTail)[i];
      for (int later = kRuleChunk - 1; later >= t; --later) all += floats(At::kOfGate)[later] + floats(At::kOfGate)[kRuleChunk + later];
      from.of.grad_log_decay[line] = all;
    } else if (threadIdx.x / kRuleChunk == 1 && from.of.grad_beta != nullptr) {
      from.of.grad_beta[line] = floats(At::kOfBeta)[t] + floats(At::kOfBeta)[kRuleChunk + t];
    }
  }
};

template <int kKeys, bool kDelta>
__global__ void __launch_bounds__(kBackThreads) gradients(const __grid_constant__ RuleBackward from) {
  using At = Places<kKeys, kDelta>;
  overlap_kernels();
  const GatedDeltaRule& p = from.call.of;
  const ChunkBlock block(p, blockIdx.x);
  if (block.place.tokens == 0) return;
  ChunkGradients<kKeys, kDelta> chunk(from, block);
  char* const shared = chunk.shared;
  const uint32_t base = chunk.base;
  chunk.request_chunk();
  request_slice<kKeys, kDelta>(from, block, base + At::kSlice, 0);
  read_head_gates(p, block, chunk.floats(At::kSums), chunk.floats(At::kBeta));
  for (int slice = 0; slice * kOutputSlice < p.value_dim; ++slice) {
    if (slice > 0) request_slice<kKeys, kDelta>(from, block, base + At::kSlice, slice);
    copy_async_wait<0>();
    __syncthreads();
    chunk.take_slice(slice);
    __syncthreads();
  }
  chunk.tail *= exp2_approx(chunk.floats(At::kSums)[kRuleChunk - 1]);
  chunk.write_pairs();
  __syncthreads();
  chunk.finish();
  chunk.share_sums();
  __syncthreads();  // q and k are read
  store_sums(shared + At::kQ + chunk.warp.half * kKeys, At::kPitch, chunk.warp.line, chunk.sum.q);
  store_sums(shared + At::kK + chunk.warp.half * kKeys, At::kPitch, chunk.warp.line, chunk.sum.k);
  __syncthreads();
  const int64_t line = block.line(p) * kKeys, stride = static_cast<int64_t>(p.heads) * kKeys;
  const int thread = static_cast<int>(threadIdx.x), lines = block.place.tokens;
  store_lines<kKeys, kRuleChunk, kBackThreads>(static_cast<bf16*>(from.of.grad_q) + line, stride, base + At::kQ, At::kPitch, 0, lines,
                                               thread);
  store_lines<kKeys, kRuleChunk, kBackThreads>(static_cast<bf16*>(from.of.grad_k) + line, stride, base + At::kK, At::kPitch, 0, lines,
                                               thread);
  chunk.write_gates();
}

template <int kKeys, bool kDelta>
Status launch_gradients(const RuleBackward& p, Stream stream) {
  constexpr int kBytes = Places<kKeys, kDelta>::kEnd;
  if (const cudaError_t e = allow_shared_memory(gradients<kKeys, kDelta>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.call.of.tokens, p.call.of.rows) * p.call.of.heads;
  return launch_overlapped(gradients<kKeys, kDelta>, {static_cast<unsigned>(blocks), kBackThreads, kBytes}, stream, p);
}

}  // namespace

Status gated_delta_rule_backward_heads(const RuleBackward& p, Stream stream) {
  const bool delta = p.call.of.delta;
  if (p.call.of.key_dim == 64) return delta ? launch_gradients<64, true>(p, stream) : launch_gradients<64, false>(p, stream);
  return delta ? launch_gradients<128, true>(p, stream) : launch_gradients<128, false>(p, stream);
}

}  // namespace based::kernels::cuda::detail
