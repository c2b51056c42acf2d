// Shared parts of the gated delta rule's chunk kernels: the positions of chunks, scratch memory, tiles in shared memory and their products.
#pragma once
#include "based/kernels/common/cuda/device.cuh"
#include "based/kernels/common/gpu.h"
#include "based/kernels/delta_rule/delta_rule.h"

namespace based::kernels::cuda::detail {

constexpr int kRuleChunk = 64, kRuleThreads = 128, kRuleWarps = kRuleThreads / 32;
constexpr int kOutputSlice = 64;             // value channels of a block that writes outputs; value_dim is a multiple of it
constexpr int kScorePitch = kRuleChunk + 8;  // a line of a tile has 16 bytes of padding, so that eight lines fall into different banks
constexpr float kMinLog2Decay = -126;  // a token's lower bound: 2^−126 is practically zero, and the bound keeps sums of logarithms precise

// Upper bound of chunk numbers. Chunk c of row r has the number row_start[r] / 64 + r + c, which the host can bound without the rows'
// lengths; some numbers have no chunk.
constexpr int64_t chunk_numbers(int64_t tokens, int64_t rows) { return tokens / kRuleChunk + rows; }

// A call with its scratch memory. q is scaled and decayed from the chunk's start, to be multiplied by the state before the chunk; k is
// decayed to the chunk's end, to be added to the state after it.
struct ChunkedCall {
  GatedDeltaRule params;
  bf16 *q = nullptr, *k = nullptr;  // [tokens, heads, key_dim]
  // [tokens, heads, key_dim], with `delta`: u is corrected to u − w S, with S the state before the chunk; until the outputs are written, u
  // is stored in y
  bf16* w = nullptr;
  bf16* scores = nullptr;   // [numbers, heads, 64, 64], between the tokens of a chunk
  bf16* states = nullptr;   // [numbers, heads, key_dim, value_dim], before the chunk; null: the carry kernel writes the outputs itself
  float* decays = nullptr;  // [numbers, heads, key_dim], of the state over the chunk
  bf16* inverse = nullptr;  // [numbers, heads, 64, 64], with `delta`: of I + lower, for the backward; or null
};

struct ChunkRange {
  int64_t first;  // first token
  int tokens;     // 1..64, or 0: no chunk has this number
};
__device__ __forceinline__ ChunkRange find_chunk(const GatedDeltaRule& p, int64_t number) {
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
  const int64_t remaining = p.row_start[low + 1] - first;
  return {first, static_cast<int>(remaining < 0 ? 0 : remaining > kRuleChunk ? kRuleChunk : remaining)};
}

// A block's chunk and head; the blocks of a chunk are consecutive.
struct ChunkBlock {
  int64_t number;
  int head;
  ChunkRange range;
  __device__ __forceinline__ ChunkBlock(const GatedDeltaRule& p, int64_t index)
      : number(index / p.heads), head(static_cast<int>(index % p.heads)), range(find_chunk(p, number)) {}
  __device__ __forceinline__ int64_t key_line(const GatedDeltaRule& p) const {  // line of q and k of the first token
    return range.first * p.key_heads + static_cast<int64_t>(head) * p.key_heads / p.heads;
  }
  __device__ __forceinline__ int64_t line(const GatedDeltaRule& p) const { return range.first * p.heads + head; }
  __device__ __forceinline__ int64_t at(const GatedDeltaRule& p) const { return number * p.heads + head; }
};

__device__ __forceinline__ char* dynamic_shared() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}

// Requests the copy of kWidth bf16 of each of 64 lines, `stride` apart, to lines of kWidth + 8 elements in shared memory; lines from
// `lines` on become zero. Called by all threads of the block.
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

// Copies lines [first, first + kCount) that are below `lines` back to global memory, by kThreads threads; `thread` is this thread's number.
template <int kWidth, int kCount, int kThreads>
__device__ __forceinline__ void store_lines(bf16* to, int64_t stride, uint32_t from, int pitch, int first, int lines, int thread) {
  constexpr int kPieces = kWidth / 8;
#pragma unroll
  for (int i = 0; i < kCount * kPieces / kThreads; ++i) {
    const int at = i * kThreads + thread, line = first + at / kPieces, piece = at % kPieces;
    if (line < lines) *reinterpret_cast<uint4*>(to + line * stride + piece * 8) = load_shared_16(from + (line * pitch + piece * 8) * 2);
  }
}

// Load operands of mma_16x8x16 from tiles whose lines are `pitch` elements apart. A: 16 x 16 at (m, k); B: 16 x 16 at (k, n), for two
// products. The last letter of a name is the index of the tile's lines: in load_a_by_m, line m of the tile holds row m of A.
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
// a = −a.
__device__ __forceinline__ void negate(uint32_t (&a)[4]) {
#pragma unroll
  for (uint32_t& x : a) x ^= 0x80008000U;
}
// Adds a 16 x 16 product to a sum, given as its left and right halves.
__device__ __forceinline__ void add_product(float (&left)[4], float (&right)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  mma_16x8x16(left, a, b[0], b[1]);
  mma_16x8x16(right, a, b[2], b[3]);
}

// Adds a · b to the warp's 16 lines of a sum: lines [line, line + 16) of tile a times tile b, over `count` terms. The lines of b are terms,
// and the sum's first column is column `column` of b; with kByN the lines of b are columns of the sum, from line `column` on.
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
// Adds aᵀ b, or −aᵀ b, over the terms [first, count), which are the lines of a and of b.
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

// Two neighbouring elements of a tile.
__device__ __forceinline__ uint32_t* pair_of(char* tile, int pitch, int line, int column) {
  return reinterpret_cast<uint32_t*>(tile + (line * pitch + column) * 2);
}
// Stores 16 lines of a sum as bf16 to a tile, from (line, 0) on.
template <int kTiles>
__device__ __forceinline__ void store_sums(char* tile, int pitch, int line, const float (&sum)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = line + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    *pair_of(tile, pitch, row, 8 * n + column) = pack_bf16(sum[n][0], sum[n][1]);
    *pair_of(tile, pitch, row + 8, 8 * n + column) = pack_bf16(sum[n][2], sum[n][3]);
  }
}

// Converts a log decay to base 2, at least kMinLog2Decay.
__device__ __forceinline__ float log2_decay(float log_decay) {
  const float x = log_decay * 1.44269504F;
  return x < kMinLog2Decay ? kMinLog2Decay : x;
}

// For decays shared by the channels of a head: computes the sums of log2 decays up to each token, and the betas. Tokens past the chunk's
// end have no decay and beta 0. The first warp does it, two tokens a lane.
__device__ __forceinline__ void read_head_gates(const GatedDeltaRule& p, const ChunkBlock& block, float* sums, float* beta) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= 32) return;
  float g[2] = {}, b[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    const int64_t line = block.line(p) + static_cast<int64_t>(t) * p.heads;
    if (t < block.range.tokens && p.log_decay != nullptr) g[i] = log2_decay(p.log_decay[line]);
    if (t < block.range.tokens) b[i] = p.beta != nullptr ? p.beta[line] : 1.0F;
  }
  float before = g[0] + g[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float lower_lanes = __shfl_up_sync(~0U, before, distance);
    if (lane >= distance) before += lower_lanes;
  }
  sums[2 * lane] = before - g[1], sums[2 * lane + 1] = before;
  beta[2 * lane] = b[0], beta[2 * lane + 1] = b[1];
}

// Multiplies eight bf16 by eight factors.
__device__ __forceinline__ uint4 scaled(uint4 x, const float (&factors)[8]) {
  return {pack_bf16(low_float(x.x) * factors[0], high_float(x.x) * factors[1]),
          pack_bf16(low_float(x.y) * factors[2], high_float(x.y) * factors[3]),
          pack_bf16(low_float(x.z) * factors[4], high_float(x.z) * factors[5]),
          pack_bf16(low_float(x.w) * factors[6], high_float(x.w) * factors[7])};
}

// A backward call with its scratch memory. `forward` is the recomputed forward, with its scratch; with `delta`, forward.params.y holds u.
struct ChunkedBackward {
  GatedDeltaRuleBackward params;
  ChunkedCall forward;
  bf16* grad_u;       // [tokens, heads, value_dim]
  bf16* grad_states;  // [numbers, heads, key_dim, value_dim], of the state after the chunk
};

bool has_channel_decays(const GatedDeltaRule& p);
bool has_chunks(const GatedDeltaRule& p);  // whether the chunk kernels support the sizes, and the GPU gives a block enough shared memory
// Assigns the pointers of a call's scratch memory, from `at` on; returns its bytes. With keeps_states there is room for `states`.
int64_t carve_scratch(ChunkedCall& p, char* at, bool keeps_states);
// Computes everything within chunks: all of the scratch memory but `states`, and with `delta` u, which is stored in y. _heads is for decays
// shared by the channels of a head, _channels for a decay of each channel.
Status gated_delta_rule_within_chunks(const ChunkedCall& p, Queue queue);
Status gated_delta_rule_within_chunks_heads(const ChunkedCall& p, Queue queue);
int within_chunks_heads_shared(const GatedDeltaRule& p);  // bytes of shared memory of its blocks; the others' names are alike
int within_chunks_channels_shared(const GatedDeltaRule& p);
Status gated_delta_rule_within_chunks_channels(const ChunkedCall& p, Queue queue);
// Carries the state from chunk to chunk. Writes y or, where `states` is not null, `states` and with `delta` the corrected u.
Status gated_delta_rule_carry(const ChunkedCall& p, Queue queue);
// Compute the gradients within chunks.
Status gated_delta_rule_backward_heads(const ChunkedBackward& p, Queue queue);
Status gated_delta_rule_backward_channels(const ChunkedBackward& p, Queue queue);
int backward_heads_shared(const GatedDeltaRule& p);
int backward_channels_shared(const GatedDeltaRule& p);
// Processes token by token, for any sizes; without row_start one token a row.
Status gated_delta_rule_by_token(const GatedDeltaRule& p, Queue queue);

}  // namespace based::kernels::cuda::detail
