#include "based/kernels/scan/scan_step.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;
using Numbers = std::vector<double>;

struct Scan {
  std::vector<int64_t> starts;
  int64_t channels = 40, state_size = 16, groups = 1;
  DType dtype = DType::bf16;
  bool gate = true, skip = true, bias = true, softplus = true, state = true;
  int64_t padding = 0;  // elements between tokens
  int64_t rows() const { return static_cast<int64_t>(starts.size()) - 1; }
  int64_t tokens() const { return starts.back(); }
  int64_t stride() const { return channels + padding; }
  int64_t bc_stride() const { return groups * state_size + padding; }
  int64_t states() const { return rows() * channels * state_size; }
};

// Tensors without padding.
struct Tensors {
  Numbers x, dt, z, A_log, B, C, D, dt_bias, state;
};
struct Solution {
  Numbers y, state;
  Tensors grads;
};

// Reference for one channel of one row: the formula and its derivatives.
class Solver {
 public:
  Solver(const Scan& s, const Tensors& in, const Numbers& g, const Numbers& g_state, Solution& out)
      : s_(s), in_(in), g_(g), g_state_(g_state), out_(out) {}

  void solve(int64_t row, int64_t channel) {
    start_ = s_.starts[row], channel_ = channel, first_ = (row * s_.channels + channel) * s_.state_size;
    group_ = channel / (s_.channels / s_.groups);
    h_.assign((s_.starts[row + 1] - start_ + 1) * s_.state_size, 0);
    for (int64_t n = 0; s_.state && n < s_.state_size; ++n) h_[n] = in_.state[first_ + n];
    sum_grads_.assign(s_.starts[row + 1] - start_, 0);
    for (int64_t t = start_; t < s_.starts[row + 1]; ++t) advance(t);
    grad_.assign(s_.state_size, 0);
    for (int64_t n = 0; n < s_.state_size; ++n) {
      out_.state[first_ + n] = h_[h_.size() - s_.state_size + n];
      if (s_.state) grad_[n] = g_state_[first_ + n];
    }
    for (int64_t t = s_.starts[row + 1] - 1; t >= start_; --t) retreat(t);
    for (int64_t n = 0; n < s_.state_size; ++n) out_.grads.state[first_ + n] = grad_[n];
  }

 private:
  double raw(int64_t t) const { return in_.dt[t * s_.channels + channel_] + (s_.bias ? in_.dt_bias[channel_] : 0); }
  double step(int64_t t) const { return s_.softplus ? std::log1p(std::exp(raw(t))) : raw(t); }
  double rate(int64_t n) const { return -std::exp(in_.A_log[channel_ * s_.state_size + n]); }
  int64_t bc(int64_t t, int64_t n) const { return (t * s_.groups + group_) * s_.state_size + n; }

  void advance(int64_t t) {
    const int64_t at = t * s_.channels + channel_;
    double sum = s_.skip ? in_.D[channel_] * in_.x[at] : 0;
    for (int64_t n = 0; n < s_.state_size; ++n) {
      const double before = h_[(t - start_) * s_.state_size + n];
      double& h = h_[(t - start_ + 1) * s_.state_size + n];
      h = std::exp(step(t) * rate(n)) * before + step(t) * in_.x[at] * in_.B[bc(t, n)];
      sum += in_.C[bc(t, n)] * h;
    }
    const double z = in_.z[at], open = sigmoid(z), gate = s_.gate ? z * open : 1;
    out_.y[at] = sum * gate;
    out_.grads.z[at] = g_[at] * sum * open * (1 + z * (1 - open));
    sum_grads_[t - start_] = g_[at] * gate;
  }
  void retreat(int64_t t) {
    const int64_t at = t * s_.channels + channel_;
    const double g = sum_grads_[t - start_], x = in_.x[at];
    double input_grad = 0, step_grad = 0;
    for (int64_t n = 0; n < s_.state_size; ++n) {
      const double decay = std::exp(step(t) * rate(n)), before = h_[(t - start_) * s_.state_size + n];
      grad_[n] += in_.C[bc(t, n)] * g;
      out_.grads.C[bc(t, n)] += g * h_[(t - start_ + 1) * s_.state_size + n];
      out_.grads.B[bc(t, n)] += grad_[n] * step(t) * x;
      input_grad += grad_[n] * in_.B[bc(t, n)];
      step_grad += grad_[n] * decay * before * rate(n);
      out_.grads.A_log[channel_ * s_.state_size + n] += grad_[n] * decay * before * step(t) * rate(n);
      grad_[n] *= decay;
    }
    out_.grads.x[at] = input_grad * step(t) + (s_.skip ? in_.D[channel_] * g : 0);
    out_.grads.dt[at] = (input_grad * x + step_grad) * (s_.softplus ? sigmoid(raw(t)) : 1);
    out_.grads.D[channel_] += g * x;
    out_.grads.dt_bias[channel_] += out_.grads.dt[at];
  }

  const Scan& s_;
  const Tensors& in_;
  const Numbers &g_, &g_state_;
  Solution& out_;
  int64_t start_ = 0, channel_ = 0, first_ = 0, group_ = 0;
  Numbers h_, sum_grads_, grad_;
};

Solution solve(const Scan& s, const Tensors& in, const Numbers& g, const Numbers& g_state) {
  Solution out;
  out.y = out.grads.x = out.grads.dt = out.grads.z = Numbers(s.tokens() * s.channels);
  out.grads.B = out.grads.C = Numbers(s.tokens() * s.groups * s.state_size);
  out.grads.A_log = Numbers(s.channels * s.state_size), out.grads.D = out.grads.dt_bias = Numbers(s.channels);
  out.state = out.grads.state = Numbers(s.states());
  Solver solver(s, in, g, g_state, out);
  for (int64_t row = 0; row < s.rows(); ++row)
    for (int64_t channel = 0; channel < s.channels; ++channel) solver.solve(row, channel);
  return out;
}

Numbers columns_of(const void* from, DType dtype, int64_t rows, int64_t columns, int64_t stride) {
  const Numbers all = download(from, dtype, rows * stride);
  Numbers out;
  for (int64_t r = 0; r < rows; ++r) out.insert(out.end(), all.begin() + r * stride, all.begin() + r * stride + columns);
  return out;
}

// The buffers of a call.
struct Memory {
  Buffer x, dt, z, A_log, B, C, D, dt_bias, initial, g, g_state, starts, y, state, chunks;
  explicit Memory(const Scan& s)
      : x(random_buffer(s.tokens() * s.stride(), s.dtype, 1, 1)),
        dt(random_buffer(s.tokens() * s.stride(), s.dtype, s.softplus ? 1 : 0.003, 2)),
        z(random_buffer(s.tokens() * s.stride(), s.dtype, 1, 3)),
        A_log(random_buffer(s.channels * s.state_size, s.dtype, 1, 4)),
        B(random_buffer(s.tokens() * s.bc_stride(), s.dtype, 1, 5)),
        C(random_buffer(s.tokens() * s.bc_stride(), s.dtype, 1, 6)),
        D(random_buffer(s.channels, s.dtype, 1, 7)),
        dt_bias(random_buffer(s.channels, s.dtype, s.softplus ? 1 : 0.003, 8)),
        initial(random_buffer(s.states(), DType::f32, 1, 9)),
        g(random_buffer(s.tokens() * s.channels, s.dtype, 1, 10)),
        g_state(random_buffer(s.states(), DType::f32, 1, 11)),
        starts(upload(s.starts)),
        y(s.tokens() * s.stride() * 4),
        state(copy_of(initial)),
        chunks(kernels::selective_scan_chunks(s.tokens(), s.rows(), kernels::kSelectiveScanCudaChunk) * s.channels * s.state_size * 4) {}

  kernels::SelectiveScan arguments(const Scan& s) const {
    kernels::SelectiveScan p;
    p.x = x.as(), p.dt = dt.as(), p.A_log = A_log.as(), p.B = B.as(), p.C = C.as(), p.y = y.as();
    if (s.gate) p.z = z.as();
    if (s.skip) p.D = D.as();
    if (s.bias) p.dt_bias = dt_bias.as();
    if (s.state) p.state = state.as<float>();
    p.row_start = starts.as<int64_t>(), p.tokens = s.tokens(), p.rows = s.rows(), p.channels = s.channels, p.groups = s.groups;
    p.state_size = s.state_size, p.x_stride = p.dt_stride = p.z_stride = p.y_stride = s.stride();
    p.b_stride = p.c_stride = s.bc_stride(), p.softplus = s.softplus, p.dtype = s.dtype;
    return p;
  }
  Tensors inputs(const Scan& s) const {
    const auto tokens = [&](const Buffer& b) { return columns_of(b.as(), s.dtype, s.tokens(), s.channels, s.stride()); };
    const auto of_states = [&](const Buffer& b) { return columns_of(b.as(), s.dtype, s.tokens(), s.groups * s.state_size, s.bc_stride()); };
    return {tokens(x),
            tokens(dt),
            tokens(z),
            download(A_log.as(), s.dtype, s.channels * s.state_size),
            of_states(B),
            of_states(C),
            download(D.as(), s.dtype, s.channels),
            download(dt_bias.as(), s.dtype, s.channels),
            download(initial.as(), DType::f32, s.states())};
  }
};

std::string name_of(const Scan& s) {
  return "selective_scan channels " + std::to_string(s.channels) + " state " + std::to_string(s.state_size) + " groups " +
         std::to_string(s.groups) + " rows " + std::to_string(s.rows()) + (s.gate ? "" : " ungated") + (s.state ? "" : " stateless") +
         (s.padding > 0 ? " padded" : "") + type_name(s.dtype);
}

void run_forward(const kernels::SelectiveScan& p) {
  const Buffer scratch(gpu::selective_scan_forward_scratch(p));
  check(gpu::selective_scan_forward(p, scratch.as(), {}));
}

// tolerance of sums of many terms that cancel
constexpr double kSums = 1e-5;
// factor for sums whose terms are rounded too
constexpr double kTwice = 1.5;

void verify(Report& report, const Scan& s) {
  const Memory m(s);
  const kernels::SelectiveScan p = m.arguments(s);
  if (!gpu::selective_scan_backward_takes(p)) return report.no_kernel(name_of(s));
  kernels::SelectiveScan kept = p;
  kept.chunk_states = m.chunks.as<float>();
  run_forward(kept);
  const Buffer grad_x(s.tokens() * s.channels * 4), grad_dt(s.tokens() * s.channels * 4), grad_z(s.tokens() * s.channels * 4),
      grad_B(s.tokens() * s.groups * s.state_size * 4), grad_C(s.tokens() * s.groups * s.state_size * 4),
      grad_A_log(s.channels * s.state_size * 4), grad_D(s.channels * 4), grad_dt_bias(s.channels * 4), grad_state(s.states() * 4);
  kernels::SelectiveScanBackward b;
  b.forward = kept;
  b.grad_y = m.g.as(), b.grad_x = grad_x.as(), b.grad_dt = grad_dt.as(), b.grad_B = grad_B.as(), b.grad_C = grad_C.as();
  if (s.gate) b.grad_z = grad_z.as(), b.grad_z_stride = s.channels;
  b.grad_A_log = grad_A_log.as<float>(), b.grad_D = grad_D.as<float>(), b.grad_dt_bias = grad_dt_bias.as<float>();
  if (s.state) b.grad_state = m.g_state.as<float>(), b.grad_initial_state = grad_state.as<float>();
  const Buffer scratch(gpu::selective_scan_backward_scratch(b));
  check(gpu::selective_scan_backward(b, scratch.as(), {}));
  const Solution right =
      solve(s, m.inputs(s), download(m.g.as(), s.dtype, s.tokens() * s.channels), download(m.g_state.as(), DType::f32, s.states()));
  const std::string name = name_of(s);
  const double rounded = std::max(kSums, allowed(s.dtype));
  const auto expect = [&](const char* what, const Buffer& a, DType dtype, const Numbers& ref, double limit) {
    Numbers found = download(a.as(), dtype, static_cast<int64_t>(ref.size())), wanted = ref;
    if (s.tokens() == 0) found.push_back(1), wanted.push_back(1);  // an empty tensor has no relative error
    report.expect(name + ": " + what, relative_error(found, wanted), limit);
  };
  if (s.tokens() > 0) {
    report.expect(name + ": y", relative_error(columns_of(m.y.as(), s.dtype, s.tokens(), s.channels, s.stride()), right.y), rounded);
  }
  if (s.state) expect("state", m.state, DType::f32, right.state, kSums);
  expect("grad x", grad_x, s.dtype, right.grads.x, rounded);
  expect("grad dt", grad_dt, s.dtype, right.grads.dt, rounded);
  if (s.gate) expect("grad z", grad_z, s.dtype, right.grads.z, rounded);
  expect("grad B", grad_B, s.dtype, right.grads.B, kTwice * rounded);
  expect("grad C", grad_C, s.dtype, right.grads.C, kTwice * rounded);
  expect("grad A_log", grad_A_log, DType::f32, right.grads.A_log, kSums);
  expect("grad D", grad_D, DType::f32, right.grads.D, kSums);
  expect("grad dt_bias", grad_dt_bias, DType::f32, right.grads.dt_bias, kSums);
  if (s.state) expect("grad initial state", grad_state, DType::f32, right.grads.state, kSums);
}

// Compares each row alone, from its slot of a state, with all rows together and states kept for the backward. The bits must be equal.
void verify_rows_alone(Report& report, const Scan& s) {
  const DType dtype = s.dtype;
  const Memory m(s);
  kernels::SelectiveScan kept = m.arguments(s);
  kept.chunk_states = m.chunks.as<float>();
  run_forward(kept);
  const Numbers y = download(m.y.as(), dtype, s.tokens() * s.channels), state = download(m.state.as(), DType::f32, s.states());
  check(cudaMemcpy(m.state.as(), m.initial.as(), s.states() * 4, cudaMemcpyDeviceToDevice), "copy");
  for (int64_t row = 0; row < s.rows(); ++row) {
    const Buffer starts = upload({0, s.starts[row + 1] - s.starts[row]}), slot = upload({row});
    const auto from = [&](const void* base, int64_t stride) {
      return static_cast<const char*>(base) + s.starts[row] * stride * kernels::dtype_size(dtype);
    };
    kernels::SelectiveScan p = m.arguments(s);
    p.x = from(p.x, p.x_stride), p.dt = from(p.dt, p.dt_stride), p.z = from(p.z, p.z_stride);
    p.B = from(p.B, p.b_stride), p.C = from(p.C, p.c_stride), p.y = const_cast<char*>(from(p.y, p.y_stride));
    p.row_start = starts.as<int64_t>(), p.slot = slot.as<int64_t>(), p.rows = 1, p.tokens = s.starts[row + 1] - s.starts[row];
    run_forward(p);
  }
  const std::string name = "rows alone: " + name_of(s);
  report.expect(name + ": y", relative_error(download(m.y.as(), dtype, s.tokens() * s.channels), y), 0);
  report.expect(name + ": state", relative_error(download(m.state.as(), DType::f32, s.states()), state), 0);
}

std::vector<int64_t> equal_rows(int64_t rows, int64_t length) {
  std::vector<int64_t> starts;
  for (int64_t r = 0; r <= rows; ++r) starts.push_back(r * length);
  return starts;
}

// Compares steps, token by token from slots in reverse order, with the scan of whole rows.
void verify_step(Report& report, int64_t channels, int64_t state_size, int64_t groups, DType dtype, bool settled, int64_t rows = 3) {
  const int64_t length = 9;
  std::vector<int64_t> backwards;
  for (int64_t r = rows - 1; r >= 0; --r) backwards.push_back(r);
  const Scan s{equal_rows(rows, length), channels, state_size, groups, dtype};
  const Memory m(s);
  run_forward(m.arguments(s));
  const Buffer stepped(s.tokens() * channels * 4), by_slot = copy_of(m.initial), slots = upload(backwards);
  const int64_t of_row = channels * state_size;
  for (int64_t r = 0; r < rows; ++r) {
    check(
        cudaMemcpy(by_slot.as<float>() + (rows - 1 - r) * of_row, m.initial.as<float>() + r * of_row, of_row * 4, cudaMemcpyDeviceToDevice),
        "copy");
  }
  for (int64_t t = 0; t < length; ++t) {
    kernels::SelectiveScan p = m.arguments(s);
    const auto from = [&](const void* base, int64_t stride) {
      return static_cast<const char*>(base) + t * stride * kernels::dtype_size(dtype);
    };
    p.x = from(p.x, p.x_stride), p.dt = from(p.dt, p.dt_stride), p.z = from(p.z, p.z_stride);
    p.B = from(p.B, p.b_stride), p.C = from(p.C, p.c_stride), p.y = const_cast<char*>(from(stepped.as(), p.y_stride));
    p.x_stride = p.dt_stride = p.z_stride = p.y_stride = length * channels, p.b_stride = p.c_stride = length * groups * state_size;
    p.tokens = p.rows = rows, p.state = by_slot.as<float>(), p.slot = slots.as<int64_t>(), p.state_is_private = settled;
    if (settled) check(cudaDeviceSynchronize(), "step");
    check(gpu::selective_scan_step(p, {}));
  }
  Numbers state;
  for (int64_t r = rows - 1; r >= 0; --r) {
    for (const double v : download(by_slot.as<float>() + r * of_row, DType::f32, of_row)) state.push_back(v);
  }
  const std::string name = "selective_scan_step channels " + std::to_string(channels) + " state " + std::to_string(state_size) + " rows " +
                           std::to_string(rows) + (settled ? " settled" : "") + type_name(dtype);
  report.expect(name + ": y",
                relative_error(download(stepped.as(), dtype, s.tokens() * channels), download(m.y.as(), dtype, s.tokens() * channels)),
                dtype != DType::bf16 ? 2e-6
                : state_size == 16   ? 1.2e-3
                                     : 5e-4);  // with 16 state elements, the scan of rows reads its states in TF32
  report.expect(name + ": state", relative_error(state, download(m.state.as(), DType::f32, rows * of_row)), 2e-6);
}

// Compares the step fused with its layer with the layer followed by the step. A sum in another order may round to another bf16.
void verify_step_of_layer(Report& report, int64_t rows, int64_t channels, int64_t rank, bool settled) {
  std::vector<int64_t> starts, backwards;
  for (int64_t r = 0; r <= rows; ++r) starts.push_back(r), backwards.push_back(rows - r);
  const Scan s{starts, channels};
  const Memory m(s);
  const Buffer low = random_buffer(rows * (rank + 8), s.dtype, 1, 20), slots = upload({backwards.begin() + 1, backwards.end()}),
               weight = random_buffer(channels * rank, s.dtype, 1 / std::sqrt(static_cast<double>(rank)), 21);
  kernels::SelectiveScan p = m.arguments(s);
  p.slot = slots.as<int64_t>(), p.state_is_private = settled;
  const kernels::Linear layer{low.as(), weight.as(), nullptr,  m.dt.as(), rows,    rank,  channels,
                              rank + 8, rank,        channels, s.dtype,   s.dtype, false, settled};
  const std::string name = "selective_scan_step of a layer, rows " + std::to_string(rows) + " channels " + std::to_string(channels) +
                           " rank " + std::to_string(rank) + (settled ? " settled" : "");
  if (!kernels::scan_step_makes_dt({p, layer}, gpu::this_gpu())) return report.no_kernel(name);
  check(gpu::linear(layer, {})), check(cudaDeviceSynchronize(), "layer"), check(gpu::selective_scan_step(p, {}));
  const Numbers y = download(m.y.as(), s.dtype, rows * channels), state = download(m.state.as(), DType::f32, s.states());
  check(cudaMemcpy(m.state.as(), m.initial.as(), s.states() * 4, cudaMemcpyDeviceToDevice), "copy");
  check(cudaMemset(m.dt.as(), 0xFF, rows * channels * 2), "dt"), check(cudaMemset(m.y.as(), 0xFF, rows * channels * 2), "y");
  check(gpu::selective_scan_step_of_layer({p, layer}, {}));
  report.expect(name + ": y", relative_error(download(m.y.as(), s.dtype, rows * channels), y), 1e-3);
  report.expect(name + ": state", relative_error(download(m.state.as(), DType::f32, s.states()), state), 1e-3);
}

void verify_selective_scan(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  // Empty rows, and rows that end at, before and after multiples of 16, 32 and 64 tokens.
  const std::vector<int64_t> starts{0, 0, 1, 4, 67, 131, 196, 196, 323, 451, 580, 835, 1091, 1348, 1989, 1989};
  for (const DType dtype : {bf, fp}) {
    verify(report, {starts, 40, 16, 1, dtype});
    verify(report, {starts, 37, 5, 1, dtype, true, true, true, true, true, 3});
    verify(report, {{0, 300}, 96, 16, 2, dtype, true, true, true, true, false});
    verify(report, {{0, 0, 35, 300, 316}, 72, 16, 1, dtype, false, false, false, true, true, 8});
    verify(report, {{0, 33, 97}, 208, 16, 2, dtype, true, true, false, false, true, 24});
    verify(report, {{0, 300}, 136, 24, 1, dtype, false, true, false, true, true});
    verify(report, {{0, 200, 260}, 24, 33, 3, dtype, true, false, true, false, true, 8});
    verify(report, {{0, 140}, 6, 1, 6, dtype, false, false, false, true, true});
    for (const int64_t state_size : {8, 32, 48, 64, 100, 256}) verify(report, {{0, 150, 290}, 20, state_size, 1, dtype});
    // Several blocks per row, the last with few channels; more rows than multiprocessors.
    verify(report, {{0, 49, 49, 116}, 300, 16, 1, dtype});
    verify(report, {{0, 33, 80}, 520, 12, 2, dtype, true, true, true, true, true, 1});
    verify(report, {equal_rows(200, 17), 24, 16, 1, dtype});
    verify(report, {{0, 0}, 20, 8, 1, dtype});
    // Rows of several segments, and empty rows.
    verify(report, {{0, 0, 2049, 2052, 2052, 6200, 8248}, 24, 16, 1, dtype});
    verify(report, {{0, 4100}, 20, 24, 1, dtype, true, true, true, true, false});
    verify(report, {{0, 0, 2049, 2052, 2052, 6200}, 24, 12, 1, dtype});
    for (const int64_t channels : {36, 40}) verify_rows_alone(report, {{0, 5000, 5001, 5001, 9200, 9300}, channels, 16, 1, dtype});
    // A single row is too small to fill the device; all rows together fill it.
    std::vector<int64_t> many = equal_rows(60, 20);
    for (const int64_t length : {1, 0, 700, 3}) many.push_back(many.back() + length);
    verify_rows_alone(report, {many, 1032, 16, 1, dtype});
    verify_rows_alone(report, {{0, 70, 71, 71, 700}, 36, 24, 1, dtype});
  }
}

void verify_selective_scan_step(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  for (const bool settled : {false, true}) verify_step(report, 40, 16, 1, bf, settled), verify_step(report, 96, 24, 2, fp, settled);
  for (const int64_t rows : {64, 77}) verify_step(report, 96, 16, 2, bf, rows > 64, rows), verify_step(report, 208, 16, 1, bf, true, rows);
  verify_step_of_layer(report, 128, 64, 64, true), verify_step_of_layer(report, 67, 32, 8, false);
  verify_step_of_layer(report, 77, 48, 104, true);
  for (const int64_t rows : {9, 16}) verify_step(report, 40, 16, 1, bf, true, rows), verify_step(report, 7, 3, 1, fp, false, rows);
  verify_step(report, 7, 5, 1, bf, false), verify_step(report, 12, 128, 3, fp, false), verify_step(report, 10, 255, 1, fp, false);
}

const DefineFamily<Report> kSelectiveScan("selective_scan", verify_selective_scan);
const DefineFamily<Report> kSelectiveScanStep("selective_scan_step", verify_selective_scan_step);

}  // namespace
}  // namespace based::tests
