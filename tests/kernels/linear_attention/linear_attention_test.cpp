// Compares the CPU step of linear attention with double precision, on every instruction set of the machine.
#include "based/kernels/linear_attention/linear_attention.h"

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace linear_attention_test {

struct Case {
  int64_t features = 16, head_dim = 64;
  DType dtype = DType::f32;
};

constexpr int64_t kHeads = 3, kSlots = 5;

// Positive features, values and a state for `rows` rows.
struct Numbers {
  Reals q, k, v, kv, ks;
};

Numbers make_numbers(const Case& c, int64_t rows, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> positive(0.1, 1), any(-1, 1);
  const auto draw = [&](int64_t count, auto& from, DType dtype) {
    Reals all(static_cast<size_t>(count));
    for (double& x : all) x = rounded(dtype, from(generator));
    return all;
  };
  return {draw(rows * kHeads * c.features, positive, c.dtype), draw(rows * kHeads * c.features, positive, c.dtype),
          draw(rows * kHeads * c.head_dim, any, c.dtype), draw(kSlots * kHeads * c.features * c.head_dim, any, DType::f32),
          draw(kSlots * kHeads * c.features, positive, DType::f32)};
}

constexpr double kEps = 0.25;

// Updates the state and returns y.
Reals reference(const Case& c, Numbers& x, const std::vector<int64_t>& slot) {
  Reals y(x.v.size());
  for (size_t row = 0; row < slot.size(); ++row)
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t token = static_cast<int64_t>(row) * kHeads + head, at = slot[row] * kHeads + head;
      double denominator = kEps;
      for (int64_t p = 0; p < c.features; ++p) {
        double& sum = x.ks[static_cast<size_t>(at * c.features + p)];
        sum += x.k[static_cast<size_t>(token * c.features + p)];
        denominator += x.q[static_cast<size_t>(token * c.features + p)] * sum;
      }
      for (int64_t column = 0; column < c.head_dim; ++column) {
        double numerator = 0;
        for (int64_t p = 0; p < c.features; ++p) {
          double& sum = x.kv[static_cast<size_t>((at * c.features + p) * c.head_dim + column)];
          sum += x.k[static_cast<size_t>(token * c.features + p)] * x.v[static_cast<size_t>(token * c.head_dim + column)];
          numerator += x.q[static_cast<size_t>(token * c.features + p)] * sum;
        }
        y[static_cast<size_t>(token * c.head_dim + column)] = numerator / denominator;
      }
    }
  return y;
}

struct Results {
  Reals y, kv, ks;
};

Results compute(const Case& c, const Numbers& x, const std::vector<int64_t>& slot) {
  Buffer q(c.dtype, x.q), k(c.dtype, x.k), v(c.dtype, x.v), y(c.dtype, static_cast<int64_t>(x.v.size())), kv(DType::f32, x.kv),
      ks(DType::f32, x.ks);
  LinearAttentionStep a{
      .q = q.data(), .k = k.data(), .v = v.data(), .y = y.data(), .kv_state = kv.floats(), .k_state = ks.floats(), .slot = slot.data()};
  a.rows = static_cast<int64_t>(slot.size()), a.features = c.features, a.heads = kHeads, a.head_dim = static_cast<int32_t>(c.head_dim);
  a.eps = static_cast<float>(kEps), a.dtype = c.dtype;
  EXPECT_TRUE(cpu::linear_attention_step(a).ok());
  EXPECT_TRUE(y.guards_intact() && kv.guards_intact() && ks.guards_intact()) << "written outside an output";
  return {y.values(), kv.values(), ks.values()};
}

TEST(LinearAttentionStep, MatchesSumsInDouble) {
  const std::vector<int64_t> slot = {4, 0, 2};
  for (const Case& c : {Case{16, 64}, Case{1, 1}, Case{33, 37, DType::bf16}, Case{3, 130}, Case{128, 112, DType::bf16}, Case{20, 8}}) {
    const Numbers before = make_numbers(c, 3, 5);
    Numbers after = before;
    const Reals wanted = reference(c, after, slot);
    on_every_isa([&] {
      const Results got = compute(c, before, slot);
      expect_close(got.y, wanted, c.dtype == DType::f32 ? 1e-5 : 5e-3, "y");
      expect_close(got.kv, after.kv, 1e-6, "kv");
      expect_close(got.ks, after.ks, 1e-6, "k");
    });
  }
}

TEST(LinearAttentionStep, ARowDoesNotDependOnTheOthers) {
  const Case c{33, 37, DType::f32};
  const Numbers x = make_numbers(c, 3, 6);
  on_every_isa([&] {
    const Results together = compute(c, x, {4, 0, 2});
    for (int64_t row = 0; row < 3; ++row) {
      const auto part = [row](const Reals& all) {
        const auto each = static_cast<int64_t>(all.size()) / 3;
        return Reals(all.begin() + row * each, all.begin() + (row + 1) * each);
      };
      const Results single = compute(c, {part(x.q), part(x.k), part(x.v), x.kv, x.ks}, {row == 0 ? 4 : row == 1 ? 0 : 2});
      EXPECT_EQ(single.y, part(together.y));
    }
  });
}

TEST(LinearAttentionStep, RefusesWrongArguments) {
  LinearAttentionStep a;
  EXPECT_STREQ(cpu::linear_attention_step(a).what, "linear_attention_step: heads, features and head_dim must be at least 1");
  a.heads = 1, a.features = 1, a.head_dim = 1;
  EXPECT_TRUE(cpu::linear_attention_step(a).ok());
  a.rows = 1;
  EXPECT_STREQ(cpu::linear_attention_step(a).what, "linear_attention_step: q, k, v or y is null");
  float x = 0;
  a.q = a.k = a.v = a.y = &x;
  EXPECT_STREQ(cpu::linear_attention_step(a).what, "linear_attention_step: kv_state or k_state is null");
  a.rows = -1;
  EXPECT_STREQ(cpu::linear_attention_step(a).what, "linear_attention_step: rows must not be negative");
}

}  // namespace linear_attention_test
}  // namespace based::kernels
