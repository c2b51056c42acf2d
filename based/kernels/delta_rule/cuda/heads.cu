// The gated delta rule within chunks, where the channels of a head share a decay or there is none: the scores and, with `delta`, the UT
// transform. docs/kernels/gated-delta-rule.md
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/delta_rule.cuh"

namespace based::kernels::cuda::detail {
namespace {

constexpr int kBlock = 16, kBlocks = kRuleChunk / kBlock;  // a warp handles a block of tokens
constexpr int kSumPitch = kRuleChunk + 4;                  // pitch of fp32 matrices

// Byte offsets in shared memory.
template <int kKeys>
struct Offsets {
  static constexpr int kPitch = kKeys + 8, kScoreBytes = kRuleChunk * kScorePitch * 2, kMatrixBytes = kRuleChunk * kSumPitch * 4;
  static constexpr int kSums = 0, kBeta = kRuleChunk * 4, kQ = 2 * kRuleChunk * 4, kK = kQ + kRuleChunk * kPitch * 2,
                       kScores = kK + kRuleChunk * kPitch * 2;
  static constexpr int kLower = kScores + kScoreBytes, kInverse = kLower + kMatrixBytes, kV = kInverse + kMatrixBytes;
  static constexpr int kEnd = kScores + kScoreBytes, kDeltaEnd = kV + 2 * kScoreBytes;
};

// Computes the scores of the warp's queries with the chunk's keys and, with kDelta, `lower`: beta_i (k_i · k_j), decayed, for j < i.
template <int kKeys, bool kDelta>
__device__ __forceinline__ void score(const GatedDeltaRule& p, char* shared, int warp) {
  using At = Offsets<kKeys>;
  const uint32_t base = shared_address(shared);
  float q_scores[2 * kBlocks][4] = {}, k_scores[2 * kBlocks][4] = {};
#pragma unroll 2
  for (int c = 0; c < kKeys; c += 16) {
    uint32_t q[4], k[4], b[4];
    load_a_by_m(q, base + At::kQ, At::kPitch, kBlock * warp, c);
    if constexpr (kDelta) load_a_by_m(k, base + At::kK, At::kPitch, kBlock * warp, c);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      if (j > warp) break;
      load_b_by_n(b, base + At::kK, At::kPitch, c, kBlock * j);
      add_product(q_scores[2 * j], q_scores[2 * j + 1], q, b);
      if constexpr (kDelta) add_product(k_scores[2 * j], k_scores[2 * j + 1], k, b);
    }
  }
  const auto* sums = reinterpret_cast<const float*>(shared + At::kSums);
  const auto* beta = reinterpret_cast<const float*>(shared + At::kBeta);
  auto* lower = reinterpret_cast<float*>(shared + At::kLower);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < 2 * kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = kBlock * warp + lane / 4 + i / 2 * 8, column = 8 * n + lane % 4 * 2 + i % 2;
      const float decay = column <= row ? exp2_approx(sums[row] - sums[column]) : 0.0F;
      q_scores[n][i] = column <= row ? q_scores[n][i] * decay * p.scale * (kDelta ? 1.0F : beta[column]) : 0.0F;
      if constexpr (kDelta) lower[row * kSumPitch + column] = column < row ? beta[row] * k_scores[n][i] * decay : 0.0F;
    }
  }
  store_sums(shared + At::kScores, kScorePitch, kBlock * warp, q_scores);
}

// Writes the results from shared memory: queries scaled and decayed from the chunk's start, keys decayed to the chunk's end, the scores,
// and the decay of the state over the chunk. Without kDelta v is used as it is, so keys and scores contain beta.
template <int kKeys, bool kDelta>
__device__ __forceinline__ void write_results(const ChunkedCall& call, const ChunkBlock& block, char* shared) {
  using At = Offsets<kKeys>;
  constexpr int kPieces = kKeys / 8;
  const GatedDeltaRule& p = call.params;
  const auto* sums = reinterpret_cast<const float*>(shared + At::kSums);
  const auto* beta = reinterpret_cast<const float*>(shared + At::kBeta);
  const uint32_t base = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const float last = sums[kRuleChunk - 1];
  for (int at = thread; at < kRuleChunk * kPieces; at += kRuleThreads) {
    const int row = at / kPieces, piece = at % kPieces;
    if (row >= block.range.tokens) break;
    const float q_factor = p.scale * exp2_approx(sums[row]), k_factor = exp2_approx(last - sums[row]) * (kDelta ? 1.0F : beta[row]);
    const int64_t line = (block.line(p) + static_cast<int64_t>(row) * p.heads) * kKeys + piece * 8;
    const uint32_t from = base + (row * At::kPitch + piece * 8) * 2;
    *reinterpret_cast<uint4*>(call.q + line) =
        scaled(load_shared_16(from + At::kQ), {q_factor, q_factor, q_factor, q_factor, q_factor, q_factor, q_factor, q_factor});
    *reinterpret_cast<uint4*>(call.k + line) =
        scaled(load_shared_16(from + At::kK), {k_factor, k_factor, k_factor, k_factor, k_factor, k_factor, k_factor, k_factor});
  }
  store_lines<kRuleChunk, kRuleChunk, kRuleThreads>(call.scores + block.at(p) * kRuleChunk * kRuleChunk, kRuleChunk, base + At::kScores,
                                                    kScorePitch, 0, kRuleChunk, thread);
  for (int c = thread; c < kKeys; c += kRuleThreads) call.decays[block.at(p) * kKeys + c] = exp2_approx(last);
}

// First part of the inverse of I + lower: its blocks on the diagonal, by forward substitution. A thread computes a column.
__device__ __forceinline__ void invert_diagonal(const float* lower, float* inverse) {
  const int block = static_cast<int>(threadIdx.x) / kBlock, column = static_cast<int>(threadIdx.x) % kBlock, at = block * kBlock;
  if (block >= kBlocks) return;
  float x[kBlock];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    x[i] = i == column ? 1.0F : 0.0F;
#pragma unroll
    for (int l = 0; l < i; ++l) x[i] = fmaf(-lower[(at + i) * kSumPitch + at + l], x[l], x[i]);
    inverse[(at + i) * kSumPitch + at + column] = x[i];
  }
}

// Second part of the inverse T: the blocks `distance` below the diagonal, T_ij = −T_ii Σ_l L_il T_lj with L = lower. The sum is stored
// temporarily in block T_ji, which is zero in the inverse. A thread computes four columns of a line.
__device__ __forceinline__ void invert_below(const float* lower, float* inverse, int distance) {
  constexpr int kQuads = kBlock / 4, kUnits = kBlock * kQuads;
  const auto each = [&](auto&& sum_of, int to_line, int to_column, float sign) {
    for (int unit = static_cast<int>(threadIdx.x); unit < (kBlocks - distance) * kUnits; unit += kRuleThreads) {
      const int j = unit / kUnits * kBlock, i = j + distance * kBlock, line = unit % kUnits / kQuads, column = unit % kQuads * 4;
      float sum[4] = {};
      sum_of(i, j, line, column, sum);
      float* to = inverse + ((to_line == 0 ? i : j) + line) * kSumPitch + (to_column == 0 ? j : i) + column;
#pragma unroll
      for (int n = 0; n < 4; ++n) to[n] = sign * sum[n];
    }
    __syncthreads();
  };
  const auto add = [&](float(&sum)[4], float factor, const float* x) {
#pragma unroll
    for (int n = 0; n < 4; ++n) sum[n] = fmaf(factor, x[n], sum[n]);
  };
  each(
      [&](int i, int j, int line, int column, float(&sum)[4]) {
        for (int l = j; l < i; ++l) add(sum, lower[(i + line) * kSumPitch + l], inverse + l * kSumPitch + j + column);
      },
      1, 1, 1.0F);
  each(
      [&](int i, int j, int line, int column, float(&sum)[4]) {
        for (int l = 0; l < kBlock; ++l) add(sum, inverse[(i + line) * kSumPitch + i + l], inverse + (j + l) * kSumPitch + i + column);
      },
      0, 0, -1.0F);
}

// Converts the inverse to bf16 operands: for_v has its columns times beta, for_k its columns times beta and the decay from the chunk's
// start. Where `saved` is not null, writes the unscaled inverse there for the backward.
__device__ __forceinline__ void scale_inverse(const float* inverse, const float* sums, const float* beta, char* for_v, char* for_k,
                                              bf16* saved) {
  for (int at = static_cast<int>(threadIdx.x); at < kRuleChunk * kRuleChunk / 2; at += kRuleThreads) {
    const int row = at / (kRuleChunk / 2), column = at % (kRuleChunk / 2) * 2;
    float x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = column + i <= row ? inverse[row * kSumPitch + column + i] : 0.0F;
    if (saved != nullptr) reinterpret_cast<uint32_t*>(saved)[at] = pack_bf16(x[0], x[1]);
    x[0] *= beta[column], x[1] *= beta[column + 1];
    *pair_of(for_v, kScorePitch, row, column) = pack_bf16(x[0], x[1]);
    *pair_of(for_k, kScorePitch, row, column) = pack_bf16(x[0] * exp2_approx(sums[column]), x[1] * exp2_approx(sums[column + 1]));
  }
}

// Multiplies the warp's 16 lines of a lower triangular tile by 64 columns of another tile.
__device__ __forceinline__ void multiply_lower(uint32_t lower, uint32_t right, int pitch, int column, int warp, float (&sum)[8][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    if (j > warp) break;
    uint32_t a[4], b[4];
    load_a_by_m(a, lower, kScorePitch, kBlock * warp, kBlock * j);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      load_b_by_k(b, right, pitch, kBlock * j, column + 16 * n);
      add_product(sum[2 * n], sum[2 * n + 1], a, b);
    }
  }
}

__device__ __forceinline__ void request_values(const GatedDeltaRule& p, const ChunkBlock& block, uint32_t to, int slice) {
  if (slice * kOutputSlice < p.value_dim)
    request_tile<kOutputSlice>(to, static_cast<const bf16*>(p.v) + block.line(p) * p.value_dim + slice * kOutputSlice,
                               static_cast<int64_t>(p.heads) * p.value_dim, block.range.tokens);
  copy_async_commit();
}

// Computes w and u. The kernel that carries the state S subtracts w S from u later.
template <int kKeys>
__device__ __forceinline__ void transform(const ChunkedCall& call, const ChunkBlock& block, char* shared, int warp) {
  using At = Offsets<kKeys>;
  const GatedDeltaRule& p = call.params;
  const auto* sums = reinterpret_cast<const float*>(shared + At::kSums);
  const auto* beta = reinterpret_cast<const float*>(shared + At::kBeta);
  const auto* lower = reinterpret_cast<const float*>(shared + At::kLower);
  auto* inverse = reinterpret_cast<float*>(shared + At::kInverse);
  const uint32_t base = shared_address(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32, first = kBlock * warp, lines = block.range.tokens;
  invert_diagonal(lower, inverse);
  __syncthreads();
  for (int distance = 1; distance < kBlocks; ++distance) invert_below(lower, inverse, distance);
  scale_inverse(inverse, sums, beta, shared + At::kScores, shared + At::kLower,
                call.inverse != nullptr ? call.inverse + block.at(p) * kRuleChunk * kRuleChunk : nullptr);
  __syncthreads();
  for (int c = 0; c < kKeys; c += 64) {
    float w[8][4] = {};
    multiply_lower(base + At::kLower, base + At::kK, At::kPitch, c, warp, w);
    store_sums(shared + At::kQ + c * 2, At::kPitch, first, w);  // no other warp reads these lines of q
  }
  __syncwarp();
  store_lines<kKeys, kBlock, 32>(call.w + block.line(p) * kKeys, static_cast<int64_t>(p.heads) * kKeys, base + At::kQ, At::kPitch, first,
                                 lines, lane);
  for (int slice = 0; slice * kOutputSlice < p.value_dim; ++slice) {
    const int tile = At::kV + slice % 2 * At::kScoreBytes;
    copy_async_wait<1>();
    __syncthreads();
    float u[8][4] = {};
    multiply_lower(base + At::kScores, base + tile, kScorePitch, 0, warp, u);
    store_sums(shared + At::kQ, At::kPitch, first, u);
    __syncthreads();
    request_values(p, block, base + tile, slice + 2);
    store_lines<kOutputSlice, kBlock, 32>(static_cast<bf16*>(p.y) + block.line(p) * p.value_dim + slice * kOutputSlice,
                                          static_cast<int64_t>(p.heads) * p.value_dim, base + At::kQ, At::kPitch, first, lines, lane);
    __syncwarp();
  }
}

template <int kKeys, bool kDelta>
__global__ void __launch_bounds__(kRuleThreads) within_chunks_heads(const __grid_constant__ ChunkedCall call) {
  using At = Offsets<kKeys>;
  overlap_kernels();
  const GatedDeltaRule& p = call.params;
  const ChunkBlock block(p, blockIdx.x);
  if (block.range.tokens == 0) return;
  char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t stride = static_cast<int64_t>(p.key_heads) * kKeys;
  request_tile<kKeys>(base + At::kQ, static_cast<const bf16*>(p.q) + block.key_line(p) * kKeys, stride, block.range.tokens);
  request_tile<kKeys>(base + At::kK, static_cast<const bf16*>(p.k) + block.key_line(p) * kKeys, stride, block.range.tokens);
  copy_async_commit();
  if constexpr (kDelta) {
    request_values(p, block, base + At::kV, 0);
    request_values(p, block, base + At::kV + At::kScoreBytes, 1);
  }
  read_head_gates(p, block, reinterpret_cast<float*>(shared + At::kSums), reinterpret_cast<float*>(shared + At::kBeta));
  copy_async_wait<kDelta ? 2 : 0>();
  __syncthreads();
  score<kKeys, kDelta>(p, shared, warp);
  __syncthreads();
  write_results<kKeys, kDelta>(call, block, shared);
  if constexpr (kDelta) transform<kKeys>(call, block, shared, warp);
}

template <int kKeys>
constexpr int shared_of(bool delta) {
  return delta ? Offsets<kKeys>::kDeltaEnd : Offsets<kKeys>::kEnd;
}

template <int kKeys, bool kDelta>
Status launch_within_chunks(const ChunkedCall& p, Queue queue) {
  constexpr int kBytes = shared_of<kKeys>(kDelta);
  if (const cudaError_t e = allow_shared_memory(within_chunks_heads<kKeys, kDelta>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.params.tokens, p.params.rows) * p.params.heads;
  return launch_overlapped(within_chunks_heads<kKeys, kDelta>, {static_cast<unsigned>(blocks), kRuleThreads, kBytes}, queue, p);
}

}  // namespace

int within_chunks_heads_shared(const GatedDeltaRule& p) {
  return p.key_dim == 64 ? shared_of<64>(p.delta) : p.key_dim == 128 ? shared_of<128>(p.delta) : shared_of<256>(p.delta);
}

Status gated_delta_rule_within_chunks_heads(const ChunkedCall& p, Queue queue) {
  switch (p.params.key_dim) {
    case 64: return p.params.delta ? launch_within_chunks<64, true>(p, queue) : launch_within_chunks<64, false>(p, queue);
    case 128: return p.params.delta ? launch_within_chunks<128, true>(p, queue) : launch_within_chunks<128, false>(p, queue);
    default: return p.params.delta ? launch_within_chunks<256, true>(p, queue) : launch_within_chunks<256, false>(p, queue);
  }
}

}  // namespace based::kernels::cuda::detail
