// Gradients of attention over pairs. With the normalised weights w_ij of queries i and keys j of a row, the dropout factors m_ij, and
// mean_i = dy_i·y_i:
//   ds_ij = slope_ij (m_ij dy_i·v_j − mean_i),   slope = w for softmax, (1 + q·k) / D for Taylor, 1 / D for linear attention
//   dq_i = scale Σ_j ds_ij k_j,   dk_j = scale Σ_i ds_ij q_i,   dv_j = Σ_i m_ij w_ij dy_i
// Weights filter[i − j] s_ij have slope = filter[i − j] and mean = 0, and dfilter[d] = Σ s_ij dy_i·v_j over all i − j = d, which
// filter_gradient.cuh describes.
// In one kernel blocks own queries and loop over keys; in the other blocks own keys and loop over queries. Both recompute the weights. Each
// sum belongs to one block, so its order is fixed.
#include "based/kernels/pair_attention/cuda/filter_gradient.cuh"
#include "based/kernels/pair_attention/cuda/pair_attention.cuh"

namespace based::kernels::cuda::detail::pairs {
namespace {

// Minimum resident blocks per multiprocessor, limited by registers, for a number of column blocks of sums.
constexpr int query_blocks(int sums) { return sums <= 4 ? 5 : sums <= 8 ? 3 : 2; }
constexpr int key_blocks(int sums, bool split) { return sums <= 12 && !split ? 4 : sums <= 16 ? 3 : 2; }

// Dot product of up to four elements, of which the first `valid` are used.
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

// Computes dy·y of a block's `count` queries into shared memory. It processes four rows together, to overlap memory latency.
__device__ __forceinline__ void make_means(float* mean, const float* dy, const float* y, int stride, const Problem& p, int count) {
  constexpr int kRows = 4;
  const ThreadPart part(p.v_layout);
  count = min(count, kOwned);
#pragma unroll 1
  for (int first = part.row; first < kOwned; first += kRows * part.step) {
    float sum[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + i * part.step;
      const int64_t offset = static_cast<int64_t>(row) * stride + part.column;
      sum[i] = dot_of_four(dy + offset, y + offset, row < count ? p.v_layout.width - part.column : 0, p.in_fours);
    }
#pragma unroll 1
    for (int distance = (1 << p.v_layout.shift) / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) sum[i] += __shfl_xor_sync(~0U, sum[i], distance);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (part.column == 0 && first + i * part.step < kOwned) mean[first + i * part.step] = sum[i];
    }
  }
}

// Computes a tile's ds from dy·v (in ds, times the dropout factors) and the scores. Rows are queries; columns are keys from `key` on.
template <class Weight>
__device__ __forceinline__ void compute_key_ds(Sums<kBlocks>& ds, const Sums<kBlocks>& s, const Span (&visible)[2], int key,
                                               float scale_log2, const float (&norm)[2], const float (&mean)[2],
                                               const TileTaps<Weight, true>& tap) {
#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) {
    const int n = i / 4, e = i % 4;
    const WeightAndSlope w = Weight::pair(s[n][e], scale_log2, norm[e / 2], tap(n, e));
    ds[n][e] = visible[e / 2].contains(key + column_of(n, e)) ? w.slope * (ds[n][e] - mean[e / 2]) : 0.0F;
  }
}

// Computes a tile's ds from v·dy (in ds), and the weights from the scores (in w). Rows are keys; columns are queries from `query` on.
// kept(n, e) returns a weight's dropout factor.
template <class Weight, class Kept>
__device__ __forceinline__ void compute_query_ds(Sums<kBlocks>& ds, Sums<kBlocks>& w, const Span (&visible_queries)[2], int query,
                                                 float scale_log2, const float* statistics, const TileTaps<Weight, false>& tap,
                                                 const Kept& kept) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    float4 pair = {};
    if (!Weight::kFilter) pair = *reinterpret_cast<const float4*>(statistics + 2 * column_of(n, 0));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float norm = e % 2 == 0 ? pair.x : pair.z, mean = e % 2 == 0 ? pair.y : pair.w, factor = kept(n, e);
      const WeightAndSlope weighed = Weight::pair(w[n][e], scale_log2, norm, tap(n, e));
      const bool counts = visible_queries[e / 2].contains(query + column_of(n, e));
      ds[n][e] = counts ? weighed.slope * fmaf(ds[n][e], factor, -mean) : 0.0F;
      w[n][e] = counts ? weighed.weight * factor : 0.0F;
    }
  }
}

template <class Weight, int kCount, bool kSplit>
__global__ void __launch_bounds__(kThreads, query_blocks(kCount))
    query_gradients(const __grid_constant__ Gradients g, const __grid_constant__ Order order) {
  extern __shared__ float4 memory[];
  __shared__ float means[kOwned];
  __shared__ float diagonal_memory[kThreads / 32][DiagonalSums<Weight::kFilter>::kFloats];
  const Problem& p = g.forward;
  WorkItem item;
  if (!find_row<false, Weight>(p, order, item)) return;
  const int qk_pitch = p.qk_layout.pitch, v_pitch = p.v_layout.pitch, warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  float *q = reinterpret_cast<float*>(memory), *dy = q + kOwned * qk_pitch, *k = dy + kOwned * v_pitch, *v = k + kOther * qk_pitch;
  const PairMask mask(p, item);
  const int block = item.part * kOwned, first = block + 16 * warp, kv_head = item.head / item.heads_per_kv;
  const int64_t heads = p.heads, y_stride = heads * p.head_dim;
  const int64_t y_offset = item.q_begin * y_stride + int64_t{item.head} * p.head_dim;
  const float* q_rows = static_cast<const float*>(p.q) + item.q_begin * p.q_stride + int64_t{item.head} * p.qk_dim;
  const float* k_rows = static_cast<const float*>(p.k) + item.k_begin * p.k_stride + int64_t{kv_head} * p.qk_dim;
  const float* v_rows = static_cast<const float*>(p.v) + item.k_begin * p.v_stride + int64_t{kv_head} * p.head_dim;
  const int first_key = max(block + mask.shift - mask.window + 1, 0) / kOther * kOther,
            end_key = min(block + kOwned, item.queries) + mask.shift;
  const bool double_buffered = p.buffer_step != 0;
  const auto load_keys = [&](int key, int tile) {
    load_rows<kOther>(k + tile, k_rows, key, item.keys, static_cast<int>(p.k_stride), p.qk_layout, p.in_fours);
  };
  const auto load_values = [&](int key, int tile) {
    load_rows<kOther>(v + tile, v_rows, key, item.keys, static_cast<int>(p.v_stride), p.v_layout, p.in_fours);
  };
  load_rows<kOwned>(q, q_rows, block, item.queries, static_cast<int>(p.q_stride), p.qk_layout, p.in_fours);
  load_rows<kOwned>(dy, g.grad_y + y_offset, block, item.queries, static_cast<int>(y_stride), p.v_layout, p.in_fours);
  load_values(first_key, 0);
  if (double_buffered) load_keys(first_key, 0);
  copy_async_commit();
  if (!Weight::kFilter) {
    make_means(means, g.grad_y + y_offset + block * y_stride, static_cast<const float*>(p.y) + y_offset + block * y_stride,
               static_cast<int>(y_stride), p, item.queries - block);
    __syncthreads();
  }
  float norm[2] = {}, mean[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first + row_of(2 * half);
    if (Weight::kFilter || query >= item.queries) continue;
    const int64_t i = (item.q_begin + query) * heads + item.head;
    if constexpr (!Weight::kFilter) norm[half] = Weight::norm(p.normalizer[i]), mean[half] = means[query - block];
    if (threadIdx.x % 4 == 0) *reinterpret_cast<float2*>(g.statistics + 2 * i) = make_float2(norm[half], mean[half]);
  }
  const Span visible[2] = {mask.visible_keys(first + row_of(0)), mask.visible_keys(first + row_of(2))};
  const Dropout dropout(p);
  DiagonalSums<Weight::kFilter> diagonals(diagonal_memory[warp]);
  const float* filter = p.filter + int64_t{item.head} * p.taps;
  float* filter_part = nullptr;
  if (Weight::kFilter) filter_part = g.filter_parts + filter_part_offset(item.row * heads + item.head, item.queries, first);
  Sums<kCount> dq = {};
  copy_async_wait<0>();
  round_rows<kOwned, kSplit>(q, p.qk_layout), round_rows<kOwned, kSplit>(dy, p.v_layout);
#pragma unroll 1
  for (int key = first_key, tile = 0; key < end_key; key += kOther, tile = p.buffer_step - tile) {
    const bool any_visible = mask.any(first, 16, key, kOther), more = key + kOther < end_key;
    Sums<kBlocks> s, ds;
    copy_async_wait<0>();
    round_rows<kOther, kSplit>(v + tile, p.v_layout);
    if (double_buffered) round_rows<kOther, kSplit>(k + tile, p.qk_layout);
    __syncthreads();
    if (!double_buffered) load_keys(key, 0);
    if (double_buffered && more) load_keys(key + kOther, p.buffer_step - tile), load_values(key + kOther, p.buffer_step - tile);
    copy_async_commit();
    if (any_visible) dot_rows<kSplit>(ds, dy + 16 * warp * v_pitch, v + tile, v_pitch, p.head_dim);
    if (!double_buffered) {
      copy_async_wait<0>();
      round_rows<kOther, kSplit>(k, p.qk_layout);
      __syncthreads();
      if (more) load_values(key + kOther, 0);
      copy_async_commit();
    }
    if (!any_visible) continue;
    if (Weight::kSoftmax && dropout.any()) {
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i)
        ds[i / 4][i % 4] *= dropout.factor(item.q_begin + first + row_of(i % 4), item.head, key + column_of(i / 4, i % 4));
    }
    const TileTaps<Weight, true> tap(filter, static_cast<int>(p.taps), first, key);
    dot_rows<kSplit>(s, q + 16 * warp * qk_pitch, k + tile, qk_pitch, p.qk_dim);
    if (Weight::kFilter && first < item.queries) {
      Sums<kBlocks> products;
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i) {
        const int n = i / 4, e = i % 4;
        products[n][e] = visible[e / 2].contains(key + column_of(n, e)) ? s[n][e] * ds[n][e] : 0.0F;
      }
      filter_part[key + threadIdx.x % 32] = diagonals.add(products);
    }
    compute_key_ds<Weight>(ds, s, visible, key, p.scale * kLog2e, norm, mean, tap);
    add_weighted<kSplit>(dq, ds, k + tile, qk_pitch, p.qk_dim);
  }
  store_rows(g.grad_q + (item.q_begin + first) * g.grad_q_stride + int64_t{item.head} * p.qk_dim, g.grad_q_stride, p.qk_dim,
             item.queries - first, p.in_fours, dq, p.scale, p.scale);
}

template <class Weight, int kCount, int, bool kSplit>
struct QueryGradients {
  static Status launch(const Gradients& g, Queue queue) {
    const Problem& p = g.forward;
    return launch_parts(query_gradients<Weight, kCount, kSplit>, g, p, p.q_tokens, p.heads, true, shared_memory(g.forward, true).bytes,
                        queue);
  }
};

// Iterates over the queries of a block of keys, in tiles of 32: the queries of every head that reads these keys.
struct QueryTiles {
  int head, query;           // head and first query of this tile
  int first_query, queries;  // the range of queries of each head
  __device__ __forceinline__ QueryTiles(const PairMask& mask, const WorkItem& item) : head(item.head * item.heads_per_kv) {
    const int key = item.part * kOwned, last_key = min(key + kOwned, item.keys) - 1;
    query = first_query = max(key - mask.shift, 0);
    queries = max(min(item.queries, last_key - mask.shift + mask.window) - first_query, 0);
  }
  __device__ __forceinline__ void advance() {
    query += kOther;
    if (query >= first_query + queries) query = first_query, ++head;
  }
};

template <class Weight, int kCount, int kValueCount, bool kSplit>
__global__ void __launch_bounds__(kThreads, key_blocks(kCount + kValueCount, kSplit))
    key_gradients(const __grid_constant__ Gradients g, const __grid_constant__ Order order) {
  extern __shared__ float4 memory[];
  const Problem& p = g.forward;
  WorkItem item;
  if (!find_row<true, Weight>(p, order, item)) return;
  const int qk_pitch = p.qk_layout.pitch, v_pitch = p.v_layout.pitch, warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  float *k = reinterpret_cast<float*>(memory), *v = k + kOwned * qk_pitch, *q = v + kOwned * v_pitch, *dy = q + kOther * qk_pitch;
  float* statistics = dy + kOther * v_pitch;
  const PairMask mask(p, item);
  const int block = item.part * kOwned, first = block + 16 * warp, end_head = (item.head + 1) * item.heads_per_kv;
  const int64_t heads = p.heads, y_stride = heads * p.head_dim;
  const float* k_rows = static_cast<const float*>(p.k) + item.k_begin * p.k_stride + int64_t{item.head} * p.qk_dim;
  const float* v_rows = static_cast<const float*>(p.v) + item.k_begin * p.v_stride + int64_t{item.head} * p.head_dim;
  const float *q_rows = static_cast<const float*>(p.q) + item.q_begin * p.q_stride, *dy_rows = g.grad_y + item.q_begin * y_stride;
  const auto load_queries = [&](const QueryTiles& tiles, int tile) {
    load_rows<kOther>(q + tile, q_rows + int64_t{tiles.head} * p.qk_dim, tiles.query, item.queries, static_cast<int>(p.q_stride),
                      p.qk_layout, p.in_fours);
    const int i = static_cast<int>(threadIdx.x);
    if (!Weight::kFilter && i < kOther && tiles.query + i < item.queries)
      copy_async_8(shared_address(statistics + tile + 2 * i), g.statistics + 2 * ((item.q_begin + tiles.query + i) * heads + tiles.head));
  };
  const auto load_grad_y = [&](const QueryTiles& tiles, int tile) {
    load_rows<kOther>(dy + tile, dy_rows + int64_t{tiles.head} * p.head_dim, tiles.query, item.queries, static_cast<int>(y_stride),
                      p.v_layout, p.in_fours);
  };
  QueryTiles now(mask, item);
  const Span visible[2] = {mask.visible_queries(first + row_of(0), item.queries), mask.visible_queries(first + row_of(2), item.queries)};
  const Dropout dropout(p);
  const bool double_buffered = p.buffer_step != 0;
  Sums<kCount> dk = {};
  Sums<kValueCount> dv = {};
  load_rows<kOwned>(k, k_rows, block, item.keys, static_cast<int>(p.k_stride), p.qk_layout, p.in_fours);
  load_rows<kOwned>(v, v_rows, block, item.keys, static_cast<int>(p.v_stride), p.v_layout, p.in_fours);
  if (now.queries > 0) load_queries(now, 0), load_grad_y(now, 0);
  copy_async_commit(), copy_async_wait<0>();
  round_rows<kOwned, kSplit>(k, p.qk_layout), round_rows<kOwned, kSplit>(v, p.v_layout);
  int tile = 0;
#pragma unroll 1
  for (bool more = now.queries > 0; more; tile = p.buffer_step - tile) {
    QueryTiles next = now;
    next.advance();
    more = next.head < end_head;
    const bool any_visible = mask.any(now.query, kOther, first, 16);
    Sums<kBlocks> w, ds;
    copy_async_wait<0>();
    round_rows<kOther, kSplit>(q + tile, p.qk_layout), round_rows<kOther, kSplit>(dy + tile, p.v_layout);
    __syncthreads();
    if (double_buffered && more) load_queries(next, p.buffer_step - tile), load_grad_y(next, p.buffer_step - tile);
    if (any_visible) {
      const float* filter = p.filter + int64_t{now.head} * p.taps;
      const TileTaps<Weight, false> tap(filter, static_cast<int>(p.taps), first, now.query);
      dot_rows<kSplit>(w, k + 16 * warp * qk_pitch, q + tile, qk_pitch, p.qk_dim);
      dot_rows<kSplit>(ds, v + 16 * warp * v_pitch, dy + tile, v_pitch, p.head_dim);
      const auto to_weights = [&](const auto& kept) {
        compute_query_ds<Weight>(ds, w, visible, now.query, p.scale * kLog2e, statistics + tile, tap, kept);
      };
      if (Weight::kSoftmax && dropout.any()) {
        to_weights([&](int n, int e) { return dropout.factor(item.q_begin + now.query + column_of(n, e), now.head, first + row_of(e)); });
      } else {
        to_weights([](int, int) { return 1.0F; });
      }
      add_weighted<kSplit>(dv, w, dy + tile, v_pitch, p.head_dim);
    }
    if (!double_buffered) {
      __syncthreads();
      if (more) load_grad_y(next, 0);
    }
    if (any_visible) add_weighted<kSplit>(dk, ds, q + tile, qk_pitch, p.qk_dim);
    if (!double_buffered) {
      __syncthreads();
      if (more) load_queries(next, 0);
    }
    copy_async_commit();
    now = next;
  }
  copy_async_wait<0>();
  const int64_t token = item.k_begin + first;
  store_rows(g.grad_k + token * g.grad_k_stride + int64_t{item.head} * p.qk_dim, g.grad_k_stride, p.qk_dim, item.keys - first, p.in_fours,
             dk, p.scale, p.scale);
  store_rows(g.grad_v + token * g.grad_v_stride + int64_t{item.head} * p.head_dim, g.grad_v_stride, p.head_dim, item.keys - first,
             p.in_fours, dv, 1, 1);
}

template <class Weight, int kCount, int kValueCount, bool kSplit>
struct KeyGradients {
  static Status launch(const Gradients& g, Queue queue) {
    const Problem& p = g.forward;
    return launch_parts(key_gradients<Weight, kCount, kValueCount, kSplit>, g, p, p.k_tokens, p.kv_heads, false,
                        shared_memory(g.forward, true).bytes, queue);
  }
};

}  // namespace

Status gradients_of_queries(const Gradients& g, Queue queue) { return choose<QueryGradients>(g.forward, g, queue); }
Status gradients_of_keys(const Gradients& g, Queue queue) { return choose<KeyGradients>(g.forward, g, queue); }

}  // namespace based::kernels::cuda::detail::pairs
