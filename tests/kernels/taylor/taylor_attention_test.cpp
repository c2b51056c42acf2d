// Compares the CPU kernels of Taylor attention with a reference in double precision, on every instruction set of the machine.
#include "based/kernels/taylor/taylor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"
#include "tests/kernels/taylor/taylor_attention_reference.h"

namespace based::kernels {
namespace taylor_attention_test {

using namespace taylor_test;

// Scratch of exactly the requested size, followed by guard bytes that must not change.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : bytes_(static_cast<size_t>(bytes) + guard, 0xa5) {}
  void* data() { return bytes_.data(); }
  bool intact() const {
    for (size_t i = bytes_.size() - guard; i < bytes_.size(); ++i)
      if (bytes_[i] != 0xa5) return false;
    return true;
  }

 private:
  static constexpr size_t guard = 256;
  std::vector<unsigned char> bytes_;
};

// The kernels' results for x's inputs: the forward, and the backward from the forward's y and denominator.
Numbers compute(const Case& c, const Numbers& x) {
  const Sizes size(c);
  const int64_t qk = size.tokens * size.heads * size.d, vy = size.tokens * size.heads * size.head_dim, states = size.rows * size.heads;
  Buffer q(c.dtype, x.q), k(c.dtype, x.k), v(c.dtype, x.v), y(c.dtype, vy), denominator(DType::f32, size.tokens * size.heads);
  Buffer initial_kv(DType::f32, x.kv_state), initial_k(DType::f32, x.k_state), kv = initial_kv, ks = initial_k, decay(DType::f32, x.decay);
  TaylorAttention a{.q = q.data(), .k = k.data(), .v = v.data(), .y = y.data(), .denominator = denominator.floats()};
  if (c.state) a.kv_state = kv.floats(), a.k_state = ks.floats();
  if (c.decay) a.decay = decay.floats();
  a.decay_denominator = c.decay_denominator;
  a.row_start = size.row_start.data();
  a.tokens = size.tokens, a.rows = size.rows, a.heads = c.heads, a.feature_dim = c.feature_dim, a.head_dim = c.head_dim, a.dtype = c.dtype;
  Scratch scratch(cpu::taylor_attention_scratch(a));
  EXPECT_TRUE(cpu::taylor_attention_forward(a, scratch.data()).ok());

  Buffer grad_y(c.dtype, x.grad_y), grad_kv(DType::f32, x.grad_kv_state), grad_ks(DType::f32, x.grad_k_state);
  Buffer grad_q(c.dtype, qk), grad_k(c.dtype, qk), grad_v(c.dtype, vy);
  Buffer grad_initial_kv(DType::f32, states * size.packed * size.head_dim), grad_initial_k(DType::f32, states * size.packed);
  TaylorAttentionBackward b{.forward = a};
  b.grad_y = grad_y.data(), b.grad_q = grad_q.data(), b.grad_k = grad_k.data(), b.grad_v = grad_v.data();
  if (c.state) {
    b.initial_kv_state = initial_kv.floats(), b.initial_k_state = initial_k.floats();
    b.grad_kv_state = grad_kv.floats(), b.grad_k_state = grad_ks.floats();
    b.grad_initial_kv_state = grad_initial_kv.floats(), b.grad_initial_k_state = grad_initial_k.floats();
  }
  Scratch more(cpu::taylor_attention_backward_scratch(b));
  EXPECT_TRUE(cpu::taylor_attention_backward(b, more.data()).ok());
  EXPECT_TRUE(scratch.intact() && more.intact()) << "scratch overrun";
  for (const Buffer* out : {&y, &denominator, &kv, &ks, &grad_q, &grad_k, &grad_v, &grad_initial_kv, &grad_initial_k})
    EXPECT_TRUE(out->guards_intact()) << "written outside an output";

  Numbers result;
  result.y = y.values(), result.denominator = denominator.values();
  result.grad_q = grad_q.values(), result.grad_k = grad_k.values(), result.grad_v = grad_v.values();
  if (!c.state) return result;
  result.final_kv_state = kv.values(), result.final_k_state = ks.values();
  result.grad_initial_kv_state = grad_initial_kv.values(), result.grad_initial_k_state = grad_initial_k.values();
  return result;
}

// Largest difference divided by the largest reference value; infinite where sizes differ or a number is not finite.
double error(const Reals& got, const Reals& wanted) {
  if (got.size() != wanted.size()) return std::numeric_limits<double>::infinity();
  double largest = 1e-30, difference = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(wanted[i]));
    difference = std::max(difference, std::abs(got[i] - wanted[i]));
  }
  return difference / largest;
}

bool same_bits(const Reals& a, const Reals& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 8) == 0);
}

void expect_close(const Case& c, const Numbers& got, const Numbers& wanted) {
  const double typed = c.dtype == DType::f32 ? 2e-5 : 8e-3, sums = 2e-5;
  EXPECT_LE(error(got.y, wanted.y), typed);
  EXPECT_LE(error(got.denominator, wanted.denominator), sums);
  EXPECT_LE(error(got.grad_q, wanted.grad_q), typed);
  EXPECT_LE(error(got.grad_k, wanted.grad_k), typed);
  EXPECT_LE(error(got.grad_v, wanted.grad_v), typed);
  if (!c.state) return;
  EXPECT_LE(error(got.final_kv_state, wanted.final_kv_state), sums);
  EXPECT_LE(error(got.final_k_state, wanted.final_k_state), sums);
  EXPECT_LE(error(got.grad_initial_kv_state, wanted.grad_initial_kv_state), sums);
  EXPECT_LE(error(got.grad_initial_k_state, wanted.grad_initial_k_state), typed);  // from y, which has been rounded to the type
}

// Runs the body once for each instruction set of the machine.
class TaylorAttentionTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(cpu::set_isa(cpu::best_isa())); }
  template <class Body>
  void on_every_isa(Body body) {
    for (cpu::Isa isa : {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512, cpu::Isa::avx512bf16}) {
      if (!cpu::set_isa(isa)) continue;
      SCOPED_TRACE(cpu::isa_name(isa));
      body();
    }
  }
};

const Case cases[] = {
    {1, 1, {1}},
    {1, 8, {2, 0, 65}},
    {1, 64, {5, 130}, DType::f32, true, true},
    {3, 37, {0, 1, 2, 63}},
    {3, 1, {64, 65}, DType::bf16, false, true},
    {8, 64, {255, 1, 256}, DType::f32, false, true},
    {8, 8, {257, 3}, DType::bf16, true, true},
    {15, 37, {47, 48, 49}, DType::f32, true, true},
    {16, 64, {1000}},
    {16, 64, {0, 1, 2, 63, 64, 65, 0}, DType::f32, false, true},
    {16, 64, {63, 255, 256, 257}, DType::f32, true, true},
    {16, 64, {300, 20}, DType::bf16},
    {16, 64, {129, 0, 96}, DType::bf16, true, true},
    {16, 112, {100, 33}, DType::f32, false, true},
    {24, 128, {145}, DType::f32, true},
    {32, 37, {96, 97, 1}, DType::f32, true, true},
    {32, 1, {257}, DType::bf16, false, true},
    {64, 8, {200, 1}, DType::f32, false, true},
    {64, 64, {97}, DType::f32, true},
    // Numbers of heads that do not divide evenly into items, and more heads than an item has.
    {8, 8, {100}, DType::f32, true, true, 5},
    {2, 4, {60, 7}, DType::f32, true, true, 35},
    // Decay of the numerator alone.
    {16, 64, {63, 97, 0, 1}, DType::f32, true, true, 2, false},
    {16, 64, {130}, DType::bf16, true, false, 3, false},
    {8, 37, {49, 200}, DType::bf16, true, true, 2, false},
    {5, 7, {150, 20}, DType::f32, true, false, 5, false},
    {32, 16, {193}, DType::f32, true, true, 2, false},
    {8, 8, {70}, DType::f32, false, true, 2, false},
};

TEST_F(TaylorAttentionTest, MatchesTheReference) {
  unsigned seed = 1;
  for (const Case& c : cases) {
    Numbers x = make_numbers(c, seed++);
    reference(c, x);
    on_every_isa([&] {
      SCOPED_TRACE(testing::PrintToString(c));
      expect_close(c, compute(c, x), x);
    });
  }
}

// Checks the reference's gradients against finite differences of the reference's forward.
TEST_F(TaylorAttentionTest, ReferenceGradientMatchesDifferences) {
  for (const bool decay_denominator : {true, false}) {
    const Case c{3, 2, {4, 1}, DType::f32, true, true, 2, decay_denominator};
    Numbers x = make_numbers(c, 77);
    reference(c, x);
    const auto loss = [&](const Numbers& inputs) {
      Numbers out = inputs;
      reference(c, out);
      return dot(out.y.data(), out.grad_y.data(), static_cast<int64_t>(out.y.size())) +
             dot(out.final_kv_state.data(), out.grad_kv_state.data(), static_cast<int64_t>(out.final_kv_state.size())) +
             dot(out.final_k_state.data(), out.grad_k_state.data(), static_cast<int64_t>(out.final_k_state.size()));
    };
    const std::pair<Reals Numbers::*, Reals Numbers::*> pairs[] = {{&Numbers::q, &Numbers::grad_q},
                                                                   {&Numbers::k, &Numbers::grad_k},
                                                                   {&Numbers::v, &Numbers::grad_v},
                                                                   {&Numbers::kv_state, &Numbers::grad_initial_kv_state},
                                                                   {&Numbers::k_state, &Numbers::grad_initial_k_state}};
    for (const auto& [input, gradient] : pairs)
      for (size_t i = 0; i < (x.*input).size(); ++i) {
        Numbers up = x, down = x;
        (up.*input)[i] += 1e-5;
        (down.*input)[i] -= 1e-5;
        EXPECT_NEAR((loss(up) - loss(down)) / 2e-5, (x.*gradient)[i], 1e-7 * (1 + std::abs((x.*gradient)[i])));
      }
  }
}

Reals slice(const Reals& x, int64_t begin, int64_t count) { return Reals(x.begin() + begin, x.begin() + begin + count); }

// Row `row` of the case as a case of its own.
std::pair<Case, Numbers> alone(const Case& c, const Numbers& x, size_t row) {
  const Sizes size(c);
  Case one = c;
  one.lengths = {c.lengths[row]};
  const int64_t t = size.row_start[row], n = c.lengths[row], r = static_cast<int64_t>(row), kv = size.heads * size.packed * size.head_dim,
                k = size.heads * size.packed;
  Numbers y;
  for (auto field : {&Numbers::q, &Numbers::k, &Numbers::grad_q, &Numbers::grad_k})
    if (!(x.*field).empty()) y.*field = slice(x.*field, t * size.heads * size.d, n * size.heads * size.d);
  for (auto field : {&Numbers::v, &Numbers::grad_y, &Numbers::y, &Numbers::grad_v})
    if (!(x.*field).empty()) y.*field = slice(x.*field, t * size.heads * size.head_dim, n * size.heads * size.head_dim);
  if (!x.denominator.empty()) y.denominator = slice(x.denominator, t * size.heads, n * size.heads);
  for (auto field : {&Numbers::kv_state, &Numbers::grad_kv_state, &Numbers::final_kv_state, &Numbers::grad_initial_kv_state})
    if (!(x.*field).empty()) y.*field = slice(x.*field, r * kv, kv);
  for (auto field : {&Numbers::k_state, &Numbers::grad_k_state, &Numbers::final_k_state, &Numbers::grad_initial_k_state})
    if (!(x.*field).empty()) y.*field = slice(x.*field, r * k, k);
  y.decay = x.decay, y.sums_decay = x.sums_decay;
  return {one, y};
}

void expect_same_bits(const Numbers& a, const Numbers& b) {
  for (auto field : {&Numbers::y, &Numbers::denominator, &Numbers::final_kv_state, &Numbers::final_k_state, &Numbers::grad_q,
                     &Numbers::grad_k, &Numbers::grad_v, &Numbers::grad_initial_kv_state, &Numbers::grad_initial_k_state})
    EXPECT_TRUE(same_bits(a.*field, b.*field));
}

TEST_F(TaylorAttentionTest, RowDoesNotDependOnItsNeighboursNorOnTheThreads) {
  for (const Case& c : {Case{16, 64, {70, 0, 1, 200, 5}, DType::f32, true, true}, Case{8, 37, {130, 64, 2}, DType::bf16},
                        Case{16, 64, {50, 3, 97}, DType::f32, true, true, 3, false}}) {
    const Numbers x = make_numbers(c, 5);
    on_every_isa([&] {
      const Numbers together = compute(c, x);
      for (size_t row = 0; row < c.lengths.size(); ++row) {
        const auto [one, inputs] = alone(c, x, row);
        // Inside a parallel loop the kernel runs on the calling thread alone.
        Numbers single;
        cpu::parallel_for(2, 1, [&, &one = one, &inputs = inputs](int64_t begin, int64_t) {
          if (begin == 0) single = compute(one, inputs);
        });
        expect_same_bits(single, alone(c, together, row).second);
      }
    });
  }
}

struct Steps {
  Reals y, denominator, kv_state, k_state;
};

// Runs token by token from a zero state; row r uses state `slot[r]` of `slots`.
Steps run_steps(const Case& c, const Numbers& x, const std::vector<int64_t>& slot, int64_t slots) {
  const Sizes size(c);
  const int64_t tokens = c.lengths[0], qk = size.heads * size.d, vy = size.heads * size.head_dim;
  Buffer kv(DType::f32, Reals(static_cast<size_t>(slots * size.heads * size.packed * size.head_dim), 0.0));
  Buffer ks(DType::f32, Reals(static_cast<size_t>(slots * size.heads * size.packed), 0.0)), decay(DType::f32, x.decay);
  Steps out{Reals(x.v.size()), Reals(static_cast<size_t>(size.tokens * size.heads)), {}, {}};
  const auto gather = [&](const Reals& from, int64_t t, int64_t width) {
    Reals to;
    for (int64_t r = 0; r < size.rows; ++r) {
      const Reals token = slice(from, (r * tokens + t) * width, width);
      to.insert(to.end(), token.begin(), token.end());
    }
    return to;
  };
  for (int64_t t = 0; t < tokens; ++t) {
    Buffer q(c.dtype, gather(x.q, t, qk)), k(c.dtype, gather(x.k, t, qk)), v(c.dtype, gather(x.v, t, vy));
    Buffer y(c.dtype, size.rows * vy), denominator(DType::f32, size.rows * size.heads);
    TaylorAttention a{.q = q.data(), .k = k.data(), .v = v.data(), .y = y.data(), .denominator = denominator.floats()};
    a.kv_state = kv.floats(), a.k_state = ks.floats(), a.slot = slot.data(), a.tokens = a.rows = size.rows;
    if (c.decay) a.decay = decay.floats();
    a.decay_denominator = c.decay_denominator;
    a.heads = c.heads, a.feature_dim = c.feature_dim, a.head_dim = c.head_dim, a.dtype = c.dtype;
    EXPECT_TRUE(cpu::taylor_attention_step(a).ok());
    EXPECT_TRUE(y.guards_intact() && kv.guards_intact() && ks.guards_intact() && denominator.guards_intact());
    for (int64_t r = 0; r < size.rows; ++r) {
      const Reals values = slice(y.values(), r * vy, vy), sums = slice(denominator.values(), r * size.heads, size.heads);
      std::copy(values.begin(), values.end(), out.y.begin() + (r * tokens + t) * vy);
      std::copy(sums.begin(), sums.end(), out.denominator.begin() + (r * tokens + t) * size.heads);
    }
  }
  out.kv_state = kv.values(), out.k_state = ks.values();
  return out;
}

TEST_F(TaylorAttentionTest, StepsMatchTheReference) {
  for (const Case& c : {Case{16, 64, {70}, DType::f32, true}, Case{16, 64, {40}, DType::bf16}, Case{1, 1, {9}}, Case{3, 37, {20}},
                        Case{15, 130, {12}, DType::f32, true}, Case{64, 112, {3}}, Case{24, 24, {5}, DType::bf16, true},
                        Case{16, 64, {70}, DType::f32, true, false, 2, false}, Case{5, 7, {20}, DType::bf16, true, false, 3, false}}) {
    Numbers x = make_numbers(c, 9);
    reference(c, x);
    on_every_isa([&] {
      SCOPED_TRACE(testing::PrintToString(c));
      const Steps steps = run_steps(c, x, {0}, 1);
      EXPECT_LE(error(steps.y, x.y), c.dtype == DType::f32 ? 2e-5 : 8e-3);
      EXPECT_LE(error(steps.denominator, x.denominator), 2e-5);
      EXPECT_LE(error(steps.kv_state, x.final_kv_state), 2e-5);
      EXPECT_LE(error(steps.k_state, x.final_k_state), 2e-5);
    });
  }
}

TEST_F(TaylorAttentionTest, StepOfARowDoesNotDependOnTheOthersAndTouchesItsSlotOnly) {
  const Case c{16, 40, {6, 6, 6}, DType::f32, true};
  const Numbers x = make_numbers(c, 3);
  const Sizes size(c);
  const int64_t state = size.heads * size.packed * size.head_dim, width = 6 * size.heads * size.head_dim;
  on_every_isa([&] {
    const Steps together = run_steps(c, x, {4, 0, 2}, 5);
    for (size_t row = 0; row < 3; ++row) {
      const auto [one, inputs] = alone(c, x, row);
      const Steps single = run_steps(one, inputs, {0}, 1);
      EXPECT_TRUE(same_bits(single.y, slice(together.y, static_cast<int64_t>(row) * width, width)));
      EXPECT_TRUE(same_bits(single.kv_state, slice(together.kv_state, (row == 0 ? 4 : row == 1 ? 0 : 2) * state, state)));
    }
    for (int64_t unused : {1, 3})
      EXPECT_TRUE(same_bits(slice(together.kv_state, unused * state, state), Reals(static_cast<size_t>(state))));
  });
}

TEST_F(TaylorAttentionTest, ContinuesFromTheStateOfASlot) {
  for (const bool decay_denominator : {true, false}) {
    const Case whole{16, 64, {150}, DType::f32, true, false, 2, decay_denominator};
    const Sizes size(whole);
    Numbers x = make_numbers(whole, 21);
    reference(whole, x);
    const int64_t states = 3 * size.heads * size.packed;
    on_every_isa([&] {
      for (int64_t cut : {0, 1, 47, 48, 49, 96, 149, 150}) {
        Buffer q(DType::f32, x.q), k(DType::f32, x.k), v(DType::f32, x.v), y(DType::f32, static_cast<int64_t>(x.y.size()));
        Buffer kv(DType::f32, Reals(static_cast<size_t>(states * size.head_dim), 0.0)),
            ks(DType::f32, Reals(static_cast<size_t>(states), 0.0));
        Buffer decay(DType::f32, x.decay);
        const int64_t slot = 1;
        int64_t begin = 0;
        for (int64_t end : {cut, int64_t{150}}) {
          const int64_t row_start[] = {0, end - begin};
          TaylorAttention a{.q = q.floats() + begin * size.heads * size.d, .k = k.floats() + begin * size.heads * size.d};
          a.v = v.floats() + begin * size.heads * size.head_dim, a.y = y.floats() + begin * size.heads * size.head_dim;
          a.kv_state = kv.floats(), a.k_state = ks.floats(), a.decay = decay.floats(), a.row_start = row_start, a.slot = &slot;
          a.decay_denominator = decay_denominator, a.tokens = end - begin, a.rows = 1, a.heads = whole.heads;
          Scratch scratch(cpu::taylor_attention_scratch(a));
          EXPECT_TRUE(cpu::taylor_attention_forward(a, scratch.data()).ok());
          begin = end;
        }
        EXPECT_LE(error(y.values(), x.y), 2e-5) << "cut at " << cut;
        const int64_t one = size.heads * size.packed * size.head_dim;
        EXPECT_LE(error(slice(kv.values(), one, one), x.final_kv_state), 2e-5) << "cut at " << cut;
        EXPECT_LE(error(slice(ks.values(), one / size.head_dim, one / size.head_dim), x.final_k_state), 2e-5) << "cut at " << cut;
        EXPECT_TRUE(same_bits(slice(kv.values(), 2 * one, one), Reals(static_cast<size_t>(one)))) << "another slot changed";
      }
    });
  }
}

// Every weight is at least ½ for any score.
TEST_F(TaylorAttentionTest, DenominatorIsAtLeastHalfTheTokens) {
  const Case c{4, 8, {600}};
  Numbers x = make_numbers(c, 2);
  for (size_t i = 0; i < x.k.size(); ++i) x.k[i] = static_cast<double>(static_cast<float>(-1.0 * x.q[i]));
  const Numbers got = compute(c, x);
  for (int64_t t = 0; t < 600; ++t)
    for (int64_t h = 0; h < c.heads; ++h)
      ASSERT_GE(got.denominator[static_cast<size_t>(t * c.heads + h)], 0.5 * static_cast<double>(t + 1) * (1 - 1e-4));
}

TEST_F(TaylorAttentionTest, RefusesWhatItCannotCompute) {
  float numbers[64] = {};
  const int64_t row_start[] = {0, 1}, falling[] = {0, 2, 1};
  const auto valid = [&] {
    TaylorAttention a{.q = numbers, .k = numbers, .v = numbers, .y = numbers};
    a.row_start = row_start, a.tokens = a.rows = 1, a.heads = 1, a.feature_dim = 2, a.head_dim = 2;
    return a;
  };
  const auto refused = [](const TaylorAttention& a) { return std::string(cpu::taylor_attention_forward(a, nullptr).what); };
  TaylorAttention a = valid();
  a.feature_dim = 65;
  EXPECT_EQ(refused(a), "taylor_attention: feature_dim must be 1..64");
  a = valid(), a.row_start = falling, a.rows = 2;
  EXPECT_EQ(refused(a), "taylor_attention: row_start must not decrease");
  a = valid(), a.tokens = 2;
  EXPECT_EQ(refused(a), "taylor_attention: row_start must go from 0 to tokens");
  a = valid(), a.kv_state = numbers;
  EXPECT_EQ(refused(a), "taylor_attention: kv_state and k_state go together");
  a = valid(), a.v = nullptr;
  EXPECT_EQ(refused(a), "taylor_attention: q, k, v or y is null");
  EXPECT_STREQ(cpu::taylor_attention_step(valid()).what, "taylor_attention_step: kv_state is null");
  EXPECT_STREQ(cpu::taylor_attention_backward({.forward = valid()}, nullptr).what,
               "taylor_attention_backward: denominator, grad_y, grad_q, grad_k or grad_v is null");
}

TEST(TaylorAttentionFlops, CountsUpdateAndReadoutOfThePackedState) {
  EXPECT_EQ(packed_features(16), 153);
  EXPECT_EQ(taylor_attention_flops(4096, 16, 16, 64), int64_t{65536} * (2 * 153 * 65 + 2 * 153 * 65));
}

}  // namespace taylor_attention_test
}  // namespace based::kernels
