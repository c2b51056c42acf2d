// The state of the Taylor kernels with mma.sync: its registers, its forms in memory, and the addition of a chunk.
#pragma once
#include "based/kernels/taylor/cuda/mma.cuh"

namespace based::kernels::cuda::detail::taylor_mma {

template <class S>
__device__ __forceinline__ Packed packed_column(int group, int n) {
  if (group < S::kLinear) {
    const bool half = group >= S::kFull;
    const int c = 8 * (half ? group - S::kFull : group / (S::kDim / 2)) + n, distance = half ? S::kDim / 2 : group % (S::kDim / 2);
    return half && c >= S::kDim / 2 ? Packed{-1, 0} : packed_pair(c, (c + distance) % S::kDim, S::kDim);
  }
  if (group < S::kConstant) return {1 + 8 * (group - S::kLinear) + n, 1.0F};
  return {group == S::kConstant && n == 0 ? 0 : -1, 1.0F};
}

// A head's packed state in global memory, of which a block holds the columns [first, first + width).
struct PackedState {
  float* kv;  // [packed_features, head_dim]
  float* k;   // [packed_features]
  int head_dim, first, width;
};

// The state of a head, or of a slice of its columns, in the registers of a block. All in mma's accumulator layout.
template <class S>
struct State {
  float kv[S::kOwned][S::kColumnTiles][4];  // Σ v φ(k)ᵀ of the warp's groups: rows head dimension, columns features
  // The denominator's sums. Tile i of all is in warp i mod 8: Σ k kᵀ in tiles of 16 x 8, then Σ k, and Σ 1 in column 0 of the last tile,
  // both the same in every row.
  float sums[kSumTiles][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& group : kv)
#pragma unroll
      for (auto& tile : group)
#pragma unroll
        for (float& x : tile) x = 0;
#pragma unroll
    for (auto& tile : sums)
#pragma unroll
      for (float& x : tile) x = 0;
  }

  __device__ __forceinline__ void scale(float state_factor, float sums_factor) {
#pragma unroll
    for (auto& group : kv)
#pragma unroll
      for (auto& tile : group)
#pragma unroll
        for (float& x : tile) x *= state_factor;
#pragma unroll
    for (auto& tile : sums)
#pragma unroll
      for (float& x : tile) x *= sums_factor;
  }

  // Adds a state that `park` stored.
  __device__ __forceinline__ void add(const float* parked) {
    const auto* tiles = reinterpret_cast<const float4*>(parked);
    const auto add_tile = [&](float(&tile)[4], int i) {
      const float4 x = tiles[i * kThreads + threadIdx.x];
      tile[0] += x.x, tile[1] += x.y, tile[2] += x.z, tile[3] += x.w;
    };
#pragma unroll
    for (int j = 0; j < S::kOwned; ++j)
#pragma unroll
      for (int m = 0; m < S::kColumnTiles; ++m) add_tile(kv[j][m], j * S::kColumnTiles + m);
#pragma unroll
    for (int i = 0; i < kSumTiles; ++i) add_tile(sums[i], S::kOwned * S::kColumnTiles + i);
  }

  __device__ __forceinline__ void park(float* parked) const {
    auto* tiles = reinterpret_cast<float4*>(parked);
    const auto park_tile = [&](const float(&tile)[4], int i) {
      tiles[i * kThreads + threadIdx.x] = make_float4(tile[0], tile[1], tile[2], tile[3]);
    };
#pragma unroll
    for (int j = 0; j < S::kOwned; ++j)
#pragma unroll
      for (int m = 0; m < S::kColumnTiles; ++m) park_tile(kv[j][m], j * S::kColumnTiles + m);
#pragma unroll
    for (int i = 0; i < kSumTiles; ++i) park_tile(sums[i], S::kOwned * S::kColumnTiles + i);
  }

  // Calls visit(value, packed feature, column of the head dimension) for each number of kv, and visit_sum(value, packed feature, whether
  // this number is to be stored: each one is in several places) for each of the sums.
  template <class Visit, class VisitSum>
  __device__ __forceinline__ void visit(const Visit& visit_value, const VisitSum& visit_sum) {
    const int lane = lane_index(), n = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < S::kOwned; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Packed f = packed_column<S>(S::owned_group(warp_index(), j), 2 * t + i);
#pragma unroll
        for (int m = 0; m < 2 * S::kColumnTiles; ++m) visit_value(kv[j][m / 2][2 * (m % 2) + i], f, 8 * m + n);
      }
    }
#pragma unroll
    for (int slot = 0; slot < kSumTiles; ++slot) {
      const int tile = warp_index() + kWarps * slot;
      if (tile >= S::kAllSumTiles) continue;
      const bool pairs = tile < S::kPairTiles;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * (tile / S::kBlocks) + n + (i & 2 ? 8 : 0),
                  column = 8 * (pairs ? tile % S::kBlocks : tile - S::kPairTiles) + 2 * t + (i & 1);
        const Packed f = pairs ? packed_pair(row, column, S::kDim)
                               : Packed{column < S::kDim    ? 1 + column
                                        : column == S::kDim ? 0
                                                            : -1,
                                        1.0F};
        visit_sum(sums[slot][i], f, pairs ? row <= column : n == 0 && i < 2);
      }
    }
  }
  __device__ __forceinline__ void load(const PackedState& from) {
    clear();
    visit(
        [&](float& x, const Packed& f, int column) {
          if (f.number >= 0 && column < from.width) x = from.kv[int64_t{f.number} * from.head_dim + from.first + column] * f.scale;
        },
        [&](float& x, const Packed& f, bool) {
          if (f.number >= 0) x = from.k[f.number] * f.scale;
        });
  }
  __device__ __forceinline__ void store(const PackedState& to) {
    visit(
        [&](float& x, const Packed& f, int column) {
          if (f.number >= 0 && column < to.width) to.kv[int64_t{f.number} * to.head_dim + to.first + column] = x / f.scale;
        },
        [&](float& x, const Packed& f, bool owner) {
          if (f.number >= 0 && owner && to.first == 0) to.k[f.number] = x / f.scale;
        });
  }

  // Stores the state to shared memory for the products with features of rows; where kRest, also the rounding errors of the last tiles.
  template <bool kRest>
  __device__ __forceinline__ void publish(uint32_t base, uint32_t rest) const {
    using At = Offsets<S>;
    const int lane = lane_index(), n = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < S::kOwned; ++j) {
      const int group = S::owned_group(warp_index(), j);
      if (group >= S::kGroups) break;
#pragma unroll
      for (int m = 0; m < 2 * S::kColumnTiles; ++m) {
        const float x = kv[j][m / 2][2 * (m % 2)], y = kv[j][m / 2][2 * (m % 2) + 1];
        const uint32_t high = pack_bf16(x, y);
        store_shared_4(base + At::kState + (8 * m + n) * S::kStatePitch + group * 16 + t * 4, high);
        if (kRest && group >= 2 * S::kFirstExact) {
          store_shared_4(rest + (8 * m + n) * S::kRestPitch + (group - 2 * S::kFirstExact) * 16 + t * 4,
                         pack_bf16(x - low_float(high), y - high_float(high)));
        }
      }
    }
#pragma unroll
    for (int slot = 0; slot < kSumTiles; ++slot) {
      const int tile = warp_index() + kWarps * slot;
      if (tile < S::kPairTiles) {
        const uint32_t at = (16 * (tile / S::kBlocks) + n) * S::kPairPitch + tile % S::kBlocks * 16 + t * 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = sums[slot][2 * i], y = sums[slot][2 * i + 1];
          const uint32_t high = pack_bf16(x, y), to = base + at + i * 8 * S::kPairPitch;
          store_shared_4(to + At::kPairs, high);
          store_shared_4(to + At::kPairRest, pack_bf16(x - low_float(high), y - high_float(high)));
        }
      } else if (tile < S::kAllSumTiles && n == 0) {
        const uint32_t to = base + At::kSums + (8 * (tile - S::kPairTiles) + 2 * t) * 4;
        store_shared_float(to, sums[slot][0]), store_shared_float(to + 4, sums[slot][1]);
      }
    }
  }
};

// Writes the parts of shared memory that stay constant: the row of zeros of the keys, the rows of the groups' columns, and the columns of
// Σ kkᵀ that no tile covers.
template <class S>
__device__ __forceinline__ void prepare_shared(uint32_t base) {
  using At = Offsets<S>;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk / 2; i += kThreads) {
    store_shared_4(base + At::kKeys + (S::kDim + 1) * kKeyPitch + i * 4, 0);
  }
  // Groups beyond the last one, which publish() leaves out, have rows of zeros.
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * S::kOwned * 8; i += kThreads) {
    store_shared_4(base + At::kKeyRows + i * 4, key_rows<S>(i / 8, i % 8));
  }
  if constexpr (S::kBlocks % 2 == 1) {
    for (int i = static_cast<int>(threadIdx.x); i < S::kRowTiles * 16 * 8; i += kThreads) {
      const uint32_t at = base + i / 8 * S::kPairPitch + S::kBlocks * 16 + i % 4 * 4;
      store_shared_4(at + (i % 8 < 4 ? At::kPairs : At::kPairRest), 0);
    }
  }
}

// Adds v φ(k)ᵀ of a chunk to the state. In each 32 tokens, thread t of a column multiplies the keys of the adjacent tokens 8t … 8t + 7, so
// that it loads 16 bytes of a row at once; the values' rows are loaded in the same order. With decay, the products are made of keys that
// are multiplied by the tokens' factors. kUnrolled: iterations at a time.
template <int kUnrolled, class S>
__device__ __forceinline__ void add_values(State<S>& s, uint32_t base, uint32_t values, bool decays) {
  using At = Offsets<S>;
  const int lane = lane_index(), matrix = lane / 8, t = lane % 4;
  const int row = 8 * (lane % 8 / 2) + lane % 2 + 2 * (matrix / 2);
  uint32_t rows_of[S::kOwned];
#pragma unroll
  for (int j = 0; j < S::kOwned; ++j)
    rows_of[j] = load_shared_4(base + At::kKeyRows + (8 * S::owned_group(warp_index(), j) + lane / 4) * 4);
#pragma unroll kUnrolled
  for (int k = 0; k < kChunk; k += 32) {
    uint32_t v[2][S::kColumnTiles][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int m = 0; m < S::kColumnTiles; ++m) {
        ldmatrix_transposed(v[half][m], values + value_at<S::kWidth>(k + 4 * half + row, 2 * m + matrix % 2));
      }
    const uint32_t keys = base + At::kKeys + 2 * k + 16 * t;
    const uint4 decay = decays ? load_shared_16(base + At::kFactors + 2 * k + 16 * t) : make_uint4(kOnes, kOnes, kOnes, kOnes);
    uint4 own = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < S::kOwned; ++j) {
      if (j == 0 || j >= S::kRun) {
        own = load_shared_16(keys + (rows_of[j] >> 16));
        own.x = mul_bf16(own.x, decay.x), own.y = mul_bf16(own.y, decay.y);
        own.z = mul_bf16(own.z, decay.z), own.w = mul_bf16(own.w, decay.w);
      }
      const uint4 other = load_shared_16(keys + (rows_of[j] & 0xffff));
      const uint32_t f[4] = {mul_bf16(own.x, other.x), mul_bf16(own.y, other.y), mul_bf16(own.z, other.z), mul_bf16(own.w, other.w)};
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int m = 0; m < S::kColumnTiles; ++m) mma_16x8x16(s.kv[j][m], v[half][m], f[2 * half], f[2 * half + 1]);
    }
  }
}

// Splits the product of two bf16 and two weights into a bf16 part and the rest, also as bf16.
__device__ __forceinline__ void weigh(uint32_t x, float w0, float w1, uint32_t& high, uint32_t& rest) {
  const float a = low_float(x) * w0, b = high_float(x) * w1;
  high = pack_bf16(a, b), rest = pack_bf16(a - low_float(high), b - high_float(high));
}

// Adds a chunk to the denominator's sums. Where `weighted`, each token has a weight at kWeights.
template <int kUnrolled, class S>
__device__ __forceinline__ void add_sums(State<S>& s, uint32_t base, bool weighted) {
  using At = Offsets<S>;
  const int n = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int slot = 0; slot < kSumTiles; ++slot) {
    const int tile = warp_uniform(warp_index()) + kWarps * slot;
    if (tile >= S::kAllSumTiles) break;
    const bool pairs = tile < S::kPairTiles;
    const int row = 16 * (tile / S::kBlocks) + n, block = pairs ? tile % S::kBlocks : tile - S::kPairTiles;
    const int a = pairs ? row : S::kDim, b = pairs ? (row + 8 < S::kDim ? row + 8 : S::kDim + 1) : S::kDim,
              c = block < S::kBlocks ? 8 * block + n
                  : n == 0           ? S::kDim
                                     : S::kDim + 1;
    const uint32_t keys = base + At::kKeys + 16 * t;
    float rests[4] = {};  // sums of the rests of the weighted keys, so that two chains of mma run at a time
#pragma unroll kUnrolled
    for (int k = 0; k < kChunk; k += 32) {
      const uint4 x = load_shared_16(keys + a * kKeyPitch + 2 * k), y = load_shared_16(keys + b * kKeyPitch + 2 * k);
      uint4 z = load_shared_16(keys + c * kKeyPitch + 2 * k);
      const uint32_t first[4] = {x.x, y.x, x.y, y.y}, second[4] = {x.z, y.z, x.w, y.w};
      if (weighted) {
        const uint32_t at = base + At::kWeights + (k + 8 * t) * 4;
        const float4 w0 = load_shared_float4(at), w1 = load_shared_float4(at + 16);
        uint4 rest;
        weigh(z.x, w0.x, w0.y, z.x, rest.x), weigh(z.y, w0.z, w0.w, z.y, rest.y);
        weigh(z.z, w1.x, w1.y, z.z, rest.z), weigh(z.w, w1.z, w1.w, z.w, rest.w);
        mma_16x8x16(rests, first, rest.x, rest.y);
        mma_16x8x16(s.sums[slot], first, z.x, z.y);
        mma_16x8x16(rests, second, rest.z, rest.w);
        mma_16x8x16(s.sums[slot], second, z.z, z.w);
      } else {
        mma_16x8x16(s.sums[slot], first, z.x, z.y);
        mma_16x8x16(s.sums[slot], second, z.z, z.w);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s.sums[slot][i] += rests[i];
  }
}

}  // namespace based::kernels::cuda::detail::taylor_mma
