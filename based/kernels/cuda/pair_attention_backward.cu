// Gradients of attention over pairs. With the weights w_ij of a row's queries i and keys j, normalised, the factor m_ij of what is dropped
// and mean_i = dy_i·y_i:
//   ds_ij = slope_ij (m_ij dy_i·v_j − mean_i),   slope = w for softmax, (1 + q·k) / D for Taylor, 1 / D for linear attention
//   dq_i = scale Σ_j ds_ij k_j,   dk_j = scale Σ_i ds_ij q_i,   dv_j = Σ_i m_ij w_ij dy_i
// One kernel has blocks of queries that walk over keys, one blocks of keys that walk over queries, and both make the weights again: no sum
// is of two blocks, so that its order is fixed.
#include "based/kernels/cuda/pair_attention.cuh"

namespace based::kernels::cuda::detail::pairs {
namespace {

// Blocks that a multiprocessor is to hold at least, by the blocks of sums: as many as registers do for.
constexpr int query_blocks(int sums) { return sums <= 4 ? 5 : sums <= 8 ? 3 : 2; }
constexpr int key_blocks(int sums, bool split) { return sums <= 12 && !split ? 4 : sums <= 16 ? 3 : 2; }

// Products of up to four elements, added up; `valid` of them count.
__device__ __forceinline__ float dot_of_four(const float* a, const float* b, int valid, bool in_fours) {
  float4 x = {}, y = {};
  if (in_fours) {
    if (valid > 0) x = *reinterpret_cast<const float4*>(a), y = *reinterpret_cast<const float4*>(b);
  } else {
    if (valid > 0) x.x = a[0], y.x = b[0];
    if (valid > 1) x.y = a[1], y.y = b[1];
    if (valid > 2) x.z = a[2], y.z = b[2];
    if (valid > 3) x.w = a[3], y.w = b[3];
  }
  return fmaf(x.x, y.x, x.y * y.y) + fmaf(x.z, y.z, x.w * y.w);
}

// dy·y of a block's queries, `count` from these rows on, to shared memory. Four rows at a time, since it waits for memory.
__device__ __forceinline__ void make_means(float* mean, const float* dy, const float* y, int stride, const Problem& p, int count) {
  constexpr int kRows = 4;
  const Part part(p.v);
  count = min(count, kOwn);
#pragma unroll 1
  for (int first = part.row; first < kOwn; first += kRows * part.step) {
    float sum[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + i * part.step;
      const int64_t at = static_cast<int64_t>(row) * stride + part.column;
      sum[i] = dot_of_four(dy + at, y + at, row < count ? p.v.width - part.column : 0, p.in_fours);
    }
#pragma unroll 1
    for (int distance = (1 << p.v.shift) / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) sum[i] += __shfl_xor_sync(~0U, sum[i], distance);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (part.column == 0 && first + i * part.step < kOwn) mean[first + i * part.step] = sum[i];
    }
  }
}

// A tile's ds from its products dy·v, times what is kept, and scores: rows are queries, columns keys from `key` on.
template <class Weight>
__device__ __forceinline__ void weigh_keys(Sums<kBlocks>& ds, const Sums<kBlocks>& s, const Span (&seen_by)[2], int key, float scale_log2,
                                           const float (&norm)[2], const float (&mean)[2]) {
#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) {
    const int n = i / 4, e = i % 4;
    const Weighed w = Weight::pair(s[n][e], scale_log2, norm[e / 2]);
    ds[n][e] = seen_by[e / 2].contains(key + column_of(n, e)) ? w.slope * (ds[n][e] - mean[e / 2]) : 0.0F;
  }
}

// A tile's ds from its products v·dy, and weights from its scores: rows are keys, columns queries from `query` on. kept(n, e): what a
// weight is multiplied by.
template <class Weight, class Kept>
__device__ __forceinline__ void weigh_queries(Sums<kBlocks>& ds, Sums<kBlocks>& w, const Span (&seeing)[2], int query, float scale_log2,
                                              const float* statistics, const Kept& kept) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    const float4 of_two = *reinterpret_cast<const float4*>(statistics + 2 * column_of(n, 0));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float norm = e % 2 == 0 ? of_two.x : of_two.z, mean = e % 2 == 0 ? of_two.y : of_two.w, factor = kept(n, e);
      const Weighed of = Weight::pair(w[n][e], scale_log2, norm);
      const bool counts = seeing[e / 2].contains(query + column_of(n, e));
      ds[n][e] = counts ? of.slope * fmaf(ds[n][e], factor, -mean) : 0.0F;
      w[n][e] = counts ? of.weight * factor : 0.0F;
    }
  }
}

template <class Weight, int kCount, bool kSplit>
__global__ void __launch_bounds__(kThreads, query_blocks(kCount))
    of_queries(const __grid_constant__ Gradients g, const __grid_constant__ Order order) {
  extern __shared__ float4 memory[];
  __shared__ float means[kOwn];
  const Problem& p = g.forward;
  Place at;
  if (!find_row<false>(p.of, order, at)) return;
  const int qk_pitch = p.qk.pitch, v_pitch = p.v.pitch, warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  float *q = reinterpret_cast<float*>(memory), *dy = q + kOwn * qk_pitch, *k = dy + kOwn * v_pitch, *v = k + kOther * qk_pitch;
  const Sight sees(p, at);
  const int block = at.part * kOwn, first = block + 16 * warp, kv_head = at.head / at.share;
  const int64_t heads = p.of.heads, y_stride = heads * p.of.head_dim;
  const int64_t of_y = at.q_begin * y_stride + int64_t{at.head} * p.of.head_dim;
  const float* of_q = static_cast<const float*>(p.of.q) + at.q_begin * p.of.q_stride + int64_t{at.head} * p.qk_dim;
  const float* of_k = static_cast<const float*>(p.of.k) + at.k_begin * p.of.k_stride + int64_t{kv_head} * p.qk_dim;
  const float* of_v = static_cast<const float*>(p.of.v) + at.k_begin * p.of.v_stride + int64_t{kv_head} * p.of.head_dim;
  const int from = max(block + sees.shift - sees.window + 1, 0) / kOther * kOther, to = min(block + kOwn, at.queries) + sees.shift;
  const bool two = p.turn != 0;
  const auto load_keys = [&](int key, int tile) {
    load_rows<kOther>(k + tile, of_k, key, at.keys, static_cast<int>(p.of.k_stride), p.qk, p.in_fours);
  };
  const auto load_values = [&](int key, int tile) {
    load_rows<kOther>(v + tile, of_v, key, at.keys, static_cast<int>(p.of.v_stride), p.v, p.in_fours);
  };
  load_rows<kOwn>(q, of_q, block, at.queries, static_cast<int>(p.of.q_stride), p.qk, p.in_fours);
  load_rows<kOwn>(dy, g.grad_y + of_y, block, at.queries, static_cast<int>(y_stride), p.v, p.in_fours);
  load_values(from, 0);
  if (two) load_keys(from, 0);
  copy_async_commit();
  make_means(means, g.grad_y + of_y + block * y_stride, static_cast<const float*>(p.of.y) + of_y + block * y_stride,
             static_cast<int>(y_stride), p, at.queries - block);
  __syncthreads();
  float norm[2] = {}, mean[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first + row_of(2 * half);
    if (query >= at.queries) continue;
    const int64_t i = (at.q_begin + query) * heads + at.head;
    norm[half] = Weight::norm(p.of.log_sum_exp[i]), mean[half] = means[query - block];
    if (threadIdx.x % 4 == 0) *reinterpret_cast<float2*>(g.statistics + 2 * i) = make_float2(norm[half], mean[half]);
  }
  const Span seen_by[2] = {sees.keys_of(first + row_of(0)), sees.keys_of(first + row_of(2))};
  const Draw draw(p.of);
  Sums<kCount> dq = {};
  copy_async_wait<0>();
  round_rows<kOwn, kSplit>(q, p.qk), round_rows<kOwn, kSplit>(dy, p.v);
#pragma unroll 1
  for (int key = from, tile = 0; key < to; key += kOther, tile = p.turn - tile) {
    const bool seen = sees.any(first, 16, key, kOther), more = key + kOther < to;
    Sums<kBlocks> s, ds;
    copy_async_wait<0>();
    round_rows<kOther, kSplit>(v + tile, p.v);
    if (two) round_rows<kOther, kSplit>(k + tile, p.qk);
    __syncthreads();
    if (!two) load_keys(key, 0);
    if (two && more) load_keys(key + kOther, p.turn - tile), load_values(key + kOther, p.turn - tile);
    copy_async_commit();
    if (seen) dot_rows<kSplit>(ds, dy + 16 * warp * v_pitch, v + tile, v_pitch, p.of.head_dim);
    if (!two) {
      copy_async_wait<0>();
      round_rows<kOther, kSplit>(k, p.qk);
      __syncthreads();
      if (more) load_values(key + kOther, 0);
      copy_async_commit();
    }
    if (!seen) continue;
    if (Weight::kSoftmax && draw.any()) {
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i)
        ds[i / 4][i % 4] *= draw.factor(at.q_begin + first + row_of(i % 4), at.head, key + column_of(i / 4, i % 4));
    }
    dot_rows<kSplit>(s, q + 16 * warp * qk_pitch, k + tile, qk_pitch, p.qk_dim);
    weigh_keys<Weight>(ds, s, seen_by, key, p.of.scale * causal::kLog2e, norm, mean);
    add_weighted<kSplit>(dq, ds, k + tile, qk_pitch, p.qk_dim);
  }
  store_rows(g.grad_q + (at.q_begin + first) * g.grad_q_stride + int64_t{at.head} * p.qk_dim, g.grad_q_stride, p.qk_dim, at.queries - first,
             p.in_fours, dq, p.of.scale, p.of.scale);
}

template <class Weight, int kCount, int, bool kSplit>
struct OfQueries {
  static Status launch(const Gradients& g, Stream stream) {
    const CausalAttention& p = g.forward.of;
    return launch_parts(of_queries<Weight, kCount, kSplit>, g, p, p.q_tokens, p.heads, true, shared_memory(g.forward, true).bytes, stream);
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
__global__ void __launch_bounds__(kThreads, key_blocks(kCount + kValueCount, kSplit))
    of_keys(const __grid_constant__ Gradients g, const __grid_constant__ Order order) {
  extern __shared__ float4 memory[];
  const Problem& p = g.forward;
  Place at;
  if (!find_row<true>(p.of, order, at)) return;
  const int qk_pitch = p.qk.pitch, v_pitch = p.v.pitch, warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  float *k = reinterpret_cast<float*>(memory), *v = k + kOwn * qk_pitch, *q = v + kOwn * v_pitch, *dy = q + kOther * qk_pitch;
  float* statistics = dy + kOther * v_pitch;
  const Sight sees(p, at);
  const int block = at.part * kOwn, first = block + 16 * warp, end_head = (at.head + 1) * at.share;
  const int64_t heads = p.of.heads, y_stride = heads * p.of.head_dim;
  const float* of_k = static_cast<const float*>(p.of.k) + at.k_begin * p.of.k_stride + int64_t{at.head} * p.qk_dim;
  const float* of_v = static_cast<const float*>(p.of.v) + at.k_begin * p.of.v_stride + int64_t{at.head} * p.of.head_dim;
  const float *of_q = static_cast<const float*>(p.of.q) + at.q_begin * p.of.q_stride, *of_dy = g.grad_y + at.q_begin * y_stride;
  const auto load_queries = [&](const Walk& to, int tile) {
    load_rows<kOther>(q + tile, of_q + int64_t{to.head} * p.qk_dim, to.query, at.queries, static_cast<int>(p.of.q_stride), p.qk,
                      p.in_fours);
    const int i = static_cast<int>(threadIdx.x);
    if (i < kOther && to.query + i < at.queries)
      copy_async_8(shared_address(statistics + tile + 2 * i), g.statistics + 2 * ((at.q_begin + to.query + i) * heads + to.head));
  };
  const auto load_gradients = [&](const Walk& to, int tile) {
    load_rows<kOther>(dy + tile, of_dy + int64_t{to.head} * p.of.head_dim, to.query, at.queries, static_cast<int>(y_stride), p.v,
                      p.in_fours);
  };
  Walk now(sees, at);
  const Span seeing[2] = {sees.queries_of(first + row_of(0), at.queries), sees.queries_of(first + row_of(2), at.queries)};
  const Draw draw(p.of);
  const bool two = p.turn != 0;
  Sums<kCount> dk = {};
  Sums<kValueCount> dv = {};
  load_rows<kOwn>(k, of_k, block, at.keys, static_cast<int>(p.of.k_stride), p.qk, p.in_fours);
  load_rows<kOwn>(v, of_v, block, at.keys, static_cast<int>(p.of.v_stride), p.v, p.in_fours);
  if (now.queries > 0) load_queries(now, 0), load_gradients(now, 0);
  copy_async_commit(), copy_async_wait<0>();
  round_rows<kOwn, kSplit>(k, p.qk), round_rows<kOwn, kSplit>(v, p.v);
  int tile = 0;
#pragma unroll 1
  for (bool more = now.queries > 0; more; tile = p.turn - tile) {
    Walk next = now;
    next.advance();
    more = next.head < end_head;
    const bool seen = sees.any(now.query, kOther, first, 16);
    Sums<kBlocks> w, ds;
    copy_async_wait<0>();
    round_rows<kOther, kSplit>(q + tile, p.qk), round_rows<kOther, kSplit>(dy + tile, p.v);
    __syncthreads();
    if (two && more) load_queries(next, p.turn - tile), load_gradients(next, p.turn - tile);
    if (seen) {
      dot_rows<kSplit>(w, k + 16 * warp * qk_pitch, q + tile, qk_pitch, p.qk_dim);
      dot_rows<kSplit>(ds, v + 16 * warp * v_pitch, dy + tile, v_pitch, p.of.head_dim);
      const auto weigh = [&](const auto& kept) {
        weigh_queries<Weight>(ds, w, seeing, now.query, p.of.scale * causal::kLog2e, statistics + tile, kept);
      };
      if (Weight::kSoftmax && draw.any()) {
        weigh([&](int n, int e) { return draw.factor(at.q_begin + now.query + column_of(n, e), now.head, first + row_of(e)); });
      } else {
        weigh([](int, int) { return 1.0F; });
      }
      add_weighted<kSplit>(dv, w, dy + tile, v_pitch, p.of.head_dim);
    }
    if (!two) {
      __syncthreads();
      if (more) load_gradients(next, 0);
    }
    if (seen) add_weighted<kSplit>(dk, ds, q + tile, qk_pitch, p.qk_dim);
    if (!two) {
      __syncthreads();
      if (more) load_queries(next, 0);
    }
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
    return launch_parts(of_keys<Weight, kCount, kValueCount, kSplit>, g, p, p.k_tokens, p.kv_heads, false,
                        shared_memory(g.forward, true).bytes, stream);
  }
};

}  // namespace

Status gradients_of_queries(const Gradients& g, Stream stream) { return choose<OfQueries>(g.forward, g, stream); }
Status gradients_of_keys(const Gradients& g, Stream stream) { return choose<OfKeys>(g.forward, g, stream); }

}  // namespace based::kernels::cuda::detail::pairs
