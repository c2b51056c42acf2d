// The gated delta rule inside of chunks, where each channel of the keys decays by itself, or a token has a bonus; without correction.
// docs/kernels/gated-delta-rule.md
#include "based/kernels/cuda/gated_delta_rule_channels.cuh"
#include "based/kernels/cuda/launch.h"

namespace based::kernels::cuda::detail {
namespace {

// Places in shared memory, in bytes.
template <int kKeys>
struct Places {
  static constexpr int kPitch = kKeys + 8;
  static constexpr int kQ = 0, kK = kRuleChunk * kPitch * 2, kScores = 2 * kK, kSums = kScores + kRuleChunk * kScorePitch * 2,
                       kDecays = kSums + kRuleChunk * kPitch * 4, kBonus = kDecays + kRuleChunk * kPitch * 4, kBeta = kBonus + kKeys * 4,
                       kEnd = kBeta + kRuleChunk * 4;
};

template <int kKeys>
struct Tile : ChannelTile<Places<kKeys>> {
  using At = Places<kKeys>;
  __device__ __forceinline__ float* bonus() const { return this->floats(At::kBonus); }
  __device__ __forceinline__ float* beta() const { return this->floats(At::kBeta); }
};

__device__ __forceinline__ void load_eight(uint32_t address, float (&to)[8]) {
  const uint4 x = load_shared_16(address);
  to[0] = low_float(x.x), to[1] = high_float(x.x), to[2] = low_float(x.y), to[3] = high_float(x.y);
  to[4] = low_float(x.z), to[5] = high_float(x.z), to[6] = low_float(x.w), to[7] = high_float(x.w);
}

// Decays, betas, the bonus, and zeros for the scores.
template <int kKeys>
__device__ __forceinline__ void read_gates(const GatedDeltaRule& p, const ChunkBlock& block, const Tile<kKeys>& tile) {
  const int thread = static_cast<int>(threadIdx.x);
  read_channel_decays<kKeys, kRuleThreads>(p, block, tile);
  if (p.bonus != nullptr)
    for (int c = thread; c < kKeys; c += kRuleThreads) tile.bonus()[c] = p.bonus[static_cast<int64_t>(block.head) * kKeys + c];
  if (thread < kRuleChunk) {
    const int64_t line = block.line(p) + static_cast<int64_t>(thread) * p.heads;
    tile.beta()[thread] = thread >= block.place.tokens ? 0.0F : p.beta != nullptr ? p.beta[line] : 1.0F;
  }
  for (int at = thread; at < kRuleChunk * kScorePitch / 8; at += kRuleThreads)
    store_shared_16(shared_address(tile.shared) + Places<kKeys>::kScores + at * 16, 0, 0, 0, 0);
}

// Scores of a block's tokens for each other. A lane has one key token and half of its channels, and what of them is left as it goes along
// the later tokens: no exponent is a difference.
template <int kKeys>
__device__ __forceinline__ void score_block(const GatedDeltaRule& p, const Tile<kKeys>& tile, int first) {
  constexpr int kPart = 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, j = lane % kBlock, half = lane / kBlock;
  const bool bonus = p.bonus != nullptr;
  float scores[kBlock] = {}, own = 0;
  for (int begin = half * kKeys / 2; begin < (half + 1) * kKeys / 2; begin += kPart) {
    float x[kPart];
#pragma unroll
    for (int c = 0; c < kPart; c += 8) {
      float k[8], q[8];
      load_eight(tile.k(first + j) + (begin + c) * 2, k);
      if (bonus) load_eight(tile.q(first + j) + (begin + c) * 2, q);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        x[c + n] = k[n];
        if (bonus) own = fmaf(q[n] * tile.bonus()[begin + c + n], k[n], own);
      }
    }
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kPart; c += 8) {
        float q[8], decay[8];
        load_eight(tile.q(first + i) + (begin + c) * 2, q);
        load_floats<8>(tile.decays(first + i) + begin + c, decay);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const float decayed = i > j ? x[c + n] * decay[n] : x[c + n];
          sum = fmaf(q[n], bonus ? x[c + n] : decayed, sum);  // with a bonus a token reads the state before its decay
          x[c + n] = decayed;
        }
      }
      scores[i] += sum;
    }
  }
  own += __shfl_xor_sync(~0U, own, kBlock);
  const float factor = p.scale * tile.beta()[first + j];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    float score = scores[i] + __shfl_xor_sync(~0U, scores[i], kBlock);
    if (bonus && i == j) score = own;
    auto* to = reinterpret_cast<bf16*>(tile.shared + Places<kKeys>::kScores) + (first + i) * kScorePitch + first + j;
    if (i / 8 == half && i >= j) *to = from_float<bf16>(score * factor);
  }
}

// Two neighbouring channels of a token times 2^exponent.
__device__ __forceinline__ uint32_t decayed_pair(uint32_t pair, float2 exponent) {
  return pack_bf16(low_float(pair) * exp2_approx(exponent.x), high_float(pair) * exp2_approx(exponent.y));
}

// Scores of 16 tokens from `reader` on for 16 earlier ones from `key` on: queries as they see the state at the beginning of their block,
// keys as they are there.
template <int kKeys>
__device__ __forceinline__ void score_blocks(const GatedDeltaRule& p, const Tile<kKeys>& tile, int reader, int key) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, column = lane % 4 * 2, before = p.bonus != nullptr ? 1 : 0;
  const auto sums = [&](int token, int c) { return *reinterpret_cast<const float2*>(tile.sums(token) + c); };
  const auto query = [&](int token, int c) {
    const float2 at = sums(token - before, c), start = sums(reader - 1, c);
    return decayed_pair(*pair_of(tile.shared + Places<kKeys>::kQ, Places<kKeys>::kPitch, token, c), {at.x - start.x, at.y - start.y});
  };
  const auto key_of = [&](int token, int c) {
    const float2 at = sums(token, c), start = sums(reader - 1, c);
    return decayed_pair(*pair_of(tile.shared + Places<kKeys>::kK, Places<kKeys>::kPitch, token, c), {start.x - at.x, start.y - at.y});
  };
  float scores[2][4] = {};
#pragma unroll 2
  for (int c = column; c < kKeys; c += 16) {
    const uint32_t a[4] = {query(reader + row, c), query(reader + row + 8, c), query(reader + row, c + 8), query(reader + row + 8, c + 8)};
#pragma unroll
    for (int n = 0; n < 2; ++n) mma_16x8x16(scores[n], a, key_of(key + 8 * n + row, c), key_of(key + 8 * n + row, c + 8));
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int at = key + 8 * n + column;
    const float left = p.scale * tile.beta()[at], right = p.scale * tile.beta()[at + 1];
    char* const to = tile.shared + Places<kKeys>::kScores;
    *pair_of(to, kScorePitch, reader + row, at) = pack_bf16(scores[n][0] * left, scores[n][1] * right);
    *pair_of(to, kScorePitch, reader + row + 8, at) = pack_bf16(scores[n][2] * left, scores[n][3] * right);
  }
}

// Out of shared memory: queries as they see the state before the chunk, keys with their beta as they are at its end, the state's decay.
template <int kKeys>
__device__ __forceinline__ void write_decayed(const RuleByChunk& to, const ChunkBlock& block, const Tile<kKeys>& tile) {
  constexpr int kPieces = kKeys / 8;
  const GatedDeltaRule& p = to.of;
  const int thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < block.place.tokens * kPieces; at += kRuleThreads) {
    const int row = at / kPieces, c = at % kPieces * 8, read = p.bonus != nullptr ? row - 1 : row;
    float sum[8], last[8], of_q[8], of_k[8];
    load_floats<8>(tile.sums(row) + c, sum);
    load_floats<8>(tile.sums(kRuleChunk - 1) + c, last);
#pragma unroll
    for (int n = 0; n < 8; ++n) of_k[n] = exp2_approx(last[n] - sum[n]) * tile.beta()[row];
    if (read >= 0) load_floats<8>(tile.sums(read) + c, sum);
#pragma unroll
    for (int n = 0; n < 8; ++n) of_q[n] = p.scale * (read >= 0 ? exp2_approx(sum[n]) : 1.0F);
    const int64_t line = (block.line(p) + static_cast<int64_t>(row) * p.heads) * kKeys + c;
    *reinterpret_cast<uint4*>(to.q + line) = scaled(load_shared_16(tile.q(row) + c * 2), of_q);
    *reinterpret_cast<uint4*>(to.k + line) = scaled(load_shared_16(tile.k(row) + c * 2), of_k);
  }
  for (int c = thread; c < kKeys; c += kRuleThreads) to.decays[block.at(p) * kKeys + c] = exp2_approx(tile.sums(kRuleChunk - 1)[c]);
}

template <int kKeys>
__global__ void __launch_bounds__(kRuleThreads) inside_channels(const __grid_constant__ RuleByChunk to) {
  using At = Places<kKeys>;
  overlap_kernels();
  const GatedDeltaRule& p = to.of;
  const ChunkBlock block(p, blockIdx.x);
  if (block.place.tokens == 0) return;
  const Tile<kKeys> tile{{dynamic_shared()}};
  const uint32_t base = shared_address(tile.shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t stride = static_cast<int64_t>(p.key_heads) * kKeys;
  request_tile<kKeys>(base + At::kQ, static_cast<const bf16*>(p.q) + block.key_line(p) * kKeys, stride, block.place.tokens);
  request_tile<kKeys>(base + At::kK, static_cast<const bf16*>(p.k) + block.key_line(p) * kKeys, stride, block.place.tokens);
  copy_async_commit();
  read_gates(p, block, tile);
  copy_async_wait<0>();
  __syncthreads();
  score_block(p, tile, kBlock * warp);
  // The six pairs of a block and one before it.
  for (int pair = warp; pair < kBlocks * (kBlocks - 1) / 2; pair += kRuleWarps) {
    const int reader = pair < 1 ? 1 : pair < 3 ? 2 : 3, key = pair - reader * (reader - 1) / 2;
    score_blocks(p, tile, kBlock * reader, kBlock * key);
  }
  write_decayed(to, block, tile);
  __syncthreads();
  store_lines<kRuleChunk>(to.scores + block.at(p) * kRuleChunk * kRuleChunk, kRuleChunk, base + At::kScores, kScorePitch, 0, kRuleChunk,
                          kRuleChunk, static_cast<int>(threadIdx.x), kRuleThreads);
}

template <int kKeys>
Status launch_inside(const RuleByChunk& p, Stream stream) {
  constexpr int kBytes = Places<kKeys>::kEnd;
  if (const cudaError_t e = allow_shared_memory(inside_channels<kKeys>, kBytes); e != cudaSuccess) return status_of(e);
  const int64_t blocks = chunk_numbers(p.of.tokens, p.of.rows) * p.of.heads;
  return launch_overlapped(inside_channels<kKeys>, {static_cast<unsigned>(blocks), kRuleThreads, kBytes}, stream, p);
}

}  // namespace

Status gated_delta_rule_inside_channels(const RuleByChunk& p, Stream stream) {
  return p.of.key_dim == 64    ? launch_inside<64>(p, stream)
         : p.of.key_dim == 128 ? launch_inside<128>(p, stream)
                               : launch_inside<256>(p, stream);
}

}  // namespace based::kernels::cuda::detail
