// The end of a block of linear_sm90.cu: what becomes of its sums.
#pragma once
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"
#include "based/kernels/cuda/wgmma.cuh"
#include "based/kernels/linear_hopper.h"

namespace based::kernels::cuda::detail {

constexpr int kGroup = 128;              // threads that multiply some of the rows
constexpr int kUnitBytes = kGroup * 16;  // of sums: 8 rows by kLinearOutputs, 16 bytes a thread

// What becomes of the sums: y; SwiGLU's y; or they are added to the residual stream, whose norm the next layer takes (JoinedNorm).
enum class LinearForm { plain, swiglu, adds };

#if BASED_HAS_WGMMA
constexpr int kHeldUnits = 4;  // whose part of the residual stream a thread requests before it has their sums
constexpr int outputs_of(LinearForm form) { return form == LinearForm::swiglu ? kLinearOutputs / 2 : kLinearOutputs; }
__device__ __forceinline__ void store_shared_float4(uint32_t address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// One 8 x 8 matrix of 16-bit elements, or two, transposed; lanes 0 … 7 (and … 15) have the addresses of the rows that are written.
__device__ __forceinline__ void stmatrix_transposed(uint32_t address, uint32_t a) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(address), "r"(a) : "memory");
}
__device__ __forceinline__ void stmatrix_transposed(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// Hands out kUnits units of sums; a warp has 16 of the outputs. Its lanes, which have two rows by two outputs of each unit, exchange them
// through the places of their own sums, so that each takes four neighbours of a row: outputs lane mod 4 of the warp's, row lane / 4.
template <int kUnits, typename Take>
__device__ __forceinline__ void exchange_fragments(const float4 (&sum)[kUnits], uint32_t place, const Take& take) {
  const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 4;
  const uint32_t warp_place = place - lane * 16, to = warp_place + 4 * (lane % 4 * 32 + ((lane / 4) ^ (lane % 2 * 8)));
  __syncwarp();
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    store_shared_float(to + u * kUnitBytes, sum[u].x), store_shared_float(to + u * kUnitBytes + 64, sum[u].y);
    store_shared_float((to ^ 32) + u * kUnitBytes, sum[u].z), store_shared_float((to ^ 32) + u * kUnitBytes + 64, sum[u].w);
  }
  __syncwarp();
#pragma unroll
  for (int u = 0; u < kUnits; ++u) take(u, load_shared_float4(warp_place + u * kUnitBytes + 4 * (row * 16 + (column ^ (row / 2 % 2 * 8)))));
}

// The end of a block: what becomes of its sums. What it needs from memory besides is requested before the sums are there.
template <typename Y, LinearForm kForm, bool kScaled>
struct Epilogue {
  const Linear& p;
  const JoinedNorm& norm;
  uint32_t scales;  // in shared memory: of rows, where kScaled; where sums are squared, those of rows, of the four warps
  int warp;         // of its group
  int first_out;    // of the block
  int block_row;    // the block's first, to which rows below are relative
  int64_t out;      // of the lane, its first
  float bias[4] = {}, weight[4];
  float4 residual[kHeldUnits];

  __device__ __forceinline__ Epilogue(const Linear& of, const JoinedNorm& joined, uint32_t scales_at, int first, int row)
      : p(of), norm(joined), scales(scales_at), warp(static_cast<int>(threadIdx.x) % kGroup / 32), first_out(first), block_row(row) {
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
  // Of the residual stream, `units` units of 8 rows.
  __device__ __forceinline__ void request_residual(int first_row, int units) {
#pragma unroll
    for (int u = 0; u < kHeldUnits; ++u) {
      const int64_t row = block_row + first_row + 8 * u + static_cast<int>(threadIdx.x) % 32 / 4;
      if (u < units && row < p.rows && out < p.out) residual[u] = __ldcg(reinterpret_cast<const float4*>(norm.after.x + row * p.out + out));
    }
  }

  // y of kUnits units. A lane has two rows of two outputs, 8 apart or an output and its gate; rounded, they are transposed into rows in
  // `tile`, [rows, 128 or 64 bytes], so that few instructions write whole lines: with these, cold as they are, a block's end gets longer.
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
        const uint32_t to = tile + row * 64 + (warp ^ (row / 2 % 4)) * 16;
        stmatrix_transposed(to, pack_bf16(a[0] * b[0] * sigmoid(b[0]), a[1] * b[1] * sigmoid(b[1])));
      } else if constexpr (std::is_same_v<Y, float>) {
        store_float(block_row + first_row + 8 * u + lane % 4 * 2, a[0], b[0]),
            store_float(block_row + first_row + 8 * u + lane % 4 * 2 + 1, a[1], b[1]);
      } else {
        const uint32_t to = tile + row * 128 + ((warp * 2 + lane / 8 % 2) ^ (row % 8)) * 16;
        stmatrix_transposed(to, pack_bf16(a[0], a[1]), pack_bf16(b[0], b[1]));
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
  // The tile's rows, of which the first is y's row `first_row`; neighbouring threads neighbouring outputs: of SwiGLU eight each, else four.
  template <int kUnits>
  __device__ __forceinline__ void store_tile(uint32_t tile, int first_row) const {
    constexpr bool kWide = kForm == LinearForm::swiglu;
    constexpr int kAtOnce = kWide ? 32 : 8;
    const int thread = static_cast<int>(threadIdx.x) % kGroup, row = thread / (kWide ? 4 : 16);
    const int at = first_out + (kWide ? thread % 4 * 8 : thread % 16 * 4);
    const int rows = at >= (kWide ? p.out / 2 : p.out) ? 0 : min(8 * kUnits, static_cast<int>(p.rows) - first_row) - row;
    bf16* y = static_cast<bf16*>(p.y) + (first_row + row) * p.y_stride + at;
    const uint32_t from =
        kWide ? tile + row * 64 + ((thread % 4) ^ (row / 2 % 4)) * 16 : tile + row * 128 + ((thread % 16 / 2) ^ row) * 16 + thread % 2 * 8;
#pragma unroll
    for (int first = 0; first < 8 * kUnits; first += kAtOnce, y += kAtOnce * p.y_stride) {
      if (first >= rows) break;
      if constexpr (kWide) {
        *reinterpret_cast<uint4*>(y) = load_shared_16(from + first * 64);
      } else {
        *reinterpret_cast<uint2*>(y) = load_shared_8(from + first * 128);
      }
    }
  }
  // Rounded as y would be, and added to the residual stream; a warp's part of the squares of each row.
  template <int kRows, int kUnits>
  __device__ __forceinline__ void add(const float4 (&sum)[kUnits], uint32_t place, int first_row) const {
    exchange_fragments(sum, place, [&](int u, const float4& v) {
      const int lane = threadIdx.x % 32, row = first_row + 8 * u + lane / 4;
      const int64_t at = block_row + row;
      const bool valid = at < p.rows && out < p.out;
      const float y[4] = {v.x + bias[0], v.y + bias[1], v.z + bias[2], v.w + bias[3]};
      const float x[4] = {residual[u].x, residual[u].y, residual[u].z, residual[u].w};
      float s[4], z[4], squares = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[i] = x[i] + to_float(from_float<bf16>(y[i])), z[i] = s[i] * weight[i];
        squares = valid ? fmaf(s[i], s[i], squares) : 0.0F;
      }
      if (valid) {
        store_floats<4>(norm.after.sum + at * p.out + out, s);
        store_floats<4>(static_cast<bf16*>(norm.after.y) + at * p.out + out, z);
      }
      squares += __shfl_xor_sync(~0U, squares, 1), squares += __shfl_xor_sync(~0U, squares, 2);
      if (lane % 4 == 0) store_shared_float(scales + (warp * kRows + row) * 4, squares);
    });
  }
  // Once all of the block's have been added: `count` rows' squares of all four warps.
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
