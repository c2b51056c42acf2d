// Mailboxes, through which the blocks of a step program exchange results, and small helpers.
#pragma once
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/step/cuda/requests.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// A word holds a tag and an element and is written and read atomically, so its tag alone tells whether its element has arrived. No memory
// ordering is needed.
__device__ __forceinline__ uint4 load_words4(const uint32_t* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ bool has_arrived(uint4 v, uint32_t tag) {
  return (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 0xffff0000U) == 0;
}
__device__ __forceinline__ uint2 elements(uint4 v) { return make_uint2(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410)); }
// Receives four elements: polls a mailbox until they have arrived or, where `in` is null, reads them from memory.
__device__ __forceinline__ uint2 receive4(const uint32_t* in, const void* memory, int first, uint32_t tag) {
  if (in == nullptr) return __ldcg(reinterpret_cast<const uint2*>(static_cast<const bf16*>(memory) + first));
  uint4 v;
  do v = load_words4(in + first);
  while (!has_arrived(v, tag));
  return elements(v);
}
__device__ __forceinline__ float receive(const uint32_t* in, const void* memory, int at, uint32_t tag) {
  if (in == nullptr) return to_float(__ushort_as_bfloat16(__ldcg(static_cast<const unsigned short*>(memory) + at)));
  uint32_t v;
  do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(in + at) : "memory");
  while (((v ^ tag) & 0xffff0000U) != 0);
  return low_float(v);
}
__device__ __forceinline__ uint4 as_uint4(float4 v) {
  return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
}
__device__ __forceinline__ float sum_over_warp(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0U, x, distance);
  return x;
}
__device__ __forceinline__ uint64_t two_words(uint32_t low, uint32_t high) {
  uint64_t both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
  return both;
}
// As in device.cuh, but b is one 64-bit register, so that the compiler keeps its halves in adjacent registers and does not move them each
// time.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], uint4 a, uint64_t b) {
  asm volatile(
      "{\n.reg .b32 low, high;\nmov.b64 {low, high}, %8;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {low, high}, {%0, %1, %2, %3};\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
__device__ __forceinline__ void unpack8(uint4 u, float (&x)[8]) {
  x[0] = low_float(u.x), x[1] = high_float(u.x), x[2] = low_float(u.y), x[3] = high_float(u.y);
  x[4] = low_float(u.z), x[5] = high_float(u.z), x[6] = low_float(u.w), x[7] = high_float(u.w);
}

}  // namespace based::kernels::cuda::detail
#endif
