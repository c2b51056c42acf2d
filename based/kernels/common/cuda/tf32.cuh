// fp32 products on the tensor cores in TF32.
#pragma once
#include <cmath>
#include <cstdint>

namespace based::kernels::cuda::detail {

// d += a·b by one warp: a 16 x 8, b 8 x 8, TF32. Lane l holds rows l / 4 and l / 4 + 8, columns l mod 4 and l mod 4 + 4 of a; rows l mod 4
// and l mod 4 + 4, column l / 4 of b; rows l / 4 and l / 4 + 8, columns 2 (l mod 4) and 2 (l mod 4) + 1 of d.
__device__ __forceinline__ void mma_16x8x8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d = a·b. Initialising d to zero for mma_16x8x8 would need extra registers.
__device__ __forceinline__ void begin_16x8x8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0F));
}

// Rounds x for the tensor cores, which ignore the last 13 bits and so would truncate it. NaN stays NaN. One instruction fewer than
// cvt.rna.tf32.
__device__ __forceinline__ float round_to_tf32(float x) { return fabsf(x) < INFINITY ? __uint_as_float(__float_as_uint(x) + 0x1000U) : x; }

// Registers of an operand. Its elements are either already rounded or, with kSplit, split into two TF32 parts whose sum is x up to its last
// bits.
template <int kCount, bool kSplit>
struct Registers {
  uint32_t big[kCount], small[kSplit ? kCount : 1];

  __device__ __forceinline__ void set(int i, float x) {
    if constexpr (kSplit) {
      big[i] = __float_as_uint(x) & 0xffffe000U;
      small[i] = __float_as_uint(x - __uint_as_float(big[i])) + 0x1000U;  // rounds
    } else {
      big[i] = __float_as_uint(x);
    }
  }
};

}  // namespace based::kernels::cuda::detail
