// Rotary position embedding. A block computes the angles of its tokens once for all heads, then rotates pairs, 16 bytes per access if the
// layout allows it.
#include "based/kernels/attention/rotary.h"

#include <algorithm>

#include "based/kernels/attention/cuda/rotary_angle.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256;
constexpr int kMostPairs = 128;
constexpr int kTokens = 8;  // tokens per block in large grids; sharing them amortises the double-precision powers

// kUnit: number of adjacent pairs (or copied elements) that a thread processes together; 1 for interleaved pairs.
template <typename T, int kUnit>
__global__ void __launch_bounds__(kThreads) rotate_tokens(const __grid_constant__ Rotary p, const int tokens_per_block) {
  __shared__ double frequencies[kMostPairs];
  __shared__ float cosines[kTokens][kMostPairs], sines[kTokens][kMostPairs];
  overlap_kernels();
  const int64_t first = blockIdx.x * int64_t{tokens_per_block};
  const int count = static_cast<int>(min(p.tokens - first, int64_t{tokens_per_block})), pairs = p.dim / 2;
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) frequencies[i] = rotary_frequency(i, p.dim, p.base);
  __syncthreads();
  for (int i = threadIdx.x; i < count * pairs; i += blockDim.x) {
    const int token = i / pairs, pair = i % pairs;
    const float2 turn = rotary_turn(p.position[first + token], frequencies[pair]);
    cosines[token][pair] = turn.x, sines[token][pair] = p.inverse ? -turn.y : turn.y;
  }
  __syncthreads();
  // The work items of a head are first the units to rotate, then the units to copy.
  const int rotated = pairs / kUnit, work = rotated + (p.x == p.y ? 0 : (p.head_dim - p.dim) / kUnit);
  for (int i = threadIdx.x; i < count * p.heads * work; i += blockDim.x) {
    const int token = i / (p.heads * work), n = i % work;
    const int64_t head = static_cast<int64_t>(i / work % p.heads) * p.head_dim;
    const T* x = static_cast<const T*>(p.x) + (first + token) * p.x_stride + head;
    T* y = static_cast<T*>(p.y) + (first + token) * p.y_stride + head;
    float a[kUnit], b[kUnit];
    if (n >= rotated) {
      const int column = p.dim + (n - rotated) * kUnit;
      load_floats<kUnit>(x + column, a), store_floats<kUnit>(y + column, a);
      continue;
    }
    const int pair = n * kUnit, ia = p.interleaved ? 2 * pair : pair, ib = p.interleaved ? ia + 1 : ia + pairs;
    load_floats<kUnit>(x + ia, a), load_floats<kUnit>(x + ib, b);
#pragma unroll
    for (int c = 0; c < kUnit; ++c) {
      const float cosine = cosines[token][pair + c], sine = sines[token][pair + c], old = a[c];
      a[c] = old * cosine - b[c] * sine, b[c] = old * sine + b[c] * cosine;
    }
    store_floats<kUnit>(y + ia, a), store_floats<kUnit>(y + ib, b);
  }
}

template <typename T>
Status launch_rotary(const Rotary& p, Queue queue) {
  constexpr int kUnit = 16 / sizeof(T);
  const bool vector = !p.interleaved && p.dim % (2 * kUnit) == 0 && p.head_dim % kUnit == 0 && p.x_stride % kUnit == 0 &&
                      p.y_stride % kUnit == 0 && aligned16(p.x) && aligned16(p.y);
  const int tokens = p.tokens >= int64_t{kTokens} * 4 * multiprocessors() ? kTokens : 1;
  const int64_t head_work = p.dim / 2 + (p.x == p.y ? 0 : p.head_dim - p.dim),
                work = int64_t{tokens} * p.heads * head_work / (vector ? kUnit : 1);
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>(round_up(work, 32), 32, kThreads));
  auto* kernel = vector ? rotate_tokens<T, kUnit> : rotate_tokens<T, 1>;
  return launch_overlapped(kernel, {static_cast<unsigned>(ceil_div(p.tokens, tokens)), threads}, queue, p, tokens);
}

}  // namespace

Status rotary(const Rotary& p, Queue queue) {
  if (p.tokens == 0) return {};
  return p.dtype == DType::bf16 ? launch_rotary<bf16>(p, queue) : launch_rotary<float>(p, queue);
}

namespace {
const DefineLaunchers<RotaryLaunchers> kLaunchers(Device::cuda, {.rotate = rotary});
}

}  // namespace based::kernels::cuda
