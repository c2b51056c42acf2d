// Passes that the tensor-core kernels of the gradients share: before them, dn and dD; after them, the sums over the slices of the head
// dimension, and the states of rows without tokens; and the layout of their scratch memory.
#pragma once
#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/common/gpu.h"
#include "based/kernels/taylor/taylor.h"

namespace based::kernels::cuda::detail {

// With y = n / D: dn = dy / D, [tokens, heads, head_dim], and dD = −dn·y, [tokens, heads]. kLanes threads compute a token of a head.
template <int kLanes>
__global__ void __launch_bounds__(256) prepare_gradients(const __grid_constant__ TaylorAttentionBackward p, bf16* dn, float* dd) {
  const TaylorAttention& f = p.forward;
  const int64_t at = (blockIdx.x * int64_t{256} + threadIdx.x) / kLanes;
  const bool valid = at < f.tokens * f.heads;
  const float scale = valid ? 1.0F / f.denominator[at] : 0.0F;
  float dot = 0;
  for (int i = threadIdx.x % kLanes * 8; valid && i < f.head_dim; i += kLanes * 8) {
    float g[8], y[8];
    load_floats<8>(static_cast<const bf16*>(p.grad_y) + at * f.head_dim + i, g);
    load_floats<8>(static_cast<const bf16*>(f.y) + at * f.head_dim + i, y);
#pragma unroll
    for (int c = 0; c < 8; ++c) g[c] *= scale, dot -= g[c] * y[c];
    store_floats<8>(dn + at * f.head_dim + i, g);
  }
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) dot += __shfl_xor_sync(~0U, dot, distance);
  if (valid && threadIdx.x % kLanes == 0) dd[at] = dot;
}

// Adds the slices' parts of dq (blockIdx.y = 0) and dk (1), partial [2][slices][tokens, heads, feature_dim], eight elements a thread;
// feature_dim is a multiple of 8. p.forward has its strides.
template <typename T>
__global__ void sum_gradient_slices(const __grid_constant__ TaylorAttentionBackward p, const float* partial, int slices) {
  const TaylorAttention& f = p.forward;
  const int64_t token_elements = int64_t{f.heads} * f.feature_dim, count = f.tokens * token_elements,
                i = 8 * (blockIdx.x * int64_t{blockDim.x} + threadIdx.x);
  if (i >= count) return;
  const float* from = partial + blockIdx.y * slices * count + i;
  float sum[8] = {};
  for (int s = 0; s < slices; ++s) {
    float part[8];
    load_floats<8>(from + s * count, part);
#pragma unroll
    for (int c = 0; c < 8; ++c) sum[c] += part[c];
  }
  const int64_t token = i / token_elements;
  store_floats<8>(static_cast<T*>(blockIdx.y == 0 ? p.grad_q : p.grad_k) + token * f.qk_stride + (i - token * token_elements), sum);
}

// The gradient of the initial state of a row without tokens is that of its final state. One block a row.
template <int kThreadsPerRow>
__global__ void __launch_bounds__(kThreadsPerRow) pass_state_gradients(const __grid_constant__ TaylorAttentionBackward p) {
  const TaylorAttention& f = p.forward;
  const int64_t row = blockIdx.x, k_count = f.heads * packed_features(f.feature_dim), kv_count = k_count * f.head_dim;
  if (f.row_start[row] != f.row_start[row + 1]) return;
  for (int64_t i = threadIdx.x; i < kv_count; i += kThreadsPerRow) {
    p.grad_initial_kv_state[row * kv_count + i] = p.grad_kv_state != nullptr ? p.grad_kv_state[row * kv_count + i] : 0.0F;
    if (i < k_count) p.grad_initial_k_state[row * k_count + i] = p.grad_k_state != nullptr ? p.grad_k_state[row * k_count + i] : 0.0F;
  }
}

// Scratch memory of the gradients in this order: dn, dD, the slices' parts of dq and dk, parked states.
template <typename Workspace>
struct GradientLayout {
  Workspace work;
  int64_t dd_at, partial_at, parked_at, bytes;
};
// `parked`: the floats of the parked states of one direction.
template <typename Workspace, typename Plan>
GradientLayout<Workspace> gradient_layout(const TaylorAttentionBackward& p, const Plan& plan, int64_t parked) {
  const TaylorAttention& f = p.forward;
  GradientLayout<Workspace> l{};
  l.work.plan = plan, l.work.parked = parked;
  const bool parks = plan.segment <= f.tokens || p.initial_kv_state != nullptr || p.grad_kv_state != nullptr;
  l.dd_at = round_up(f.tokens * f.heads * f.head_dim * 2, 256);
  l.partial_at = l.dd_at + round_up(f.tokens * f.heads * 4, 256);
  l.parked_at = l.partial_at;
  if (plan.slices > 1) l.parked_at += round_up(int64_t{2} * plan.slices * f.tokens * f.heads * f.feature_dim * 4, 256);
  l.bytes = l.parked_at + (parks ? 2 * parked * 4 : 0);
  return l;
}

}  // namespace based::kernels::cuda::detail
