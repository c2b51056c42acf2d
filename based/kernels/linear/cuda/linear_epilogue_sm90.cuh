// Parts of the epilogue of linear_sm90.cu.
#pragma once
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/common/cuda/wgmma.cuh"
#include "based/kernels/linear/linear_step.h"

namespace based::kernels::cuda::detail {

constexpr int kGroup = 128;              // threads of a warpgroup
constexpr int kUnitBytes = kGroup * 16;  // a unit of sums: 8 rows by kLinearOutputs, 16 bytes per thread

// The result made from the sums: y; y after SwiGLU; or the residual stream plus the sums, prepared for a norm in the next layer
// (NormAfter).
enum class LinearForm { plain, swiglu, adds };

#if BASED_HAS_WGMMA
constexpr int kHeldUnits = 4;  // units whose residual values a thread prefetches into registers before their sums are complete
constexpr int outputs_of(LinearForm form) { return form == LinearForm::swiglu ? kLinearOutputs / 2 : kLinearOutputs; }
__device__ __forceinline__ void store_shared_float4(uint32_t address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// Stores one or two 8 x 8 matrices of 16-bit elements, transposed. Lanes 0 to 7 (or 15) provide the addresses of the rows.
__device__ __forceinline__ void stmatrix_transposed(uint32_t address, uint32_t a) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(address), "r"(a) : "memory");
}
__device__ __forceinline__ void stmatrix_transposed(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// Transposes kUnits units of sums within a warp, which owns 16 outputs. In wgmma order a lane holds two rows by two outputs of each unit.
// The lanes exchange them through the warp's own memory, so that each lane gets four adjacent outputs of row lane / 4, from output 4 (lane
// mod 4) on, and passes them to accept(unit, values).
template <int kUnits, typename Accept>
__device__ __forceinline__ void exchange_fragments(const float4 (&sum)[kUnits], uint32_t scratch, const Accept& accept) {
  const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 4;
  const uint32_t warp_scratch = scratch - lane * 16, source = warp_scratch + 4 * (lane % 4 * 32 + ((lane / 4) ^ (lane % 2 * 8)));
  __syncwarp();
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    store_shared_float(source + u * kUnitBytes, sum[u].x), store_shared_float(source + u * kUnitBytes + 64, sum[u].y);
    store_shared_float((source ^ 32) + u * kUnitBytes, sum[u].z), store_shared_float((source ^ 32) + u * kUnitBytes + 64, sum[u].w);
  }
  __syncwarp();
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
    accept(u, load_shared_float4(warp_scratch + u * kUnitBytes + 4 * (row * 16 + (column ^ (row / 2 % 2 * 8)))));
}

// The values that a lane loads for the epilogue before the sums are complete.
template <LinearForm kForm>
struct EpilogueInputs {
  int64_t out;      // the lane's first output
  uint2 bias = {};  // bf16: four in form `adds`, else one in the lower half of each
  uint2 weight;     // the norm's weights, four bf16, in form `adds`, as the following
  float4 residual[kHeldUnits];

  // first_out: the block's first output.
  __device__ __forceinline__ EpilogueInputs(const Linear& p, const NormAfter& norm, int first_out) {
    const int warp = static_cast<int>(threadIdx.x) % kGroup / 32, lane = static_cast<int>(threadIdx.x % 32);
    out = kForm == LinearForm::swiglu ? first_out + warp * 8 + lane / 4
                                      : first_out + warp * 16 + (kForm == LinearForm::adds ? lane % 4 * 4 : lane / 4);
    const bf16* b = static_cast<const bf16*>(p.bias) + out;
    if constexpr (kForm == LinearForm::adds) {
      if (out >= p.out) return;
      if (p.bias != nullptr) bias = *reinterpret_cast<const uint2*>(b);
      weight = *reinterpret_cast<const uint2*>(static_cast<const bf16*>(norm.weight) + out);
    } else {
      const int64_t other = kForm == LinearForm::swiglu ? p.out / 2 : 8, end = kForm == LinearForm::swiglu ? p.out / 2 : p.out;
      if (p.bias != nullptr && out < end) bias.x = *reinterpret_cast<const uint16_t*>(b);
      if (p.bias != nullptr && (kForm == LinearForm::swiglu ? out : out + 8) < end) bias.y = *reinterpret_cast<const uint16_t*>(b + other);
    }
  }
  // To be called after the products. The compiler would otherwise convert the values, and so wait for them, before the first product.
  __device__ __forceinline__ void fence() { asm volatile("" : "+r"(bias.x), "+r"(bias.y)::"memory"); }
  // Loads `units` units of 8 rows of the residual stream, from row `first_row` on.
  __device__ __forceinline__ void prefetch_residual(const Linear& p, const NormAfter& norm, int first_row, int units) {
#pragma unroll
    for (int u = 0; u < kHeldUnits; ++u) {
      const int64_t row = first_row + 8 * u + static_cast<int>(threadIdx.x) % 32 / 4;
      if (u < units && row < p.rows && out < p.out) residual[u] = __ldcg(reinterpret_cast<const float4*>(norm.x + row * p.out + out));
    }
  }
};
#endif

}  // namespace based::kernels::cuda::detail
