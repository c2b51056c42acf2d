// Attention over pairs, forward. A block owns 64 queries of a head and loops over the keys that they attend to. If two buffers fit, the
// next tile is loaded while one is used. Else the values of a tile are loaded while its scores are computed, and the next keys while the
// values are multiplied.
#include "based/kernels/pair_attention/cuda/pair_attention.cuh"

namespace based::kernels::cuda::detail::pairs {
namespace {

// The sums of weights of a lane's two rows. For softmax they are relative to `top`, the largest score so far.
template <class Weight>
struct WeightSums {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // Replaces scores by weights; visible(n, e) is the mask. `kept` returns the factor by which the caller must rescale its sums.
  template <class Visible>
  __device__ __forceinline__ void to_weights(Sums<kBlocks>& s, float scale_log2, float (&kept)[2], const Visible& visible,
                                             const TileTaps<Weight, true>& tap) {
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
          x = visible(i / 2, 2 * half + i % 2) ? Weight::weigh(x, tap(i / 2, 2 * half + i % 2)) : 0.0F;
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
  // log_sum_exp for softmax, else the denominator.
  __device__ __forceinline__ float statistic(int half) const {
    return Weight::kSoftmax ? (top[half] + log2f(sum[half])) * kLn2 : sum[half];
  }
};

template <class Weight, int kCount, bool kSplit>
__global__ void __launch_bounds__(kThreads, kCount <= 8 ? 4 : 3)
    attend(const __grid_constant__ Problem p, const __grid_constant__ Order order) {
  extern __shared__ float4 memory[];
  WorkItem item;
  if (!find_row<false, Weight>(p, order, item)) return;
  const int qk_pitch = p.qk_layout.pitch, v_pitch = p.v_layout.pitch, warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  float *q = reinterpret_cast<float*>(memory), *k = q + kOwned * qk_pitch, *v = k + kOther * qk_pitch;
  const PairMask mask(p, item);
  const int block = item.part * kOwned, first = block + 16 * warp, kv_head = item.head / item.heads_per_kv;
  const float* q_rows = static_cast<const float*>(p.q) + item.q_begin * p.q_stride + int64_t{item.head} * p.qk_dim;
  const float* k_rows = static_cast<const float*>(p.k) + item.k_begin * p.k_stride + int64_t{kv_head} * p.qk_dim;
  const float* v_rows = static_cast<const float*>(p.v) + item.k_begin * p.v_stride + int64_t{kv_head} * p.head_dim;
  const int first_key = max(block + mask.shift - mask.window + 1, 0) / kOther * kOther,
            end_key = min(block + kOwned, item.queries) + mask.shift;
  const Span visible[2] = {mask.visible_keys(first + row_of(0)), mask.visible_keys(first + row_of(2))};
  const Dropout dropout(p);
  const bool double_buffered = p.buffer_step != 0;
  const auto load_keys = [&](int key, int tile) {
    load_rows<kOther>(k + tile, k_rows, key, item.keys, static_cast<int>(p.k_stride), p.qk_layout, p.in_fours);
  };
  const auto load_values = [&](int key, int tile) {
    load_rows<kOther>(v + tile, v_rows, key, item.keys, static_cast<int>(p.v_stride), p.v_layout, p.in_fours);
  };
  WeightSums<Weight> total;
  Sums<kCount> out = {};
  const float* filter = p.filter + int64_t{item.head} * p.taps;
  load_rows<kOwned>(q, q_rows, block, item.queries, static_cast<int>(p.q_stride), p.qk_layout, p.in_fours);
  load_keys(first_key, 0);
  if (double_buffered) load_values(first_key, 0);
  copy_async_commit(), copy_async_wait<0>();
  round_rows<kOwned, kSplit>(q, p.qk_layout);
#pragma unroll 1
  for (int key = first_key, tile = 0; key < end_key; key += kOther, tile = p.buffer_step - tile) {
    const bool any_visible = mask.any(first, 16, key, kOther), more = key + kOther < end_key;
    Sums<kBlocks> s;
    copy_async_wait<0>();
    round_rows<kOther, kSplit>(k + tile, p.qk_layout);
    if (double_buffered) round_rows<kOther, kSplit>(v + tile, p.v_layout);
    __syncthreads();
    if (!double_buffered) load_values(key, 0);
    if (double_buffered && more) load_keys(key + kOther, p.buffer_step - tile), load_values(key + kOther, p.buffer_step - tile);
    copy_async_commit();
    if (any_visible) {
      float kept[2] = {1, 1};
      const TileTaps<Weight, true> tap(filter, static_cast<int>(p.taps), first, key);
      dot_rows<kSplit>(s, q + 16 * warp * qk_pitch, k + tile, qk_pitch, p.qk_dim);
      total.to_weights(
          s, p.scale * kLog2e, kept, [&](int n, int e) { return visible[e / 2].contains(key + column_of(n, e)); }, tap);
      if (Weight::kSoftmax && __any_sync(~0U, kept[0] != 1.0F || kept[1] != 1.0F)) {
#pragma unroll
        for (int i = 0; i < 4 * kCount; ++i) out[i / 4][i % 4] *= kept[i / 2 % 2];
      }
      if (Weight::kSoftmax && dropout.any()) {
#pragma unroll
        for (int i = 0; i < 4 * kBlocks; ++i)
          s[i / 4][i % 4] *= dropout.factor(item.q_begin + first + row_of(i % 4), item.head, key + column_of(i / 4, i % 4));
      }
    }
    if (!double_buffered) {
      copy_async_wait<0>();
      round_rows<kOther, kSplit>(v, p.v_layout);
      __syncthreads();
      if (more) load_keys(key + kOther, 0);
      copy_async_commit();
    }
    if (any_visible) add_weighted<kSplit>(out, s, v + tile, v_pitch, p.head_dim);
  }
  total.finish(p.eps);
  const int64_t token = item.q_begin + first, heads = p.heads;
  store_rows(static_cast<float*>(p.y) + (token * heads + item.head) * p.head_dim, heads * p.head_dim, p.head_dim, item.queries - first,
             p.in_fours, out, Weight::kFilter ? 1 : 1 / total.sum[0], Weight::kFilter ? 1 : 1 / total.sum[1]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!Weight::kFilter && p.normalizer != nullptr && threadIdx.x % 4 == 0 && first + row_of(2 * half) < item.queries)
      p.normalizer[(token + row_of(2 * half)) * heads + item.head] = total.statistic(half);
  }
}

template <class Weight, int, int kCount, bool kSplit>
struct Attend {
  static Status launch(const Problem& p, Queue queue) {
    return launch_parts(attend<Weight, kCount, kSplit>, p, p, p.q_tokens, p.heads, true, shared_memory(p, false).bytes, queue);
  }
};

bool is_in_fours(const void* p, int64_t stride) { return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 4 == 0; }

bool in_fours(const Problem& p) {
  return p.qk_dim % 4 == 0 && p.head_dim % 4 == 0 && is_in_fours(p.q, p.q_stride) && is_in_fours(p.k, p.k_stride) &&
         is_in_fours(p.v, p.v_stride) && is_in_fours(p.y, 0);
}

__global__ void clear(float* gradient, int64_t stride, int width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) gradient[blockIdx.x * stride + i] = 0;
}

}  // namespace

bool supports(const Problem& p) {
  return p.dtype == DType::f32 && p.head_dim >= 1 && p.head_dim <= kPairAttentionDim && p.qk_dim >= 1 && p.qk_dim <= kPairAttentionDim &&
         p.kv_heads > 0 && p.heads % p.kv_heads == 0 && std::max({p.q_stride, p.k_stride, p.v_stride}) <= kMaxStride &&
         p.q_tokens <= kMaxTokens && p.k_tokens <= kMaxTokens && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8 &&
         block_shared_memory() >= shared_memory(p, true).bytes;
}

Status forward(Problem p, Queue queue) {
  if (p.q_tokens == 0 || p.heads == 0) return {};
  p.in_fours = in_fours(p), set_layout(p, false);
  return choose<Attend>(p, p, queue);
}

Status backward(Gradients g, Queue queue) {
  const Problem& p = g.forward;
  if (p.k_tokens == 0 || p.heads == 0) return {};
  if (p.q_tokens == 0) {
    const auto tokens = static_cast<unsigned>(p.k_tokens);
    clear<<<tokens, kThreads, 0, stream_of(queue)>>>(g.grad_k, g.grad_k_stride, p.kv_heads * g.forward.qk_dim);
    clear<<<tokens, kThreads, 0, stream_of(queue)>>>(g.grad_v, g.grad_v_stride, p.kv_heads * p.head_dim);
    return launched();
  }
  g.forward.in_fours = in_fours(g.forward) && is_in_fours(g.grad_y, 0) && is_in_fours(g.grad_q, g.grad_q_stride) &&
                       is_in_fours(g.grad_k, g.grad_k_stride) && is_in_fours(g.grad_v, g.grad_v_stride);
  set_layout(g.forward, true);
  const Status s = p.weights == Weights::filter ? gradients_of_queries_and_filter(g, queue) : gradients_of_queries(g, queue);
  return s.ok() ? gradients_of_keys(g, queue) : s;
}

}  // namespace based::kernels::cuda::detail::pairs
