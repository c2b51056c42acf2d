// What the gated delta rule's chunk kernels share: where chunks are, their scratch memory, tiles in shared memory and their products.
#pragma once
#include "based/kernels/cuda/device.cuh"
#include "based/kernels/gated_delta_rule.h"
#include "based/kernels/gpu.h"

namespace based::kernels::cuda::detail {

constexpr int kRuleChunk = 64, kRuleThreads = 128, kRuleWarps = kRuleThreads / 32;
constexpr int kOutputSlice = 64;             // value channels of a block that writes outputs; value_dim is a multiple of it
constexpr int kScorePitch = kRuleChunk + 8;  // tiles have 16 bytes more a line, so that eight lines fall into different banks
constexpr float kLeastLog2Decay = -126;      // of a token: what is left of less is nothing, and long sums of it keep their digits

// Chunk c of row r has the number row_start[r] / 64 + r + c: so nobody has to count chunks, though some numbers have no chunk.
constexpr int64_t chunk_numbers(int64_t tokens, int64_t rows) { return tokens / kRuleChunk + rows; }

// A call with its scratch memory; q and k there are as the state before and after their chunk sees them.
struct RuleByChunk {
  GatedDeltaRule of;
  bf16 *q = nullptr, *k = nullptr;  // [tokens, heads, key_dim]
  bf16* w =
      nullptr;  // [tokens, heads, key_dim], with `delta`: what of the state before the chunk is taken from y, which holds u until then
  bf16* scores = nullptr;   // [numbers, heads, 64, 64], of a chunk's tokens for each other
  bf16* states = nullptr;   // [numbers, heads, key_dim, value_dim], before the chunk; null: outputs are written in their place
  float* decays = nullptr;  // [numbers, heads, key_dim], of the state over the chunk
  bf16* inverse = nullptr;  // [numbers, heads, 64, 64], with `delta`: of 1 + lower, for a backward; or null
};

struct ChunkPlace {
  int64_t first;  // token
  int tokens;     // 1..64, or 0: no chunk has this number
};
__device__ __forceinline__ ChunkPlace chunk_at(const GatedDeltaRule& p, int64_t number) {
  int64_t low = 0, high = p.rows;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (p.row_start[middle] / kRuleChunk + middle <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t start = p.row_start[low], first = start + (number - start / kRuleChunk - low) * kRuleChunk;
  const int64_t left = p.row_start[low + 1] - first;
  return {first, static_cast<int>(left < 0 ? 0 : left > kRuleChunk ? kRuleChunk : left)};
}

// A block's chunk and head; blocks of one chunk follow each other.
struct ChunkBlock {
  int64_t number;
  int head;
  ChunkPlace place;
  __device__ __forceinline__ ChunkBlock(const GatedDeltaRule& p, int64_t index)
      : number(index / p.heads), head(static_cast<int>(index % p.heads)), place(chunk_at(p, number)) {}
  __device__ __forceinline__ int64_t key_line(const GatedDeltaRule& p) const {  // of q and k, for the first token
    return place.first * p.key_heads + static_cast<int64_t>(head) * p.key_heads / p.heads;
  }
  __device__ __forceinline__ int64_t line(const GatedDeltaRule& p) const { return place.first * p.heads + head; }
  __device__ __forceinline__ int64_t at(const GatedDeltaRule& p) const { return number * p.heads + head; }
};

__device__ __forceinline__ char* dynamic_shared() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}

// kWidth bf16 of each of 64 lines `stride` apart to lines of kWidth + 8, by a whole block; zeros past `lines`.
template <int kWidth, int kThreads = kRuleThreads>
__device__ __forceinline__ void request_tile(uint32_t to, const bf16* from, int64_t stride, int lines) {
  constexpr int kPieces = kWidth / 8;
#pragma unroll
  for (int i = 0; i < kRuleChunk * kPieces / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x), line = at / kPieces, piece = at % kPieces;
    const bool valid = line < lines;
    copy_async_16(to + (line * (kWidth + 8) + piece * 8) * 2, valid ? from + line * stride + piece * 8 : from, valid);
  }
}

// The other way for lines [first, first + kCount), by kThreads threads of which this one has number `thread`.
template <int kWidth, int kCount, int kThreads>
__device__ __forceinline__ void store_lines(bf16* to, int64_t stride, uint32_t from, int pitch, int first, int lines, int thread) {
  constexpr int kPieces = kWidth / 8;
#pragma unroll
  for (int i = 0; i < kCount * kPieces / kThreads; ++i) {
    const int at = i * kThreads + thread, line = first + at / kPieces, piece = at % kPieces;
    if (line < lines) *reinterpret_cast<uint4*>(to + line * stride + piece * 8) = load_shared_16(from + (line * pitch + piece * 8) * 2);
  }
}

// Operands of mma_16x8x16 out of tiles whose lines are `pitch` apart. A: 16 x 16 at (m, k); B: 16 x 16 at (k, n), for two products.
// The name says what a line of the tile is.
__device__ __forceinline__ void load_a_by_m(uint32_t (&a)[4], uint32_t tile, int pitch, int m, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ldmatrix(a, tile + ((m + lane % 16) * pitch + k + lane / 16 * 8) * 2);
}
__device__ __forceinline__ void load_a_by_k(uint32_t (&a)[4], uint32_t tile, int pitch, int m, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ldmatrix_transposed(a, tile + ((k + lane / 16 * 8 + lane % 8) * pitch + m + lane / 8 % 2 * 8) * 2);
}
__device__ __forceinline__ void load_b_by_k(uint32_t (&b)[4], uint32_t tile, int pitch, int k, int n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ldmatrix_transposed(b, tile + ((k + lane % 16) * pitch + n + lane / 16 * 8) * 2);
}
__device__ __forceinline__ void load_b_by_n(uint32_t (&b)[4], uint32_t tile, int pitch, int k, int n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ldmatrix(b, tile + ((n + lane / 16 * 8 + lane % 8) * pitch + k + lane / 8 % 2 * 8) * 2);
}
// −a.
__device__ __forceinline__ void negate(uint32_t (&a)[4]) {
#pragma unroll
  for (uint32_t& x : a) x ^= 0x80008000U;
}
// 16 x 16 more of a sum: its left and its right half.
__device__ __forceinline__ void add_product(float (&left)[4], float (&right)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  mma_16x8x16(left, a, b[0], b[1]);
  mma_16x8x16(right, a, b[2], b[3]);
}

// The warp's 16 lines of a sum and more: those of tile a from line `line` on times b, whose lines are of a's columns [0, count) and are
// read from `column` on; by_n: whose lines are the sum's columns, from `column` on.
template <bool kByN, int kTiles>
__device__ __forceinline__ void add_lines(float (&sum)[kTiles][4], uint32_t a, int a_pitch, int line, uint32_t b, int b_pitch, int column,
                                          int count) {
#pragma unroll 4
  for (int k = 0; k < count; k += 16) {
    uint32_t left[4], right[4];
    load_a_by_m(left, a, a_pitch, line, k);
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      if constexpr (kByN) {
        load_b_by_n(right, b, b_pitch, k, column + 16 * n);
      } else {
        load_b_by_k(right, b, b_pitch, k, column + 16 * n);
      }
      add_product(sum[2 * n], sum[2 * n + 1], left, right);
    }
  }
}
template <int kTiles>
__device__ __forceinline__ void add_by_k(float (&sum)[kTiles][4], uint32_t a, int a_pitch, int line, uint32_t b, int b_pitch, int column,
                                         int count) {
  add_lines<false>(sum, a, a_pitch, line, b, b_pitch, column, count);
}
template <int kTiles>
__device__ __forceinline__ void add_by_n(float (&sum)[kTiles][4], uint32_t a, int a_pitch, int line, uint32_t b, int b_pitch, int column,
                                         int count) {
  add_lines<true>(sum, a, a_pitch, line, b, b_pitch, column, count);
}
// The same where the lines are columns of a, whose lines are b's: aᵀ b.
template <int kTiles, bool kNegative = false>
__device__ __forceinline__ void add_transposed(float (&sum)[kTiles][4], uint32_t a, int a_pitch, int line, uint32_t b, int b_pitch,
                                               int column, int first, int count) {
#pragma unroll 4
  for (int k = first; k < count; k += 16) {
    uint32_t left[4], right[4];
    load_a_by_k(left, a, a_pitch, line, k);
    if constexpr (kNegative) negate(left);
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      load_b_by_k(right, b, b_pitch, k, column + 16 * n);
      add_product(sum[2 * n], sum[2 * n + 1], left, right);
    }
  }
}

// Two neighbours of a tile.
__device__ __forceinline__ uint32_t* pair_of(char* tile, int pitch, int line, int column) {
  return reinterpret_cast<uint32_t*>(tile + (line * pitch + column) * 2);
}
// 16 lines of a sum as bf16 into a tile, from (line, 0) on.
template <int kTiles>
__device__ __forceinline__ void store_sums(char* tile, int pitch, int line, const float (&sum)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = line + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    *pair_of(tile, pitch, row, 8 * n + column) = pack_bf16(sum[n][0], sum[n][1]);
    *pair_of(tile, pitch, row + 8, 8 * n + column) = pack_bf16(sum[n][2], sum[n][3]);
  }
}

// A gate's logarithm to base 2.
__device__ __forceinline__ float log2_decay(float log_decay) {
  const float x = log_decay * 1.44269504F;
  return x < kLeastLog2Decay ? kLeastLog2Decay : x;
}

// Where a head's channels decay alike: sums of log2 decays up to each token, and betas; past the end no decay and beta 0. Two tokens a lane
// of the first warp.
__device__ __forceinline__ void read_head_gates(const GatedDeltaRule& p, const ChunkBlock& block, float* sums, float* beta) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= 32) return;
  float g[2] = {}, b[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    const int64_t line = block.line(p) + static_cast<int64_t>(t) * p.heads;
    if (t < block.place.tokens && p.log_decay != nullptr) g[i] = log2_decay(p.log_decay[line]);
    if (t < block.place.tokens) b[i] = p.beta != nullptr ? p.beta[line] : 1.0F;
  }
  float before = g[0] + g[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float left = __shfl_up_sync(~0U, before, distance);
    if (lane >= distance) before += left;
  }
  sums[2 * lane] = before - g[1], sums[2 * lane + 1] = before;
  beta[2 * lane] = b[0], beta[2 * lane + 1] = b[1];
}

// Eight bf16 times eight factors.
__device__ __forceinline__ uint4 scaled(uint4 x, const float (&by)[8]) {
  return {pack_bf16(low_float(x.x) * by[0], high_float(x.x) * by[1]), pack_bf16(low_float(x.y) * by[2], high_float(x.y) * by[3]),
          pack_bf16(low_float(x.z) * by[4], high_float(x.z) * by[5]), pack_bf16(low_float(x.w) * by[6], high_float(x.w) * by[7])};
}

// A chunk's work on the way back, with what a call left in its scratch memory; u is where the call's y was.
struct RuleBackward {
  GatedDeltaRuleBackward of;
  RuleByChunk call;
  bf16* grad_u;       // [tokens, heads, value_dim]
  bf16* grad_states;  // [numbers, heads, key_dim, value_dim], after the chunk
};

bool has_channel_decays(const GatedDeltaRule& p);
bool has_chunks(const GatedDeltaRule& p);  // whether chunks have kernels for the sizes
// The scratch memory of a call from `at` on; the bytes that it takes.
int64_t share_out(RuleByChunk& p, char* at, bool keeps_states);
// Inside of chunks: all but `states` of the scratch memory, and with `delta` u in the place of y; for heads whose channels decay alike, and
// for channels that decay each by itself.
Status gated_delta_rule_inside(const RuleByChunk& p, Stream stream);
Status gated_delta_rule_inside_heads(const RuleByChunk& p, Stream stream);
Status gated_delta_rule_inside_channels(const RuleByChunk& p, Stream stream);
// The state from chunk to chunk: y, or where there is memory for them `states`, and with `delta` u with what it lacks.
Status gated_delta_rule_carry(const RuleByChunk& p, Stream stream);
// Gradients of what is inside of chunks.
Status gated_delta_rule_backward_heads(const RuleBackward& p, Stream stream);
Status gated_delta_rule_backward_channels(const RuleBackward& p, Stream stream);
// Token by token, any sizes; without row_start one token a row.
Status gated_delta_rule_by_token(const GatedDeltaRule& p, Stream stream);

}  // namespace based::kernels::cuda::detail
