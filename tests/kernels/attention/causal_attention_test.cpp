#include "based/kernels/attention/causal_attention.h"

#include <numeric>

#include "based/kernels/common/cpu/parallel.h"
#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace causal_attention_test {

struct Case {
  std::vector<int64_t> queries, keys;
  int64_t window = 0;
  int32_t heads = 2, kv_heads = 2, head_dim = 16;
  DType dtype = DType::f32;
  int64_t padding = 0;  // extra elements between tokens of q, k and v in memory
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << "window " << c.window << " heads " << c.heads << "/" << c.kv_heads << " head_dim " << c.head_dim
      << (c.dtype == DType::f32 ? " f32" : " bf16") << " queries/keys";
  for (size_t i = 0; i < c.queries.size(); ++i) out << " " << c.queries[i] << "/" << c.keys[i];
  return out;
}

double attention_scale(int32_t head_dim) { return rounded(DType::f32, 1.5 / std::sqrt(head_dim)); }

// Inputs, and reference results in double precision.
struct Problem {
  Case c;
  std::vector<int64_t> q_start{0}, k_start{0};
  int64_t q_stride, kv_stride;
  double scale;
  Reals q, k, v, grad_y;
  Reals y, log_sum_exp, grad_q, grad_k, grad_v;

  explicit Problem(const Case& k_) : c(k_) {
    for (int64_t n : c.queries) q_start.push_back(q_start.back() + n);
    for (int64_t n : c.keys) k_start.push_back(k_start.back() + n);
    q_stride = c.heads * c.head_dim + c.padding, kv_stride = c.kv_heads * c.head_dim + c.padding;
    scale = attention_scale(c.head_dim);
    q = random_reals(q_start.back() * q_stride, 1, c.dtype);
    k = random_reals(k_start.back() * kv_stride, 2, c.dtype);
    v = random_reals(k_start.back() * kv_stride, 3, c.dtype);
    grad_y = random_reals(outputs(), 4, c.dtype);
    solve();
  }
  int64_t outputs() const { return q_start.back() * c.heads * c.head_dim; }
  int64_t kv_outputs() const { return k_start.back() * c.kv_heads * c.head_dim; }

 private:
  void solve() {
    y.assign(static_cast<size_t>(outputs()), 0);
    grad_q = y;
    grad_k.assign(static_cast<size_t>(kv_outputs()), 0);
    grad_v = grad_k;
    log_sum_exp.assign(static_cast<size_t>(q_start.back() * c.heads), 0);
    for (size_t row = 0; row < c.queries.size(); ++row)
      for (int64_t i = 0; i < c.queries[row]; ++i)
        for (int64_t h = 0; h < c.heads; ++h) query(row, i, h);
  }
  // Handles one query of one head: computes y, then adds the query's contributions to the gradients.
  void query(size_t row, int64_t i, int64_t h) {
    const int64_t d = c.head_dim, kh = h / (c.heads / c.kv_heads), last = i + c.keys[row] - c.queries[row];
    const int64_t first = c.window > 0 ? std::max<int64_t>(0, last - c.window + 1) : 0;
    const double* qi = &q[static_cast<size_t>((q_start[row] + i) * q_stride + h * d)];
    const size_t out = static_cast<size_t>(((q_start[row] + i) * c.heads + h) * d);
    const auto in = [&](int64_t j) { return static_cast<size_t>((k_start[row] + j) * kv_stride + kh * d); };
    Reals score;
    for (int64_t j = first; j <= last; ++j) score.push_back(scale * std::inner_product(qi, qi + d, &k[in(j)], 0.0));
    const double top = *std::max_element(score.begin(), score.end());
    double sum = 0, dot = 0;
    for (double s : score) sum += std::exp(s - top);
    log_sum_exp[out / static_cast<size_t>(d)] = top + std::log(sum);
    for (int64_t j = first; j <= last; ++j)
      for (int64_t e = 0; e < d; ++e)
        y[out + static_cast<size_t>(e)] += std::exp(score[static_cast<size_t>(j - first)] - top) / sum * v[in(j) + static_cast<size_t>(e)];
    // The kernel's backward reads the rounded y of the forward.
    for (size_t e = 0; e < static_cast<size_t>(d); ++e) dot += rounded(c.dtype, y[out + e]) * grad_y[out + e];
    for (int64_t j = first; j <= last; ++j) {
      const double probability = std::exp(score[static_cast<size_t>(j - first)] - top) / sum;
      const double grad = std::inner_product(&v[in(j)], &v[in(j)] + d, &grad_y[out], 0.0), grad_score = probability * (grad - dot) * scale;
      const size_t kv = static_cast<size_t>(((k_start[row] + j) * c.kv_heads + kh) * d);
      for (size_t e = 0; e < static_cast<size_t>(d); ++e) {
        grad_q[out + e] += grad_score * k[in(j) + e];
        grad_k[kv + e] += grad_score * qi[e];
        grad_v[kv + e] += probability * grad_y[out + e];
      }
    }
  }
};

// Runs forward and backward and holds the results.
struct Results {
  Buffer q, k, v, y, log_sum_exp, grad_y, grad_q, grad_k, grad_v;

  explicit Results(const Problem& x)
      : q(x.c.dtype, x.q),
        k(x.c.dtype, x.k),
        v(x.c.dtype, x.v),
        y(x.c.dtype, x.outputs()),
        log_sum_exp(DType::f32, x.q_start.back() * x.c.heads),
        grad_y(x.c.dtype, x.grad_y),
        grad_q(x.c.dtype, x.outputs()),
        grad_k(x.c.dtype, x.kv_outputs()),
        grad_v(x.c.dtype, x.kv_outputs()) {
    CausalAttentionBackward b;
    CausalAttention& p = b.forward;
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.y = y.data(), p.log_sum_exp = log_sum_exp.floats();
    p.q_start = x.q_start.data(), p.k_start = x.k_start.data(), p.rows = static_cast<int64_t>(x.c.queries.size());
    p.q_stride = x.q_stride, p.k_stride = p.v_stride = x.kv_stride;
    p.window = x.c.window, p.heads = x.c.heads, p.kv_heads = x.c.kv_heads, p.head_dim = x.c.head_dim;
    p.scale = static_cast<float>(x.scale), p.dtype = x.c.dtype;
    b.grad_y = grad_y.data(), b.grad_q = grad_q.data(), b.grad_k = grad_k.data(), b.grad_v = grad_v.data();
    const auto scratch = [](int64_t bytes) { return std::vector<unsigned char>(static_cast<size_t>(bytes), 0xff); };
    auto memory = scratch(cpu::causal_attention_scratch(p));
    Status status = cpu::causal_attention_forward(p, memory.data());
    EXPECT_TRUE(status.ok()) << status.what;
    memory = scratch(cpu::causal_attention_backward_scratch(b));
    status = cpu::causal_attention_backward(b, memory.data());
    EXPECT_TRUE(status.ok()) << status.what;
  }
};

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c);
  const Problem x(c);
  on_every_isa([&] {
    const Results run(x);
    const double close = 2 * tolerance(c.dtype);
    expect_close(run.y.values(), x.y, close, "y");
    expect_close(run.log_sum_exp.values(), x.log_sum_exp, 4e-6, "log_sum_exp");
    expect_close(run.grad_q.values(), x.grad_q, close, "grad_q");
    expect_close(run.grad_k.values(), x.grad_k, close, "grad_k");
    expect_close(run.grad_v.values(), x.grad_v, close, "grad_v");
    for (const Buffer* b : {&run.y, &run.log_sum_exp, &run.grad_q, &run.grad_k, &run.grad_v}) EXPECT_TRUE(b->guards_intact());
  });
}

TEST(CausalAttention, AgreesWithDoublesForEveryWindow) {
  for (int64_t window = 0; window <= 70; window += window < 3 ? 1 : 16) check({{67}, {67}, window});
  for (int64_t window : {0, 1, 31, 32, 33, 63, 64, 65, 200}) check({{130}, {130}, window, 1, 1, 24});
}

TEST(CausalAttention, AgreesWithDoublesForEveryHeadDimension) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int32_t d : {1, 2, 3, 7, 8, 15, 16, 17, 33, 48, 64, 70, 100, 128, 256}) check({{40}, {40}, 20, 1, 1, d, dtype, 5});
}

TEST(CausalAttention, AgreesWithDoublesForRowsOfEveryLength) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t window : {0, 1, 40}) {
      check({{0, 1, 0, 33, 2, 64}, {0, 1, 0, 33, 2, 64}, window, 2, 1, 20, dtype});
      check({{1, 5, 0, 40, 3}, {80, 5, 9, 100, 130}, window, 4, 2, 32, dtype, 3});
    }
  check({{}, {}});
  check({{0, 0}, {0, 4}});
}

TEST(CausalAttention, GradientsOfSeveralBlocksAndGroups) {
  check({{200}, {200}, 0, 4, 1, 32});
  check({{150, 90}, {180, 90}, 64, 4, 2, 64});
  check({{200}, {200}, 100, 2, 2, 64, DType::bf16});
}

TEST(CausalAttention, LargeScoresNeitherOverflowNorVanish) {
  Problem x({{50}, {50}, 0, 1, 1, 8});
  for (double& value : x.q) value = rounded(DType::f32, value * 60);
  const Results run(x);
  for (double value : run.y.values()) EXPECT_TRUE(std::isfinite(value));
  for (double value : run.grad_k.values()) EXPECT_TRUE(std::isfinite(value));
}

TEST(CausalAttention, ThreadsChangeNoBit) {
  const Problem both({{70, 45}, {90, 45}, 33, 2, 1, 40});
  on_every_isa([&] {
    const Results run(both);
#pragma omp parallel num_threads(2)
    {
#pragma omp single
      {
        const Results single(both);
        EXPECT_TRUE(single.y.same_bits(run.y) && single.grad_q.same_bits(run.grad_q));
        EXPECT_TRUE(single.grad_k.same_bits(run.grad_k) && single.grad_v.same_bits(run.grad_v));
      }
    }
  });
}

TEST(CausalAttention, RefusesWhatItCannotCompute) {
  CausalAttention p;
  p.heads = 3, p.kv_heads = 2;
  EXPECT_STREQ(cpu::causal_attention_forward(p, nullptr).what, "causal_attention: heads must be a multiple of kv_heads, both at least 1");
  p.kv_heads = 3, p.head_dim = 257;
  EXPECT_STREQ(cpu::causal_attention_forward(p, nullptr).what, "causal_attention: head_dim must be 1..256");
  p.head_dim = 8, p.rows = 1;
  const int64_t q_start[] = {0, 3}, k_start[] = {0, 2};
  p.q_start = q_start, p.k_start = k_start;
  EXPECT_STREQ(cpu::causal_attention_forward(p, nullptr).what, "causal_attention: a row has fewer keys than queries");
}

// Key and value rings of several slots. push() runs one decode step.
struct Rings {
  int64_t capacity;
  int32_t heads, kv_heads, d;
  DType dtype, ring_dtype;
  Buffer k_ring, v_ring;
  std::vector<int64_t> lengths;  // tokens pushed so far, by slot

  Rings(int64_t slots, int64_t cap, int32_t h, int32_t kh, int32_t head_dim, DType type, DType ring)
      : capacity(cap),
        heads(h),
        kv_heads(kh),
        d(head_dim),
        dtype(type),
        ring_dtype(ring),
        k_ring(ring, slots * cap * kh * head_dim),
        v_ring(ring, slots * cap * kh * head_dim),
        lengths(static_cast<size_t>(slots), 0) {}

  // q, k and v of one token per entry of `slots`; returns y [tokens, heads, d].
  Buffer push(const std::vector<int64_t>& slots, const Reals& q, const Reals& k, const Reals& v) {
    Buffer qb(dtype, q), kb(dtype, k), vb(dtype, v), y(dtype, static_cast<int64_t>(q.size()));
    std::vector<int64_t> position;
    for (const int64_t slot : slots) position.push_back(lengths[static_cast<size_t>(slot)]++);
    CausalAttentionStep p;
    p.q = qb.data(), p.k = kb.data(), p.v = vb.data(), p.y = y.data(), p.k_ring = k_ring.data(), p.v_ring = v_ring.data();
    p.position = position.data(), p.slot = slots.data(), p.rows = static_cast<int64_t>(slots.size()), p.capacity = capacity;
    p.q_stride = heads * d, p.k_stride = p.v_stride = kv_heads * d;
    p.heads = heads, p.kv_heads = kv_heads, p.head_dim = d;
    p.scale = static_cast<float>(attention_scale(d)), p.dtype = dtype, p.ring_dtype = ring_dtype;
    const Status status = cpu::causal_attention_step(p);
    EXPECT_TRUE(status.ok()) << status.what;
    EXPECT_TRUE(y.guards_intact() && k_ring.guards_intact() && v_ring.guards_intact());
    return y;
  }
};

Reals piece(const Reals& x, int64_t begin, int64_t n) { return {x.begin() + begin, x.begin() + begin + n}; }

TEST(CausalAttentionStep, AgreesWithAWindowThatEndsAtTheToken) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t capacity : {1, 2, 63, 64, 65, 200})
      for (int32_t d : {5, 16, 80}) {
        const int64_t tokens = 140;
        const Problem x({{tokens}, {tokens}, capacity, 2, 1, d, dtype});
        SCOPED_TRACE(testing::Message() << x.c);
        on_every_isa([&] {
          Rings rings(2, capacity, 2, 1, d, dtype, dtype);
          Reals got;
          for (int64_t t = 0; t < tokens; ++t) {
            const Reals y = rings.push({1}, piece(x.q, t * 2 * d, 2 * d), piece(x.k, t * d, d), piece(x.v, t * d, d)).values();
            got.insert(got.end(), y.begin(), y.end());
          }
          expect_close(got, x.y, 2 * tolerance(dtype), "y");
        });
      }
}

TEST(CausalAttentionStep, ARowsBitsDependOnNothingElse) {
  const int32_t heads = 4, kv_heads = 2, d = 64;
  const int64_t slots = 5, q_size = heads * d, k_size = kv_heads * d;
  for (DType dtype : {DType::f32, DType::bf16})
    on_every_isa([&] {
      Rings together(slots, 48, heads, kv_heads, d, dtype, dtype), alone(slots, 48, heads, kv_heads, d, dtype, dtype);
      Rings wide(slots, 48, heads, kv_heads, d, dtype, DType::f32);  // an fp32 ring stores bf16 keys exactly, so no result may differ
      for (unsigned t = 0; t < 60; ++t) {
        std::vector<int64_t> named;
        for (int64_t slot = slots; slot-- > 0;)
          if (slot == 2 || (t + static_cast<unsigned>(slot)) % 3 != 0) named.push_back(slot);
        const int64_t rows = static_cast<int64_t>(named.size());
        const Reals q = random_reals(rows * q_size, 3 * t, dtype), k = random_reals(rows * k_size, 3 * t + 1, dtype),
                    v = random_reals(rows * k_size, 3 * t + 2, dtype);
        const Reals y = together.push(named, q, k, v).values();
        EXPECT_EQ(y, wide.push(named, q, k, v).values());
        for (int64_t row = 0; row < rows; ++row)
          EXPECT_EQ(piece(y, row * q_size, q_size), alone
                                                        .push({named[static_cast<size_t>(row)]}, piece(q, row * q_size, q_size),
                                                              piece(k, row * k_size, k_size), piece(v, row * k_size, k_size))
                                                        .values());
      }
    });
}

TEST(CausalAttentionStep, ALargerRingThatHasNotWrappedGivesTheSameBits) {
  const int32_t d = 32;
  on_every_isa([&] {
    Rings small(1, 70, 1, 1, d, DType::f32, DType::f32), large(1, 200, 1, 1, d, DType::f32, DType::f32);
    for (unsigned t = 0; t < 70; ++t) {
      const Reals q = random_reals(d, t, DType::f32), k = random_reals(d, t + 1000, DType::f32);
      EXPECT_TRUE(small.push({0}, q, k, k).same_bits(large.push({0}, q, k, k)));
    }
  });
}

TEST(CausalAttentionStep, RefusesWhatItCannotCompute) {
  CausalAttentionStep p;
  p.heads = p.kv_heads = 1;
  EXPECT_STREQ(cpu::causal_attention_step(p).what, "causal_attention_step: rows must not be negative and capacity at least 1");
  p.rows = 1, p.capacity = 4;
  EXPECT_STREQ(cpu::causal_attention_step(p).what, "causal_attention_step: q, k, v, y, both rings and position must be given");
}

}  // namespace causal_attention_test
}  // namespace based::kernels
