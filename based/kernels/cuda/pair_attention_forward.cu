// Attention over pairs forward: a block owns 64 queries of a head and walks over the keys that they see. Where two tiles fit, the next one
// is loaded while one is used; else values of a tile while its scores are made, the next tile's keys while values are weighed.
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
      if constexpr (Weight::kSoftmax) {
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
        if constexpr (Weight::kSoftmax) {
          x = exp2_approx(x - base);
        } else {
          x = visible(i / 2, 2 * half + i % 2) ? Weight::weight(x) : 0.0F;
        }
        total += x;
      }
      sum[half] = Weight::kSoftmax ? fmaf(sum[half], kept[half], total) : sum[half] + total;
    }
  }
  __device__ __forceinline__ void finish(float eps) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0U, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0U, sum[half], 2);
      if (!Weight::kSoftmax) sum[half] += eps;
    }
  }
  // log_sum_exp, or the denominator.
  __device__ __forceinline__ float statistic(int half) const {
    return Weight::kSoftmax ? (top[half] + log2f(sum[half])) * causal::kLn2 : sum[half];
  }
};

template <class Weight, int kCount, bool kSplit>
__global__ void __launch_bounds__(kThreads, kCount <= 8 ? 4 : 3)
    attend(const __grid_constant__ Problem p, const __grid_constant__ Order order) {
  extern __shared__ float4 memory[];
  Place at;
  if (!find_row<false>(p.of, order, at)) return;
  const int qk_pitch = p.qk.pitch, v_pitch = p.v.pitch, warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  float *q = reinterpret_cast<float*>(memory), *k = q + kOwn * qk_pitch, *v = k + kOther * qk_pitch;
  const Sight sees(p, at);
  const int block = at.part * kOwn, first = block + 16 * warp, kv_head = at.head / at.share;
  const float* of_q = static_cast<const float*>(p.of.q) + at.q_begin * p.of.q_stride + int64_t{at.head} * p.qk_dim;
  const float* of_k = static_cast<const float*>(p.of.k) + at.k_begin * p.of.k_stride + int64_t{kv_head} * p.qk_dim;
  const float* of_v = static_cast<const float*>(p.of.v) + at.k_begin * p.of.v_stride + int64_t{kv_head} * p.of.head_dim;
  const int from = max(block + sees.shift - sees.window + 1, 0) / kOther * kOther, to = min(block + kOwn, at.queries) + sees.shift;
  const Span seen_by[2] = {sees.keys_of(first + row_of(0)), sees.keys_of(first + row_of(2))};
  const Draw draw(p.of);
  const bool two = p.turn != 0;
  const auto load_keys = [&](int key, int tile) {
    load_rows<kOther>(k + tile, of_k, key, at.keys, static_cast<int>(p.of.k_stride), p.qk, p.in_fours);
  };
  const auto load_values = [&](int key, int tile) {
    load_rows<kOther>(v + tile, of_v, key, at.keys, static_cast<int>(p.of.v_stride), p.v, p.in_fours);
  };
  Total<Weight> total;
  Sums<kCount> out = {};
  load_rows<kOwn>(q, of_q, block, at.queries, static_cast<int>(p.of.q_stride), p.qk, p.in_fours);
  load_keys(from, 0);
  if (two) load_values(from, 0);
  copy_async_commit(), copy_async_wait<0>();
  round_rows<kOwn, kSplit>(q, p.qk);
#pragma unroll 1
  for (int key = from, tile = 0; key < to; key += kOther, tile = p.turn - tile) {
    const bool seen = sees.any(first, 16, key, kOther), more = key + kOther < to;
    Sums<kBlocks> s;
    copy_async_wait<0>();
    round_rows<kOther, kSplit>(k + tile, p.qk);
    if (two) round_rows<kOther, kSplit>(v + tile, p.v);
    __syncthreads();
    if (!two) load_values(key, 0);
    if (two && more) load_keys(key + kOther, p.turn - tile), load_values(key + kOther, p.turn - tile);
    copy_async_commit();
    if (seen) {
      float kept[2] = {1, 1};
      dot_rows<kSplit>(s, q + 16 * warp * qk_pitch, k + tile, qk_pitch, p.qk_dim);
      total.weigh(s, p.of.scale * causal::kLog2e, kept, [&](int n, int e) { return seen_by[e / 2].contains(key + column_of(n, e)); });
      if (Weight::kSoftmax && __any_sync(~0U, kept[0] != 1.0F || kept[1] != 1.0F)) {
#pragma unroll
        for (int i = 0; i < 4 * kCount; ++i) out[i / 4][i % 4] *= kept[i / 2 % 2];
      }
      if (Weight::kSoftmax && draw.any()) {
#pragma unroll
        for (int i = 0; i < 4 * kBlocks; ++i)
          s[i / 4][i % 4] *= draw.factor(at.q_begin + first + row_of(i % 4), at.head, key + column_of(i / 4, i % 4));
      }
    }
    if (!two) {
      copy_async_wait<0>();
      round_rows<kOther, kSplit>(v, p.v);
      __syncthreads();
      if (more) load_keys(key + kOther, 0);
      copy_async_commit();
    }
    if (seen) add_weighted<kSplit>(out, s, v + tile, v_pitch, p.of.head_dim);
  }
  total.finish(p.eps);
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
    return launch_parts(attend<Weight, kCount, kSplit>, p, p.of, p.of.q_tokens, p.of.heads, true, shared_memory(p, false).bytes, stream);
  }
};

bool fours(const void* p, int64_t stride) { return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 4 == 0; }

bool in_fours(const Problem& p) {
  return p.qk_dim % 4 == 0 && p.of.head_dim % 4 == 0 && fours(p.of.q, p.of.q_stride) && fours(p.of.k, p.of.k_stride) &&
         fours(p.of.v, p.of.v_stride) && fours(p.of.y, 0);
}

// Of Taylor and linear attention alike, all heads of all tokens side by side.
template <class Attention>
Problem problem_of_denominators(const Attention& p, int32_t qk_dim, Weights weights) {
  Problem to;
  to.of.q = p.q, to.of.k = p.k, to.of.v = p.v, to.of.y = p.y, to.of.log_sum_exp = p.denominator;
  to.of.q_start = to.of.k_start = p.row_start, to.of.rows = p.rows, to.of.q_tokens = to.of.k_tokens = p.tokens;
  to.of.q_stride = to.of.k_stride = int64_t{p.heads} * qk_dim, to.of.v_stride = int64_t{p.heads} * p.head_dim;
  to.of.heads = to.of.kv_heads = p.heads, to.of.head_dim = p.head_dim, to.of.dtype = p.dtype, to.of.single_tf32 = p.single_tf32;
  to.qk_dim = qk_dim, to.weights = weights;
  return to;
}

// Gradients lie as their inputs do.
template <class Backward>
Gradients gradients_of_denominators(const Backward& b, void* scratch) {
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

__global__ void clear(float* to, int64_t stride, int width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) to[blockIdx.x * stride + i] = 0;
}

}  // namespace

Problem problem_of(const CausalAttention& p) { return {p, p.head_dim, Weights::softmax}; }

Problem problem_of(const TaylorAttention& p) {
  Problem to = problem_of_denominators(p, p.feature_dim, Weights::taylor);
  if (p.qk_stride != 0) to.of.q_stride = to.of.k_stride = p.qk_stride;
  if (p.v_stride != 0) to.of.v_stride = p.v_stride;
  return to;
}

Problem problem_of(const LinearAttention& p) {
  Problem to = problem_of_denominators(p, p.features, Weights::linear);
  to.eps = p.eps;
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

Gradients gradients_of(const TaylorAttentionBackward& b, void* scratch) { return gradients_of_denominators(b, scratch); }
Gradients gradients_of(const LinearAttentionBackward& b, void* scratch) { return gradients_of_denominators(b, scratch); }

bool supports(const Problem& p) {
  const CausalAttention& of = p.of;
  return of.dtype == DType::f32 && of.head_dim >= 1 && of.head_dim <= kTaylorPairsHeadDim && p.qk_dim >= 1 &&
         p.qk_dim <= kTaylorPairsHeadDim && of.kv_heads > 0 && of.heads % of.kv_heads == 0 &&
         std::max({of.q_stride, of.k_stride, of.v_stride}) <= kMostStride && of.q_tokens <= causal::kMostTokens &&
         of.k_tokens <= causal::kMostTokens && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8 &&
         device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= shared_memory(p, true).bytes;
}

Status forward(Problem p, Stream stream) {
  if (p.of.q_tokens == 0 || p.of.heads == 0) return {};
  p.in_fours = in_fours(p), lay_out(p, false);
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
  lay_out(g.forward, true);
  if (const Status s = gradients_of_queries(g, stream); !s.ok()) return s;
  return gradients_of_keys(g, stream);
}

}  // namespace based::kernels::cuda::detail::pairs
