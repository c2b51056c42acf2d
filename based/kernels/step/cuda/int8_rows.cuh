// Products of a step program's int8 rows: integer products, so the weights need no conversion. x becomes two integers of 16 bits, a whole
// number and 1/kDigitBase of the rest, of a power of two times x; their four signed bytes (digits) are columns of B. A warp has the largest
// element of its part of x at 2^13 … 2^14, so the rounding is far below that of bf16; the sums of the digits are exact.
#pragma once
#include "based/kernels/step/cuda/thread.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// d += a·b by one warp: a 16 x 32, b 32 x 8, int8; d int32.
__device__ __forceinline__ void mma_16x8x32(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The power of two by which x is multiplied, and its inverse. `largest`: the bits of the largest absolute element. The inverse is NaN if an
// element is infinite or NaN; numbers below 2^-113 have fewer bits.
struct PowerOfTwo {
  float scale, inverse;
  __device__ __forceinline__ explicit PowerOfTwo(uint32_t largest) {
    const uint32_t exponent = max(largest >> 7, 14U);
    scale = __uint_as_float((267U - exponent) << 23);
    inverse = __uint_as_float(exponent == 255 ? 0x7fffffffU : (exponent - 13U) << 23);
  }
};
// With half of it, 128 more than an integer of 16 bits does not overflow.
constexpr float kDigitBase = 65024;
// The digits of four elements: word i has their digits i, d0 + 2^8 d1 of the rest and d2 + 2^8 d3 of the whole number. Rounding by addition
// of a large number, whose low bits are then the integer, avoids conversions, of which a multiprocessor makes few at a time.
__device__ __forceinline__ uint4 digits_of(uint2 four, float scale) {
  constexpr float kRound = 0x1.8p23F + 128;  // 128: the carry of a negative low byte
  const float x[4] = {low_float(four.x), high_float(four.x), low_float(four.y), high_float(four.y)};
  uint32_t whole[4], rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float rounded = fmaf(x[i], scale, kRound);
    whole[i] = __float_as_uint(rounded);
    rest[i] = __float_as_uint(fmaf(fmaf(x[i], scale, kRound - rounded), kDigitBase, kRound));
  }
  const auto low_bytes = [](const uint32_t(&words)[4], uint32_t& first, uint32_t& second) {
    const uint32_t left = __byte_perm(words[0], words[1], 0x5140), right = __byte_perm(words[2], words[3], 0x5140);
    first = __byte_perm(left, right, 0x5410) ^ 0x80808080U, second = __byte_perm(left, right, 0x7632);
  };
  uint4 digits;
  low_bytes(rest, digits.x, digits.y), low_bytes(whole, digits.z, digits.w);
  return digits;
}
__device__ __forceinline__ uint32_t largest_absolute(uint2 x) {
  const uint32_t a = x.x & 0x7fff7fffU, b = x.y & 0x7fff7fffU;
  return max(max(a >> 16, a & 0xffffU), max(b >> 16, b & 0xffffU));
}

// Stores the digits of the warp's part of x, 32 · groups elements, to shared memory, [4][32 · groups]; returns the factor of the whole
// numbers' sums.
__device__ __forceinline__ float store_digits(const WarpInput& x, uint32_t* digits, int groups, int lane) {
  const int words = 8 * groups;  // a word has four elements
  const bool has_first = lane < words, has_second = lane + 32 < words;
  const uint32_t largest = max(has_first ? largest_absolute(x.first) : 0, has_second ? largest_absolute(x.second) : 0);
  const PowerOfTwo power(__reduce_max_sync(~0U, largest));
  const auto store = [&](uint2 four, int word) {
    const uint4 d = digits_of(four, power.scale);
    uint32_t* to = digits + word;
    to[0] = d.x, to[words] = d.y, to[2 * words] = d.z, to[3 * words] = d.w;
  };
  if (has_first) store(x.first, lane);
  if (has_second) store(x.second, lane + 32);
  __syncwarp();  // makes the digits visible to all lanes
  return power.inverse;
}

// multiply_rows() for rows of int8; the digits of x are in shared memory; `inverse` as store_digits() returns it. A lane loads 16
// consecutive weights of a row with one load, the operands of two mma; the lanes that hold B load the same elements' digits. Lanes of odd
// rows read neighbouring chunks of 64 weights in swapped order. Column n of B holds digit n mod 4: columns 0 … 3 in the order of even rows,
// columns 4 … 7 in that of odd rows.
template <int kGroups>
struct Int8Products {
  static constexpr int kChunks = kGroups / 2;
  StepThread<OneToken>& t;
  const int row, quarter, odd, shift;
  const uint32_t row_bytes, swap, lane_at;  // lane_at: for even chunks; 2 · swap less for odd ones
  const float factor;
  float* sums;
  uint4 x[kChunks];

  __device__ __forceinline__ Int8Products(StepThread<OneToken>& thread, int stage_shift, float inverse)
      : t(thread),
        row(thread.lane / 4),
        quarter(thread.lane % 4),
        odd(row % 2),
        shift(stage_shift),
        row_bytes(kGroups * thread.threads),
        swap(kChunks > 1 ? 64 * odd : 0),
        lane_at(thread.ring + 64 * kChunks * thread.warp + 16 * quarter + swap),
        factor(quarter % 2 == 0 ? inverse * (1 / kDigitBase) : inverse),
        sums(thread.sums() + row * kStepSumStride + thread.warp) {
    const uint32_t* digits = t.shared.digits() + t.warp * (kStepDigitBytes / 4) + row % 4 * 8 * kGroups;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) x[j] = reinterpret_cast<const uint4*>(digits)[4 * (kChunks > 1 ? j ^ (row / 4) : j) + quarter];
  }

  // The next `rows` rows, at most 16 · kTiles. All weights are loaded before the first product, so the chains of several tiles overlap.
  template <int kTiles>
  __device__ __forceinline__ void multiply(int rows) {
    const int stages = (rows + (1 << shift) - 1) >> shift;
    t.await_stages(stages);
    uint4 a[kTiles][kChunks][2];  // weights of rows `row` and `row + 8` of each tile
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const uint32_t in_ring = t.stage_at + min((row + 8 * i) * row_bytes, (rows - 1) * row_bytes);
      const uint32_t from = lane_at + min(in_ring, in_ring - t.ring_bytes);  // wraps around at the end of the ring
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) a[i / 2][chunk][i % 2] = load_shared_16(from + 64 * chunk - chunk % 2 * 2 * swap);
    }
    t.release_stages(stages);
    int d[kTiles][2][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 &p = a[tile][chunk][0], &q = a[tile][chunk][1];
        mma_16x8x32(d[tile][0], p.x, q.x, p.y, q.y, x[chunk].x, x[chunk].y);
        mma_16x8x32(d[tile][1], p.z, q.z, p.w, q.w, x[chunk].z, x[chunk].w);
      }
    }
    // A lane has two digits' sums of each of its rows: the lower two if `quarter` is even.
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int(&low)[4] = d[i / 2][0], (&high)[4] = d[i / 2][1];
      const int first = 2 * (i % 2), second = first + 1;
      float sum = static_cast<float>(low[first] + high[first] + (low[second] + high[second]) * 256) * factor;
      sum += __shfl_xor_sync(~0U, sum, 1);
      if (quarter == 2 * odd) sums[8 * i * kStepSumStride] = sum;
    }
    sums += kTiles * kStepTileRows * kStepSumStride;
  }
};

template <int kGroups>
__device__ __forceinline__ void multiply_int8_rows(StepThread<OneToken>& t, int rows, int shift, float inverse) {
  constexpr int kTiles = kGroups > 4 ? 1 : 2;              // with longer rows, two tiles need too many registers
  static_assert(kTiles * kGroups <= 2 * kStepTileStages);  // a stage has 32 / kGroups rows
  Int8Products<kGroups> products(t, shift, inverse);
  int first = 0;
#pragma unroll 1
  for (; rows - first > (kTiles - 1) * kStepTileRows; first += kTiles * kStepTileRows)
    products.template multiply<kTiles>(min(rows - first, kTiles * kStepTileRows));
  if (kTiles > 1 && first < rows) products.template multiply<1>(rows - first);
}

}  // namespace based::kernels::cuda::detail
#endif
