// The gated delta rule within chunks, without `delta`, where each key channel has a decay of its own or there is a bonus.
// docs/kernels/gated-delta-rule.md
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/delta_rule/cuda/channels.cuh"

namespace based::kernels::cuda::detail {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
// Smallest log2 decay of a channel over a block of tokens with which keys can be scaled to the block's beginning without overflow.
constexpr float kMinBlockLog2Decay = -64;

// Byte offsets in shared memory. The line before the sums is zero: it stands for the token before the chunk.
template <int kKeys>
struct Offsets {
  static constexpr int kPitch = kKeys + 8;
  static constexpr int kQ = 0, kK = kRuleChunk * kPitch * 2, kScores = 2 * kK, kNone = kScores + kRuleChunk * kScorePitch * 2,
                       kSums = kNone + kPitch * 4, kBonus = kSums + kRuleChunk * kPitch * 4, kBeta = kBonus + kKeys * 4,
                       kParts = kBeta + kRuleChunk * 4, kEnd = kParts + kThreads * 4;
};

template <int kKeys>
struct Tile : ChannelTile<Offsets<kKeys>> {
  using At = Offsets<kKeys>;
  __device__ __forceinline__ float* bonus() const { return this->floats(At::kBonus); }
  __device__ __forceinline__ float* beta() const { return this->floats(At::kBeta); }
  __device__ __forceinline__ float2 pair_of_sums(int token, int c) const { return *reinterpret_cast<const float2*>(this->sums(token) + c); }
};

__device__ __forceinline__ void load_eight(uint32_t address, float (&to)[8]) {
  const uint4 x = load_shared_16(address);
  to[0] = low_float(x.x), to[1] = high_float(x.x), to[2] = low_float(x.y), to[3] = high_float(x.y);
  to[4] = low_float(x.z), to[5] = high_float(x.z), to[6] = low_float(x.w), to[7] = high_float(x.w);
}

// Loads the bonus and the betas, sets the scores to zero, and computes the sums of log2 decays.
template <int kKeys>
__device__ __forceinline__ void read_gates(const GatedDeltaRule& p, const ChunkBlock& block, const Tile<kKeys>& tile) {
  using At = Offsets<kKeys>;
  const int thread = static_cast<int>(threadIdx.x);
  if (p.bonus != nullptr)
    for (int c = thread; c < kKeys; c += kThreads) tile.bonus()[c] = p.bonus[static_cast<int64_t>(block.head) * kKeys + c];
  if (thread < kRuleChunk) {
    const int64_t line = block.line(p) + static_cast<int64_t>(thread) * p.heads;
    tile.beta()[thread] = thread >= block.range.tokens ? 0.0F : p.beta != nullptr ? p.beta[line] : 1.0F;
  }
  for (int c = thread; c < At::kPitch; c += kThreads) tile.floats(At::kNone)[c] = 0;
  for (int at = thread; at < kRuleChunk * kScorePitch / 8; at += kThreads)
    store_shared_16(shared_address(tile.shared) + At::kScores + at * 16, 0, 0, 0, 0);
  read_channel_decays<kKeys, kThreads>(p, block, tile, tile.floats(At::kParts), [](int, int, float) {});
}

// Scores between the tokens of a block, for decays of any size. A lane handles one key token and half of its channels; it iterates over the
// later tokens and decays the key from one token to the next.
template <int kKeys>
__device__ __forceinline__ void score_steep_block(const GatedDeltaRule& p, const Tile<kKeys>& tile, int first) {
  constexpr int kPart = 16;
  const int lane = static_cast<int>(threadIdx.x) % 32, j = lane % kBlock, half = lane / kBlock;
  const bool bonus = p.bonus != nullptr;
  float scores[kBlock] = {};
  for (int begin = half * kKeys / 2; begin < (half + 1) * kKeys / 2; begin += kPart) {
    float x[kPart];
#pragma unroll
    for (int c = 0; c < kPart; c += 8) {
      float k[8];
      load_eight(tile.k(first + j) + (begin + c) * 2, k);
#pragma unroll
      for (int n = 0; n < 8; ++n) x[c + n] = k[n];
    }
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kPart; c += 8) {
        float q[8], upto[8], before[8];
        load_eight(tile.q(first + i) + (begin + c) * 2, q);
        load_floats<8>(tile.sums(first + i) + begin + c, upto);
        load_floats<8>(tile.sums(first + i - 1) + begin + c, before);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const float decayed = i > j ? x[c + n] * exp2_approx(upto[n] - before[n]) : x[c + n];
          sum = fmaf(q[n], bonus ? x[c + n] : decayed, sum);  // with a bonus a token reads the state before its decay
          x[c + n] = decayed;
        }
      }
      scores[i] += sum;
    }
  }
  const float factor = p.scale * tile.beta()[first + j];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    const float score = scores[i] + __shfl_xor_sync(~0U, scores[i], kBlock);
    auto* to = reinterpret_cast<bf16*>(tile.shared + Offsets<kKeys>::kScores) + (first + i) * kScorePitch + first + j;
    if (i / 8 == half && i >= j) *to = from_float<bf16>(score * factor);
  }
}

// With a bonus: the score of each token of a block with itself.
template <int kKeys>
__device__ __forceinline__ void score_own_tokens(const GatedDeltaRule& p, const Tile<kKeys>& tile, int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32, token = first + lane % kBlock, half = lane / kBlock;
  float score = 0;
  for (int c = half * kKeys / 2; c < (half + 1) * kKeys / 2; c += 8) {
    float q[8], k[8];
    load_eight(tile.q(token) + c * 2, q);
    load_eight(tile.k(token) + c * 2, k);
#pragma unroll
    for (int n = 0; n < 8; ++n) score = fmaf(q[n] * tile.bonus()[c + n], k[n], score);
  }
  score += __shfl_xor_sync(~0U, score, kBlock);
  auto* to = reinterpret_cast<bf16*>(tile.shared + Offsets<kKeys>::kScores) + token * kScorePitch + token;
  if (half == 0) *to = from_float<bf16>(score * p.scale * tile.beta()[token]);
}

// Multiplies two neighbouring channels of a token by 2^exponent.
__device__ __forceinline__ uint32_t decayed_pair(uint32_t pair, float2 exponent) {
  return pack_bf16(low_float(pair) * exp2_approx(exponent.x), high_float(pair) * exp2_approx(exponent.y));
}

// Whether a channel decays over the block by more than kMinBlockLog2Decay allows.
template <int kKeys>
__device__ __forceinline__ bool is_steep(const Tile<kKeys>& tile, int first) {
  bool steep = false;
#pragma unroll
  for (int c = static_cast<int>(threadIdx.x) % 32; c < kKeys; c += 32)
    steep = steep || !(tile.sums(first + kBlock - 1)[c] - tile.sums(first - 1)[c] >= kMinBlockLog2Decay);
  return __any_sync(~0U, steep) != 0;
}

// Scores of the queries of 16 tokens, from `reader` on, with the keys of the 16 tokens from `key` on, which are earlier or the same tokens.
// Queries are decayed from the beginning of their block; keys are scaled by the decay from their token to that beginning, which for keys of
// the same block is an inverse decay.
template <int kKeys>
__device__ __forceinline__ void score_blocks(const GatedDeltaRule& p, const Tile<kKeys>& tile, int reader, int key) {
  using At = Offsets<kKeys>;
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, column = lane % 4 * 2, before = p.bonus != nullptr ? 1 : 0;
  const auto query = [&](int token, int c, float2 start) {
    const float2 at = tile.pair_of_sums(token - before, c);
    return decayed_pair(*pair_of(tile.shared + At::kQ, At::kPitch, token, c), {at.x - start.x, at.y - start.y});
  };
  const auto key_of = [&](int token, int c, float2 start) {
    const float2 at = tile.pair_of_sums(token, c);
    return decayed_pair(*pair_of(tile.shared + At::kK, At::kPitch, token, c), {start.x - at.x, start.y - at.y});
  };
  float scores[2][4] = {};
#pragma unroll 2
  for (int c = column; c < kKeys; c += 16) {
    const float2 left = tile.pair_of_sums(reader - 1, c), right = tile.pair_of_sums(reader - 1, c + 8);
    const uint32_t a[4] = {query(reader + row, c, left), query(reader + row + 8, c, left), query(reader + row, c + 8, right),
                           query(reader + row + 8, c + 8, right)};
#pragma unroll
    for (int n = 0; n < 2; ++n) mma_16x8x16(scores[n], a, key_of(key + 8 * n + row, c, left), key_of(key + 8 * n + row, c + 8, right));
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = key + 8 * n + column, token = reader + row + 8 * half;
      const float left = at <= token ? scores[n][2 * half] * p.scale * tile.beta()[at] : 0.0F,
                  right = at < token ? scores[n][2 * half + 1] * p.scale * tile.beta()[at + 1] : 0.0F;
      *pair_of(tile.shared + At::kScores, kScorePitch, token, at) = pack_bf16(left, right);
    }
  }
}

// Scores of the queries of block `reader` with the keys of block `key`.
template <int kKeys>
__device__ __forceinline__ void score_pair(const GatedDeltaRule& p, const Tile<kKeys>& tile, int reader, int key) {
  if (reader == key && is_steep(tile, kBlock * reader)) {
    score_steep_block(p, tile, kBlock * reader);
  } else {
    score_blocks(p, tile, kBlock * reader, kBlock * key);
  }
  if (reader != key || p.bonus == nullptr) return;
  __syncwarp();
  score_own_tokens(p, tile, kBlock * reader);
}

// Writes the results from shared memory: queries scaled and decayed from the chunk's start, keys times beta and decayed to the chunk's end,
// and the decay of the state over the chunk.
template <int kKeys>
__device__ __forceinline__ void write_decayed(const ChunkedCall& call, const ChunkBlock& block, const Tile<kKeys>& tile) {
  constexpr int kPieces = kKeys / 8;
  const GatedDeltaRule& p = call.params;
  const int thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < block.range.tokens * kPieces; at += kThreads) {
    const int row = at / kPieces, c = at % kPieces * 8;
    float sum[8], last[8], q_factors[8], k_factors[8];
    load_floats<8>(tile.sums(row) + c, sum);
    load_floats<8>(tile.sums(kRuleChunk - 1) + c, last);
#pragma unroll
    for (int n = 0; n < 8; ++n) k_factors[n] = exp2_approx(last[n] - sum[n]) * tile.beta()[row];
    if (p.bonus != nullptr) load_floats<8>(tile.sums(row - 1) + c, sum);
#pragma unroll
    for (int n = 0; n < 8; ++n) q_factors[n] = p.scale * exp2_approx(sum[n]);
    const int64_t line = (block.line(p) + static_cast<int64_t>(row) * p.heads) * kKeys + c;
    *reinterpret_cast<uint4*>(call.q + line) = scaled(load_shared_16(tile.q(row) + c * 2), q_factors);
    *reinterpret_cast<uint4*>(call.k + line) = scaled(load_shared_16(tile.k(row) + c * 2), k_factors);
  }
  for (int c = thread; c < kKeys; c += kThreads) call.decays[block.at(p) * kKeys + c] = exp2_approx(tile.sums(kRuleChunk - 1)[c]);
}

template <int kKeys>
__global__ void __launch_bounds__(kThreads, kKeys == 256 ? 1 : 2) within_chunks_channels(const __grid_constant__ ChunkedCall call) {
  using At = Offsets<kKeys>;
  overlap_kernels();
  const GatedDeltaRule& p = call.params;
  const ChunkBlock block(p, blockIdx.x);
  if (block.range.tokens == 0) return;
  const Tile<kKeys> tile{{dynamic_shared()}};
  const uint32_t base = shared_address(tile.shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t stride = static_cast<int64_t>(p.key_heads) * kKeys, line = block.key_line(p) * kKeys;
  request_tile<kKeys, kThreads>(base + At::kQ, static_cast<const bf16*>(p.q) + line, stride, block.range.tokens);
  request_tile<kKeys, kThreads>(base + At::kK, static_cast<const bf16*>(p.k) + line, stride, block.range.tokens);
  copy_async_commit();
  read_gates(p, block, tile);
  copy_async_wait<0>();
  __syncthreads();
  // All pairs of a block of queries and a block of keys that is not later.
  for (int pair = warp; pair < kBlocks * (kBlocks + 1) / 2; pair += kWarps) {
    const int reader = pair < 1 ? 0 : pair < 3 ? 1 : pair < 6 ? 2 : 3, key = pair - reader * (reader + 1) / 2;
    score_pair(p, tile, reader, key);
  }
  write_decayed(call, block, tile);
  __syncthreads();
  store_lines<kRuleChunk, kRuleChunk, kThreads>(call.scores + block.at(p) * kRuleChunk * kRuleChunk, kRuleChunk, base + At::kScores,
                                                kScorePitch, 0, kRuleChunk, static_cast<int>(threadIdx.x));
}

template <int kKeys>
Status launch_within_chunks(const ChunkedCall& p, Queue queue) {
  constexpr int kBytes = Offsets<kKeys>::kEnd;
  if (const cudaError_t e = allow_shared_memory(within_chunks_channels<kKeys>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.params.tokens, p.params.rows) * p.params.heads;
  return launch_overlapped(within_chunks_channels<kKeys>, {static_cast<unsigned>(blocks), kThreads, kBytes}, queue, p);
}

}  // namespace

int within_chunks_channels_shared(const GatedDeltaRule& p) {
  return p.key_dim == 64 ? Offsets<64>::kEnd : p.key_dim == 128 ? Offsets<128>::kEnd : Offsets<256>::kEnd;
}

Status gated_delta_rule_within_chunks_channels(const ChunkedCall& p, Queue queue) {
  return p.params.key_dim == 64    ? launch_within_chunks<64>(p, queue)
         : p.params.key_dim == 128 ? launch_within_chunks<128>(p, queue)
                                   : launch_within_chunks<256>(p, queue);
}

}  // namespace based::kernels::cuda::detail
