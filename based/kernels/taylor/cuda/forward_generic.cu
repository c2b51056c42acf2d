// Taylor attention forward for any shape, decay and type, on any GPU from sm_80: fp32 arithmetic on the CUDA cores.
#include "based/kernels/taylor/cuda/generic.cuh"
#include "based/kernels/taylor/cuda/launchers.h"

namespace based::kernels::cuda::detail {
namespace {

struct ForwardPlan {
  int32_t width, features;
  float* new_k_state;  // [rows, heads, features]; all slices of a head read the old one, so a second kernel replaces it
};

int shared_floats(int width, int features, int feature_dim) {
  return features * width + 2 * features + kTokens * (2 * (feature_dim + 1) + width + kTokens + 1);
}

ForwardPlan make_plan(const TaylorAttention& p) {
  const int features = static_cast<int>(packed_features(p.feature_dim));
  return {generic_width(p, [&](int width) { return shared_floats(width, features, p.feature_dim); }), features, nullptr};
}

// Writes the outputs of a chunk; every thread computes one column of a few tokens. The tile's weights are the denominator's.
template <typename T>
__device__ void write_outputs(const TaylorAttention& p, const Tile& tile, int64_t token, int tokens, const LogDecay& log_decay) {
  const int head = blockIdx.y, first = blockIdx.z * tile.width, d = threadIdx.x % tile.width, step = kGenericThreads / tile.width;
  for (int t = threadIdx.x / tile.width; t < tokens; t += step) {
    float y = 0, sum = 0;
    for (int f = 0; f < tile.features; ++f) {
      const float x = tile.feature(tile.q, t, f);
      y += x * tile.state[f * tile.width + d], sum += x * tile.sums[f];
    }
    y *= exp2f(static_cast<float>(t + 1) * log_decay.numerator), sum *= exp2f(static_cast<float>(t + 1) * log_decay.denominator);
    for (int s = 0; s <= t; ++s) {
      float w = tile.weight[t * (kTokens + 1) + s];
      sum += w;
      if (!p.decay_denominator) w *= exp2f(static_cast<float>(t - s) * log_decay.numerator);
      y += w * tile.v[s * tile.width + d];
    }
    if (first + d >= p.head_dim) continue;
    const int64_t at = (token + t) * p.heads + head;
    static_cast<T*>(p.y)[at * p.head_dim + first + d] = from_float<T>(y / sum);
    if (p.denominator != nullptr && first + d == 0) p.denominator[at] = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(kGenericThreads) attend_rows(const __grid_constant__ TaylorAttention p, const ForwardPlan plan) {
  extern __shared__ float shared[];
  Tile tile(shared, p.feature_dim, plan.width, plan.features);
  const int64_t row = blockIdx.x, slot = p.slot != nullptr ? p.slot[row] : row;
  const int head = blockIdx.y, first = blockIdx.z * plan.width, columns = min(plan.width, p.head_dim - first);
  const LogDecay log_decay(p, head);
  float* kv_state = p.kv_state == nullptr ? nullptr : p.kv_state + (slot * p.heads + head) * plan.features * p.head_dim + first;
  tile.number_pairs();
  tile.load_state(kv_state, p.k_state == nullptr ? nullptr : p.k_state + (slot * p.heads + head) * plan.features, p.head_dim, columns);
  const int64_t end = p.row_start[row + 1], qk_stride = int64_t{p.heads} * p.feature_dim, v_stride = int64_t{p.heads} * p.head_dim;
  for (int64_t token = p.row_start[row]; token < end; token += kTokens) {
    const int tokens = static_cast<int>(min(end - token, int64_t{kTokens})), fd = p.feature_dim;
    __syncthreads();
    tile.load(tile.q, static_cast<const T*>(p.q) + token * qk_stride + head * fd, qk_stride, fd, fd + 1, tokens);
    tile.load(tile.k, static_cast<const T*>(p.k) + token * qk_stride + head * fd, qk_stride, fd, fd + 1, tokens);
    tile.load(tile.v, static_cast<const T*>(p.v) + token * v_stride + int64_t{head} * p.head_dim + first, v_stride, columns, plan.width,
              tokens);
    __syncthreads();
    tile.weights(tile.q, tile.k, tokens, log_decay.denominator);
    __syncthreads();
    write_outputs<T>(p, tile, token, tokens, log_decay);
    __syncthreads();
    tile.update(tile.k, tile.v, tokens, log_decay, false, nullptr);
  }
  __syncthreads();
  if (kv_state == nullptr) return;
  tile.store_state(kv_state, blockIdx.z == 0 ? plan.new_k_state + (row * p.heads + head) * plan.features : nullptr, p.head_dim, columns);
}

__global__ void replace_k_states(const __grid_constant__ TaylorAttention p, const ForwardPlan plan) {
  const int64_t row = blockIdx.x, slot = p.slot != nullptr ? p.slot[row] : row, per_row = int64_t{p.heads} * plan.features;
  for (int64_t i = threadIdx.x; i < per_row; i += blockDim.x) p.k_state[slot * per_row + i] = plan.new_k_state[row * per_row + i];
}

}  // namespace

int64_t taylor_forward_generic_scratch(const TaylorAttention& p) {
  return p.kv_state != nullptr ? p.rows * p.heads * packed_features(p.feature_dim) * 4 : 0;
}

Status taylor_forward_generic(const TaylorAttention& p, void* scratch, Queue queue) {
  ForwardPlan plan = make_plan(p);
  plan.new_k_state = static_cast<float*>(scratch);
  const int bytes = shared_floats(plan.width, plan.features, p.feature_dim) * 4;
  const dim3 grid(static_cast<unsigned>(p.rows), p.heads, static_cast<unsigned>(ceil_div(p.head_dim, plan.width)));
  auto* kernel = p.dtype == DType::bf16 ? attend_rows<bf16> : attend_rows<float>;
  if (const cudaError_t e = allow_shared_memory(kernel, bytes); e != cudaSuccess) return status_of(e);
  kernel<<<grid, kGenericThreads, bytes, stream_of(queue)>>>(p, plan);
  if (p.kv_state != nullptr) replace_k_states<<<static_cast<unsigned>(p.rows), kGenericThreads, 0, stream_of(queue)>>>(p, plan);
  return launched();
}

}  // namespace based::kernels::cuda::detail
