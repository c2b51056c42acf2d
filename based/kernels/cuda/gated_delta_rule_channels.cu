// The gated delta rule inside of chunks, where each channel of the keys decays by itself, or a token has a bonus; without correction.
// docs/kernels/gated-delta-rule.md
#include "based/kernels/cuda/gated_delta_rule_channels.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda::detail {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
// Of a channel over a block of tokens. A key of no less than that is seen from the block's beginning without overflow.
constexpr float kLeastOfBlock = -64;

// Places in shared memory, in bytes. In front of the sums is a line of zeros: that of the token before the chunk.
template <int kKeys>
struct Places {
  static constexpr int kPitch = kKeys + 8;
  static constexpr int kQ = 0, kK = kRuleChunk * kPitch * 2, kScores = 2 * kK, kNone = kScores + kRuleChunk * kScorePitch * 2,
                       kSums = kNone + kPitch * 4, kBonus = kSums + kRuleChunk * kPitch * 4, kBeta = kBonus + kKeys * 4,
                       kParts = kBeta + kRuleChunk * 4, kEnd = kParts + kThreads * 4;
};

template <int kKeys>
struct Tile : ChannelTile<Places<kKeys>> {
  using At = Places<kKeys>;
  __device__ __forceinline__ float* bonus() const { return this->floats(At::kBonus); }
  __device__ __forceinline__ float* beta() const { return this->floats(At::kBeta); }
  __device__ __forceinline__ float2 pair_of_sums(int token, int c) const { return *reinterpret_cast<const float2*>(this->sums(token) + c); }
};

__device__ __forceinline__ void load_eight(uint32_t address, float (&to)[8]) {
  const uint4 x = load_shared_16(address);
  to[0] = low_float(x.x), to[1] = high_float(x.x), to[2] = low_float(x.y), to[3] = high_float(x.y);
  to[4] = low_float(x.z), to[5] = high_float(x.z), to[6] = low_float(x.w), to[7] = high_float(x.w);
}

// Sums of decays, betas, the bonus, and zeros for the scores.
template <int kKeys>
__device__ __forceinline__ void read_gates(const GatedDeltaRule& p, const ChunkBlock& block, const Tile<kKeys>& tile) {
  using At = Places<kKeys>;
  const int thread = static_cast<int>(threadIdx.x);
  if (p.bonus != nullptr)
    for (int c = thread; c < kKeys; c += kThreads) tile.bonus()[c] = p.bonus[static_cast<int64_t>(block.head) * kKeys + c];
  if (thread < kRuleChunk) {
    const int64_t line = block.line(p) + static_cast<int64_t>(thread) * p.heads;
    tile.beta()[thread] = thread >= block.place.tokens ? 0.0F : p.beta != nullptr ? p.beta[line] : 1.0F;
  }
  for (int c = thread; c < At::kPitch; c += kThreads) tile.floats(At::kNone)[c] = 0;
  for (int at = thread; at < kRuleChunk * kScorePitch / 8; at += kThreads)
    store_shared_16(shared_address(tile.shared) + At::kScores + at * 16, 0, 0, 0, 0);
  read_channel_decays<kKeys, kThreads>(p, block, tile, tile.floats(At::kParts), [](int, int, float) {});
}

// Scores of a block's tokens for each other, however fast they decay. A lane has one key token and half of its channels, and what of them
// is left as it goes along the later tokens.
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
    auto* to = reinterpret_cast<bf16*>(tile.shared + Places<kKeys>::kScores) + (first + i) * kScorePitch + first + j;
    if (i / 8 == half && i >= j) *to = from_float<bf16>(score * factor);
  }
}

// With a bonus, scores of a block's tokens for themselves.
template <int kKeys>
__device__ __forceinline__ void score_themselves(const GatedDeltaRule& p, const Tile<kKeys>& tile, int first) {
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
  auto* to = reinterpret_cast<bf16*>(tile.shared + Places<kKeys>::kScores) + token * kScorePitch + token;
  if (half == 0) *to = from_float<bf16>(score * p.scale * tile.beta()[token]);
}

// Two neighbouring channels of a token times 2^exponent.
__device__ __forceinline__ uint32_t decayed_pair(uint32_t pair, float2 exponent) {
  return pack_bf16(low_float(pair) * exp2_approx(exponent.x), high_float(pair) * exp2_approx(exponent.y));
}

// Whether a channel decays more over the block than the beginning of the block can see it.
template <int kKeys>
__device__ __forceinline__ bool is_steep(const Tile<kKeys>& tile, int first) {
  bool steep = false;
#pragma unroll
  for (int c = static_cast<int>(threadIdx.x) % 32; c < kKeys; c += 32)
    steep = steep || !(tile.sums(first + kBlock - 1)[c] - tile.sums(first - 1)[c] >= kLeastOfBlock);
  return __any_sync(~0U, steep) != 0;
}

// Scores of 16 tokens from `reader` on for 16 earlier ones from `key` on, or for each other: queries as they see the state at the beginning
// of their block, keys as they are there, or would be.
template <int kKeys>
__device__ __forceinline__ void score_blocks(const GatedDeltaRule& p, const Tile<kKeys>& tile, int reader, int key) {
  using At = Places<kKeys>;
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

// The pair's scores: block `reader` for block `key`.
template <int kKeys>
__device__ __forceinline__ void score_pair(const GatedDeltaRule& p, const Tile<kKeys>& tile, int reader, int key) {
  if (reader == key && is_steep(tile, kBlock * reader)) {
    score_steep_block(p, tile, kBlock * reader);
  } else {
    score_blocks(p, tile, kBlock * reader, kBlock * key);
  }
  if (reader != key || p.bonus == nullptr) return;
  __syncwarp();
  score_themselves(p, tile, kBlock * reader);
}

// Out of shared memory: queries as they see the state before the chunk, keys with their beta as they are at its end, the state's decay.
template <int kKeys>
__device__ __forceinline__ void write_decayed(const RuleByChunk& to, const ChunkBlock& block, const Tile<kKeys>& tile) {
  constexpr int kPieces = kKeys / 8;
  const GatedDeltaRule& p = to.of;
  const int thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < block.place.tokens * kPieces; at += kThreads) {
    const int row = at / kPieces, c = at % kPieces * 8;
    float sum[8], last[8], of_q[8], of_k[8];
    load_floats<8>(tile.sums(row) + c, sum);
    load_floats<8>(tile.sums(kRuleChunk - 1) + c, last);
#pragma unroll
    for (int n = 0; n < 8; ++n) of_k[n] = exp2_approx(last[n] - sum[n]) * tile.beta()[row];
    if (p.bonus != nullptr) load_floats<8>(tile.sums(row - 1) + c, sum);
#pragma unroll
    for (int n = 0; n < 8; ++n) of_q[n] = p.scale * exp2_approx(sum[n]);
    const int64_t line = (block.line(p) + static_cast<int64_t>(row) * p.heads) * kKeys + c;
    *reinterpret_cast<uint4*>(to.q + line) = scaled(load_shared_16(tile.q(row) + c * 2), of_q);
    *reinterpret_cast<uint4*>(to.k + line) = scaled(load_shared_16(tile.k(row) + c * 2), of_k);
  }
  for (int c = thread; c < kKeys; c += kThreads) to.decays[block.at(p) * kKeys + c] = exp2_approx(tile.sums(kRuleChunk - 1)[c]);
}

template <int kKeys>
__global__ void __launch_bounds__(kThreads, kKeys == 256 ? 1 : 2) inside_channels(const __grid_constant__ RuleByChunk to) {
  using At = Places<kKeys>;
  overlap_kernels();
  const GatedDeltaRule& p = to.of;
  const ChunkBlock block(p, blockIdx.x);
  if (block.place.tokens == 0) return;
  const Tile<kKeys> tile{{dynamic_shared()}};
  const uint32_t base = shared_address(tile.shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t stride = static_cast<int64_t>(p.key_heads) * kKeys, line = block.key_line(p) * kKeys;
  request_tile<kKeys, kThreads>(base + At::kQ, static_cast<const bf16*>(p.q) + line, stride, block.place.tokens);
  request_tile<kKeys, kThreads>(base + At::kK, static_cast<const bf16*>(p.k) + line, stride, block.place.tokens);
  copy_async_commit();
  read_gates(p, block, tile);
  copy_async_wait<0>();
  __syncthreads();
  // The pairs of a block and one that is not after it.
  for (int pair = warp; pair < kBlocks * (kBlocks + 1) / 2; pair += kWarps) {
    const int reader = pair < 1 ? 0 : pair < 3 ? 1 : pair < 6 ? 2 : 3, key = pair - reader * (reader + 1) / 2;
    score_pair(p, tile, reader, key);
  }
  write_decayed(to, block, tile);
  __syncthreads();
  store_lines<kRuleChunk, kRuleChunk, kThreads>(to.scores + block.at(p) * kRuleChunk * kRuleChunk, kRuleChunk, base + At::kScores,
                                                kScorePitch, 0, kRuleChunk, static_cast<int>(threadIdx.x));
}

template <int kKeys>
Status launch_inside(const RuleByChunk& p, Stream stream) {
  constexpr int kBytes = Places<kKeys>::kEnd;
  if (const cudaError_t e = allow_shared_memory(inside_channels<kKeys>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.of.tokens, p.of.rows) * p.of.heads;
  return launch_overlapped(inside_channels<kKeys>, {static_cast<unsigned>(blocks), kThreads, kBytes}, stream, p);
}

}  // namespace

Status gated_delta_rule_inside_channels(const RuleByChunk& p, Stream stream) {
  return p.of.key_dim == 64    ? launch_inside<64>(p, stream)
         : p.of.key_dim == 128 ? launch_inside<128>(p, stream)
                               : launch_inside<256>(p, stream);
}

}  // namespace based::kernels::cuda::detail
