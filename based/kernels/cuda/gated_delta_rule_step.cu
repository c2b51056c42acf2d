// A step of the gated delta rule: a block has some value channels of a row's head, whose states stay in registers between their read and
// their write. docs/kernels/gated-delta-rule.md
#include "based/kernels/cuda/gated_delta_rule.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kColumns = 32, kQuads = kColumns / 4, kLines = kThreads / kQuads;  // a thread has four channels of every kLines-th key

__device__ __forceinline__ void add_times(float (&sum)[4], float factor, const float (&x)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) sum[j] = fmaf(factor, x[j], sum[j]);
}
// Over the threads of a warp that have the same channels.
__device__ __forceinline__ float sum_of_lines(float x) {
  x += __shfl_xor_sync(~0U, x, 8);
  return x + __shfl_xor_sync(~0U, x, 16);
}

template <int kKeys>
struct StepShared {
  float q[kKeys], k[kKeys], decay[kKeys], own[kKeys];  // own: q times the bonus, or q
  alignas(16) float held[kWarps][kColumns], read[kWarps][kColumns];
  float dot[kWarps];
};

template <typename T, int kKeys>
__device__ __forceinline__ void read_token(const GatedDeltaRule& p, int64_t row, int head, StepShared<kKeys>& to) {
  const int64_t key_line = row * p.key_heads + static_cast<int64_t>(head) * p.key_heads / p.heads, line = row * p.heads + head;
  for (int c = static_cast<int>(threadIdx.x); c < kKeys; c += kThreads) {
    const bool inside = c < p.key_dim;
    const float q = inside ? to_float(static_cast<const T*>(p.q)[key_line * p.key_dim + c]) * p.scale : 0.0F;
    to.q[c] = q;
    to.k[c] = inside ? to_float(static_cast<const T*>(p.k)[key_line * p.key_dim + c]) : 0.0F;
    to.decay[c] = inside && p.log_decay != nullptr ? expf(p.log_decay[line * p.decay_dim + (p.decay_dim == 1 ? 0 : c)]) : 1.0F;
    to.own[c] = inside && p.bonus != nullptr ? q * p.bonus[static_cast<int64_t>(head) * p.key_dim + c] : q;
  }
}

// kKeys: the most keys; kAhead: the state is private. y = read + (q · k) u, where `read` is of the decayed state: so one sum over the keys
// serves u and y.
template <typename T, int kKeys, bool kAhead>
__global__ void __launch_bounds__(kThreads) step_slices(const __grid_constant__ GatedDeltaRule p) {
  constexpr int kHeld = kKeys / kLines;
  __shared__ StepShared<kKeys> token;
  let_next_kernel_start();
  if constexpr (!kAhead) wait_for_earlier_kernels();
  const int64_t slices = p.value_dim / kColumns, item = blockIdx.x / slices, row = item / p.heads;
  const int head = static_cast<int>(item % p.heads), lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int column = static_cast<int>(threadIdx.x) % kQuads * 4, line = static_cast<int>(threadIdx.x) / kQuads;
  const int64_t first = blockIdx.x % slices * kColumns + column;
  float* const state = p.state + (p.slot[row] * p.heads + head) * p.key_dim * p.value_dim + first;
  float s[kHeld][4], v[4];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int key = line + i * kLines;
    s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
    if (key < p.key_dim) load_floats<4>(state + static_cast<int64_t>(key) * p.value_dim, s[i]);
  }
  if constexpr (kAhead) wait_for_earlier_kernels();
  load_floats<4>(static_cast<const T*>(p.v) + item * p.value_dim + first, v);
  const float beta = p.beta != nullptr ? p.beta[item] : 1.0F;
  read_token<T, kKeys>(p, row, head, token);
  __syncthreads();
  float held[4] = {}, read[4] = {}, dot = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int key = line + i * kLines;
    const float q = token.q[key], k = token.k[key], decay = token.decay[key];
    if (p.bonus != nullptr) add_times(read, q, s[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] *= decay;
    if (p.bonus == nullptr) add_times(read, q, s[i]);
    add_times(held, k, s[i]);
    dot = fmaf(token.own[key], k, dot);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) held[j] = sum_of_lines(held[j]), read[j] = sum_of_lines(read[j]);
  dot = sum_of_lines(dot);
  if (lane < kQuads) store_floats<4>(&token.held[warp][column], held), store_floats<4>(&token.read[warp][column], read);
  if (lane == 0) token.dot[warp] = dot;
  __syncthreads();
  float u[4], y[4];
  dot = (token.dot[0] + token.dot[1]) + (token.dot[2] + token.dot[3]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto all = [&](const float(&of)[kWarps][kColumns]) {
      return (of[0][column + j] + of[1][column + j]) + (of[2][column + j] + of[3][column + j]);
    };
    u[j] = beta * (p.delta ? v[j] - all(token.held) : v[j]);
    y[j] = fmaf(dot, u[j], all(token.read));
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int key = line + i * kLines;
    add_times(s[i], token.k[key], u);
    if (key < p.key_dim) store_floats<4>(state + static_cast<int64_t>(key) * p.value_dim, s[i]);
  }
  if (line == 0) store_floats<4>(static_cast<T*>(p.y) + item * p.value_dim + first, y);
}

template <typename T, bool kAhead>
auto* choose_step(int key_dim) {
  return key_dim <= 64 ? step_slices<T, 64, kAhead> : key_dim <= 128 ? step_slices<T, 128, kAhead> : step_slices<T, 256, kAhead>;
}
template <typename T>
auto* choose_step(const GatedDeltaRule& p) {
  return p.state_is_private ? choose_step<T, true>(p.key_dim) : choose_step<T, false>(p.key_dim);
}

}  // namespace

Status gated_delta_rule_step(const GatedDeltaRule& p, Stream stream) {
  if (const char* what = wrong_with(p)) return {what};
  if (p.tokens != p.rows) return {"gated_delta_rule_step: a row has one token"};
  if (p.rows == 0) return {};
  if (p.state == nullptr || p.slot == nullptr) return {"gated_delta_rule_step: a tensor is null"};
  const bool slices = p.key_dim <= 256 && p.value_dim % kColumns == 0 && aligned16(p.state) && aligned16(p.v) && aligned16(p.y);
  if (!slices) {
    GatedDeltaRule one = p;
    one.row_start = nullptr;
    return gated_delta_rule_by_token(one, stream);
  }
  auto* kernel = p.dtype == DType::bf16 ? choose_step<bf16>(p) : choose_step<float>(p);
  return launch_overlapped(kernel, {static_cast<unsigned>(p.rows * p.heads * (p.value_dim / kColumns)), kThreads}, stream, p);
}

}  // namespace based::kernels::cuda
