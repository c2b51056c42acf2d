// Attention over pairs forward: a block owns 64 queries of a head and walks over the keys that they see. Values of a tile are loaded while
// its scores are made, the next tile's keys while values are weighed.
#include "based/kernels/cuda/pair_attention.cuh"

namespace based::kernels::cuda::detail::pairs {
namespace {

// The sums of a lane's two rows of weights; a softmax's are relative to `top`, the largest score so far.
template <class Weight>
struct Total {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // Scores, of which `visible(n, e)` says which count, become weights; `kept` is what sums so far are to be multiplied by.
  template <class Visible>
  __device__ __forceinline__ void weigh(Sums<kBlocks>& s, float scale_log2, float (&kept)[2], const Visible& visible) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float base = 0;
      if constexpr (!Weight::kTaylor) {
        float most = -INFINITY;
#pragma unroll
        for (int i = 0; i < 2 * kBlocks; ++i) {
          float& x = s[i / 2][2 * half + i % 2];
          x = visible(i / 2, 2 * half + i % 2) ? x * scale_log2 : -INFINITY;
          most = fmaxf(most, x);
        }
        most = fmaxf(most, __shfl_xor_sync(~0U, most, 1));
        most = fmaxf(fmaxf(most, __shfl_xor_sync(~0U, most, 2)), top[half]);
        base = most == -INFINITY ? 0.0F : most;
        kept[half] = exp2_approx(top[half] - base), top[half] = most;
      }
      float total = 0;
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        float& x = s[i / 2][2 * half + i % 2];
        if constexpr (Weight::kTaylor) {
          x = visible(i / 2, 2 * half + i % 2) ? fmaf(x, fmaf(x, 0.5F, 1.0F), 1.0F) : 0.0F;
        } else {
          x = exp2_approx(x - base);
        }
        total += x;
      }
      sum[half] = Weight::kTaylor ? sum[half] + total : fmaf(sum[half], kept[half], total);
    }
  }
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0U, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0U, sum[half], 2);
    }
  }
  // log_sum_exp, or the denominator.
  __device__ __forceinline__ float statistic(int half) const {
    return Weight::kTaylor ? sum[half] : (top[half] + log2f(sum[half])) * causal::kLn2;
  }
};

template <class Weight, int kCount, bool kSplit>
__global__ void __launch_bounds__(kThreads, 3) attend(const __grid_constant__ Problem p, const __grid_constant__ Order order) {
  extern __shared__ float4 memory[];
  Place at;
  if (!find_place<kOwn, false>(p.of, order, at)) return;
  const int qk_pitch = pitch_of(p.qk_dim), v_pitch = pitch_of(p.of.head_dim), warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  float *q = reinterpret_cast<float*>(memory), *k = q + kOwn * qk_pitch, *v = k + kOther * qk_pitch;
  const Sight sees(p, at);
  const int block = at.part * kOwn, first = block + 16 * warp, kv_head = at.head / at.share;
  const float* of_q = static_cast<const float*>(p.of.q) + (at.q_begin + block) * p.of.q_stride + int64_t{at.head} * p.qk_dim;
  const float* of_k = static_cast<const float*>(p.of.k) + at.k_begin * p.of.k_stride + int64_t{kv_head} * p.qk_dim;
  const float* of_v = static_cast<const float*>(p.of.v) + at.k_begin * p.of.v_stride + int64_t{kv_head} * p.of.head_dim;
  const int from = max(block + sees.shift - sees.window + 1, 0) / kOther * kOther, to = min(block + kOwn, at.queries) + sees.shift;
  const Draw draw(p.of);
  Total<Weight> total;
  Sums<kCount> out = {};
  load_rows<kOwn>(q, of_q, p.of.q_stride, p.qk_dim, at.queries - block, p.in_fours);
  load_rows<kOther>(k, of_k + from * p.of.k_stride, p.of.k_stride, p.qk_dim, at.keys - from, p.in_fours);
  copy_async_commit();
#pragma unroll 1
  for (int key = from; key < to; key += kOther) {
    const bool seen = sees.any(first, 16, key, kOther);
    Sums<kBlocks> s;
    copy_async_wait<0>();
    __syncthreads();
    load_rows<kOther>(v, of_v + key * p.of.v_stride, p.of.v_stride, p.of.head_dim, at.keys - key, p.in_fours);
    copy_async_commit();
    if (seen) {
      float kept[2] = {1, 1};
      dot_rows<kSplit>(s, q + 16 * warp * qk_pitch, k, qk_pitch, p.qk_dim);
      total.weigh(s, p.of.scale * causal::kLog2e, kept, [&](int n, int e) { return sees(first + row_of(e), key + column_of(n, e)); });
      if (!Weight::kTaylor && __any_sync(~0U, kept[0] != 1.0F || kept[1] != 1.0F)) {
#pragma unroll
        for (int i = 0; i < 4 * kCount; ++i) out[i / 4][i % 4] *= kept[i / 2 % 2];
      }
#pragma unroll
      for (int i = 0; draw.any() && i < 4 * kBlocks; ++i)
        s[i / 4][i % 4] *= draw.factor(at.q_begin + first + row_of(i % 4), at.head, key + column_of(i / 4, i % 4));
    }
    copy_async_wait<0>();
    __syncthreads();
    if (key + kOther < to)
      load_rows<kOther>(k, of_k + (key + kOther) * p.of.k_stride, p.of.k_stride, p.qk_dim, at.keys - key - kOther, p.in_fours);
    copy_async_commit();
    if (seen) add_weighted<kSplit>(out, s, v, v_pitch, p.of.head_dim);
  }
  total.finish();
  const int64_t token = at.q_begin + first, heads = p.of.heads;
  store_rows(static_cast<float*>(p.of.y) + (token * heads + at.head) * p.of.head_dim, heads * p.of.head_dim, p.of.head_dim,
             at.queries - first, p.in_fours, out, 1 / total.sum[0], 1 / total.sum[1]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (p.of.log_sum_exp != nullptr && threadIdx.x % 4 == 0 && first + row_of(2 * half) < at.queries)
      p.of.log_sum_exp[(token + row_of(2 * half)) * heads + at.head] = total.statistic(half);
  }
}

template <class Weight, int, int kCount, bool kSplit>
struct Attend {
  static Status launch(const Problem& p, Stream stream) {
    return launch_parts(attend<Weight, kCount, kSplit>, p, p.of, p.of.q_tokens, p.of.heads, true, forward_bytes(p), stream);
  }
};

bool fours(const void* p, int64_t stride) { return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 4 == 0; }

bool in_fours(const Problem& p) {
  return p.qk_dim % 4 == 0 && p.of.head_dim % 4 == 0 && fours(p.of.q, p.of.q_stride) && fours(p.of.k, p.of.k_stride) &&
         fours(p.of.v, p.of.v_stride) && fours(p.of.y, 0);
}

// Elements from one token to the next, where nothing else is said.
int64_t stride_of(int64_t given, int64_t heads, int64_t dim) { return given != 0 ? given : heads * dim; }

__global__ void clear(float* to, int64_t stride, int width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) to[blockIdx.x * stride + i] = 0;
}

// grad_y·y of each head of each query: one warp.
__global__ void __launch_bounds__(256) mean_gradients(const __grid_constant__ Gradients g) {
  const CausalAttention& p = g.forward.of;
  const int64_t at = (blockIdx.x * int64_t{256} + threadIdx.x) / 32;
  if (at >= p.q_tokens * p.heads) return;
  float sum = 0;
  for (int i = threadIdx.x % 32; i < p.head_dim; i += 32)
    sum = fmaf(g.grad_y[at * p.head_dim + i], static_cast<const float*>(p.y)[at * p.head_dim + i], sum);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
  if (threadIdx.x % 32 == 0) g.mean[at] = sum;
}

}  // namespace

Problem problem_of(const CausalAttention& p) { return {p, p.head_dim, false}; }

Problem problem_of(const TaylorAttention& p) {
  Problem to;
  to.of.q = p.q, to.of.k = p.k, to.of.v = p.v, to.of.y = p.y, to.of.log_sum_exp = p.denominator;
  to.of.q_start = to.of.k_start = p.row_start, to.of.rows = p.rows, to.of.q_tokens = to.of.k_tokens = p.tokens;
  to.of.q_stride = to.of.k_stride = stride_of(p.qk_stride, p.heads, p.feature_dim);
  to.of.v_stride = stride_of(p.v_stride, p.heads, p.head_dim);
  to.of.heads = to.of.kv_heads = p.heads, to.of.head_dim = p.head_dim, to.of.dtype = p.dtype, to.of.single_tf32 = p.single_tf32;
  to.qk_dim = p.feature_dim, to.taylor = true;
  return to;
}

Gradients gradients_of(const CausalAttentionBackward& b, void* scratch) {
  return {problem_of(b.forward),
          static_cast<const float*>(b.grad_y),
          static_cast<float*>(b.grad_q),
          static_cast<float*>(b.grad_k),
          static_cast<float*>(b.grad_v),
          b.grad_q_stride,
          b.grad_k_stride,
          b.grad_v_stride,
          static_cast<float*>(scratch)};
}

Gradients gradients_of(const TaylorAttentionBackward& b, void* scratch) {
  const Problem p = problem_of(b.forward);
  return {p,
          static_cast<const float*>(b.grad_y),
          static_cast<float*>(b.grad_q),
          static_cast<float*>(b.grad_k),
          static_cast<float*>(b.grad_v),
          p.of.q_stride,
          p.of.k_stride,
          p.of.v_stride,
          static_cast<float*>(scratch)};
}

bool supports(const Problem& p) {
  const CausalAttention& of = p.of;
  return of.dtype == DType::f32 && of.head_dim >= 1 && of.head_dim <= 128 && p.qk_dim >= 1 && p.qk_dim <= 128 && of.kv_heads > 0 &&
         of.heads % of.kv_heads == 0 && of.q_tokens <= causal::kMostTokens && of.k_tokens <= causal::kMostTokens &&
         device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8 &&
         device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= shared_bytes(p);
}

Status forward(Problem p, Stream stream) {
  if (p.of.q_tokens == 0 || p.of.heads == 0) return {};
  p.in_fours = in_fours(p);
  return choose<Attend>(p, p, stream);
}

Status backward(Gradients g, Stream stream) {
  const CausalAttention& p = g.forward.of;
  if (p.k_tokens == 0 || p.heads == 0) return {};
  if (p.q_tokens == 0) {
    const auto tokens = static_cast<unsigned>(p.k_tokens);
    clear<<<tokens, kThreads, 0, stream_of(stream)>>>(g.grad_k, g.grad_k_stride, p.kv_heads * g.forward.qk_dim);
    clear<<<tokens, kThreads, 0, stream_of(stream)>>>(g.grad_v, g.grad_v_stride, p.kv_heads * p.head_dim);
    return launched();
  }
  g.forward.in_fours = in_fours(g.forward) && fours(g.grad_y, 0) && fours(g.grad_q, g.grad_q_stride) && fours(g.grad_k, g.grad_k_stride) &&
                       fours(g.grad_v, g.grad_v_stride);
  mean_gradients<<<static_cast<unsigned>(ceil_div(p.q_tokens * p.heads, 8)), 256, 0, stream_of(stream)>>>(g);
  if (const Status s = gradients_of_keys(g, stream); !s.ok()) return s;
  return gradients_of_queries(g, stream);
}

}  // namespace based::kernels::cuda::detail::pairs
