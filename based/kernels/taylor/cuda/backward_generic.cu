// Gradients of Taylor attention for any shape, decay and type: fp32 arithmetic on the CUDA cores. The formulas are those of
// backward_sm90.cu, with every pair weighted by the decay g^(t − s), which dD has not where the denominator does not decay. The blocks of a
// head's slices write their parts of dq and dk to separate scratch buffers, and a last kernel adds them in a fixed order.
#include "based/kernels/taylor/cuda/generic.cuh"
#include "based/kernels/taylor/cuda/launchers.h"

namespace based::kernels::cuda::detail {
namespace {

struct BackwardPlan {
  int32_t width, features, slices;
  float *dn, *dd;  // [tokens, heads, head_dim], [tokens, heads]
  float* partial;  // [2][slices][tokens, heads, feature_dim]
};

int shared_floats(int width, int features, int feature_dim) {
  return features * width + 2 * features + kTokens * (2 * (feature_dim + 1) + 2 * (width + 1) + 2 * (kTokens + 1) + 2);
}

template <typename T>
__global__ void prepare(const __grid_constant__ TaylorAttentionBackward p, const BackwardPlan plan) {
  const TaylorAttention& f = p.forward;
  const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (at >= f.tokens * f.heads) return;
  float dot = 0;
  for (int64_t i = at * f.head_dim; i < (at + 1) * f.head_dim; ++i) {
    const float g = to_float(static_cast<const T*>(p.grad_y)[i]) / f.denominator[at];
    plan.dn[i] = g;
    dot -= g * to_float(static_cast<const T*>(f.y)[i]);
  }
  plan.dd[at] = dot;
}

template <typename T>
__global__ void sum_slices(const __grid_constant__ TaylorAttentionBackward p, const BackwardPlan plan) {
  const int64_t count = p.forward.tokens * p.forward.heads * p.forward.feature_dim, i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
  for (int s = 0; s < plan.slices; ++s) sum += plan.partial[(int64_t{blockIdx.y} * plan.slices + s) * count + i];
  static_cast<T*>(blockIdx.y == 0 ? p.grad_q : p.grad_k)[i] = from_float<T>(sum);
}

// Shared memory after Tile's. Here Tile::q holds the rows, the tokens whose gradients are computed; Tile::k and Tile::v hold the sources,
// the tokens that are summed over, and their values.
struct Extra {
  float *row_values, *gradient, *dd;  // [tokens][width + 1], [tokens][tokens + 1], [tokens]
  __device__ explicit Extra(const Tile& tile) {
    row_values = tile.end(), gradient = row_values + kTokens * (tile.width + 1), dd = gradient + kTokens * (kTokens + 1);
  }
};

// For each pair (row r, source c) with score a: weight = g^|r − c| w(a), gradient = (1 + a)(g^|r − c| row values · source values +
// g^|r − c| dD), where the second g is the denominator's.
__device__ void pair_gradients(const Tile& tile, const Extra& extra, int tokens, const LogDecay& log_decay, bool backward) {
  for (int i = threadIdx.x; i < kTokens * kTokens; i += kGenericThreads) {
    const int r = i / kTokens, c = i % kTokens;
    float w = 0, g = 0;
    if (r < tokens && c < tokens && (backward ? c >= r : c <= r)) {
      const float a = tile.score(tile.q, r, tile.k, c), distance = static_cast<float>(abs(r - c));
      const float decay_factor = exp2f(distance * log_decay.numerator);
      for (int d = 0; d < tile.width; ++d) g += extra.row_values[r * (tile.width + 1) + d] * tile.v[c * tile.width + d];
      w = fmaf(a, fmaf(a, 0.5F, 1.0F), 1.0F) * decay_factor;
      g = (1.0F + a) * (g * decay_factor + extra.dd[backward ? c : r] * exp2f(distance * log_decay.denominator));
    }
    tile.weight[r * (kTokens + 1) + c] = w, extra.gradient[r * (kTokens + 1) + c] = g;
  }
}

// Gradient of feature f of row r: the state's row f times the row's values and their decay, plus the sum of feature f times `row_dd`.
__device__ float feature_gradient(const Tile& tile, const Extra& extra, int r, int f, float decay_factor, float row_dd) {
  float sum = 0;
  for (int d = 0; d < tile.width; ++d) sum += tile.state[f * tile.width + d] * extra.row_values[r * (tile.width + 1) + d];
  return sum * decay_factor + tile.sums[f] * row_dd;
}

// Element i of the gradient of row r; row_dd is decayed.
__device__ float row_gradient(const Tile& tile, const Extra& extra, int r, int i, int tokens, float decay_factor, float row_dd) {
  const float* x = tile.q + r * (tile.feature_dim + 1);
  float sum = feature_gradient(tile, extra, r, 1 + i, decay_factor, row_dd);
  for (int j = 0; j < tile.feature_dim; ++j) {
    const float g = feature_gradient(tile, extra, r, Tile::pair_number(min(i, j), max(i, j), tile.feature_dim), decay_factor, row_dd);
    sum += g * x[j] * (i == j ? 1.41421356237309505F : 1.0F);
  }
  for (int c = 0; c < tokens; ++c) sum += extra.gradient[r * (kTokens + 1) + c] * tile.k[c * (tile.feature_dim + 1) + i];
  return sum;
}

template <typename T>
struct Rows {
  const TaylorAttentionBackward& p;
  const BackwardPlan& plan;
  bool backward;
  int head, slice, first, columns;

  // Loads the chunk to shared memory.
  __device__ void load(Tile& tile, const Extra& extra, int64_t token, int tokens) const {
    const TaylorAttention& f = p.forward;
    const int64_t qk_stride = int64_t{f.heads} * f.feature_dim, v_stride = int64_t{f.heads} * f.head_dim,
                  at = token * v_stride + int64_t{head} * f.head_dim + first;
    const T *q = static_cast<const T*>(f.q) + token * qk_stride + head * f.feature_dim,
            *k = static_cast<const T*>(f.k) + token * qk_stride + head * f.feature_dim;
    const T* v = static_cast<const T*>(f.v) + at;
    tile.load(tile.q, backward ? k : q, qk_stride, f.feature_dim, f.feature_dim + 1, tokens);
    tile.load(tile.k, backward ? q : k, qk_stride, f.feature_dim, f.feature_dim + 1, tokens);
    if (backward) {
      tile.load(tile.v, plan.dn + at, v_stride, columns, tile.width, tokens);
      tile.load(extra.row_values, v, v_stride, columns, tile.width + 1, tokens);
    } else {
      tile.load(tile.v, v, v_stride, columns, tile.width, tokens);
      tile.load(extra.row_values, plan.dn + at, v_stride, columns, tile.width + 1, tokens);
    }
    for (int t = threadIdx.x; t < kTokens; t += kGenericThreads) {
      extra.dd[t] = t < tokens && slice == 0 ? plan.dd[(token + t) * f.heads + head] : 0.0F;
    }
  }
  __device__ void store(const Tile& tile, const Extra& extra, int64_t token, int tokens, const LogDecay& log_decay) const {
    const TaylorAttention& f = p.forward;
    const auto decay_factor = [&](int r, float log_rate) {
      return exp2f(static_cast<float>(backward ? tokens - 1 - r : r + 1) * log_rate);
    };
    float* to = plan.partial + (int64_t{backward ? plan.slices : 0} + slice) * f.tokens * f.heads * f.feature_dim;
    for (int n = threadIdx.x; n < kTokens * f.feature_dim; n += kGenericThreads) {
      const int r = n % kTokens, i = n / kTokens;  // lanes of a warp share the feature, whose state row they all read
      if (r >= tokens) continue;
      const float row_dd = (backward ? (slice == 0 ? 1.0F : 0.0F) : extra.dd[r]) * decay_factor(r, log_decay.denominator);
      to[((token + r) * f.heads + head) * f.feature_dim + i] =
          row_gradient(tile, extra, r, i, tokens, decay_factor(r, log_decay.numerator), row_dd);
    }
    for (int n = threadIdx.x; backward && n < tokens * tile.width; n += kGenericThreads) {
      const int r = n / tile.width, d = n % tile.width;
      if (d >= columns) continue;
      float sum = 0;
      for (int i = 0; i < tile.features; ++i) sum += tile.feature(tile.q, r, i) * tile.state[i * tile.width + d];
      sum *= decay_factor(r, log_decay.numerator);
      for (int c = r; c < tokens; ++c) sum += tile.weight[r * (kTokens + 1) + c] * tile.v[c * tile.width + d];
      static_cast<T*>(p.grad_v)[((token + r) * f.heads + head) * f.head_dim + first + d] = from_float<T>(sum);
    }
  }
};

// blockIdx.z = direction · slices + slice; direction 0 computes dq, direction 1 dk and dv.
template <typename T>
__global__ void __launch_bounds__(kGenericThreads) gradients(const __grid_constant__ TaylorAttentionBackward p, const BackwardPlan plan) {
  extern __shared__ float shared[];
  const TaylorAttention& f = p.forward;
  Tile tile(shared, f.feature_dim, plan.width, plan.features);
  const Extra extra(tile);
  const bool backward = blockIdx.z >= plan.slices;
  const int slice = blockIdx.z % plan.slices, head = blockIdx.y, first = slice * plan.width;
  const Rows<T> rows{p, plan, backward, head, slice, first, min(plan.width, f.head_dim - first)};
  const int64_t row = blockIdx.x, begin = f.row_start[row], end = f.row_start[row + 1], state = (row * f.heads + head) * plan.features;
  const LogDecay log_decay(f, head);
  const float *kv = backward ? p.grad_kv_state : p.initial_kv_state, *k = backward ? p.grad_k_state : p.initial_k_state;
  tile.number_pairs();
  tile.load_state(kv == nullptr ? nullptr : kv + state * f.head_dim + first, k == nullptr ? nullptr : k + state, f.head_dim, rows.columns);
  const int64_t chunks = (end - begin + kTokens - 1) / kTokens;
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t token = begin + (backward ? chunks - 1 - i : i) * kTokens;
    const int tokens = static_cast<int>(min(end - token, int64_t{kTokens}));
    __syncthreads();
    rows.load(tile, extra, token, tokens);
    __syncthreads();
    pair_gradients(tile, extra, tokens, log_decay, backward);
    __syncthreads();
    rows.store(tile, extra, token, tokens, log_decay);
    __syncthreads();
    tile.update(tile.k, tile.v, tokens, log_decay, backward, backward ? extra.dd : nullptr);
  }
  __syncthreads();
  if (!backward || p.grad_initial_kv_state == nullptr) return;
  tile.store_state(p.grad_initial_kv_state + state * f.head_dim + first, slice == 0 ? p.grad_initial_k_state + state : nullptr, f.head_dim,
                   rows.columns);
}

// Scratch: dn, dD, partial gradients.
BackwardPlan make_plan(const TaylorAttentionBackward& p, void* scratch) {
  const TaylorAttention& f = p.forward;
  const int features = static_cast<int>(packed_features(f.feature_dim));
  BackwardPlan plan{};
  plan.width = generic_width(f, [&](int width) { return shared_floats(width, features, f.feature_dim); });
  plan.features = features, plan.slices = static_cast<int>(ceil_div(f.head_dim, plan.width));
  plan.dn = static_cast<float*>(scratch), plan.dd = plan.dn + f.tokens * f.heads * f.head_dim;
  plan.partial = plan.dd + f.tokens * f.heads;
  return plan;
}

template <typename T>
Status launch(const TaylorAttentionBackward& p, const BackwardPlan& plan, cudaStream_t s) {
  const TaylorAttention& f = p.forward;
  const int bytes = shared_floats(plan.width, plan.features, f.feature_dim) * 4;
  if (const cudaError_t e = allow_shared_memory(gradients<T>, bytes); e != cudaSuccess) return status_of(e);
  if (f.tokens > 0) prepare<T><<<static_cast<unsigned>(ceil_div(f.tokens * f.heads, 128)), 128, 0, s>>>(p, plan);
  gradients<T><<<dim3(static_cast<unsigned>(f.rows), f.heads, 2 * plan.slices), kGenericThreads, bytes, s>>>(p, plan);
  const int64_t count = f.tokens * f.heads * f.feature_dim;
  if (count > 0) sum_slices<T><<<dim3(static_cast<unsigned>(ceil_div(count, 256)), 2), 256, 0, s>>>(p, plan);
  return launched();
}

}  // namespace

int64_t taylor_backward_generic_scratch(const TaylorAttentionBackward& p) {
  const TaylorAttention& f = p.forward;
  const BackwardPlan plan = make_plan(p, nullptr);
  return f.tokens * f.heads * (f.head_dim + 1 + int64_t{2} * plan.slices * f.feature_dim) * 4;
}

Status taylor_backward_generic(const TaylorAttentionBackward& p, void* scratch, Queue queue) {
  if (p.forward.denominator == nullptr && p.forward.tokens > 0) return {"taylor_attention_backward: the forward's denominator is missing"};
  const BackwardPlan plan = make_plan(p, scratch);
  return p.forward.dtype == DType::bf16 ? launch<bf16>(p, plan, stream_of(queue)) : launch<float>(p, plan, stream_of(queue));
}

}  // namespace based::kernels::cuda::detail
