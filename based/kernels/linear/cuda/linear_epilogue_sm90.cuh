// Parts of the epilogue of linear_sm90.cu.
#pragma once
#include <type_traits>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/common/cuda/wgmma.cuh"
#include "based/kernels/conv/cuda/short_conv.cuh"
#include "based/kernels/linear/linear_step.h"

namespace based::kernels::cuda::detail {

constexpr int kGroup = 128;              // threads of a warpgroup
constexpr int kUnitBytes = kGroup * 16;  // a unit of sums: 8 rows by kLinearOutputs, 16 bytes per thread

// The result made from the sums.
enum class LinearForm {
  plain,         // y
  swiglu,        // y after SwiGLU
  conv,          // y after a convolution and its gate (ConvAfter)
  conv_recent,   // the same, where ConvAfter::recent has the last inputs
  conv_of_half,  // y after a convolution of the first half of the outputs, and the second half as it is
  adds,          // the residual stream plus the sums, prepared for a norm in the next layer (NormAfter)
};
constexpr bool convolves(LinearForm form) {
  return form == LinearForm::conv || form == LinearForm::conv_recent || form == LinearForm::conv_of_half;
}
// Whether a lane has pairs of sums: those of an output of the first half and of its partner in the second half. The partner is the output's
// gate, except in conv_of_half.
constexpr bool has_pairs(LinearForm form) { return form == LinearForm::swiglu || convolves(form); }

constexpr int taps_of(LinearForm form) { return convolved_taps(form != LinearForm::conv_of_half); }

#if BASED_HAS_WGMMA
constexpr int kHeldUnits = 4;  // units whose residual values a thread prefetches into registers before their sums are complete
constexpr int outputs_of(LinearForm form) { return has_pairs(form) ? kLinearOutputs / 2 : kLinearOutputs; }
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

// Called by one warp: computes the scale 1 / rms of kRows rows from the tiles' sums of squares [tiles, kRows], added in the order of the
// tiles, and stores it to scales [kRows] in shared memory.
template <int kRows>
__device__ __forceinline__ void compute_scales(const NormBefore& norm, const float* tiles, int64_t width, uint32_t scales) {
  constexpr int kLanes = kRows / 4, kGroups = 32 / kLanes,
                kInFlight = 32 / kGroups;  // lanes, with four rows each; tiles in flight per lane
  const int lane = threadIdx.x % 32, group = lane / kLanes, row = lane % kLanes * 4;
  const float* squares = tiles + row;
  float4 sum = {};
  for (int64_t first = group; first < norm.parts; first += 32) {
    float4 part[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t tile = first + i * kGroups;
      part[i] = tile < norm.parts ? __ldcg(reinterpret_cast<const float4*>(squares + tile * kRows)) : float4{};
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum.x += part[i].x, sum.y += part[i].y, sum.z += part[i].z, sum.w += part[i].w;
  }
#pragma unroll
  for (int distance = 16; distance >= kLanes; distance /= 2) {
    sum.x += __shfl_xor_sync(~0U, sum.x, distance), sum.y += __shfl_xor_sync(~0U, sum.y, distance);
    sum.z += __shfl_xor_sync(~0U, sum.z, distance), sum.w += __shfl_xor_sync(~0U, sum.w, distance);
  }
  const float mean = 1 / static_cast<float>(width);
  if (group == 0)
    store_shared_float4(scales + row * 4, rsqrtf(fmaf(sum.x, mean, norm.eps)), rsqrtf(fmaf(sum.y, mean, norm.eps)),
                        rsqrtf(fmaf(sum.z, mean, norm.eps)), rsqrtf(fmaf(sum.w, mean, norm.eps)));
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
    out =
        has_pairs(kForm) ? first_out + warp * 8 + lane / 4 : first_out + warp * 16 + (kForm == LinearForm::adds ? lane % 4 * 4 : lane / 4);
    const bf16* b = static_cast<const bf16*>(p.bias) + out;
    if constexpr (kForm == LinearForm::adds) {
      if (out >= p.out) return;
      if (p.bias != nullptr) bias = *reinterpret_cast<const uint2*>(b);
      weight = *reinterpret_cast<const uint2*>(static_cast<const bf16*>(norm.weight) + out);
    } else {
      const int64_t other = has_pairs(kForm) ? p.out / 2 : 8, end = has_pairs(kForm) ? p.out / 2 : p.out;
      if (p.bias != nullptr && out < end) bias.x = *reinterpret_cast<const uint16_t*>(b);
      if (p.bias != nullptr && (has_pairs(kForm) ? out : out + 8) < end) bias.y = *reinterpret_cast<const uint16_t*>(b + other);
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

// The convolution of a lane's output. A lane has two rows of each unit, and loads their last inputs before the sums are complete.
template <int kUnits, LinearForm kForm>
struct LaneConv {
  static constexpr int kTaps = taps_of(kForm), kKept = kTaps - 1;
  static constexpr bool kRecent = kForm == LinearForm::conv_recent;
  struct alignas(kKept % 2 == 0 ? 8 : 4) Inputs {  // oldest first
    float x[kKept];
  };
  using Kept = std::conditional_t<kRecent, uint32_t, Inputs>;  // the word of ConvAfter::recent, or the state, of a slot's channel
  const ConvAfter& conv;
  const int rows;                         // rows from the lane's first unit on; 0: the layer has no such output
  const int64_t* const row_slots;         // the slots of these rows
  const int64_t channel, channels;        // the lane's channel, and those of a slot
  uint32_t weight[kTaps] = {}, bias = 0;  // bf16
  uint32_t slot[kUnits][2] = {};
  Kept kept[kUnits][2] = {};
  Inputs read[kUnits][2];  // the inputs that the words stand for

  // `first_row`: of the lane's first unit; `out`: the lane's output.
  __device__ __forceinline__ LaneConv(const ConvAfter& of_conv, const Linear& p, int first_row, int64_t out)
      : conv(of_conv),
        rows(out < p.out / 2 ? static_cast<int>(p.rows) - first_row : 0),
        row_slots(conv.slot + first_row),
        channel(out),
        channels(p.out / 2) {}
  // Loads the last inputs of `units` units; all slots first, since each load takes long.
  __device__ __forceinline__ void load(int units) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (u < units && row_of(u, i) < rows) slot[u][i] = static_cast<uint32_t>(row_slots[row_of(u, i)]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (u < units && row_of(u, i) < rows) kept[u][i] = *kept_of<Kept>(slot[u][i]);
    }
    if (rows <= 0) return;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) weight[i] = static_cast<const uint16_t*>(conv.weight)[kTaps * channel + i];
    if (conv.bias != nullptr) bias = static_cast<const uint16_t*>(conv.bias)[channel];
  }
  // As EpilogueInputs::fence().
  __device__ __forceinline__ void fence() {
    asm volatile("" : "+r"(bias)::"memory");
#pragma unroll
    for (uint32_t& w : weight) asm volatile("" : "+r"(w)::"memory");
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (Kept& k : kept[u]) {
        if constexpr (kRecent) {
          asm volatile("" : "+r"(k)::"memory");
        } else {
#pragma unroll
          for (float& x : k.x) asm volatile("" : "+f"(x)::"memory");
        }
      }
    }
  }
  // To be called after fence(). Only a sequence's first steps after a prompt read its state.
  __device__ __forceinline__ void read_words() {
    bool all_there = true;
#pragma unroll
    for (int i = 0; i < 2 * kUnits; ++i) {
      const uint32_t word = kept[i / 2][i % 2];
      all_there &= (word & 0xffff) != kNoRecentInput;
      read[i / 2][i % 2] = {low_float(word), high_float(word)};
    }
    if (all_there) return;
#pragma unroll
    for (int i = 0; i < 2 * kUnits; ++i) {
      if (row_of(i / 2, i % 2) >= rows) continue;
      const float2 inputs = recent_inputs(kept[i / 2][i % 2], kept_of<Inputs>(slot[i / 2][i % 2])->x);
      read[i / 2][i % 2] = {inputs.x, inputs.y};
    }
  }
  // The convolution of the lane's row i of a unit, from the layer's output. Replaces the last inputs.
  __device__ __forceinline__ float convolve(int u, int i, float x) {
    x = to_float(from_float<bf16>(x));
    const bool has_row = row_of(u, i) < rows;
    Inputs before;
    if constexpr (kRecent) {
      before = read[u][i];
      if (has_row) *kept_of<uint32_t>(slot[u][i]) = next_recent(kept[u][i], x);
    } else {
      before = kept[u][i];
      Inputs after;
#pragma unroll
      for (int j = 0; j < kKept; ++j) after.x[j] = j + 1 < kKept ? before.x[j + 1] : x;
      if (has_row) *kept_of<Inputs>(slot[u][i]) = after;
    }
    float z = low_float(bias);
#pragma unroll
    for (int j = 0; j < kKept; ++j) z = fmaf(low_float(weight[j]), before.x[j], z);
    return activate(fmaf(low_float(weight[kKept]), x, z), conv.silu);
  }

 private:
  __device__ __forceinline__ static int row_of(int u, int i) { return 8 * u + static_cast<int>(threadIdx.x) % 4 * 2 + i; }
  template <typename Type>
  __device__ __forceinline__ Type* kept_of(uint32_t in_slot) const {
    void* all = conv.state;
    if constexpr (std::is_same_v<Type, uint32_t>) all = conv.recent;
    char* of_channel = static_cast<char*>(all) + channel * static_cast<int64_t>(sizeof(Type));
    return reinterpret_cast<Type*>(of_channel + uint64_t{in_slot} * static_cast<uint32_t>(channels * sizeof(Type)));
  }
};
#endif

}  // namespace based::kernels::cuda::detail
