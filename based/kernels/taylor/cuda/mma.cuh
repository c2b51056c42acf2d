// Shared parts of the Taylor kernels that use mma.sync and cp.async, for any GPU from sm_80: bf16, feature_dim 8, 16, 24 or 32, with or
// without decay. One block of eight warps processes chunks of 128 tokens of one head and a slice of up to kWidth (64 or 32) columns of
// the head dimension. docs/kernels/taylor-attention.md describes the algorithm.
//
// Feature groups. Features come in groups of eight columns. With d = feature_dim, and n the column within a group:
//   (d/8)·(d/2) groups (b, o), o < d/2:   x_c · x_{(c + o) mod d},  c = 8b + n    (every pair at cyclic distance o < d/2, once)
//   the groups at distance d/2:           x_c · x_{c + d/2},        c = 8b + n < d/2
//   d/8 groups b:                         x_c
//   one group:                            1 in column 0
// Columns that have no feature are zero. The weight ½ of the squares is applied to the features of the rows that read the state.
#pragma once
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/taylor/cuda/segments.cuh"

namespace based::kernels::cuda::detail::taylor_mma {

constexpr int kThreads = 256, kWarps = kThreads / 32, kChunk = 128;
constexpr uint32_t kKeyPitch =
    kChunk * 2 + 64;                    // bytes of a row of transposed keys; 8 lanes that read 16 bytes of two rows do not conflict
constexpr int kSumTiles = 2;            // tiles of the denominator's sums in one warp
constexpr uint32_t kOnes = 0x3f803f80;  // two bf16 ones

// Sizes for one feature_dim, and for the number of columns of the head dimension in one block.
template <int kFeatureDim, int kColumns>
struct Shape {
  static constexpr int kDim = kFeatureDim, kWidth = kColumns;
  static_assert(kDim % 8 == 0 && kDim <= 32);
  static constexpr int kBlocks = kDim / 8;            // blocks of eight elements of q and k
  static constexpr int kColumnTiles = kWidth / 16;    // tiles of 16 of a block's columns
  static constexpr int kFull = kBlocks * (kDim / 2);  // groups of products at distances below d/2
  static constexpr int kLinear = kFull + (kDim + 15) / 16, kConstant = kLinear + kBlocks;
  static constexpr int kGroups = (kConstant + 2) / 2 * 2, kTiles = kGroups / 2;  // a tile is two groups, 16 features
  static constexpr int kFirstExact = kLinear / 2;  // tiles from here on are read with the rounding error of the state
  // Groups whose state one warp holds: kRun adjacent ones with the same own columns, then others one by one.
  static constexpr int kRun = kFull / kWarps / 2 * 2, kOwned = kRun + (kGroups - kWarps * kRun + kWarps - 1) / kWarps;
  static_assert(kDim / 2 % (kRun > 0 ? kRun : 1) == 0);
  static constexpr int owned_group(int warp, int j) { return j < kRun ? warp * kRun + j : kWarps * j + warp; }
  static constexpr int kRowTiles = (kDim + 15) / 16;  // tiles of 16 rows of Σ kkᵀ
  static constexpr int kPairTiles = kRowTiles * kBlocks, kAllSumTiles = kPairTiles + kBlocks + 1;
  static_assert(kAllSumTiles <= kSumTiles * kWarps);
  // Bytes between rows in shared memory: odd multiples of 16, so that ldmatrix has no bank conflicts.
  static constexpr uint32_t kRowPitch = (kBlocks | 1) * 16, kStatePitch = (kGroups | 1) * 16,
                            kRestPitch = ((kGroups - 2 * kFirstExact) | 1) * 16, kPairPitch = kRowTiles * 32 + 16;
  static constexpr uint32_t kValueBytes = kChunk * kWidth * 2, kRowBytes = kChunk * kRowPitch, kKeyBytes = (kDim + 2) * kKeyPitch,
                            kStateBytes = kWidth * kStatePitch, kRestBytes = kWidth * kRestPitch, kPairBytes = kRowTiles * 16 * kPairPitch,
                            kSumBytes = (kBlocks + 1) * 32;
  static constexpr int kParkedFloats = (kOwned * kColumnTiles + kSumTiles) * 4 * kThreads;
};

// Offsets in shared memory that forward and backward share.
template <class S>
struct Offsets {
  static constexpr uint32_t kValues = 0,   // v [tokens][columns], swizzled
      kSource = kValues + S::kValueBytes,  // k [tokens][kDim], as in global memory
      kRows = kSource + S::kRowBytes,      // q, as in global memory
      kKeys = kRows + S::kRowBytes,        // kᵀ [kDim + 2][tokens]; row kDim: 1 for each token; row kDim + 1: 0
      kState = kKeys + S::kKeyBytes,       // the state rounded to bf16 [columns][features]
      kPairs = kState + S::kStateBytes,    // Σ kkᵀ rounded to bf16 [kDim][kDim]
      kPairRest = kPairs + S::kPairBytes,  // its rounding error, also as bf16
      kSums = kPairRest + S::kPairBytes,   // Σ k, then Σ 1 at kDim: floats
      kFactors = kSums + S::kSumBytes,     // decay of each token up to the chunk's end: bf16 [tokens]
      kWeights = kFactors + kChunk * 2,    // weights of the tokens in the denominator's sums: floats [tokens]
      kKeyRows = kWeights + kChunk * 4,    // key_rows() of each column of each group
      kEnd = kKeyRows + kWarps * S::kOwned * 32;
};

struct Plan : SegmentPlan {
  int32_t parked_floats;  // floats of a parked state
};

template <class S>
Plan make_plan(const TaylorAttention& p, int jobs, int blocks_per_multiprocessor) {
  const int64_t blocks = int64_t{blocks_per_multiprocessor} * multiprocessors();
  return {plan_segments(p, {.chunk = kChunk, .slice_width = S::kWidth, .blocks = blocks, .jobs = jobs}), S::kParkedFloats};
}

inline int64_t parked_floats(const TaylorAttention& p, const Plan& plan) {
  return plan.numbers * p.heads * plan.slices * plan.parked_floats;
}

// A head's decay rates as powers of two: of the numerator and kv_state, and of the denominator and k_state.
struct Decay {
  float numerator = 0, denominator = 0;
  bool given = false;

  __device__ __forceinline__ Decay(const TaylorAttention& p, int head) {
    if (p.decay == nullptr) return;
    given = true, numerator = log2f(p.decay[head]), denominator = p.decay_denominator ? numerator : 0.0F;
  }
  __device__ __forceinline__ float state_factor(int64_t tokens) const { return exp2f(static_cast<float>(tokens) * numerator); }
  __device__ __forceinline__ float sums_factor(int64_t tokens) const { return exp2f(static_cast<float>(tokens) * denominator); }
};

__device__ __forceinline__ uint32_t shared_base() {
  extern __shared__ uint8_t shared[];
  return shared_address(shared);
}

// Hides the value of an address from the compiler, which otherwise keeps everything derived from it in registers across the loop over
// chunks.
__device__ __forceinline__ uint32_t opaque(uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

// Offset of a 16-byte unit in a tile of values. The swizzle keeps ldmatrix free of bank conflicts for eight adjacent rows, and for the rows
// of a chunk that add_values() reads together.
template <int kWidth>
__device__ __forceinline__ uint32_t value_at(int row, int unit) {
  const int swizzled = kWidth == 64 ? unit ^ (row & 7) ^ ((row >> 3 & 3) << 1) : unit ^ (row >> 1 & 3) ^ (row >> 3 & 3);
  return row * (kWidth * 2) + swizzled * 16;
}

// Requests a chunk's values: `tokens` rows of `width` columns; the rest of the tile becomes zero.
template <int kWidth>
__device__ __forceinline__ void request_values(uint32_t tile, const bf16* first, int64_t stride, int tokens, int width) {
  constexpr int kUnits = kWidth / 8;
#pragma unroll 1  // unrolled, the addresses would stay in registers during the whole chunk
  for (int i = 0; i < kChunk * kUnits / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads, row = at / kUnits, unit = at % kUnits;
    const bool valid = row < tokens && unit * 8 < width;
    copy_async_16(tile + value_at<kWidth>(row, unit), first + (valid ? row * stride + unit * 8 : 0), valid);
  }
}

// Requests a chunk's rows of q or k; rows from `tokens` on become zero.
template <class S>
__device__ __forceinline__ void request_rows(uint32_t tile, const bf16* first, int64_t stride, int tokens) {
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < kChunk * S::kBlocks; at += kThreads) {
    const int row = at / S::kBlocks, unit = at % S::kBlocks;
    copy_async_16(tile + row * S::kRowPitch + unit * 16, first + (row < tokens ? row * stride + unit * 8 : 0), row < tokens);
  }
}

// Transposes the chunk's rows at `source` to `keys`. Each warp transposes 16 tokens.
template <class S>
__device__ __forceinline__ void transpose_keys(uint32_t keys, uint32_t source, int tokens) {
  const int lane = lane_index(), matrix = lane / 8, first = 16 * warp_index();
#pragma unroll
  for (int block = 0; block < S::kBlocks; block += 2) {
    uint32_t x[4];
    ldmatrix_transposed(x, source + (first + 8 * (matrix % 2) + lane % 8) * S::kRowPitch + min(block + matrix / 2, S::kBlocks - 1) * 16);
    const uint32_t to = keys + (8 * block + lane / 4) * kKeyPitch + (first + 2 * (lane % 4)) * 2;
    store_shared_4(to, x[0]), store_shared_4(to + 16, x[1]);
    if (block + 1 < S::kBlocks) store_shared_4(to + 8 * kKeyPitch, x[2]), store_shared_4(to + 8 * kKeyPitch + 16, x[3]);
  }
  if (lane < 8) {
    const int token = first + 2 * lane;
    store_shared_4(keys + S::kDim * kKeyPitch + token * 2, (token < tokens ? 0x3f80 : 0) | (token + 1 < tokens ? 0x3f800000 : 0));
  }
}

// A row of q or k in registers, two elements a register, rotated by lane mod 4 registers: so thread t of a row owns columns 2t and 2t + 1
// of every block, and every index is a compile-time constant.
template <class S>
struct Row {
  uint32_t x[S::kDim / 2];

  __device__ __forceinline__ void load(uint32_t row) {
    const int t = lane_index() % 4;
#pragma unroll
    for (int i = 0; i < S::kDim / 2; ++i) x[i] = load_shared_4(row + (i + t < S::kDim / 2 ? i + t : i + t - S::kDim / 2) * 4);
  }
  // Elements 2m + o and 2m + o + 1, modulo kDim.
  __device__ __forceinline__ uint32_t pair(int m, int o) const {
    const int i = m + o / 2;
    return o % 2 == 0 ? x[i % (S::kDim / 2)] : __byte_perm(x[i % (S::kDim / 2)], x[(i + 1) % (S::kDim / 2)], 0x5432);
  }
};

// The 16 rows of a warp's tile: a thread has two of them, 8 apart.
template <class S>
struct RowTile {
  Row<S> a, b;

  __device__ __forceinline__ void load(uint32_t rows, int tile) {
    const uint32_t at = rows + (16 * tile + lane_index() / 4) * S::kRowPitch;
    a.load(at), b.load(at + 8 * S::kRowPitch);
  }
  // Elements 16k … 16k + 15 as an A operand.
  __device__ __forceinline__ void operand(uint32_t (&f)[4], int k) const {
    f[0] = a.x[8 * k], f[1] = b.x[8 * k];
    const bool whole = 2 * k + 1 < S::kBlocks;
    f[2] = whole ? a.x[(8 * k + 4) % (S::kDim / 2)] : 0, f[3] = whole ? b.x[(8 * k + 4) % (S::kDim / 2)] : 0;
  }
};

// The group's features of one row: two columns of a thread.
template <class S>
__device__ __forceinline__ uint32_t row_features(const Row<S>& row, int group) {
  if (group < S::kFull) {
    const int block = group / (S::kDim / 2), distance = group % (S::kDim / 2);
    const uint32_t f = mul_bf16(row.x[4 * block], row.pair(4 * block, distance));
    return distance == 0 ? mul_bf16(f, 0x3f003f00) : f;
  }
  const int t = lane_index() % 4;
  if (group < S::kLinear) {
    const int block = group - S::kFull;
    const uint32_t f = mul_bf16(row.x[4 * block], row.pair(4 * block, S::kDim / 2));
    return 8 * block + 8 > S::kDim / 2 && t >= 2 ? 0 : f;
  }
  if (group < S::kConstant) return row.x[4 * (group - S::kLinear)];
  return group == S::kConstant && t == 0 ? 0x3f80 : 0;
}

// Tile `tile` of the features of 16 rows, as an A operand.
template <class S>
__device__ __forceinline__ void tile_features(uint32_t (&f)[4], const RowTile<S>& rows, int tile) {
  f[0] = row_features(rows.a, 2 * tile), f[1] = row_features(rows.b, 2 * tile);
  f[2] = row_features(rows.a, 2 * tile + 1), f[3] = row_features(rows.b, 2 * tile + 1);
}

// The rows of the transposed keys whose product is column n of a group: their offsets, one in each half.
template <class S>
__device__ __forceinline__ uint32_t key_rows(int group, int n) {
  int own = S::kDim + 1, other = S::kDim + 1;
  if (group < S::kLinear) {
    const bool half = group >= S::kFull;
    const int c = 8 * (half ? group - S::kFull : group / (S::kDim / 2)) + n, distance = half ? S::kDim / 2 : group % (S::kDim / 2);
    if (!half || c < S::kDim / 2) own = c, other = c + distance < S::kDim ? c + distance : c + distance - S::kDim;
  } else if (group < S::kConstant) {
    own = 8 * (group - S::kLinear) + n, other = S::kDim;
  } else if (group == S::kConstant && n == 0) {
    own = other = S::kDim;
  }
  return (own * kKeyPitch) << 16 | (other * kKeyPitch);
}

// out += φ(rows) S for a warp's 16 rows.
template <class S, bool kRest>
__device__ __forceinline__ void read_state(float (&out)[2 * S::kColumnTiles][4], const RowTile<S>& rows, uint32_t state, uint32_t rest) {
  const int lane = lane_index(), matrix = lane / 8, column = 8 * (matrix / 2) + lane % 8;
  const uint32_t at = state + column * S::kStatePitch + matrix % 2 * 16, rest_at = rest + column * S::kRestPitch + matrix % 2 * 16;
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
    uint32_t f[4];
    tile_features(f, rows, tile);
#pragma unroll
    for (int m = 0; m < S::kColumnTiles; ++m) {
      uint32_t b[4];
      ldmatrix(b, at + m * 16 * S::kStatePitch + tile * 32);
      mma_16x8x16(out[2 * m], f, b[0], b[1]);
      mma_16x8x16(out[2 * m + 1], f, b[2], b[3]);
      if (kRest && tile >= S::kFirstExact) {
        ldmatrix(b, rest_at + m * 16 * S::kRestPitch + (tile - S::kFirstExact) * 32);
        mma_16x8x16(out[2 * m], f, b[0], b[1]);
        mma_16x8x16(out[2 * m + 1], f, b[2], b[3]);
      }
    }
  }
}

// u += Σkkᵀ x for a warp's 16 rows x, in the accumulator layout of kDim columns.
template <class S>
__device__ __forceinline__ void multiply_pairs(float (&u)[S::kBlocks][4], const RowTile<S>& rows, uint32_t base) {
  using At = Offsets<S>;
  const int lane = lane_index(), matrix = lane / 8;
  const uint32_t at = base + (8 * (matrix / 2) + lane % 8) * S::kPairPitch + matrix % 2 * 16;
#pragma unroll
  for (int k = 0; k < S::kRowTiles; ++k) {
    uint32_t x[4];
    rows.operand(x, k);
#pragma unroll
    for (int block = 0; block < S::kBlocks; block += 2) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t b[4];
        ldmatrix(b, at + (part == 0 ? At::kPairs : At::kPairRest) + block * 8 * S::kPairPitch + k * 32);
        mma_16x8x16(u[block], x, b[0], b[1]);
        if (block + 1 < S::kBlocks) mma_16x8x16(u[(block + 1) % S::kBlocks], x, b[2], b[3]);
      }
    }
  }
}

// Scores x·k of a warp's 16 rows with the chunk's 16 sources from `first` on; score[i] has sources 8i … 8i + 7.
template <class S>
__device__ __forceinline__ void scores(float (*score)[4], const RowTile<S>& rows, uint32_t source, int first) {
  const int lane = lane_index(), matrix = lane / 8;
  const uint32_t at = source + (first + 8 * (matrix / 2) + lane % 8) * S::kRowPitch;
#pragma unroll
  for (int k = 0; k < S::kRowTiles; ++k) {
    uint32_t x[4], b[4];
    rows.operand(x, k);
    ldmatrix(b, at + min(2 * k + matrix % 2, S::kBlocks - 1) * 16);
    mma_16x8x16(score[0], x, b[0], b[1]);
    mma_16x8x16(score[1], x, b[2], b[3]);
  }
}

// out += w · values for 16 of the chunk's tokens from `first` on.
template <int kWidth>
__device__ __forceinline__ void multiply_values(float (&out)[kWidth / 8][4], const uint32_t (&w)[4], uint32_t values, int first) {
  const int lane = lane_index(), matrix = lane / 8, row = first + 8 * (matrix % 2) + lane % 8;
#pragma unroll
  for (int m = 0; m < kWidth / 16; ++m) {
    uint32_t v[4];
    ldmatrix_transposed(v, values + value_at<kWidth>(row, 2 * m + matrix / 2));
    mma_16x8x16(out[2 * m], w, v[0], v[1]);
    mma_16x8x16(out[2 * m + 1], w, v[2], v[3]);
  }
}

// The tile of 16 rows of a warp. Its work on the pairs of a chunk grows with its index (or falls, where rows precede their sources); warps
// w and w + 4, which share a scheduler, have tiles with the same total work.
__device__ __forceinline__ int row_tile() { return warp_index() < 4 ? warp_index() : 11 - warp_index(); }

}  // namespace based::kernels::cuda::detail::taylor_mma
