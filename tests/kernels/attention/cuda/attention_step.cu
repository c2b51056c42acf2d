#include <algorithm>
#include <cmath>

#include "based/kernels/attention/causal_attention_plan.h"
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

// A step of several tokens of one sequence, which reads the rings early, against steps of one token, which do not: y, padding, and the
// rings after each token, bit for bit.
void verify_tokens(Report& report, AttentionStepShape s, int64_t tokens, double rotary_base, uint64_t seed) {
  constexpr int64_t padding = 2;
  const int64_t first = s.positions.at(0);
  s.rows = tokens + padding;  // rows of q, k and v; the first slot of the rings is used
  AttentionStepProblem problem(s, seed);
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < tokens; ++t) positions.push_back(first + t);
  const Buffer position = upload(positions), slot = zeros(8), k_ring = copy_of(problem.k_ring), v_ring = copy_of(problem.v_ring);
  const int64_t ring = s.capacity * s.kv_heads * s.head_dim, row = s.heads * s.head_dim;
  const Buffer y(row * 2), kept_k(tokens * ring * 2), kept_v(tokens * ring * 2);
  CausalAttentionStep one = problem.p;
  one.rows = 1, one.position = position.as<int64_t>(), one.slot = slot.as<int64_t>(), one.rotary_base = rotary_base;
  one.ring_is_private = false;
  const std::string name = std::to_string(tokens) + " tokens, d" + std::to_string(s.head_dim) + " capacity " + std::to_string(s.capacity) +
                           " from " + std::to_string(first);
  if (!kernels::causal_attention_takes_tokens(one, gpu::this_gpu())) return report.no_kernel(name);
  CausalAttentionStep early = one;
  early.ring_is_private = true;
  check(gpu::causal_attention_tokens({early, tokens, padding, kept_k.as(), kept_v.as()}, {}));
  const std::vector<double> given = download(problem.p.y, s.dtype, (tokens + padding) * row);
  one.k_ring = k_ring.as(), one.v_ring = v_ring.as(), one.y = y.as();
  bool same_y = true, same_rings = true;
  for (int64_t t = 0; t < tokens; ++t) {
    check(gpu::causal_attention_step(one, {}));
    check(cudaDeviceSynchronize(), "step");
    const bool is_last = t + 1 == tokens;
    const std::vector<double> wanted = download(y.as(), s.dtype, row);
    for (int64_t to = t; to < (is_last ? tokens + padding : t + 1); ++to)
      same_y = same_y && std::equal(wanted.begin(), wanted.end(), given.begin() + to * row);
    const auto same = [&](const Buffer& single, const void* all, const Buffer& kept) {
      const void* after = is_last ? all : kept.as<char>() + t * ring * 2;
      return download(single.as(), s.ring_dtype, ring) == download(after, s.ring_dtype, ring);
    };
    same_rings = same_rings && same(k_ring, problem.p.k_ring, kept_k) && same(v_ring, problem.p.v_ring, kept_v);
    const auto advance = [](const void* x, int64_t stride) -> const void* { return static_cast<const char*>(x) + 2 * stride; };
    one.q = advance(one.q, one.q_stride), one.k = advance(one.k, one.k_stride), one.v = advance(one.v, one.v_stride), ++one.position;
  }
  report.expect(name + ": y", same_y ? 0 : 1, 0);
  report.expect(name + ": rings", same_rings ? 0 : 1, 0);
}

void verify_causal_attention_tokens(Report& report) {
  const DType bf = DType::bf16;
  uint64_t seed = 100;
  for (const int64_t tokens : {1, 2, 5, 8}) {
    for (const int64_t first : {0, 13, 60, 64, 1001}) {
      verify_tokens(report, {1, 64, 16, 16, 64, bf, bf, {first}}, tokens, 10000, seed++);
      verify_tokens(report, {1, 64, 16, 16, 64, bf, bf, {first}}, tokens, 0, seed++);
      verify_tokens(report, {1, 16, 16, 16, 128, bf, bf, {first}}, tokens, 10000, seed++);
      verify_tokens(report, {1, 129, 16, 16, 128, bf, bf, {first}}, tokens, 10000, seed++);
      verify_tokens(report, {1, 5, 4, 4, 112, bf, bf, {first}}, tokens, 10000, seed++);
    }
  }
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
                                                              {2, 64, 40, 40, 64, bf, bf, {10, 90}},
                                                              // rings of one tile, more rows than run at once
                                                              {450, 16, 16, 16, 112, bf, bf, {0, 1, 15, 16, 1000}},
                                                              {801, 16, 8, 8, 104, bf, bf, {15, 3, 100}},
                                                              {512, 11, 16, 8, 64, bf, bf, {10, 11, 4}},
                                                              {600, 16, 8, 8, 128, bf, bf, {7, 16}}}) {
    verify(report, s, seed++);
    s.settled = true;
    verify(report, s, seed++);
  }
  for (const int32_t head_dim : {64, 112}) verify_same_bits(report, {140, 64, 16, 16, head_dim, bf, bf, {40, 2, 62}}, seed++);
  for (const int32_t head_dim : {64, 112, 128}) verify_same_bits(report, {450, 16, 16, 16, head_dim, bf, bf, {4, 2, 14}}, seed++);
}

const DefineFamily<Report> kCausalAttentionTokens("causal_attention_tokens", verify_causal_attention_tokens);
const DefineFamily<Report> kCausalAttentionStep("causal_attention_step", verify_causal_attention_step);

}  // namespace
}  // namespace based::tests
