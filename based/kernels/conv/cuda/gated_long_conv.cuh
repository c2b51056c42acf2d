// Common code of the kernels for gated long convolutions. A block handles 8 channels, which are 32 bytes of a token, and a few rows. The
// convolution is a matrix product with the Toeplitz matrix T[t, s] = filter[t − s]. Each product a_i b_j of a row and head is one column of
// the other operand; a row has head_dim² such columns.
#pragma once
#include "based/kernels/common/cuda/device.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/tf32.cuh"
#include "based/kernels/conv/gated_long_conv.h"

namespace based::kernels::cuda::detail::long_conv {

constexpr int kChannels = 8, kChunk = 64;  // channels per block; tokens that are loaded together

// A tensor [tokens, channels].
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
  Columns a, b, by_i, by_j;  // null (not allowed for a): 1
  Output sum_i, sum_j;       // null: not computed
  const float* filter = nullptr;
  int64_t rows = 0, length = 0, channels = 0, taps = 0;
  bool reversed = false;
};
bool fits(int64_t length, int head_dim);  // whether the device has enough shared memory per block
Status convolve(const Convolution&, int head_dim, bool single_tf32, Queue);

// Heads of many channels: gated_long_conv_pairs.cu.
bool takes_pairs(const GatedLongConv&);
Status forward_by_pairs(const GatedLongConv&, Queue);
int64_t scratch_of_pairs(const GatedLongConv&);
Status backward_by_pairs(const GatedLongConvBackward&, void* scratch, Queue);

// Four channels of one token that a thread loads: the half of the block's channels, and the row and token within the chunk.
template <int kRows>
struct Item {
  int half, row, token;
  __device__ __forceinline__ explicit Item(int i) : half(i & 1), row((i >> 1) % kRows), token((i >> 1) / kRows) {}
  static constexpr int kCount = 2 * kRows * kChunk;
};

__device__ __forceinline__ float4 ones() { return make_float4(1, 1, 1, 1); }

// Asynchronous copies of a thread's inputs to shared memory that no other thread uses. So the thread only waits for its own copies.
template <int kArrays, int kItems, int kThreads>
struct Prefetch {
  float4* buffer;
  static constexpr int kCount = kArrays * kItems * kThreads;

  __device__ __forceinline__ float4* address(int array, int i) const { return buffer + (array * kItems + i) * kThreads + threadIdx.x; }
  // Copies zeros if not `valid`. A null tensor needs no copy; get() returns 1 for it.
  __device__ __forceinline__ void load(int array, int i, const Columns& source, int64_t token, int64_t channel, bool valid) const {
    if (source.data != nullptr)
      copy_async_16(shared_address(address(array, i)), valid ? source.data + token * source.stride + channel : source.data, valid);
  }
  __device__ __forceinline__ float4 get(int array, int i, const Columns& source) const {
    return source.data != nullptr ? *address(array, i) : ones();
  }
};

__device__ __forceinline__ void store4(const Output& output, int64_t token, int64_t channel, float4 x) {
  *reinterpret_cast<float4*>(output.data + token * output.stride + channel) = x;
}

template <bool kSplit>
__device__ __forceinline__ float operand(float x) {
  return kSplit ? x : round_to_tf32(x);
}

// Stores the products of four channels to the planes of their heads, which are `plane` floats apart. `offset` is the offset in a plane of
// the token and of its row's first column.
template <int kHeadDim, bool kSplit>
__device__ __forceinline__ void store_products(float* planes, int plane, int half, int offset, float4 a, float4 b) {
  if constexpr (kHeadDim == 1) {
    float* product = planes + 4 * half * plane + offset;
    product[0] = operand<kSplit>(a.x * b.x);
    product[plane] = operand<kSplit>(a.y * b.y);
    product[2 * plane] = operand<kSplit>(a.z * b.z);
    product[3 * plane] = operand<kSplit>(a.w * b.w);
  } else {
    float* product = planes + 2 * half * plane + offset;
    *reinterpret_cast<float4*>(product) =
        make_float4(operand<kSplit>(a.x * b.x), operand<kSplit>(a.x * b.y), operand<kSplit>(a.y * b.x), operand<kSplit>(a.y * b.y));
    *reinterpret_cast<float4*>(product + plane) =
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
