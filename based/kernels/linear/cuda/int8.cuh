// int8 weights as operands of mma.
#pragma once
#include "based/kernels/common/cuda/device.cuh"

namespace based::kernels::cuda::detail {

// Bytes of `bytes` that kSelector names (as in __byte_perm with 0x43 in bytes 4 … 7), as two signed integers in bf16, which are exact. With
// 0x43 above it, byte b is the bf16 number 128 + (b & 127), or 128 or 256 if only its sign bit is kept; b is the difference of the two.
template <uint32_t kSelector>
__device__ __forceinline__ uint32_t int8_pair_as_bf16(uint32_t bytes) {
  const uint32_t both = __byte_perm(bytes, 0x43434343U, kSelector);
  const uint32_t low = both & 0xff7fff7fU, sign = (both & 0xff80ff80U) ^ 0x80008000U;  // sign: −128 or −256
  uint32_t value;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(value) : "r"(low), "r"(0x3f803f80U), "r"(sign));
  return value;
}
__device__ __forceinline__ uint32_t low_int8_pair_as_bf16(uint32_t bytes) { return int8_pair_as_bf16<0x4140>(bytes); }
__device__ __forceinline__ uint32_t high_int8_pair_as_bf16(uint32_t bytes) { return int8_pair_as_bf16<0x4342>(bytes); }

}  // namespace based::kernels::cuda::detail
