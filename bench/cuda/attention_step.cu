#include <cmath>
#include <memory>

#include "based/kernels/causal_attention.h"
#include "bench/cuda/layers.cuh"

namespace based::bench {
namespace {

using kernels::CausalAttentionStep;
using kernels::DType;
using kernels::Stream;
namespace gpu = kernels::cuda;

struct Shape {
  int64_t rows, capacity;
  int32_t heads, kv_heads, head_dim;
  DType dtype, ring_dtype;
  std::vector<int64_t> positions;
  bool settled = false;
};

// Slots are the rows in reverse; q, k and v are parts of one tensor, as after a joint projection.
struct Problem {
  CausalAttentionStep p;
  Buffer qkv, k_ring, v_ring, y, position, slot;

  Problem(const Shape& s, uint64_t seed) {
    p.rows = s.rows, p.capacity = s.capacity, p.heads = s.heads, p.kv_heads = s.kv_heads, p.head_dim = s.head_dim;
    p.dtype = s.dtype, p.ring_dtype = s.ring_dtype, p.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
    p.ring_is_settled = s.settled;
    const int64_t stride = (s.heads + 2 * s.kv_heads) * s.head_dim, size = kernels::dtype_size(s.dtype);
    qkv = random_buffer(s.rows * stride, s.dtype, 1.5, 3 * seed);
    k_ring = random_buffer(s.rows * s.capacity * s.kv_heads * s.head_dim, s.ring_dtype, 1.5, 3 * seed + 1);
    v_ring = random_buffer(s.rows * s.capacity * s.kv_heads * s.head_dim, s.ring_dtype, 1, 3 * seed + 2);
    y = Buffer(s.rows * s.heads * s.head_dim * size);
    std::vector<int64_t> slots(s.rows), positions(s.rows);
    for (int64_t r = 0; r < s.rows; ++r) slots[r] = s.rows - 1 - r, positions[r] = s.positions[r % s.positions.size()];
    slot = upload(slots), position = upload(positions);
    p.q = qkv.as(), p.k = qkv.as<char>() + s.heads * s.head_dim * size;
    p.v = qkv.as<char>() + (s.heads + s.kv_heads) * s.head_dim * size;
    p.q_stride = p.k_stride = p.v_stride = stride;
    p.y = y.as(), p.k_ring = k_ring.as(), p.v_ring = v_ring.as(), p.position = position.as<int64_t>(), p.slot = slot.as<int64_t>();
  }
};

// The definition on the host; also what the rings must hold after the call.
void reference(const Problem& problem, const Shape& s, std::vector<double>& y, std::vector<double>& k_ring, std::vector<double>& v_ring) {
  const int64_t stride = problem.p.q_stride, ring = s.kv_heads * s.head_dim, share = s.heads / s.kv_heads;
  const std::vector<double> qkv = download(problem.qkv.as(), s.dtype, s.rows * stride);
  k_ring = download(problem.k_ring.as(), s.ring_dtype, s.rows * s.capacity * ring);
  v_ring = download(problem.v_ring.as(), s.ring_dtype, s.rows * s.capacity * ring);
  y.assign(static_cast<size_t>(s.rows * s.heads * s.head_dim), 0);
  for (int64_t r = 0; r < s.rows; ++r) {
    const int64_t slot = s.rows - 1 - r, written = s.positions[r % s.positions.size()];
    for (int64_t i = 0; i < ring; ++i) {
      const int64_t at = (slot * s.capacity + written % s.capacity) * ring + i;
      k_ring[at] = qkv[r * stride + s.heads * s.head_dim + i], v_ring[at] = qkv[r * stride + s.heads * s.head_dim + ring + i];
    }
    for (int64_t h = 0; h < s.heads; ++h) {
      double total = 0;
      double* out = &y[(r * s.heads + h) * s.head_dim];
      for (int64_t i = 0; i < std::min(written + 1, s.capacity); ++i) {
        const int64_t key = ((slot * s.capacity + i) * s.kv_heads + h / share) * s.head_dim;
        double score = 0;
        for (int64_t d = 0; d < s.head_dim; ++d) score += qkv[r * stride + h * s.head_dim + d] * k_ring[key + d];
        const double w = std::exp(score * static_cast<double>(problem.p.scale));
        total += w;
        for (int64_t d = 0; d < s.head_dim; ++d) out[d] += w * v_ring[key + d];
      }
      for (int64_t d = 0; d < s.head_dim; ++d) out[d] /= total;
    }
  }
}

void verify(Report& report, const Shape& s, uint64_t seed) {
  Problem problem(s, seed);
  std::vector<double> y, k_ring, v_ring;
  reference(problem, s, y, k_ring, v_ring);
  check(gpu::causal_attention_step(problem.p, {}));
  check(cudaDeviceSynchronize(), "causal_attention_step");
  const int64_t ring = s.rows * s.capacity * s.kv_heads * s.head_dim;
  const std::string name = "causal_attention_step " + std::string(s.dtype == DType::bf16 ? "bf16" : "fp32") +
                           (s.ring_dtype == DType::bf16 ? " ring bf16" : " ring fp32") + " H" + std::to_string(s.heads) + "/" +
                           std::to_string(s.kv_heads) + " d" + std::to_string(s.head_dim) + " capacity " + std::to_string(s.capacity) +
                           (s.settled ? " settled" : "");
  const bool rounds = s.dtype == DType::bf16 || s.ring_dtype == DType::bf16;
  report.expect(name + ": y", relative_error(download(problem.p.y, s.dtype, static_cast<int64_t>(y.size())), y), rounds ? 3e-3 : 2e-6);
  report.expect(name + ": k ring", relative_error(download(problem.p.k_ring, s.ring_dtype, ring), k_ring), rounds ? 3e-3 : 1e-12);
  report.expect(name + ": v ring", relative_error(download(problem.p.v_ring, s.ring_dtype, ring), v_ring), rounds ? 3e-3 : 1e-12);
}

// The first rows of a problem again: with fewer rows, and with rings grown before they wrapped. The bits must be the same.
void verify_same_bits(Report& report, Shape s, uint64_t seed) {
  const int64_t rows = s.rows, few = 3, count = few * s.heads * s.head_dim, ring = s.kv_heads * s.head_dim * 2;
  Problem all(s, seed), fewer(s, seed), grown(s, seed);
  Buffer k(2 * all.k_ring.bytes()), v(2 * all.v_ring.bytes());
  const int64_t row = s.capacity * ring;
  check(cudaMemcpy2D(k.as(), 2 * row, grown.p.k_ring, row, row, rows, cudaMemcpyDeviceToDevice), "grow");
  check(cudaMemcpy2D(v.as(), 2 * row, grown.p.v_ring, row, row, rows, cudaMemcpyDeviceToDevice), "grow");
  fewer.p.rows = few, grown.p.k_ring = k.as(), grown.p.v_ring = v.as(), grown.p.capacity = 2 * s.capacity;
  std::vector<double> y[3];
  for (int i = 0; i < 3; ++i) {
    const CausalAttentionStep& p = i == 0 ? all.p : i == 1 ? fewer.p : grown.p;
    check(gpu::causal_attention_step(p, {}));
    y[i] = download(p.y, s.dtype, count);
  }
  if (y[0] != y[1]) report.fail("causal_attention_step: bits depend on the number of rows");
  if (y[0] != y[2]) report.fail("causal_attention_step: bits depend on the ring's capacity");
}

// The sets are as independent as the layers of a decode step: with `settled` a call requests its rings while the one before it runs.
void time(Report& report, int64_t rows, bool settled, const std::string& headline, int32_t head_dim = 64, int64_t window = 64) {
  const Shape s{rows, window, 16, 16, head_dim, DType::bf16, DType::bf16, {1000, 2000}, settled};
  const int64_t bytes = rows * 16 * head_dim * (2 * window + 6) * 2;
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < working_sets(bytes); ++i) problems.push_back(std::make_unique<Problem>(s, 50 + i));
  const double ms = median_ms(static_cast<int>(problems.size()),
                              [&](int set, cudaStream_t stream) { check(gpu::causal_attention_step(problems[set]->p, Stream{stream})); });
  report.add({headline,
              "window_decode B" + std::to_string(rows) + " w" + std::to_string(window) + " d" + std::to_string(head_dim) +
                  (settled ? " settled" : ""),
              ms, "ms", static_cast<double>(bytes) / kBytesPerMs});
}

}  // namespace

void verify_causal_attention_step(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  uint64_t seed = 1;
  for (Shape s : std::vector<Shape>{{5, 64, 16, 16, 64, bf, bf, {0, 1, 63, 64, 1000}},
                                    {3, 64, 16, 16, 112, bf, bf, {5, 64, 100}},
                                    {3, 16, 6, 2, 64, bf, bf, {3, 15, 16}},
                                    {2, 100, 16, 16, 128, bf, bf, {99, 20}},
                                    {70, 64, 16, 16, 64, bf, bf, {0, 1, 63, 64, 1000}},
                                    {140, 67, 16, 8, 64, bf, bf, {0, 1, 63, 66, 67, 1000}},
                                    {40, 66, 8, 8, 104, bf, bf, {65, 3, 100}},
                                    {2, 300, 4, 1, 128, bf, bf, {299, 1000}},
                                    {2, 64, 4, 4, 64, fp, fp, {10, 90}},
                                    {2, 64, 4, 4, 64, fp, bf, {10, 90}},
                                    {2, 33, 5, 5, 20, fp, fp, {32, 33}},
                                    {2, 40, 3, 3, 250, bf, fp, {39, 41}},
                                    {2, 64, 40, 40, 64, bf, bf, {10, 90}}}) {
    verify(report, s, seed++);
    s.settled = true;
    verify(report, s, seed++);
  }
  for (const int32_t head_dim : {64, 112}) verify_same_bits(report, {140, 64, 16, 16, head_dim, bf, bf, {40, 2, 62}}, seed++);
}

void time_causal_attention_step(Report& report) {
  for (const bool settled : {false, true}) {
    time(report, 1, settled, "");
    time(report, 16, settled, "");
    time(report, 128, settled, settled ? "window_decode_b128" : "");
    time(report, 128, settled, "", 112);
    time(report, 128, settled, "", 64, 1024);
  }
}

}  // namespace based::bench
