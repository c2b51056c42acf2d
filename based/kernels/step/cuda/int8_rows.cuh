// Products of a step program's int8 rows: integer products, so the weights need no conversion. x becomes integers of 32 bits, a power of
// two times x, whose four signed bytes (digits) are columns of B. A warp has the largest element of its part of x at 2^29 … 2^30, so the
// rounding to integers is far below that of bf16; the sums of the digits are exact.
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

// The power of two that makes integers of x, and its inverse. `largest`: the bits of the largest absolute element. The inverse is NaN if an
// element is infinite or NaN; numbers below 2^-96 have fewer bits.
struct PowerOfTwo {
  float scale, inverse;
  __device__ __forceinline__ explicit PowerOfTwo(uint32_t largest) {
    const uint32_t exponent = max(largest >> 7, 30U);
    scale = __uint_as_float((283U - exponent) << 23);
    inverse = __uint_as_float(exponent == 255 ? 0x7fffffffU : (exponent - 29U) << 23);
  }
};
// The integer nearest to scaled, as bytes d with the value d0 + 2^8 d1 + 2^16 d2 + 2^24 d3, all signed.
__device__ __forceinline__ uint32_t signed_digits(float scaled) {
  constexpr uint32_t kHalves = 0x00808080U;
  return (static_cast<uint32_t>(__float2int_rn(scaled)) + kHalves) ^ kHalves;
}

// Stores the digits of the warp's part of x to shared memory, [4][32 · kGroups]; returns the factor of their sums.
template <int kGroups>
__device__ __forceinline__ float store_digits(const uint2* x, uint32_t* digits, int lane) {
  constexpr int kWords = 8 * kGroups, kEach = kWords > 32 ? kWords / 32 : 1;  // words of 4 elements; those of a lane
  uint2 mine[kEach];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    mine[i] = lane + 32 * i < kWords ? x[lane + 32 * i] : make_uint2(0, 0);
    const uint32_t a = mine[i].x & 0x7fff7fffU, b = mine[i].y & 0x7fff7fffU;
    largest = max(largest, max(max(a >> 16, a & 0xffffU), max(b >> 16, b & 0xffffU)));
  }
  const PowerOfTwo power(__reduce_max_sync(~0U, largest));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (lane + 32 * i >= kWords) continue;
    const uint32_t d0 = signed_digits(low_float(mine[i].x) * power.scale), d1 = signed_digits(high_float(mine[i].x) * power.scale),
                   d2 = signed_digits(low_float(mine[i].y) * power.scale), d3 = signed_digits(high_float(mine[i].y) * power.scale);
    const uint32_t low01 = __byte_perm(d0, d1, 0x5140), low23 = __byte_perm(d2, d3, 0x5140), high01 = __byte_perm(d0, d1, 0x7362),
                   high23 = __byte_perm(d2, d3, 0x7362);
    uint32_t* to = digits + lane + 32 * i;
    to[0] = __byte_perm(low01, low23, 0x5410), to[kWords] = __byte_perm(low01, low23, 0x7632);
    to[2 * kWords] = __byte_perm(high01, high23, 0x5410), to[3 * kWords] = __byte_perm(high01, high23, 0x7632);
  }
  __syncwarp();  // makes the digits visible to all lanes
  return power.inverse;
}

// multiply_rows() for rows of int8. A lane loads 16 consecutive weights of a row with one load, the operands of two mma; the lanes
// that hold B load the same elements' digits. Lanes of odd rows read neighbouring chunks of 64 weights in swapped order. Column n of B
// holds digit n mod 4: columns 0 … 3 in the order of even rows, columns 4 … 7 in that of odd rows.
template <int kGroups>
__device__ __forceinline__ void multiply_int8_rows(StepThread& t, int rows, int shift) {
  constexpr int kChunks = kGroups / 2;
  const int row = t.lane / 4, quarter = t.lane % 4, odd = row % 2;
  uint32_t* digits = t.shared.digits() + t.warp * (kStepDigitBytes / 4);
  const float inverse = store_digits<kGroups>(reinterpret_cast<const uint2*>(t.shared.x) + t.warp * 8 * kGroups, digits, t.lane),
              factor = quarter % 2 == 0 ? inverse : inverse * 65536.0F;
  uint4 x[kChunks];
#pragma unroll
  for (int j = 0; j < kChunks; ++j) {
    const int chunk = kChunks > 1 ? j ^ (row / 4) : j;
    x[j] = reinterpret_cast<const uint4*>(digits + row % 4 * 8 * kGroups)[4 * chunk + quarter];
  }
  const uint32_t row_bytes = kGroups * t.threads, row_at = row * row_bytes, swap = kChunks > 1 ? 64 * odd : 0;
  const uint32_t lane_at = t.ring + 64 * kChunks * t.warp + 16 * quarter + swap;  // for even chunks; 2 · swap less for odd ones
  float* sums = t.sums() + row * kStepSumStride + t.warp;
#pragma unroll 1
  for (int first = 0; first < rows; first += kStepTileRows, sums += kStepTileRows * kStepSumStride) {
    const int tile = min(rows - first, kStepTileRows), stages = (tile + (1 << shift) - 1) >> shift;
    t.await_stages(stages);
    uint4 a[kChunks][2];  // weights of rows `row` and `row + 8`
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t in_ring = t.stage_at + min(row_at + i * 8 * row_bytes, (tile - 1) * row_bytes);
      const uint32_t from = lane_at + min(in_ring, in_ring - t.ring_bytes);  // wraps around at the end of the ring
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) a[chunk][i] = load_shared_16(from + 64 * chunk - chunk % 2 * 2 * swap);
    }
    t.release_stages(stages);
    int d[2][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 &p = a[chunk][0], &q = a[chunk][1];
      mma_16x8x32(d[0], p.x, q.x, p.y, q.y, x[chunk].x, x[chunk].y);
      mma_16x8x32(d[1], p.z, q.z, p.w, q.w, x[chunk].z, x[chunk].w);
    }
    // A lane has two digits' sums of each of its rows: the lower two if `quarter` is even.
    float both[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      both[i] = static_cast<float>(d[0][2 * i] + d[1][2 * i] + (d[0][2 * i + 1] + d[1][2 * i + 1]) * 256) * factor;
      both[i] += __shfl_xor_sync(~0U, both[i], 1);
    }
    if (quarter == 2 * odd) sums[0] = both[0], sums[8 * kStepSumStride] = both[1];
  }
}

}  // namespace based::kernels::cuda::detail
#endif
