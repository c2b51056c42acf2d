// Gradients of attention over pairs. With the weights w_ij of a row's queries i and keys j, normalised, the factor m_ij of what is dropped
// and mean_i = dy_i·y_i:
//   ds_ij = slope_ij (m_ij dy_i·v_j − mean_i),   slope = w for softmax, (1 + q·k) / D for Taylor attention
//   dq_i = scale Σ_j ds_ij k_j,   dk_j = scale Σ_i ds_ij q_i,   dv_j = Σ_i m_ij w_ij dy_i
// One kernel has blocks of queries that walk over keys, one blocks of keys that walk over queries, and both make the weights again: no sum
// is of two blocks, so that its order is fixed.
#include "based/kernels/cuda/pair_attention.cuh"

namespace based::kernels::cuda::detail::pairs {
namespace {

template <class Weight, int kCount, bool kSplit>
__global__ void __launch_bounds__(kThreads, kCount <= 8 ? 3 : 2)
    of_queries(const __grid_constant__ Gradients g, const __grid_constant__ Order order) {
  extern __shared__ float4 memory[];
  const Problem& p = g.forward;
  Place at;
  if (!find_place<kOwn, false>(p.of, order, at)) return;
  const int qk_pitch = pitch_of(p.qk_dim), v_pitch = pitch_of(p.of.head_dim), warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  float *q = reinterpret_cast<float*>(memory), *dy = q + kOwn * qk_pitch, *k = dy + kOwn * v_pitch, *v = k + kOther * qk_pitch;
  const Sight sees(p, at);
  const int block = at.part * kOwn, first = block + 16 * warp, kv_head = at.head / at.share;
  const int64_t heads = p.of.heads, y_stride = heads * p.of.head_dim;
  const float* of_q = static_cast<const float*>(p.of.q) + (at.q_begin + block) * p.of.q_stride + int64_t{at.head} * p.qk_dim;
  const float* of_dy = g.grad_y + (at.q_begin + block) * y_stride + int64_t{at.head} * p.of.head_dim;
  const float* of_k = static_cast<const float*>(p.of.k) + at.k_begin * p.of.k_stride + int64_t{kv_head} * p.qk_dim;
  const float* of_v = static_cast<const float*>(p.of.v) + at.k_begin * p.of.v_stride + int64_t{kv_head} * p.of.head_dim;
  const int from = max(block + sees.shift - sees.window + 1, 0) / kOther * kOther, to = min(block + kOwn, at.queries) + sees.shift;
  load_rows<kOwn>(q, of_q, p.of.q_stride, p.qk_dim, at.queries - block, p.in_fours);
  load_rows<kOwn>(dy, of_dy, y_stride, p.of.head_dim, at.queries - block, p.in_fours);
  load_rows<kOther>(v, of_v + from * p.of.v_stride, p.of.v_stride, p.of.head_dim, at.keys - from, p.in_fours);
  copy_async_commit();
  float norm[2] = {}, mean[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first + row_of(2 * half);
    if (query >= at.queries) continue;
    const int64_t i = (at.q_begin + query) * heads + at.head;
    norm[half] = Weight::norm(p.of.log_sum_exp[i]), mean[half] = g.mean[i];
  }
  const Draw draw(p.of);
  Sums<kCount> dq = {};
#pragma unroll 1
  for (int key = from; key < to; key += kOther) {
    const bool seen = sees.any(first, 16, key, kOther);
    Sums<kBlocks> s, ds;
    copy_async_wait<0>();
    __syncthreads();
    load_rows<kOther>(k, of_k + key * p.of.k_stride, p.of.k_stride, p.qk_dim, at.keys - key, p.in_fours);
    copy_async_commit();
    if (seen) dot_rows<kSplit>(ds, dy + 16 * warp * v_pitch, v, v_pitch, p.of.head_dim);
    copy_async_wait<0>();
    __syncthreads();
    if (key + kOther < to)
      load_rows<kOther>(v, of_v + (key + kOther) * p.of.v_stride, p.of.v_stride, p.of.head_dim, at.keys - key - kOther, p.in_fours);
    copy_async_commit();
    if (!seen) continue;
    dot_rows<kSplit>(s, q + 16 * warp * qk_pitch, k, qk_pitch, p.qk_dim);
#pragma unroll
    for (int i = 0; i < 4 * kBlocks; ++i) {
      const int n = i / 4, e = i % 4, query = first + row_of(e), other = key + column_of(n, e);
      const float kept = draw.any() ? draw.factor(at.q_begin + query, at.head, other) : 1.0F;
      const Weighed w = Weight::pair(s[n][e], p.of.scale * causal::kLog2e, norm[e / 2]);
      ds[n][e] = sees(query, other) ? w.slope * fmaf(ds[n][e], kept, -mean[e / 2]) : 0.0F;
    }
    add_weighted<kSplit>(dq, ds, k, qk_pitch, p.qk_dim);
  }
  store_rows(g.grad_q + (at.q_begin + first) * g.grad_q_stride + int64_t{at.head} * p.qk_dim, g.grad_q_stride, p.qk_dim, at.queries - first,
             p.in_fours, dq, p.of.scale, p.of.scale);
}

template <class Weight, int kCount, int, bool kSplit>
struct OfQueries {
  static Status launch(const Gradients& g, Stream stream) {
    const CausalAttention& p = g.forward.of;
    return launch_parts(of_queries<Weight, kCount, kSplit>, g, p, p.q_tokens, p.heads, true, shared_bytes(g.forward), stream);
  }
};

// The queries that a block of keys walks over: those of every head that reads these keys, 32 at a time.
struct Walk {
  int head, query;           // of this step
  int first_query, queries;  // from the first on
  __device__ __forceinline__ Walk(const Sight& sees, const Place& at) : head(at.head * at.share) {
    const int key = at.part * kOwn, last_key = min(key + kOwn, at.keys) - 1;
    query = first_query = max(key - sees.shift, 0);
    queries = max(min(at.queries, last_key - sees.shift + sees.window) - first_query, 0);
  }
  __device__ __forceinline__ void advance() {
    query += kOther;
    if (query >= first_query + queries) query = first_query, ++head;
  }
};

template <class Weight, int kCount, int kValueCount, bool kSplit>
__global__ void __launch_bounds__(kThreads, kCount + kValueCount <= 16 ? 3 : 2)
    of_keys(const __grid_constant__ Gradients g, const __grid_constant__ Order order) {
  extern __shared__ float4 memory[];
  const Problem& p = g.forward;
  Place at;
  if (!find_place<kOwn, true>(p.of, order, at)) return;
  const int qk_pitch = pitch_of(p.qk_dim), v_pitch = pitch_of(p.of.head_dim), warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  float *k = reinterpret_cast<float*>(memory), *v = k + kOwn * qk_pitch, *q = v + kOwn * v_pitch, *dy = q + kOther * qk_pitch;
  float *norm = dy + kOther * v_pitch, *mean = norm + kOther;
  const Sight sees(p, at);
  const int block = at.part * kOwn, first = block + 16 * warp, end_head = (at.head + 1) * at.share;
  const int64_t heads = p.of.heads, y_stride = heads * p.of.head_dim;
  const float* of_k = static_cast<const float*>(p.of.k) + (at.k_begin + block) * p.of.k_stride + int64_t{at.head} * p.qk_dim;
  const float* of_v = static_cast<const float*>(p.of.v) + (at.k_begin + block) * p.of.v_stride + int64_t{at.head} * p.of.head_dim;
  const auto load_queries = [&](const Walk& to) {
    const int64_t token = at.q_begin + to.query;
    const float* of_q = static_cast<const float*>(p.of.q) + token * p.of.q_stride + int64_t{to.head} * p.qk_dim;
    load_rows<kOther>(q, of_q, p.of.q_stride, p.qk_dim, at.queries - to.query, p.in_fours);
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kOther) return;
    const bool valid = to.query + i < at.queries;
    norm[i] = valid ? Weight::norm(p.of.log_sum_exp[(token + i) * heads + to.head]) : 0.0F;
    mean[i] = valid ? g.mean[(token + i) * heads + to.head] : 0.0F;
  };
  const auto load_gradients = [&](const Walk& to) {
    const float* of_dy = g.grad_y + (at.q_begin + to.query) * y_stride + int64_t{to.head} * p.of.head_dim;
    load_rows<kOther>(dy, of_dy, y_stride, p.of.head_dim, at.queries - to.query, p.in_fours);
  };
  Walk now(sees, at);
  const Draw draw(p.of);
  Sums<kCount> dk = {};
  Sums<kValueCount> dv = {};
  load_rows<kOwn>(k, of_k, p.of.k_stride, p.qk_dim, at.keys - block, p.in_fours);
  load_rows<kOwn>(v, of_v, p.of.v_stride, p.of.head_dim, at.keys - block, p.in_fours);
  if (now.queries > 0) load_queries(now), load_gradients(now);
  copy_async_commit();
#pragma unroll 1
  for (bool more = now.queries > 0; more;) {
    Walk next = now;
    next.advance();
    more = next.head < end_head;
    const bool seen = sees.any(now.query, kOther, first, 16);
    Sums<kBlocks> w, ds;
    copy_async_wait<0>();
    __syncthreads();
    if (seen) {
      dot_rows<kSplit>(w, k + 16 * warp * qk_pitch, q, qk_pitch, p.qk_dim);
      dot_rows<kSplit>(ds, v + 16 * warp * v_pitch, dy, v_pitch, p.of.head_dim);
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i) {
        const int n = i / 4, e = i % 4, column = column_of(n, e), query = now.query + column, key = first + row_of(e);
        const bool counts = query < at.queries && sees(query, key);
        const float kept = draw.any() ? draw.factor(at.q_begin + query, now.head, key) : 1.0F;
        const Weighed of = Weight::pair(w[n][e], p.of.scale * causal::kLog2e, norm[column]);
        ds[n][e] = counts ? of.slope * fmaf(ds[n][e], kept, -mean[column]) : 0.0F;
        w[n][e] = counts ? of.weight * kept : 0.0F;
      }
      add_weighted<kSplit>(dv, w, dy, v_pitch, p.of.head_dim);
    }
    __syncthreads();
    if (more) load_gradients(next);
    if (seen) add_weighted<kSplit>(dk, ds, q, qk_pitch, p.qk_dim);
    __syncthreads();
    if (more) load_queries(next);
    copy_async_commit();
    now = next;
  }
  copy_async_wait<0>();
  const int64_t token = at.k_begin + first;
  store_rows(g.grad_k + token * g.grad_k_stride + int64_t{at.head} * p.qk_dim, g.grad_k_stride, p.qk_dim, at.keys - first, p.in_fours, dk,
             p.of.scale, p.of.scale);
  store_rows(g.grad_v + token * g.grad_v_stride + int64_t{at.head} * p.of.head_dim, g.grad_v_stride, p.of.head_dim, at.keys - first,
             p.in_fours, dv, 1, 1);
}

template <class Weight, int kCount, int kValueCount, bool kSplit>
struct OfKeys {
  static Status launch(const Gradients& g, Stream stream) {
    const CausalAttention& p = g.forward.of;
    return launch_parts(of_keys<Weight, kCount, kValueCount, kSplit>, g, p, p.k_tokens, p.kv_heads, false, shared_bytes(g.forward), stream);
  }
};

}  // namespace

Status gradients_of_queries(const Gradients& g, Stream stream) { return choose<OfQueries>(g.forward, g, stream); }
Status gradients_of_keys(const Gradients& g, Stream stream) { return choose<OfKeys>(g.forward, g, stream); }

}  // namespace based::kernels::cuda::detail::pairs
