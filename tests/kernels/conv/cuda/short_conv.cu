#include "based/kernels/conv/short_conv.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

struct Convolution {
  std::vector<int64_t> starts;
  int64_t channels;
  int32_t taps;
  bool silu;
  DType dtype;
  bool halves = false;   // x and gate are the halves of one tensor, and so are their gradients
  bool plain = false;    // no gate, no biases, no states
  bool in_bias = false;  // with x_bias and gate_bias
  bool adds_input = false;
};

// Inputs of row r and channel c, starting taps − 1 before the row.
std::vector<double> row_inputs(const Convolution& s, const std::vector<double>& x, const std::vector<double>& state, int64_t r, int64_t c) {
  std::vector<double> in;
  for (int64_t j = 0; j + 1 < s.taps; ++j) in.push_back(state[(r * s.channels + c) * (s.taps - 1) + j]);
  for (int64_t t = s.starts[r]; t < s.starts[r + 1]; ++t) in.push_back(x[t * s.channels + c]);
  return in;
}

struct ConvolutionGradients {
  std::vector<double> y, state, x, gate, weight, bias, initial;
};

// Adds a bias to each channel of all tokens.
std::vector<double> with_bias(std::vector<double> tokens, const std::vector<double>& bias) {
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] += bias[i % bias.size()];
  return tokens;
}

ConvolutionGradients convolve(const Convolution& s, const ConvolutionGradients& in, const std::vector<double>& g,
                              const std::vector<double>& g_state) {
  const int64_t rows = static_cast<int64_t>(s.starts.size()) - 1, kept = s.taps - 1;
  ConvolutionGradients out;
  out.y.resize(g.size()), out.x.resize(g.size()), out.gate.resize(g.size());
  out.weight.resize(in.weight.size()), out.bias.resize(in.bias.size());
  out.state.resize(g_state.size()), out.initial.resize(g_state.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < s.channels; ++c) {
      const std::vector<double> x = row_inputs(s, in.x, in.initial, r, c);
      const int64_t length = s.starts[r + 1] - s.starts[r], at = (r * s.channels + c) * kept;
      std::vector<double> dx(x.size());
      for (int64_t t = 0; t < length; ++t) {
        double z = in.bias[c];
        for (int j = 0; j < s.taps; ++j) z += in.weight[c * s.taps + j] * x[t + j];
        const int64_t i = (s.starts[r] + t) * s.channels + c;
        const double act = s.silu ? z * sigmoid(z) : z, slope = s.silu ? sigmoid(z) * (1 + z * (1 - sigmoid(z))) : 1;
        out.y[i] = act * in.gate[i], out.gate[i] = g[i] * act;
        if (s.adds_input) out.y[i] += x[kept + t], dx[kept + t] += g[i];
        const double dz = g[i] * in.gate[i] * slope;
        out.bias[c] += dz;
        for (int j = 0; j < s.taps; ++j) out.weight[c * s.taps + j] += dz * x[t + j], dx[t + j] += dz * in.weight[c * s.taps + j];
      }
      for (int64_t j = 0; j < kept; ++j) out.state[at + j] = x[length + j], dx[length + j] += g_state[at + j];
      for (int64_t j = 0; j < kept; ++j) out.initial[at + j] = dx[j];
      for (int64_t t = 0; t < length; ++t) out.x[(s.starts[r] + t) * s.channels + c] = dx[kept + t];
    }
  }
  return out;
}

// Sums of the gradients of x, then of the gate.
std::vector<double> column_sums_of(const ConvolutionGradients& of, int64_t channels) {
  std::vector<double> sums(2 * channels);
  for (size_t i = 0; i < of.x.size(); ++i) sums[i % channels] += of.x[i], sums[channels + i % channels] += of.gate[i];
  return sums;
}

// Returns the channels of a tensor whose tokens are `stride` elements apart.
std::vector<double> download_tokens(const void* from, DType dtype, int64_t tokens, int64_t channels, int64_t stride) {
  const std::vector<double> all = download(from, dtype, (tokens - 1) * stride + channels);
  std::vector<double> to;
  for (int64_t t = 0; t < tokens; ++t) to.insert(to.end(), all.begin() + t * stride, all.begin() + t * stride + channels);
  return to;
}

void verify_short_conv(Report& report, const Convolution& s) {
  const int64_t rows = static_cast<int64_t>(s.starts.size()) - 1, tokens = s.starts.back(), count = tokens * s.channels;
  const int64_t kept = s.taps - 1, states = rows * s.channels * kept;
  const int64_t stride = (s.halves ? 2 : 1) * s.channels, second = s.halves ? s.channels : count, size = kernels::dtype_size(s.dtype);
  const Buffer inputs = random_buffer(2 * count, s.dtype, 1, 1), weight = random_buffer(s.channels * s.taps, s.dtype, 0.5, 3),
               bias = random_buffer(s.channels, s.dtype, 0.5, 4), initial = random_buffer(states, DType::f32, 1, 5),
               g = random_buffer(count, s.dtype, 1, 6), g_state = random_buffer(states, DType::f32, 1, 7), starts = upload(s.starts),
               in_bias = random_buffer(2 * s.channels, s.dtype, 0.5, 8);
  Buffer y(count * 4), state = copy_of(initial), grads(2 * count * 4), gw(s.channels * s.taps * 4), gb(s.channels * 4), gi(states * 4);
  const char* gate = inputs.as<char>() + second * size;
  char* grad_gate = grads.as<char>() + second * size;
  kernels::ShortConv p{inputs.as(),
                       gate,
                       weight.as(),
                       bias.as(),
                       y.as(),
                       state.as<float>(),
                       starts.as<int64_t>(),
                       nullptr,
                       tokens,
                       rows,
                       s.channels,
                       stride,
                       stride,
                       s.channels,
                       s.taps,
                       s.silu,
                       s.dtype};
  if (s.plain) p.gate = nullptr, p.bias = nullptr, p.state = nullptr;
  p.adds_input = s.adds_input;
  if (s.in_bias) p.x_bias = in_bias.as(), p.gate_bias = in_bias.as<char>() + s.channels * size;
  check(gpu::short_conv_forward(p, {}));
  kernels::ShortConvBackward b{p,         initial.as<float>(), g.as(),         g_state.as<float>(), grads.as(),
                               grad_gate, gw.as<float>(),      gb.as<float>(), gi.as<float>(),      stride,
                               stride};
  if (s.plain) b.initial_state = b.grad_state = nullptr, b.grad_gate = nullptr, b.grad_bias = b.grad_initial_state = nullptr;
  const Buffer sums(2 * s.channels * 4);
  const bool has_sums = gpu::short_conv_backward_sums(b);
  if (has_sums) b.grad_sums = sums.as<float>();
  Buffer scratch(gpu::short_conv_backward_scratch(b));
  check(gpu::short_conv_backward(b, scratch.as(), {}));
  ConvolutionGradients in;
  in.x = download_tokens(inputs.as(), s.dtype, tokens, s.channels, stride);
  in.gate = s.plain ? std::vector<double>(count, 1.0) : download_tokens(gate, s.dtype, tokens, s.channels, stride);
  if (s.in_bias) {
    in.x = with_bias(in.x, download(p.x_bias, s.dtype, s.channels)),
    in.gate = with_bias(in.gate, download(p.gate_bias, s.dtype, s.channels));
  }
  in.weight = download(weight.as(), s.dtype, s.channels * s.taps);
  in.bias = s.plain ? std::vector<double>(s.channels) : download(bias.as(), s.dtype, s.channels);
  in.initial = s.plain ? std::vector<double>(states) : download(initial.as(), DType::f32, states);
  const ConvolutionGradients out =
      convolve(s, in, download(g.as(), s.dtype, count), s.plain ? std::vector<double>(states) : download(g_state.as(), DType::f32, states));
  const std::string name = "short_conv taps " + std::to_string(s.taps) + " channels " + std::to_string(s.channels) + " rows " +
                           std::to_string(rows) + (s.halves ? " halves" : "") + (s.plain ? " plain" : "") + (s.in_bias ? " biased" : "") +
                           (s.adds_input ? " added" : "") + type_name(s.dtype);
  const auto error = [](const Buffer& a, DType dtype, const std::vector<double>& ref) {
    return relative_error(download(a.as(), dtype, static_cast<int64_t>(ref.size())), ref);
  };
  const auto strided_error = [&](const void* a, const std::vector<double>& ref) {
    return relative_error(download_tokens(a, s.dtype, tokens, s.channels, stride), ref);
  };
  report.expect(name + ": y", error(y, s.dtype, out.y), allowed(s.dtype));
  report.expect(name + ": grad x", strided_error(grads.as(), out.x), allowed(s.dtype));
  report.expect(name + ": grad weight", error(gw, DType::f32, out.weight), 2e-6);
  if (s.plain) return;
  report.expect(name + ": grad gate", strided_error(grad_gate, out.gate), allowed(s.dtype));
  report.expect(name + ": grad bias", error(gb, DType::f32, out.bias), 2e-6);
  if (has_sums) report.expect(name + ": sums of gradients", error(sums, DType::f32, column_sums_of(out, s.channels)), 2e-6);
  if (kept > 0) report.expect(name + ": state", error(state, DType::f32, out.state), 1e-7);
  if (kept > 0) report.expect(name + ": grad state", error(gi, DType::f32, out.initial), 2e-6);
}

// Compares rows that start from states in reversed slots with rows in order.
void verify_short_conv_slots(Report& report, int32_t taps, DType dtype) {
  const std::vector<int64_t> row_starts{0, 70, 71, 71, 203};
  const int64_t rows = 4, tokens = row_starts.back(), channels = 36, of_row = channels * (taps - 1);
  const Buffer x = random_buffer(tokens * channels, dtype, 1, 1), weight = random_buffer(channels * taps, dtype, 0.5, 3),
               initial = random_buffer(rows * of_row, DType::f32, 1, 5), starts = upload(row_starts), slots = upload({3, 2, 1, 0});
  const Buffer y(tokens * channels * 4), y_by_slot(tokens * channels * 4), state = copy_of(initial), by_slot = copy_of(initial);
  for (int64_t r = 0; r < rows; ++r) {
    check(cudaMemcpy(by_slot.as<float>() + (rows - 1 - r) * of_row, initial.as<float>() + r * of_row, of_row * 4, cudaMemcpyDeviceToDevice),
          "copy");
  }
  kernels::ShortConv p;
  p.x = x.as(), p.weight = weight.as(), p.y = y.as(), p.state = state.as<float>(), p.row_start = starts.as<int64_t>();
  p.tokens = tokens, p.rows = rows, p.channels = p.x_stride = p.y_stride = channels, p.taps = taps, p.dtype = dtype;
  check(gpu::short_conv_forward(p, {}));
  p.y = y_by_slot.as(), p.state = by_slot.as<float>(), p.slot = slots.as<int64_t>();
  check(gpu::short_conv_forward(p, {}));
  std::vector<double> reversed;
  for (int64_t r = rows - 1; r >= 0; --r) {
    for (const double v : download(by_slot.as<float>() + r * of_row, DType::f32, of_row)) reversed.push_back(v);
  }
  const std::string name = "short_conv by slot taps " + std::to_string(taps) + type_name(dtype);
  report.expect(name + ": y",
                relative_error(download(y_by_slot.as(), dtype, tokens * channels), download(y.as(), dtype, tokens * channels)), 0);
  report.expect(name + ": state", relative_error(reversed, download(state.as(), DType::f32, rows * of_row)), 0);
}

// A step must continue the forward: compares the outputs of each row's last token computed both ways.
void verify_short_conv_step(Report& report, int64_t channels, int32_t taps, DType dtype, bool settled = false) {
  const int64_t rows = 3, length = 9;
  const Buffer x = random_buffer(rows * length * channels, dtype, 1, 1), weight = random_buffer(channels * taps, dtype, 0.5, 3);
  std::vector<int64_t> all, first;
  for (int64_t r = 0; r <= rows; ++r) all.push_back(r * length), first.push_back(r);
  const Buffer all_starts = upload(all);
  const Buffer y(rows * length * channels * 4), stepped(rows * channels * 4), state = zeros(rows * channels * taps * 4);
  kernels::ShortConv p{x.as(),  nullptr,       weight.as(), nullptr,  y.as(),   nullptr,  all_starts.as<int64_t>(),
                       nullptr, rows * length, rows,        channels, channels, channels, channels,
                       taps,    true,          dtype};
  check(gpu::short_conv_forward(p, {}));
  const int64_t size = kernels::dtype_size(dtype);
  p.state = state.as<float>(), p.y = stepped.as(), p.x_stride = length * channels, p.tokens = rows, p.state_is_private = settled;
  for (int64_t t = 0; t < length; ++t) {
    p.x = x.as<char>() + t * channels * size;
    if (settled) check(cudaDeviceSynchronize(), "step");
    check(gpu::short_conv_step(p, {}));
  }
  const auto forward = download(y.as(), dtype, rows * length * channels), step = download(stepped.as(), dtype, rows * channels);
  std::vector<double> last;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < channels; ++c) last.push_back(forward[((r + 1) * length - 1) * channels + c]);
  }
  report.expect("short_conv_step taps " + std::to_string(taps) + type_name(dtype) + (settled ? " settled" : ""), relative_error(step, last),
                1e-6);
}

// A step of several tokens of one sequence against steps of one token: y, padding, and the states after each token, bit for bit. x and the
// gate are halves of wider rows.
void verify_short_conv_tokens(Report& report, int64_t channels, int32_t taps, DType dtype, int64_t tokens) {
  constexpr int64_t padding = 3;
  const int64_t size = kernels::dtype_size(dtype), kept = channels * (taps - 1);
  const Buffer x = random_buffer(tokens * 2 * channels, dtype, 1, 1), weight = random_buffer(channels * taps, dtype, 0.5, 3);
  const Buffer bias = random_buffer(channels, dtype, 0.5, 4), start = random_buffer(std::max<int64_t>(kept, 1), DType::f32, 1, 5);
  const Buffer state = copy_of(start), y(channels * size), all_y((tokens + padding) * channels * size), states(tokens * kept * 4 + 4);
  kernels::ShortConv one;
  one.weight = weight.as(), one.bias = bias.as(), one.y = y.as(), one.state = state.as<float>(), one.tokens = one.rows = 1;
  one.channels = channels, one.x_stride = one.gate_stride = 2 * channels, one.y_stride = channels, one.taps = taps, one.dtype = dtype;
  const auto at = [&](int64_t t) {
    one.x = x.as<char>() + t * 2 * channels * size, one.gate = x.as<char>() + (2 * t + 1) * channels * size;
  };
  at(0);
  kernels::ShortConvTokens all{one, padding, states.as<float>()};
  all.step.state = start.as<float>(), all.step.y = all_y.as(), all.step.tokens = tokens;
  all.step.state_is_private = tokens % 2 == 0;
  check(gpu::short_conv_tokens(all, {}));
  const std::vector<double> given = download(all_y.as(), dtype, (tokens + padding) * channels);
  bool same_y = true, same_states = true;
  for (int64_t t = 0; t < tokens; ++t) {
    at(t);
    check(gpu::short_conv_step(one, {}));
    check(cudaDeviceSynchronize(), "step");
    const bool is_last = t + 1 == tokens;
    const std::vector<double> wanted = download(y.as(), dtype, channels);
    for (int64_t to = t; to < (is_last ? tokens + padding : t + 1); ++to)
      same_y = same_y && std::equal(wanted.begin(), wanted.end(), given.begin() + to * channels);
    const float* after = is_last ? start.as<float>() : states.as<float>() + t * kept;
    same_states = same_states && download(state.as(), DType::f32, kept) == download(after, DType::f32, kept);
  }
  const std::string name = "short_conv " + std::to_string(tokens) + " tokens, taps " + std::to_string(taps) + type_name(dtype);
  report.expect(name + ": y", same_y ? 0 : 1, 0);
  report.expect(name + ": states", same_states ? 0 : 1, 0);
}

void verify_short_conv(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  for (const Convolution& s : std::vector<Convolution>{{{0, 100, 100, 101, 150}, 64, 3, true, bf},
                                                       {{0, 2, 40}, 37, 4, false, fp},
                                                       {{0, 30, 33}, 24, 9, true, fp},
                                                       {{0, 50}, 256, 4, true, bf},
                                                       {{0, 20}, 5, 1, true, fp},
                                                       {{0, 100, 103, 103, 300}, 70, 16, true, bf},
                                                       {{0, 100, 103, 103, 300}, 65, 64, false, fp, false, true},
                                                       {{0, 7, 290}, 130, 128, true, fp, true}}) {
    verify_short_conv(report, s);
  }
  // Rows that are empty or shorter than the taps; rows that end at, before and after multiples of 32, the backward's run length.
  const std::vector<int64_t> starts{0, 0, 1, 3, 31, 32, 32, 33, 62, 64, 65, 65, 95, 98, 127, 129, 190, 193, 193, 193, 320, 321, 323, 323};
  for (const int32_t taps : {3, 4}) {
    verify_short_conv(report, {starts, 40, taps, true, bf, true});
    verify_short_conv(report, {starts, 516, taps, true, bf});
    verify_short_conv(report, {starts, 38, taps, false, bf, true});
    verify_short_conv(report, {starts, 24, taps, true, fp, true});
    verify_short_conv(report, {starts, 6, taps, false, fp});
    verify_short_conv(report, {starts, 64, taps, true, bf, false, true});
    verify_short_conv(report, {starts, 37, taps, true, fp, true, true});
    verify_short_conv(report, {{0, 2000, 2000, 4099}, 512, taps, true, bf, true});
    verify_short_conv(report, {{0, 2000, 2000, 4099}, 512, taps, true, bf, true, false, true});
    for (const int64_t channels : {516, 37}) verify_short_conv(report, {starts, channels, taps, true, bf, true, false, true});
    verify_short_conv(report, {starts, 24, taps, true, fp, true, false, true});
    for (const bool silu : {false, true}) {
      verify_short_conv(report, {starts, 48, taps, silu, fp, false, false, false, true});
      verify_short_conv(report, {starts, 37, taps, silu, fp, false, false, false, true});
      verify_short_conv(report, {starts, 64, taps, silu, bf, true, false, false, true});
    }
  }
  verify_short_conv_slots(report, 3, bf);
  verify_short_conv_slots(report, 8, fp);
}

void verify_short_conv_step(Report& report) {
  verify_short_conv_step(report, 40, 3, DType::bf16), verify_short_conv_step(report, 40, 3, DType::bf16, true);
  verify_short_conv_step(report, 40, 4, DType::bf16), verify_short_conv_step(report, 40, 4, DType::f32, true);
  verify_short_conv_step(report, 17, 4, DType::f32);
}

void verify_short_conv_tokens(Report& report) {
  for (const int64_t tokens : {1, 2, 5, 8}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      verify_short_conv_tokens(report, 2048, 3, dtype, tokens), verify_short_conv_tokens(report, 40, 4, dtype, tokens);
      verify_short_conv_tokens(report, 17, 3, dtype, tokens), verify_short_conv_tokens(report, 17, 9, dtype, tokens);
    }
  }
}

const DefineFamily<Report> kShortConv("short_conv", verify_short_conv);
const DefineFamily<Report> kShortConvTokens("short_conv_tokens", verify_short_conv_tokens);
const DefineFamily<Report> kShortConvStep("short_conv_step", verify_short_conv_step);

}  // namespace
}  // namespace based::tests
