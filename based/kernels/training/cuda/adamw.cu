// AdamW. It is bound by memory bandwidth; a block updates a chunk of one tensor.
#include "based/kernels/training/adamw.h"

#include "based/kernels/common/cuda/device.cuh"
#include "based/kernels/common/cuda/tensor_table.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256;
constexpr int kUnit = 4;            // elements of an access: 16 bytes of fp32, so that a warp's accesses are contiguous
constexpr int kUnroll = 2;          // units that a thread has in flight
constexpr int64_t kChunk = 8192;    // elements of a block, a multiple of kUnit
constexpr int kTableTensors = 400;  // most tensors of a launch

using Table = TensorTable<AdamwTensor, Adamw, kTableTensors>;  // the kernel does not read Adamw::tensors

// The factors that are the same for all elements of a block.
struct Factors {
  float scale, beta1, beta2, eps, rate_decay, step_size, second_root;
};

// The same operations as in ATen's fused kernel, so that a run of either can be resumed with the other.
__device__ __forceinline__ void update(const Factors& f, float gradient, float& p, float& m, float& v) {
  const float g = __fmul_rn(gradient, f.scale);
  p = fmaf(-f.rate_decay, p, p);
  m = fmaf(f.beta1, m, fmaf(-f.beta1, g, g));
  const float square = __fmul_rn(g, g);
  v = fmaf(f.beta2, v, fmaf(-f.beta2, square, square));
  p -= __fmul_rn(f.step_size, m) / (sqrtf(v) / f.second_root + f.eps);
}

// Four elements in one access. Nothing is read twice, so the accesses have streaming cache hints.
__device__ __forceinline__ void load_unit(const float* from, float (&to)[kUnit]) {
  const float4 x = __ldcs(reinterpret_cast<const float4*>(from));
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}
__device__ __forceinline__ void load_unit(const bf16* from, float (&to)[kUnit]) {
  const uint2 x = __ldcs(reinterpret_cast<const uint2*>(from));
  to[0] = low_float(x.x), to[1] = high_float(x.x), to[2] = low_float(x.y), to[3] = high_float(x.y);
}
__device__ __forceinline__ void store_unit(float* to, const float (&x)[kUnit]) {
  __stcs(reinterpret_cast<float4*>(to), make_float4(x[0], x[1], x[2], x[3]));
}
__device__ __forceinline__ void store_unit(bf16* to, const float (&x)[kUnit]) {
  __stcs(reinterpret_cast<uint2*>(to), make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])));
}

// A block's part of a tensor.
template <typename G>
struct Chunk {
  const G* gradient;
  float *master, *first, *second;
  bf16* rounded;  // may be null
  int count;

  __device__ __forceinline__ bool aligned() const {
    const auto is_aligned = [](const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
    return is_aligned(gradient, kUnit * sizeof(G)) && is_aligned(master, 16) && is_aligned(first, 16) && is_aligned(second, 16) &&
           is_aligned(rounded, 8);
  }

  __device__ __forceinline__ void update_units(const Factors& f) const {
    for (int begin = threadIdx.x * kUnit; begin + kUnit <= count; begin += kThreads * kUnit * kUnroll) {
      float g[kUnroll][kUnit], p[kUnroll][kUnit], m[kUnroll][kUnit], v[kUnroll][kUnit];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int i = begin + u * kThreads * kUnit;
        if (i + kUnit > count) break;
        load_unit(gradient + i, g[u]), load_unit(master + i, p[u]), load_unit(first + i, m[u]), load_unit(second + i, v[u]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int i = begin + u * kThreads * kUnit;
        if (i + kUnit > count) break;
#pragma unroll
        for (int c = 0; c < kUnit; ++c) update(f, g[u][c], p[u][c], m[u][c], v[u][c]);
        store_unit(master + i, p[u]), store_unit(first + i, m[u]), store_unit(second + i, v[u]);
        if (rounded != nullptr) store_unit(rounded + i, p[u]);
      }
    }
  }

  __device__ __forceinline__ void update_elements(const Factors& f, int begin) const {
    for (int i = begin + threadIdx.x; i < count; i += kThreads) {
      float p = master[i], m = first[i], v = second[i];
      update(f, to_float(gradient[i]), p, m, v);
      master[i] = p, first[i] = m, second[i] = v;
      if (rounded != nullptr) rounded[i] = from_float<bf16>(p);
    }
  }
};

template <typename G>
__device__ __forceinline__ void update_chunk(const AdamwTensor& t, int64_t at, const Factors& f) {
  const Chunk<G> chunk{static_cast<const G*>(t.gradient) + at,
                       t.master + at,
                       t.first_moment + at,
                       t.second_moment + at,
                       t.rounded == nullptr ? nullptr : static_cast<bf16*>(t.rounded) + at,
                       static_cast<int>(min(kChunk, t.count - at))};
  const bool vector = chunk.aligned();
  if (vector) chunk.update_units(f);
  chunk.update_elements(f, vector ? chunk.count / kUnit * kUnit : 0);
}

__global__ void __launch_bounds__(kThreads, 4) adamw_chunks(const __grid_constant__ Table table) {
  __shared__ float corrections[2];
  const int index = find_tensor(table);
  overlap_kernels();
  const Adamw& u = table.shared;
  const AdamwTensor& t = table.tensors[index];
  if (u.update_enabled != nullptr && *u.update_enabled == 0) return;
  if (threadIdx.x == 0) {
    const float step = *t.step;
    corrections[0] = 1 - powf(u.beta1, step), corrections[1] = sqrtf(1 - powf(u.beta2, step));
  }
  __syncthreads();
  const float rate = *u.rate;
  const Factors f{u.scale == nullptr ? 1.0F : *u.scale, u.beta1, u.beta2, u.eps, rate * u.decay, rate / corrections[0], corrections[1]};
  const int64_t at = int64_t{blockIdx.x - table.first_block[index]} * kChunk;
  if (t.gradient_dtype == DType::bf16) {
    update_chunk<bf16>(t, at, f);
  } else {
    update_chunk<float>(t, at, f);
  }
}

}  // namespace

Status adamw(const Adamw& p, Queue queue) {
  Table table{};
  table.shared = p, table.shared.tensors = nullptr;
  return each_table(table, p.tensors, p.tensor_count, kChunk, [&](const Table& full, uint32_t blocks) {
    return launch_overlapped(adamw_chunks, {blocks, kThreads}, queue, full);
  });
}

namespace {
const DefineLaunchers<AdamwLaunchers> kLaunchers(Device::cuda, {.update = adamw});
}

}  // namespace based::kernels::cuda
