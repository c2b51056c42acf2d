// The norm of the gradients. A block sums the squares of a chunk of one tensor; then one block adds up the chunks' sums in a fixed order.
#include "based/kernels/training/gradient_norm.h"

#include "based/kernels/common/cuda/device.cuh"
#include "based/kernels/common/cuda/tensor_table.cuh"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256, kEndThreads = 512;
constexpr int kUnit = 4;                            // elements of an access
constexpr int kUnroll = 4;                          // units that a thread has in flight
constexpr int kChunk = kThreads * kUnit * kUnroll;  // elements of a block; small, so that a model of a million parameters fills the GPU
constexpr int kTableTensors = 256;                  // most tensors of a launch

using Table = TensorTable<GradientNormTensor, float*, kTableTensors>;  // shared: the chunks' sums, one for each block

// A thread's part of the sum of squares over `count` elements, at most kChunk.
template <typename G>
__device__ __forceinline__ float sum_squares(const G* gradient, int count) {
  float x[kUnroll][kUnit] = {};
  const bool aligned = reinterpret_cast<uintptr_t>(gradient) % (kUnit * sizeof(G)) == 0;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int begin = (u * kThreads + static_cast<int>(threadIdx.x)) * kUnit;
    if (aligned && begin + kUnit <= count) {
      load_floats(gradient + begin, x[u]);
    } else {
#pragma unroll
      for (int c = 0; c < kUnit; ++c)
        if (begin + c < count) x[u][c] = to_float(gradient[begin + c]);
    }
  }
  float sum = 0;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
#pragma unroll
    for (int c = 0; c < kUnit; ++c) sum = fmaf(x[u][c], x[u][c], sum);
  return sum;
}

__global__ void __launch_bounds__(kThreads) sum_chunks(const __grid_constant__ Table table) {
  __shared__ float shared[32];
  const int index = find_tensor(table);
  overlap_kernels();
  const GradientNormTensor& t = table.tensors[index];
  const int64_t at = int64_t{blockIdx.x - table.first_block[index]} * kChunk;
  const auto count = static_cast<int>(min(int64_t{kChunk}, t.count - at));
  const float sum = t.dtype == DType::bf16 ? sum_squares(static_cast<const bf16*>(t.gradient) + at, count)
                                           : sum_squares(static_cast<const float*>(t.gradient) + at, count);
  const float all = sum_over_block(sum, shared);
  if (threadIdx.x == 0) table.shared[blockIdx.x] = all;
}

__global__ void __launch_bounds__(kEndThreads) finish(GradientNorm p, const float* sums, int64_t chunks) {
  __shared__ double parts[kEndThreads];
  overlap_kernels();
  double loss = 0, sum = 0;
  float enabled = 1;
  if (threadIdx.x == 0) {
    loss = p.loss != nullptr ? *p.loss : *p.loss_f64;
    if (p.enabled != nullptr) enabled = *p.enabled;
  }
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < chunks; i += kEndThreads) sum += sums[i];
  parts[threadIdx.x] = sum;
  for (int half = kEndThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  const double norm = sqrt(parts[0]);
  p.loss_and_norm[0] = loss, p.loss_and_norm[1] = norm;
  *p.update_enabled = isfinite(loss) && isfinite(norm) ? enabled : 0;
  *p.scale = p.clip == 0 || norm <= p.clip ? 1.0F : static_cast<float>(p.clip / (norm + 1e-6));
}

int64_t chunks_of(const GradientNorm& p) {
  int64_t chunks = 0;
  for (int64_t i = 0; i < p.tensor_count; ++i) chunks += ceil_div(p.tensors[i].count, kChunk);
  return chunks;
}

}  // namespace

int64_t gradient_norm_scratch(const GradientNorm& p) { return chunks_of(p) * static_cast<int64_t>(sizeof(float)); }

Status gradient_norm(const GradientNorm& p, void* scratch, Queue queue) {
  auto* sums = static_cast<float*>(scratch);
  Table table{};
  table.shared = sums;
  const Status status = each_table(table, p.tensors, p.tensor_count, kChunk, [&](Table& full, uint32_t blocks) {
    const Status made = launch_overlapped(sum_chunks, {blocks, kThreads}, queue, full);
    full.shared += blocks;
    return made;
  });
  if (!status.ok()) return status;
  return launch_overlapped(finish, {1, kEndThreads}, queue, p, sums, chunks_of(p));
}

namespace {
const DefineLaunchers<GradientNormLaunchers> kLaunchers(Device::cuda, {.scratch = gradient_norm_scratch, .norm = gradient_norm});
}

}  // namespace based::kernels::cuda
