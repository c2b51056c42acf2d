// Adds the parts of the filter's gradient that query_gradients() writes: first those of all rows, then those of a distance.
#include "based/kernels/pair_attention/cuda/filter_gradient.cuh"

namespace based::kernels::cuda::detail::pairs {
namespace {

constexpr int kSumThreads = 256;

unsigned blocks_of(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kSumThreads)); }

// parts [rows, count]: the sums over rows replace the first row.
__global__ void add_rows(float* parts, int64_t rows, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
#pragma unroll 8
  for (int64_t row = 0; row < rows; ++row) sum += parts[row * count + i];
  parts[i] = sum;
}

// Each thread adds the parts of one head and one distance, and `before`.
__global__ void add_groups(const float* parts, int64_t length, int64_t heads, int64_t taps, bool before, float* grad_filter) {
  const int64_t i = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (i >= heads * taps) return;
  const int64_t distance = i % taps;
  const float* of_head = parts + i / taps * filter_row_floats(length);
  float sum = before ? grad_filter[i] : 0.0F;
  for (int64_t group = distance / 16; group < filter_groups(length); ++group) {
    const int64_t below = 16 * group + 15 - distance, tile = below / kOther;  // the lane's distance is 16 group − 32 tile − 16 + lane
    sum += of_head[(filter_tiles_before(group) + tile) * kOther + 31 - (below - tile * kOther)];
  }
  grad_filter[i] = sum;
}

int64_t floats_per_row(const Problem& p) { return p.heads * filter_row_floats(p.q_tokens / p.rows); }

// Rows whose parts are in memory together.
int64_t rows_together(const Problem& p) {
  constexpr int64_t kMaxBytes = int64_t{256} << 20;
  return std::clamp(kMaxBytes / (4 * floats_per_row(p)), int64_t{1}, p.rows);
}

// The problem of `count` rows from `row` on.
Gradients rows_of(Gradients g, int64_t row, int64_t count) {
  Problem& p = g.forward;
  const int64_t length = p.q_tokens / p.rows, token = row * length;
  p.q = static_cast<const float*>(p.q) + token * p.q_stride;
  p.k = static_cast<const float*>(p.k) + token * p.k_stride;
  p.v = static_cast<const float*>(p.v) + token * p.v_stride;
  p.rows = count, p.q_tokens = p.k_tokens = count * length;
  g.grad_y += token * p.heads * p.head_dim, g.grad_q += token * g.grad_q_stride;
  return g;
}

}  // namespace

int64_t filter_scratch(const Problem& p) { return p.rows == 0 ? 0 : 4 * rows_together(p) * floats_per_row(p); }

Status gradients_of_queries_and_filter(const Gradients& g, Queue queue) {
  const Problem& p = g.forward;
  const int64_t length = p.q_tokens / p.rows, count = floats_per_row(p), step = rows_together(p);
  for (int64_t row = 0; row < p.rows; row += step) {
    const int64_t rows = std::min(step, p.rows - row);
    if (const Status s = gradients_of_queries(rows_of(g, row, rows), queue); !s.ok()) return s;
    if (rows > 1) add_rows<<<blocks_of(count), kSumThreads, 0, stream_of(queue)>>>(g.filter_parts, rows, count);
    add_groups<<<blocks_of(p.heads * p.taps), kSumThreads, 0, stream_of(queue)>>>(g.filter_parts, length, p.heads, p.taps, row > 0,
                                                                                  g.grad_filter);
  }
  return launched();
}

}  // namespace based::kernels::cuda::detail::pairs
