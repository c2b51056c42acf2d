// Parts of the kernels for gated long convolutions. A block has 8 channels, which are 32 bytes of a token, and a few rows; each copy of a
// row (its products a_i b_j of one head) is a column of the products of matrices, in which a filter stands as T[t, s] = filter[t − s].
#pragma once
#include "based/kernels/cuda/device.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/tf32.cuh"
#include "based/kernels/gated_long_conv.h"

namespace based::kernels::cuda::detail::long_conv {

constexpr int kChannels = 8, kChunk = 64;  // of a block; tokens that are loaded at once

// [tokens, channels]
struct Columns {
  const float* data = nullptr;
  int64_t stride = 0;
};
struct Output {
  float* data = nullptr;
  int64_t stride = 0;
};

// z[i, j] = filter * (a_i b_j), sum_i[j] = Σ_i by_i[i] z[i, j], sum_j[i] = Σ_j by_j[j] z[i, j]. `reversed`: time runs backwards.
struct Convolution {
  Columns a, b, by_i, by_j;  // null, but for a: 1
  Output sum_i, sum_j;       // null: not wanted
  const float* filter = nullptr;
  int64_t rows = 0, length = 0, channels = 0, taps = 0;
  bool reversed = false;
};
bool fits(int64_t length, int head_dim);  // whether the device's blocks have the shared memory
Status convolve(const Convolution&, int head_dim, bool single_tf32, Stream);

// Four channels of one token that a thread loads: which half of the block's, of which row and token of a chunk.
template <int kRows>
struct Item {
  int half, row, token;
  __device__ __forceinline__ explicit Item(int i) : half(i & 1), row((i >> 1) % kRows), token((i >> 1) / kRows) {}
  static constexpr int kCount = 2 * kRows * kChunk;
};

__device__ __forceinline__ float4 ones() { return make_float4(1, 1, 1, 1); }

// What a thread has asked for, in places of shared memory that are its own: only its own copies have to be waited for.
template <int kArrays, int kItems, int kThreads>
struct Requests {
  float4* places;
  static constexpr int kCount = kArrays * kItems * kThreads;

  __device__ __forceinline__ float4* place(int array, int i) const { return places + (array * kItems + i) * kThreads + threadIdx.x; }
  // Zeros where not `there`; what has no memory is passed over, and is 1.
  __device__ __forceinline__ void ask(int array, int i, const Columns& from, int64_t token, int64_t channel, bool there) const {
    if (from.data != nullptr)
      copy_async_16(shared_address(place(array, i)), there ? from.data + token * from.stride + channel : from.data, there);
  }
  __device__ __forceinline__ float4 take(int array, int i, const Columns& from) const {
    return from.data != nullptr ? *place(array, i) : ones();
  }
};

__device__ __forceinline__ void store4(const Output& to, int64_t token, int64_t channel, float4 x) {
  *reinterpret_cast<float4*>(to.data + token * to.stride + channel) = x;
}

template <bool kSplit>
__device__ __forceinline__ float operand(float x) {
  return kSplit ? x : round_to_tf32(x);
}

// The products of four channels to their heads' planes, `plane` floats apart; `at` is the place of the first copy of the token's row.
template <int kHeadDim, bool kSplit>
__device__ __forceinline__ void store_products(float* planes, int plane, int half, int at, float4 a, float4 b) {
  if constexpr (kHeadDim == 1) {
    float* to = planes + 4 * half * plane + at;
    to[0] = operand<kSplit>(a.x * b.x);
    to[plane] = operand<kSplit>(a.y * b.y);
    to[2 * plane] = operand<kSplit>(a.z * b.z);
    to[3 * plane] = operand<kSplit>(a.w * b.w);
  } else {
    float* to = planes + 2 * half * plane + at;
    *reinterpret_cast<float4*>(to) =
        make_float4(operand<kSplit>(a.x * b.x), operand<kSplit>(a.x * b.y), operand<kSplit>(a.y * b.x), operand<kSplit>(a.y * b.y));
    *reinterpret_cast<float4*>(to + plane) =
        make_float4(operand<kSplit>(a.z * b.z), operand<kSplit>(a.z * b.w), operand<kSplit>(a.w * b.z), operand<kSplit>(a.w * b.w));
  }
}

template <bool kSplit>
__device__ __forceinline__ void multiply_add(float (&d)[4], const Registers<4, kSplit>& a, const Registers<2, kSplit>& b) {
  if constexpr (kSplit) {
    mma_16x8x8(d, a.small, b.big[0], b.big[1]);
    mma_16x8x8(d, a.big, b.small[0], b.small[1]);
  }
  mma_16x8x8(d, a.big, b.big[0], b.big[1]);
}

}  // namespace based::kernels::cuda::detail::long_conv
