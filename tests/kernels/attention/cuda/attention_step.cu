#include <algorithm>
#include <cmath>

#include "bench/kernels/attention/problems/attention_step.cuh"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::CausalAttentionStep;
using kernels::DType;
namespace gpu = kernels::cuda;

// Reference on the host: y, and the expected contents of the rings after the call.
void reference(const AttentionStepProblem& problem, const AttentionStepShape& s, std::vector<double>& y, std::vector<double>& k_ring,
               std::vector<double>& v_ring) {
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

void verify(Report& report, const AttentionStepShape& s, uint64_t seed) {
  AttentionStepProblem problem(s, seed);
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

// Repeats a problem with fewer rows, and with rings that were enlarged before they wrapped. The outputs must have the same bits.
void verify_same_bits(Report& report, AttentionStepShape s, uint64_t seed) {
  const int64_t rows = s.rows, few = 3, count = few * s.heads * s.head_dim, ring = s.kv_heads * s.head_dim * 2;
  AttentionStepProblem all(s, seed), fewer(s, seed), grown(s, seed);
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

void verify_causal_attention_step(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  uint64_t seed = 1;
  for (AttentionStepShape s : std::vector<AttentionStepShape>{{5, 64, 16, 16, 64, bf, bf, {0, 1, 63, 64, 1000}},
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

const DefineFamily<Report> kCausalAttentionStep("causal_attention_step", verify_causal_attention_step);

}  // namespace
}  // namespace based::tests
