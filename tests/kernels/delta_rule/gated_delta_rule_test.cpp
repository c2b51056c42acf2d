#include "based/kernels/delta_rule/delta_rule.h"

#include <cmath>

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace gated_delta_rule_test {

struct Case {
  int64_t rows;
  int32_t key_heads, heads, key_dim, value_dim;
  int32_t decay_dim;  // 0: no decay
  bool delta, beta, bonus;
};

const std::vector<Case> kCases = {{0, 1, 1, 4, 4, 1, false, false, false},   {1, 1, 1, 1, 1, 1, true, true, false},
                                  {3, 2, 2, 7, 5, 7, false, false, false},   {2, 1, 4, 16, 64, 1, false, true, false},
                                  {5, 3, 3, 33, 67, 33, true, true, false},  {2, 2, 2, 17, 130, 0, true, true, false},
                                  {3, 2, 4, 19, 33, 19, false, false, true}, {1, 1, 1, 1024, 3, 1, true, false, false}};

struct Expected {
  Reals y, state;
};

// The formula in double precision. Row r has slot rows − r.
Expected exact(const Case& c, double scale, const Buffer& q, const Buffer& k, const Buffer& v, const Buffer& g, const Buffer& beta,
               const Buffer& bonus, const Reals& before) {
  Expected to{{}, before};
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t head = 0; head < c.heads; ++head) {
      const int64_t at = row * c.heads + head, key_at = (row * c.key_heads + head * c.key_heads / c.heads) * c.key_dim;
      double* state = to.state.data() + ((c.rows - row) * c.heads + head) * c.key_dim * c.value_dim;
      for (int64_t j = 0; j < c.value_dim; ++j) {
        double held = 0, read_before = 0, own = 0, read_after = 0;
        for (int64_t i = 0; i < c.key_dim; ++i) {
          double& s = state[i * c.value_dim + j];
          read_before += q[key_at + i] * s;
          if (c.bonus) own += q[key_at + i] * bonus[head * c.key_dim + i] * k[key_at + i];
          if (c.decay_dim > 0) s *= std::exp(g[at * c.decay_dim + (c.decay_dim == 1 ? 0 : i)]);
          held += k[key_at + i] * s;
        }
        const double value = v[at * c.value_dim + j], added = (value - (c.delta ? held : 0)) * (c.beta ? beta[at] : 1);
        for (int64_t i = 0; i < c.key_dim; ++i) {
          state[i * c.value_dim + j] += k[key_at + i] * added;
          read_after += q[key_at + i] * state[i * c.value_dim + j];
        }
        to.y.push_back(scale * (c.bonus ? read_before + own * value : read_after));
      }
    }
  }
  return to;
}

TEST(GatedDeltaRuleStep, AgreesWithDoubles) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Case& c : kCases) {
      const int64_t items = c.rows * c.heads, keys = c.rows * c.key_heads * c.key_dim,
                    states = (c.rows + 1) * c.heads * c.key_dim * c.value_dim;
      const double small = 1 / std::sqrt(static_cast<double>(c.key_dim));
      Buffer q(dtype, random_reals(keys, 1, dtype)), k(dtype, random_reals(keys, 2, dtype, small)),
          v(dtype, random_reals(items * c.value_dim, 3, dtype));
      Reals decays = random_reals(items * std::max(1, c.decay_dim), 4, DType::f32);
      for (double& g : decays) g = -std::abs(g);
      if (!decays.empty()) decays[0] = -200;
      Buffer g(DType::f32, decays), beta(DType::f32, random_reals(items, 5, DType::f32)),
          bonus(DType::f32, random_reals(c.heads * c.key_dim, 6, DType::f32)), before(DType::f32, random_reals(states, 7, DType::f32));
      const Expected expected = exact(c, 0.5, q, k, v, g, beta, bonus, before.values());
      std::vector<int64_t> slots;
      for (int64_t row = 0; row < c.rows; ++row) slots.push_back(c.rows - row);
      on_every_isa([&] {
        Buffer state = before, y(dtype, items * c.value_dim);
        GatedDeltaRule a;
        a.q = q.data(), a.k = k.data(), a.v = v.data(), a.y = y.data(), a.state = static_cast<float*>(state.data()), a.slot = slots.data();
        if (c.decay_dim > 0) a.log_decay = static_cast<const float*>(g.data()), a.decay_dim = c.decay_dim;
        if (c.beta) a.beta = static_cast<const float*>(beta.data());
        if (c.bonus) a.bonus = static_cast<const float*>(bonus.data());
        a.rows = a.tokens = c.rows, a.key_heads = c.key_heads, a.heads = c.heads, a.key_dim = c.key_dim, a.value_dim = c.value_dim;
        a.delta = c.delta, a.scale = 0.5F, a.dtype = dtype;
        ASSERT_TRUE(cpu::gated_delta_rule_step(a).ok());
        expect_close(y.values(), expected.y, 4 * tolerance(dtype), "y");
        expect_close(state.values(), expected.state, 1e-5, "state");
        EXPECT_TRUE(y.guards_intact() && state.guards_intact());
      });
    }
  }
}

TEST(GatedDeltaRuleStep, RefusesWrongArguments) {
  float x = 0;
  const int64_t slot = 0;
  GatedDeltaRule good;
  good.q = good.k = good.v = &x, good.y = &x, good.state = &x, good.slot = &slot, good.rows = good.tokens = 1;
  EXPECT_TRUE(cpu::gated_delta_rule_step(good).ok());
  const auto refused = [&](auto&& change) {
    GatedDeltaRule wrong = good;
    change(wrong);
    return !cpu::gated_delta_rule_step(wrong).ok();
  };
  EXPECT_TRUE(refused([](GatedDeltaRule& a) { a.rows = a.tokens = -1; }));
  EXPECT_TRUE(refused([](GatedDeltaRule& a) { a.tokens = 2; }));
  EXPECT_TRUE(refused([](GatedDeltaRule& a) { a.key_dim = 1025; }));
  EXPECT_TRUE(refused([](GatedDeltaRule& a) { a.key_heads = 2; }));
  EXPECT_TRUE(refused([](GatedDeltaRule& a) { a.value_dim = 0; }));
  EXPECT_TRUE(refused([](GatedDeltaRule& a) { a.slot = nullptr; }));
  EXPECT_TRUE(refused([&](GatedDeltaRule& a) { a.log_decay = &x, a.decay_dim = 3; }));
  EXPECT_TRUE(refused([&](GatedDeltaRule& a) { a.bonus = &x, a.delta = true; }));
}

}  // namespace gated_delta_rule_test
}  // namespace based::kernels
