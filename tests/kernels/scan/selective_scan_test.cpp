#include "based/kernels/scan/scan.h"

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace selective_scan_test {

struct Case {
  std::vector<int64_t> lengths;
  int64_t channels = 10, state_size = 4, groups = 1;
  DType dtype = DType::f32;
  bool gate = true, skip = true, bias = true, softplus = true, state = true;
  int64_t padding = 0;  // extra elements between tokens in memory
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.channels << " channels of " << c.state_size << " in " << c.groups << " groups" << (c.dtype == DType::f32 ? " f32" : " bf16")
      << (c.gate ? " gate" : "") << (c.skip ? " skip" : "") << (c.bias ? " bias" : "") << (c.softplus ? " softplus" : "")
      << (c.state ? " state" : "") << " lengths";
  for (int64_t n : c.lengths) out << " " << n;
  return out;
}

size_t at(int64_t i) { return static_cast<size_t>(i); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Inputs, and reference outputs and gradients in double precision.
struct Problem {
  Case c;
  std::vector<int64_t> row_start{0};
  int64_t rows, stride, bc_stride;
  Reals x, dt, z, A_log, B, C, D, dt_bias, initial, grad_y, grad_state;
  Reals y, final_state, grad_x, grad_dt, grad_z, grad_A_log, grad_B, grad_C, grad_D, grad_dt_bias, grad_initial;

  explicit Problem(const Case& k)
      : c(k), rows(static_cast<int64_t>(k.lengths.size())), stride(k.channels + k.padding), bc_stride(k.groups * k.state_size + k.padding) {
    for (int64_t n : c.lengths) row_start.push_back(row_start.back() + n);
    x = random_reals(tokens() * stride, 1, c.dtype);
    dt = random_reals(tokens() * stride, 2, c.dtype);
    if (!c.softplus)
      for (double& step : dt) step = std::abs(step);
    z = random_reals(tokens() * stride, 3, c.dtype);
    A_log = random_reals(c.channels * c.state_size, 4, c.dtype);
    B = random_reals(tokens() * bc_stride, 5, c.dtype);
    C = random_reals(tokens() * bc_stride, 6, c.dtype, 1 / std::sqrt(static_cast<double>(c.state_size)));
    D = random_reals(c.channels, 7, c.dtype);
    dt_bias = random_reals(c.channels, 8, c.dtype, 0.3);
    if (!c.softplus)
      for (double& step : dt_bias) step = std::abs(step);
    initial = random_reals(rows * c.channels * c.state_size, 9, DType::f32);
    grad_y = random_reals(tokens() * c.channels, 10, c.dtype);
    grad_state = random_reals(rows * c.channels * c.state_size, 11, DType::f32);
    y = grad_x = grad_dt = grad_z = Reals(at(tokens() * c.channels));
    grad_B = grad_C = Reals(at(tokens() * c.groups * c.state_size));
    grad_A_log = Reals(A_log.size()), grad_D = grad_dt_bias = Reals(D.size());
    final_state = grad_initial = Reals(initial.size());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t channel = 0; channel < c.channels; ++channel) solve(row, channel);
  }
  int64_t tokens() const { return row_start.back(); }

 private:
  void solve(int64_t row, int64_t channel) {
    const int64_t length = c.lengths[at(row)], first = row_start[at(row)], N = c.state_size, group = channel / (c.channels / c.groups);
    const int64_t state = (row * c.channels + channel) * N;
    Reals h(at((length + 1) * N)), step(at(length)), of_y(at(length));
    const double skip = c.skip ? D[at(channel)] : 0;
    const auto raw = [&](int64_t t) { return dt[at((first + t) * stride + channel)] + (c.bias ? dt_bias[at(channel)] : 0); };
    const auto rate = [&](int64_t s) { return -std::exp(A_log[at(channel * N + s)]); };
    const auto bc = [&](int64_t t, int64_t s) { return at((first + t) * bc_stride + group * N + s); };
    for (int64_t s = 0; s < N; ++s) h[at(s)] = c.state ? initial[at(state + s)] : 0;
    for (int64_t t = 0; t < length; ++t) {
      const double in = x[at((first + t) * stride + channel)];
      step[at(t)] = c.softplus ? std::log1p(std::exp(raw(t))) : raw(t);
      double sum = skip * in;
      for (int64_t s = 0; s < N; ++s) {
        h[at((t + 1) * N + s)] = std::exp(step[at(t)] * rate(s)) * h[at(t * N + s)] + step[at(t)] * in * B[bc(t, s)];
        sum += C[bc(t, s)] * h[at((t + 1) * N + s)];
      }
      const int64_t out = (first + t) * c.channels + channel;
      const double gate = z[at((first + t) * stride + channel)], open = sigmoid(gate);
      y[at(out)] = c.gate ? sum * gate * open : sum;
      grad_z[at(out)] = grad_y[at(out)] * sum * open * (1 + gate * (1 - open));
      of_y[at(t)] = grad_y[at(out)] * (c.gate ? gate * open : 1);
    }
    Reals grad_h(at(N));
    for (int64_t s = 0; s < N; ++s) {
      final_state[at(state + s)] = h[at(length * N + s)];
      grad_h[at(s)] = c.state ? grad_state[at(state + s)] : 0;
    }
    for (int64_t t = length - 1; t >= 0; --t) {
      const double in = x[at((first + t) * stride + channel)];
      double of_in = 0, of_step = 0;
      for (int64_t s = 0; s < N; ++s) {
        double& grad = grad_h[at(s)];
        grad += C[bc(t, s)] * of_y[at(t)];
        const int64_t bc_out = ((first + t) * c.groups + group) * N + s;
        grad_C[at(bc_out)] += of_y[at(t)] * h[at((t + 1) * N + s)];
        grad_B[at(bc_out)] += grad * step[at(t)] * in;
        of_in += grad * B[bc(t, s)];
        const double decay = std::exp(step[at(t)] * rate(s)), slope = grad * decay * h[at(t * N + s)];
        of_step += slope * rate(s);
        grad_A_log[at(channel * N + s)] += slope * step[at(t)] * rate(s);
        grad *= decay;
      }
      const int64_t out = (first + t) * c.channels + channel;
      grad_x[at(out)] = of_in * step[at(t)] + skip * of_y[at(t)];
      grad_dt[at(out)] = (of_in * in + of_step) * (c.softplus ? sigmoid(raw(t)) : 1);
      grad_D[at(channel)] += of_y[at(t)] * in;
      grad_dt_bias[at(channel)] += grad_dt[at(out)];
    }
    for (int64_t s = 0; s < N; ++s) grad_initial[at(state + s)] = grad_h[at(s)];
  }
};

Reals columns(const Buffer& b, int64_t rows, int64_t width, int64_t stride) {
  Reals out;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i) out.push_back(b[r * stride + i]);
  return out;
}

// The buffers of a call.
struct Memory {
  Buffer x, dt, z, A_log, B, C, D, dt_bias, y, state, chunk_states;
  explicit Memory(const Problem& p)
      : x(p.c.dtype, p.x),
        dt(p.c.dtype, p.dt),
        z(p.c.dtype, p.z),
        A_log(p.c.dtype, p.A_log),
        B(p.c.dtype, p.B),
        C(p.c.dtype, p.C),
        D(p.c.dtype, p.D),
        dt_bias(p.c.dtype, p.dt_bias),
        y(p.c.dtype, p.tokens() * p.stride),
        state(DType::f32, p.initial),
        chunk_states(DType::f32, selective_scan_chunks(p.tokens(), p.rows) * p.c.channels * p.c.state_size) {}
  SelectiveScan parameters(const Problem& p) {
    SelectiveScan s;
    s.x = x.data(), s.dt = dt.data(), s.A_log = A_log.data(), s.B = B.data(), s.C = C.data(), s.y = y.data();
    if (p.c.gate) s.z = z.data();
    if (p.c.skip) s.D = D.data();
    if (p.c.bias) s.dt_bias = dt_bias.data();
    if (p.c.state) s.state = state.floats();
    s.chunk_states = chunk_states.floats();
    s.row_start = p.row_start.data(), s.tokens = p.tokens(), s.rows = p.rows;
    s.channels = p.c.channels, s.groups = p.c.groups, s.state_size = p.c.state_size;
    s.x_stride = s.dt_stride = s.z_stride = s.y_stride = p.stride, s.b_stride = s.c_stride = p.bc_stride;
    s.softplus = p.c.softplus, s.dtype = p.c.dtype;
    return s;
  }
};

struct Gradients {
  Buffer x, dt, z, A_log, B, C, D, dt_bias, initial;
  Gradients(const Problem& p, Memory& m)
      : x(p.c.dtype, p.tokens() * p.c.channels),
        dt(p.c.dtype, p.tokens() * p.c.channels),
        z(p.c.dtype, p.tokens() * p.c.channels),
        A_log(DType::f32, p.c.channels * p.c.state_size),
        B(p.c.dtype, p.tokens() * p.c.groups * p.c.state_size),
        C(p.c.dtype, p.tokens() * p.c.groups * p.c.state_size),
        D(DType::f32, p.c.channels),
        dt_bias(DType::f32, p.c.channels),
        initial(DType::f32, static_cast<int64_t>(p.initial.size())) {
    SelectiveScanBackward b;
    Buffer grad_y(p.c.dtype, p.grad_y), grad_state(DType::f32, p.grad_state);
    b.forward = m.parameters(p);
    b.grad_y = grad_y.data(), b.grad_x = x.data(), b.grad_dt = dt.data(), b.grad_B = B.data(), b.grad_C = C.data();
    if (p.c.gate) b.grad_z = z.data(), b.grad_z_stride = p.c.channels;
    b.grad_A_log = A_log.floats(), b.grad_D = D.floats(), b.grad_dt_bias = dt_bias.floats();
    if (p.c.state) b.grad_state = grad_state.floats(), b.grad_initial_state = initial.floats();
    Buffer scratch(DType::f32, (cpu::selective_scan_backward_scratch(b) + 3) / 4);
    const Status status = cpu::selective_scan_backward(b, scratch.data());
    EXPECT_TRUE(status.ok()) << status.what;
    EXPECT_TRUE(scratch.guards_intact());
  }
  std::vector<const Buffer*> all() const { return {&x, &dt, &z, &A_log, &B, &C, &D, &dt_bias, &initial}; }
};

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c);
  const Problem p(c);
  const double sums = 5e-6, rounded = std::max(sums, tolerance(c.dtype));
  on_every_isa([&] {
    Memory m(p);
    const Status status = cpu::selective_scan_forward(m.parameters(p));
    ASSERT_TRUE(status.ok()) << status.what;
    expect_close(columns(m.y, p.tokens(), c.channels, p.stride), p.y, rounded, "y");
    if (c.state) expect_close(m.state.values(), p.final_state, sums, "final state");
    EXPECT_TRUE(m.y.guards_intact() && m.state.guards_intact() && m.chunk_states.guards_intact());
    const Gradients g(p, m);
    expect_close(g.x.values(), p.grad_x, rounded, "grad_x");
    expect_close(g.dt.values(), p.grad_dt, rounded, "grad_dt");
    if (c.gate) expect_close(g.z.values(), p.grad_z, rounded, "grad_z");
    expect_close(g.B.values(), p.grad_B, rounded, "grad_B");
    expect_close(g.C.values(), p.grad_C, rounded, "grad_C");
    expect_close(g.A_log.values(), p.grad_A_log, sums, "grad_A_log");
    if (c.skip) expect_close(g.D.values(), p.grad_D, sums, "grad_D");
    if (c.bias) expect_close(g.dt_bias.values(), p.grad_dt_bias, sums, "grad_dt_bias");
    if (c.state) expect_close(g.initial.values(), p.grad_initial, sums, "grad_initial_state");
    for (const Buffer* b : g.all()) EXPECT_TRUE(b->guards_intact());
  });
}

TEST(SelectiveScan, AgreesWithDoublesForEverySizeOfChannelsAndState) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t state_size : {1, 3, 8, 16, 24, 33})
      for (int64_t channels : {1, 5, 16, 64, 70, 130}) check({{40, 3}, channels, state_size, 1, dtype});
  check({{5}, 3, 256});
}

TEST(SelectiveScan, AgreesWithDoublesForRowsOfEveryLength) {
  for (bool state : {false, true})
    for (DType dtype : {DType::f32, DType::bf16}) {
      check({{0, 1, 2, 0, 31, 32, 33, 64, 65, 0}, 20, 4, 1, dtype, true, true, true, true, state, 3});
      check({{100, 1, 1, 1, 200, 77, 129, 50, 60, 70, 80}, 17, 5, 1, dtype, true, true, true, true, state});  // several ranges of rows
    }
  check({{}, 8});
  check({{0, 0}, 8});
  check({{3}, 0});
}

TEST(SelectiveScan, AgreesWithDoublesWithAndWithoutItsParts) {
  for (bool gate : {false, true})
    for (bool skip : {false, true})
      for (bool bias : {false, true})
        for (bool softplus : {false, true}) check({{30, 17}, 12, 4, 1, DType::f32, gate, skip, bias, softplus, true, 5});
  for (int64_t groups : {2, 3, 12}) check({{30, 17}, 12, 5, groups});
  check({{30, 17}, 260, 16, 2});
}

TEST(SelectiveScan, ThreadsChangeNoBit) {
  const Problem p({{300, 200, 64, 64, 64, 64}, 200, 16});
  on_every_isa([&] {
    Memory m(p);
    ASSERT_TRUE(cpu::selective_scan_forward(m.parameters(p)).ok());
    const Gradients threads(p, m);
#pragma omp parallel num_threads(2)
    {
#pragma omp single
      {
        Memory alone(p);
        EXPECT_TRUE(cpu::selective_scan_forward(alone.parameters(p)).ok());
        EXPECT_TRUE(alone.y.same_bits(m.y) && alone.state.same_bits(m.state));
        const Gradients one(p, alone);
        for (size_t i = 0; i < one.all().size(); ++i) EXPECT_TRUE(one.all()[i]->same_bits(*threads.all()[i])) << i;
      }
    }
  });
}

TEST(SelectiveScanStep, TokenByTokenIsTheRowBitForBitInAnyBatch) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t channels : {7, 64, 200}) {
      const int64_t rows = 3, length = 9, slots = 5;
      const Problem p({{length, length, length}, channels, 6, 1, dtype});
      const std::vector<int64_t> slot = {4, 0, 2};
      on_every_isa([&] {
        Memory whole(p), steps(p);
        ASSERT_TRUE(cpu::selective_scan_forward(whole.parameters(p)).ok());
        // Writes the initial states to their slots. Other slots must stay unchanged.
        const int64_t state_size = channels * p.c.state_size;
        Buffer state(DType::f32, slots * state_size);
        for (int64_t row = 0; row < rows; ++row)
          std::copy_n(steps.state.floats() + row * state_size, state_size, state.floats() + slot[at(row)] * state_size);
        for (int64_t t = 0; t < length; ++t)
          for (int64_t batch = t % 2 == 0 ? rows : 1, row = 0; row < rows; row += batch) {
            SelectiveScan s = steps.parameters(p);
            const auto from = [&](const void* base, int64_t stride) {
              return const_cast<char*>(static_cast<const char*>(base)) + (row * length + t) * stride * dtype_size(dtype);
            };
            s.x = from(s.x, p.stride), s.dt = from(s.dt, p.stride), s.z = from(s.z, p.stride), s.y = from(s.y, p.stride);
            s.B = from(s.B, p.bc_stride), s.C = from(s.C, p.bc_stride);
            s.state = state.floats(), s.slot = slot.data() + row, s.chunk_states = nullptr, s.tokens = s.rows = batch;
            s.x_stride = s.dt_stride = s.z_stride = s.y_stride = length * p.stride, s.b_stride = s.c_stride = length * p.bc_stride;
            const Status status = cpu::selective_scan_step(s);
            ASSERT_TRUE(status.ok()) << status.what;
          }
        EXPECT_TRUE(steps.y.same_bits(whole.y));
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t i = 0; i < state_size; ++i)
            ASSERT_EQ(state[slot[at(row)] * state_size + i], whole.state[row * state_size + i]) << row << " " << i;
        for (int64_t other : {1, 3})
          for (int64_t i = 0; i < state_size; ++i) ASSERT_TRUE(std::isnan(state[other * state_size + i]));
      });
    }
}

// A large step forgets the state, a large negative one leaves it unchanged, and NaN affects only its own channel.
TEST(SelectiveScan, IsRightAtTheEnds) {
  Problem p({{3}, 4, 2});
  p.dt = {-90, 60, 1000, 0, -90, 60, 1000, std::nan(""), -90, 60, 1000, 0};
  on_every_isa([&] {
    Memory m(p);
    ASSERT_TRUE(cpu::selective_scan_forward(m.parameters(p)).ok());
    for (int64_t s = 0; s < 2; ++s) {
      EXPECT_FLOAT_EQ(static_cast<float>(m.state[s]), static_cast<float>(p.initial[at(s)])) << "no step";
      for (int64_t channel : {1, 2}) {
        const double in = p.dt[at(8 + channel)] + p.dt_bias[at(channel)];
        EXPECT_NEAR(m.state[channel * 2 + s] / (in * p.x[at(8 + channel)] * p.B[at(4 + s)]), 1, 1e-3) << "the last input alone";
      }
      EXPECT_TRUE(std::isnan(m.state[3 * 2 + s]));
    }
  });
}

TEST(SelectiveScan, RefusesWhatItCannotCompute) {
  SelectiveScan p;
  EXPECT_STREQ(cpu::selective_scan_forward(p).what, "selective_scan: state_size must be 1..256");
  p.state_size = 4, p.channels = 6, p.groups = 4;
  EXPECT_STREQ(cpu::selective_scan_forward(p).what, "selective_scan: channels must be a multiple of groups");
  p.channels = 0, p.rows = 2;
  EXPECT_STREQ(cpu::selective_scan_forward(p).what, "selective_scan: row_start must be given");
  const int64_t starts[] = {0, 4, 3};
  p.row_start = starts;
  EXPECT_STREQ(cpu::selective_scan_forward(p).what, "selective_scan: row_start must not decrease");
  p.tokens = 1;
  EXPECT_STREQ(cpu::selective_scan_step(p).what, "selective_scan_step: a step has one token a row");
}

}  // namespace selective_scan_test
}  // namespace based::kernels
