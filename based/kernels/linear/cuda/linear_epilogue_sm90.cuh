// The epilogue of linear_sm90.cu.
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

// Turns the sums of a block into its result. The constructor and prefetch_residual() load the other inputs before the sums are complete.
template <typename Y, LinearForm kForm, bool kScaled>
struct Epilogue {
  const Linear& p;
  const JoinedNorm& norm;
  uint32_t scales;  // shared memory: if kScaled, the scale of each row; in form `adds`, the sums of squares [4 warps, rows]
  int warp;         // index of the warp in its warpgroup
  int first_out;    // the block's first output
  int block_row;    // the block's first row; all rows below are relative to it
  int64_t out;      // the lane's first output
  float bias[4] = {}, weight[4];
  float4 residual[kHeldUnits];

  __device__ __forceinline__ Epilogue(const Linear& params, const JoinedNorm& joined, uint32_t scales_address, int first, int row)
      : p(params),
        norm(joined),
        scales(scales_address),
        warp(static_cast<int>(threadIdx.x) % kGroup / 32),
        first_out(first),
        block_row(row) {
    const int lane = threadIdx.x % 32;
    out = kForm == LinearForm::swiglu ? first_out + warp * 8 + lane / 4
                                      : first_out + warp * 16 + (kForm == LinearForm::adds ? lane % 4 * 4 : lane / 4);
    const bf16* b = static_cast<const bf16*>(p.bias) + out;
    if constexpr (kForm == LinearForm::adds) {
      if (out >= p.out) return;
      if (p.bias != nullptr) load_floats<4>(b, bias);
      load_floats<4>(static_cast<const bf16*>(norm.after.weight) + out, weight);
    } else {
      const int64_t other = kForm == LinearForm::swiglu ? p.out / 2 : 8, end = kForm == LinearForm::swiglu ? p.out / 2 : p.out;
      if (p.bias != nullptr && out < end) bias[0] = to_float(b[0]);
      if (p.bias != nullptr && (kForm == LinearForm::swiglu ? out : out + 8) < end) bias[1] = to_float(b[other]);
    }
  }
  // Loads `units` units of 8 rows of the residual stream.
  __device__ __forceinline__ void prefetch_residual(int first_row, int units) {
#pragma unroll
    for (int u = 0; u < kHeldUnits; ++u) {
      const int64_t row = block_row + first_row + 8 * u + static_cast<int>(threadIdx.x) % 32 / 4;
      if (u < units && row < p.rows && out < p.out) residual[u] = __ldcg(reinterpret_cast<const float4*>(norm.after.x + row * p.out + out));
    }
  }

  // Stores y of kUnits units. A lane holds two rows of two outputs, which are 8 apart, or are an output and its gate. The rounded results
  // are transposed in `tile` [rows, 128 or 64 bytes], so that a few wide stores write whole cache lines.
  template <int kUnits>
  __device__ __forceinline__ void write(const float4 (&sum)[kUnits], uint32_t tile, int first_row) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const float2 r =
          kScaled ? load_shared_float2(scales + static_cast<uint32_t>(first_row + 8 * u + lane % 4 * 2) * 4) : make_float2(1, 1);
      const float a[2] = {fmaf(sum[u].x, r.x, bias[0]), fmaf(sum[u].y, r.y, bias[0])};
      const float b[2] = {fmaf(sum[u].z, r.x, bias[1]), fmaf(sum[u].w, r.y, bias[1])};
      const int row = 8 * u + lane % 8;
      if constexpr (kForm == LinearForm::swiglu) {
        const uint32_t address = tile + row * 64 + (warp ^ (row / 2 % 4)) * 16;
        stmatrix_transposed(address, pack_bf16(a[0] * b[0] * sigmoid(b[0]), a[1] * b[1] * sigmoid(b[1])));
      } else if constexpr (std::is_same_v<Y, float>) {
        store_float(block_row + first_row + 8 * u + lane % 4 * 2, a[0], b[0]),
            store_float(block_row + first_row + 8 * u + lane % 4 * 2 + 1, a[1], b[1]);
      } else {
        const uint32_t address = tile + row * 128 + ((warp * 2 + lane / 8 % 2) ^ (row % 8)) * 16;
        stmatrix_transposed(address, pack_bf16(a[0], a[1]), pack_bf16(b[0], b[1]));
      }
    }
    if constexpr (std::is_same_v<Y, bf16>) {
      group_barrier(static_cast<int>(threadIdx.x) / kGroup);
      store_tile<kUnits>(tile, block_row + first_row);
    }
  }
  __device__ __forceinline__ void store_float(int64_t row, float a, float b) const {
    float* y = static_cast<float*>(p.y) + row * p.y_stride + out;
    if (row < p.rows && out < p.out) *y = a;
    if (row < p.rows && out + 8 < p.out) y[8] = b;
  }
  // Stores the rows of the tile to y, starting at y's row `first_row`. Adjacent threads store adjacent outputs: eight each for SwiGLU, else
  // four.
  template <int kUnits>
  __device__ __forceinline__ void store_tile(uint32_t tile, int first_row) const {
    constexpr bool kWide = kForm == LinearForm::swiglu;
    constexpr int kRowsPerStore = kWide ? 32 : 8;
    const int thread = static_cast<int>(threadIdx.x) % kGroup, row = thread / (kWide ? 4 : 16);
    const int column = first_out + (kWide ? thread % 4 * 8 : thread % 16 * 4);
    const int rows = column >= (kWide ? p.out / 2 : p.out) ? 0 : min(8 * kUnits, static_cast<int>(p.rows) - first_row) - row;
    bf16* y = static_cast<bf16*>(p.y) + (first_row + row) * p.y_stride + column;
    const uint32_t source =
        kWide ? tile + row * 64 + ((thread % 4) ^ (row / 2 % 4)) * 16 : tile + row * 128 + ((thread % 16 / 2) ^ row) * 16 + thread % 2 * 8;
#pragma unroll
    for (int first = 0; first < 8 * kUnits; first += kRowsPerStore, y += kRowsPerStore * p.y_stride) {
      if (first >= rows) break;
      if constexpr (kWide) {
        *reinterpret_cast<uint4*>(y) = load_shared_16(source + first * 64);
      } else {
        *reinterpret_cast<uint2*>(y) = load_shared_8(source + first * 128);
      }
    }
  }
  // Rounds the sums as y would be rounded, and adds them to the residual stream. Stores this warp's part of each row's sum of squares.
  template <int kRows, int kUnits>
  __device__ __forceinline__ void add(const float4 (&sum)[kUnits], uint32_t scratch, int first_row) const {
    exchange_fragments(sum, scratch, [&](int u, const float4& v) {
      const int lane = threadIdx.x % 32, row = first_row + 8 * u + lane / 4;
      const int64_t y_row = block_row + row;
      const bool valid = y_row < p.rows && out < p.out;
      const float y[4] = {v.x + bias[0], v.y + bias[1], v.z + bias[2], v.w + bias[3]};
      const float x[4] = {residual[u].x, residual[u].y, residual[u].z, residual[u].w};
      float s[4], z[4], squares = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[i] = x[i] + to_float(from_float<bf16>(y[i])), z[i] = s[i] * weight[i];
        squares = valid ? fmaf(s[i], s[i], squares) : 0.0F;
      }
      if (valid) {
        store_floats<4>(norm.after.sum + y_row * p.out + out, s);
        store_floats<4>(static_cast<bf16*>(norm.after.y) + y_row * p.out + out, z);
      }
      squares += __shfl_xor_sync(~0U, squares, 1), squares += __shfl_xor_sync(~0U, squares, 2);
      if (lane % 4 == 0) store_shared_float(scales + (warp * kRows + row) * 4, squares);
    });
  }
  // Called after all add() calls of the block: adds up the four warps' sums of squares of `count` rows and stores them.
  template <int kRows>
  __device__ __forceinline__ void write_squares(int first_row, int count) const {
    const int thread = static_cast<int>(threadIdx.x) % kGroup, row = first_row + thread;
    group_barrier(static_cast<int>(threadIdx.x) / kGroup);
    if (thread >= count) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kGroup / 32; ++w) sum += load_shared_float(scales + (w * kRows + row) * 4);
    norm.after.squares[block_row * ((p.out + kLinearOutputs - 1) / kLinearOutputs) + first_out / kLinearOutputs * kRows + row] = sum;
  }
};
#endif

}  // namespace based::kernels::cuda::detail
