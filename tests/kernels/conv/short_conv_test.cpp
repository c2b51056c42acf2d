#include "based/kernels/conv/short_conv.h"

#include "based/kernels/common/cpu/parallel.h"
#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace short_conv_test {

struct Case {
  std::vector<int64_t> lengths;
  int64_t channels = 10;
  int32_t taps = 3;
  DType dtype = DType::f32;
  bool gate = true, bias = true, silu = true, state = true;
  int64_t padding = 0;  // extra elements between tokens of x, gate and y
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.channels << " channels, " << c.taps << " taps" << (c.dtype == DType::f32 ? " f32" : " bf16") << (c.gate ? " gate" : "")
      << (c.bias ? " bias" : "") << (c.silu ? " silu" : "") << (c.state ? " state" : "") << " lengths";
  for (int64_t n : c.lengths) out << " " << n;
  return out;
}

// Inputs, and reference outputs and gradients in double precision.
struct Problem {
  Case c;
  std::vector<int64_t> row_start{0};
  int64_t rows, kept, stride;
  Reals x, gate, weight, bias, initial, grad_y, grad_state;
  Reals y, final_state, grad_x, grad_gate, grad_weight, grad_bias, grad_initial;

  explicit Problem(const Case& k) : c(k), rows(static_cast<int64_t>(k.lengths.size())), kept(k.taps - 1), stride(k.channels + k.padding) {
    for (int64_t n : c.lengths) row_start.push_back(row_start.back() + n);
    x = random_reals(tokens() * stride, 1, c.dtype);
    gate = random_reals(tokens() * stride, 2, c.dtype);
    weight = random_reals(c.channels * c.taps, 3, c.dtype, 1 / std::sqrt(c.taps));
    bias = random_reals(c.channels, 4, c.dtype);
    initial = random_reals(rows * c.channels * kept, 5, c.dtype);
    grad_y = random_reals(tokens() * c.channels, 6, c.dtype);
    grad_state = random_reals(rows * c.channels * kept, 7, DType::f32);
    grad_x = grad_gate = y = Reals(static_cast<size_t>(tokens() * c.channels));
    grad_weight = Reals(weight.size()), grad_bias = Reals(bias.size());
    grad_initial = final_state = Reals(initial.size());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t channel = 0; channel < c.channels; ++channel) solve(row, channel);
  }
  int64_t tokens() const { return row_start.back(); }

 private:
  void solve(int64_t row, int64_t channel) {
    const int64_t length = c.lengths[static_cast<size_t>(row)], first = row_start[static_cast<size_t>(row)];
    const size_t state = static_cast<size_t>((row * c.channels + channel) * kept);
    Reals in(static_cast<size_t>(kept + length)), grad_in(in.size());  // history, then the row
    for (int64_t h = 0; h < kept; ++h) in[static_cast<size_t>(h)] = c.state ? initial[state + static_cast<size_t>(h)] : 0;
    for (int64_t t = 0; t < length; ++t) in[static_cast<size_t>(kept + t)] = x[static_cast<size_t>((first + t) * stride + channel)];
    for (int64_t t = 0; t < length; ++t) {
      const size_t at = static_cast<size_t>((first + t) * c.channels + channel);
      const double* w = &weight[static_cast<size_t>(channel * c.taps)];
      double sum = c.bias ? bias[static_cast<size_t>(channel)] : 0;
      for (size_t j = 0; j < static_cast<size_t>(c.taps); ++j) sum += w[j] * in[static_cast<size_t>(t) + j];
      const double s = 1 / (1 + std::exp(-sum)), act = c.silu ? sum * s : sum, slope = c.silu ? s + sum * s * (1 - s) : 1;
      const double g = c.gate ? gate[static_cast<size_t>((first + t) * stride + channel)] : 1, grad = grad_y[at] * g * slope;
      y[at] = act * g;
      grad_gate[at] = grad_y[at] * act;
      grad_bias[static_cast<size_t>(channel)] += grad;
      for (size_t j = 0; j < static_cast<size_t>(c.taps); ++j) {
        grad_weight[static_cast<size_t>(channel * c.taps) + j] += grad * in[static_cast<size_t>(t) + j];
        grad_in[static_cast<size_t>(t) + j] += grad * w[j];
      }
    }
    for (size_t h = 0; h < static_cast<size_t>(kept); ++h) {
      final_state[state + h] = in[static_cast<size_t>(length) + h];
      if (c.state) grad_in[static_cast<size_t>(length) + h] += grad_state[state + h];
    }
    for (size_t h = 0; h < static_cast<size_t>(kept); ++h) grad_initial[state + h] = grad_in[h];
    for (int64_t t = 0; t < length; ++t)
      grad_x[static_cast<size_t>((first + t) * c.channels + channel)] = grad_in[static_cast<size_t>(kept + t)];
  }
};

// Returns the tensor without the padding of [rows, stride].
Reals columns(const Buffer& b, int64_t rows, int64_t width, int64_t stride) {
  Reals out;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i) out.push_back(b[r * stride + i]);
  return out;
}

// The buffers of a call, filled with x, gate, weight and bias.
struct Memory {
  Buffer x, gate, weight, bias, y, state;
  explicit Memory(const Problem& p)
      : x(p.c.dtype, p.x),
        gate(p.c.dtype, p.gate),
        weight(p.c.dtype, p.weight),
        bias(p.c.dtype, p.bias),
        y(p.c.dtype, p.tokens() * p.stride),
        state(DType::f32, p.initial) {}
  ShortConv parameters(const Problem& p) {
    ShortConv s;
    s.x = x.data(), s.weight = weight.data(), s.y = y.data();
    if (p.c.gate) s.gate = gate.data();
    if (p.c.bias) s.bias = bias.data();
    if (p.c.state) s.state = state.floats();
    s.row_start = p.row_start.data(), s.tokens = p.tokens(), s.rows = p.rows, s.channels = p.c.channels;
    s.x_stride = s.gate_stride = s.y_stride = p.stride;
    s.taps = p.c.taps, s.silu = p.c.silu, s.dtype = p.c.dtype;
    return s;
  }
};

void check_forward(const Problem& p) {
  Memory m(p);
  const Status status = cpu::short_conv_forward(m.parameters(p));
  ASSERT_TRUE(status.ok()) << status.what;
  expect_close(columns(m.y, p.tokens(), p.c.channels, p.stride), p.y, tolerance(p.c.dtype), "y");
  if (p.c.state) expect_close(m.state.values(), p.final_state, 0, "final state");
  EXPECT_TRUE(m.y.guards_intact() && m.state.guards_intact());
}

struct Gradients {
  Buffer x, gate, weight, bias, initial;
  Gradients(const Problem& p, Memory& m)
      : x(p.c.dtype, p.tokens() * p.stride),
        gate(p.c.dtype, p.tokens() * p.stride),
        weight(DType::f32, p.c.channels * p.c.taps),
        bias(DType::f32, p.c.channels),
        initial(DType::f32, static_cast<int64_t>(p.initial.size())) {
    ShortConvBackward b;
    Buffer grad_y(p.c.dtype, p.grad_y), initial_state(DType::f32, p.initial), grad_state(DType::f32, p.grad_state);
    b.forward = m.parameters(p);
    b.grad_y = grad_y.data(), b.grad_x = x.data(), b.grad_weight = weight.floats(), b.grad_bias = bias.floats();
    if (p.c.gate) b.grad_gate = gate.data();
    if (p.c.state) b.initial_state = initial_state.floats(), b.grad_state = grad_state.floats(), b.grad_initial_state = initial.floats();
    b.grad_x_stride = b.grad_gate_stride = p.stride;
    const Status status = cpu::short_conv_backward(b);
    EXPECT_TRUE(status.ok()) << status.what;
  }
};

void check_backward(const Problem& p) {
  Memory m(p);
  const Gradients g(p, m);
  const double sums = 4e-6;  // sums are fp32 for all types
  expect_close(columns(g.x, p.tokens(), p.c.channels, p.stride), p.grad_x, tolerance(p.c.dtype), "grad_x");
  if (p.c.gate) expect_close(columns(g.gate, p.tokens(), p.c.channels, p.stride), p.grad_gate, tolerance(p.c.dtype), "grad_gate");
  expect_close(g.weight.values(), p.grad_weight, sums, "grad_weight");
  expect_close(g.bias.values(), p.grad_bias, sums, "grad_bias");
  if (p.c.state) expect_close(g.initial.values(), p.grad_initial, sums, "grad_initial_state");
  for (const Buffer* b : {&g.x, &g.gate, &g.weight, &g.bias, &g.initial}) EXPECT_TRUE(b->guards_intact());
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c);
  const Problem p(c);
  on_every_isa([&] {
    check_forward(p);
    check_backward(p);
  });
}

TEST(ShortConv, AgreesWithDoublesForEveryNumberOfTapsAndChannels) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int32_t taps : {1, 2, 3, 4, 7, 64, 128})
      for (int64_t channels : {1, 5, 16, 17, 64, 70, 130}) check({{40, 3}, channels, taps, dtype});
}

TEST(ShortConv, AgreesWithDoublesForRowsOfEveryLength) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool state : {false, true})
      for (int32_t taps : {1, 3, 6}) check({{0, 1, 2, 0, 3, 9, 4, 5, 0}, 20, taps, dtype, true, true, true, state, 3});
  // Rows of several pieces; with 128 taps the history spans almost a whole piece.
  check({{300, 5, 129, 128, 127}, 20, 3});
  check({{130, 257}, 7, 128, DType::bf16});
  check({{}, 8});
  check({{0, 0}, 8});
  check({{3}, 0});
}

TEST(ShortConv, AgreesWithDoublesWithAndWithoutItsParts) {
  for (bool gate : {false, true})
    for (bool bias : {false, true})
      for (bool silu : {false, true})
        for (bool state : {false, true}) check({{30, 17}, 37, 4, DType::f32, gate, bias, silu, state, 5});
}

TEST(ShortConv, ThreadsChangeNoBitOfTheGradients) {
  const Problem p({{300, 200}, 100, 3});
  on_every_isa([&] {
    Memory m(p);
    const Gradients threads(p, m);
#pragma omp parallel num_threads(2)
    {
#pragma omp single
      {
        const Gradients one(p, m);
        EXPECT_TRUE(one.x.same_bits(threads.x) && one.weight.same_bits(threads.weight) && one.bias.same_bits(threads.bias));
      }
    }
  });
}

TEST(ShortConvStep, TokenByTokenIsTheRowBitForBitInAnyBatch) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int32_t taps : {1, 3, 5})
      for (int64_t channels : {7, 64, 200}) {
        const int64_t rows = 3, length = 9, slots = 5;
        const Problem p({{length, length, length}, channels, taps, dtype});
        const std::vector<int64_t> slot = {4, 0, 2};
        on_every_isa([&] {
          Memory whole(p), steps(p);
          ASSERT_TRUE(cpu::short_conv_forward(whole.parameters(p)).ok());
          // Writes the initial states to their slots. Other slots must stay unchanged.
          const int64_t state_size = channels * (taps - 1);
          Buffer state(DType::f32, slots * state_size);
          for (int64_t row = 0; row < rows; ++row)
            std::copy_n(steps.state.floats() + row * state_size, state_size, state.floats() + slot[static_cast<size_t>(row)] * state_size);
          for (int64_t t = 0; t < length; ++t)
            for (int64_t batch = t % 2 == 0 ? rows : 1, row = 0; row < rows; row += batch) {
              ShortConv s = steps.parameters(p);
              const auto at = [&](const void* base) {
                return const_cast<char*>(static_cast<const char*>(base)) + (row * length + t) * channels * dtype_size(dtype);
              };
              s.x = at(s.x), s.gate = at(s.gate), s.y = at(s.y), s.state = state.floats(), s.slot = slot.data() + row;
              s.tokens = s.rows = batch, s.x_stride = s.gate_stride = s.y_stride = length * channels;
              const Status status = cpu::short_conv_step(s);
              ASSERT_TRUE(status.ok()) << status.what;
            }
          EXPECT_TRUE(steps.y.same_bits(whole.y));
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = 0; i < state_size; ++i)
              EXPECT_EQ(state[slot[static_cast<size_t>(row)] * state_size + i], whole.state[row * state_size + i]);
          for (int64_t other : {1, 3})
            for (int64_t i = 0; i < state_size; ++i) EXPECT_TRUE(std::isnan(state[other * state_size + i]));
        });
      }
}

TEST(ShortConv, RefusesWhatItCannotCompute) {
  ShortConv p;
  p.taps = 129;
  EXPECT_STREQ(cpu::short_conv_forward(p).what, "short_conv: taps must be 1..128");
  p.taps = 3, p.rows = 2;
  EXPECT_STREQ(cpu::short_conv_forward(p).what, "short_conv: row_start must be given");
  const int64_t starts[] = {0, 4, 3};
  p.row_start = starts;
  EXPECT_STREQ(cpu::short_conv_forward(p).what, "short_conv: row_start must not decrease");
  p.tokens = 1;
  EXPECT_STREQ(cpu::short_conv_step(p).what, "short_conv_step: a step has one token a row");
  const float bias = 0;
  p.x_bias = &bias;
  EXPECT_STREQ(cpu::short_conv_forward(p).what, "short_conv: x and the gate must have their biases");
}

}  // namespace short_conv_test
}  // namespace based::kernels
