#include "bench/cuda/layers.cuh"

#include <cmath>
#include <memory>
#include <set>

#include "based/kernels/column_sums.h"
#include "based/kernels/cross_entropy.h"
#include "based/kernels/embedding.h"
#include "based/kernels/pointwise.h"
#include "based/kernels/short_conv.h"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::Stream;
namespace gpu = kernels::cuda;

std::string type_name(DType dtype) { return dtype == DType::bf16 ? " bf16" : " fp32"; }
double allowed(DType dtype) { return dtype == DType::bf16 ? 2.5e-3 : 2e-6; }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The backward alone, then with the gradient of the residual stream, which comes in in the memory where the sum of both, rounded, goes.
void verify_rms_norm(Report& report, int64_t rows, int64_t width, DType x_dtype, DType dtype) {
  const Buffer x = random_buffer(rows * width, x_dtype, 2, 1), add = random_buffer(rows * width, dtype, 1, 2),
               weight = random_buffer(width, dtype, 1, 3), g = random_buffer(rows * width, dtype, 1, 4);
  Buffer sum(rows * width * 4), y(rows * width * 4), rms(rows * 4), gx(rows * width * 4), gw(width * 4);
  kernels::RmsNorm p{x.as(), add.as(), sum.as(), weight.as(), y.as(), rms.as<float>(), rows, width, 1e-5F, x_dtype, dtype};
  check(gpu::rms_norm_forward(p, {}));
  kernels::RmsNormBackward b{p, g.as(), nullptr, gx.as(), nullptr, gw.as<float>()};
  b.forward.x = sum.as(), b.forward.add = nullptr;
  Buffer scratch(gpu::rms_norm_backward_scratch(b));
  check(gpu::rms_norm_backward(b, scratch.as(), {}));
  const Buffer other = random_buffer(rows * width, dtype, 1, 5), gx_again(rows * width * 4), ga = copy_of(other), gw_again(width * 4);
  b.grad_sum = b.grad_add = ga.as(), b.grad_x = gx_again.as(), b.grad_weight = gw_again.as<float>();
  scratch.poison();
  check(gpu::rms_norm_backward(b, scratch.as(), {}));
  const auto hx = download(x.as(), x_dtype, rows * width), ha = download(add.as(), dtype, rows * width),
             hw = download(weight.as(), dtype, width), hg = download(g.as(), dtype, rows * width),
             kept = download(sum.as(), x_dtype, rows * width), hs = download(other.as(), dtype, rows * width);
  std::vector<double> s(hx.size()), out(hx.size()), grad(hx.size()), grad_weight(width);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0, kept_squares = 0, dot = 0;
    for (int64_t i = r * width; i < (r + 1) * width; ++i) s[i] = hx[i] + ha[i], squares += s[i] * s[i], kept_squares += kept[i] * kept[i];
    const double scale = 1 / std::sqrt(squares / width + 1e-5), kept_scale = 1 / std::sqrt(kept_squares / width + 1e-5);
    for (int64_t c = 0, i = r * width; c < width; ++c, ++i) {
      out[i] = s[i] * scale * hw[c];
      grad_weight[c] += hg[i] * kept[i] * kept_scale;
      dot += hg[i] * hw[c] * kept[i] * kept_scale / width;
    }
    for (int64_t c = 0, i = r * width; c < width; ++c, ++i) grad[i] = kept_scale * (hg[i] * hw[c] - kept[i] * kept_scale * dot);
  }
  const std::string name = "rms_norm " + std::to_string(rows) + "x" + std::to_string(width) + type_name(x_dtype) + type_name(dtype);
  report.expect(name + ": sum", relative_error(kept, s), allowed(x_dtype));
  report.expect(name + ": y", relative_error(download(y.as(), dtype, rows * width), out), allowed(dtype));
  report.expect(name + ": grad x", relative_error(download(gx.as(), x_dtype, rows * width), grad), allowed(x_dtype));
  const double weight_limit = x_dtype == DType::bf16 ? 1e-4 : 2e-6;
  report.expect(name + ": grad weight", relative_error(download(gw.as(), DType::f32, width), grad_weight), weight_limit);
  for (size_t i = 0; i < grad.size(); ++i) grad[i] += hs[i];
  report.expect(name + ": grad x with grad sum", relative_error(download(gx_again.as(), x_dtype, rows * width), grad), allowed(x_dtype));
  report.expect(name + ": grad add", relative_error(download(ga.as(), dtype, rows * width), grad), allowed(dtype));
  report.expect(name + ": grad weight with grad sum", relative_error(download(gw_again.as(), DType::f32, width), grad_weight),
                weight_limit);
}

void verify_swiglu(Report& report, int64_t rows, int64_t width, DType dtype) {
  const Buffer h = random_buffer(rows * 2 * width, dtype, 2, 1), g = random_buffer(rows * width, dtype, 1, 2);
  Buffer y(rows * width * 4), gh(rows * width * 8);
  const kernels::Swiglu p{h.as(), y.as(), rows, width, dtype};
  check(gpu::swiglu_forward(p, {}));
  check(gpu::swiglu_backward({p, g.as(), gh.as()}, {}));
  const auto hh = download(h.as(), dtype, rows * 2 * width), hg = download(g.as(), dtype, rows * width);
  std::vector<double> out(rows * width), grad(hh.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const int64_t at = r * 2 * width + c, i = r * width + c;
      const double a = hh[at], b = hh[at + width], s = sigmoid(b);
      out[i] = a * b * s, grad[at] = hg[i] * b * s, grad[at + width] = hg[i] * a * s * (1 + b * (1 - s));
    }
  }
  const std::string name = "swiglu " + std::to_string(rows) + "x" + std::to_string(width) + type_name(dtype);
  report.expect(name + ": y", relative_error(download(y.as(), dtype, rows * width), out), allowed(dtype));
  report.expect(name + ": grad h", relative_error(download(gh.as(), dtype, rows * 2 * width), grad), allowed(dtype));
}

void verify_rotary(Report& report, int32_t head_dim, int32_t dim, bool interleaved, DType dtype) {
  const std::vector<int64_t> positions{0, 1, 77, 4095, 1000003, (1LL << 33) + 5};
  const int32_t heads = 3;
  const int64_t tokens = static_cast<int64_t>(positions.size()), stride = heads * head_dim + 16, count = tokens * stride;
  const Buffer x = random_buffer(count, dtype, 1, 1), position = upload(positions);
  Buffer y(count * 4);
  kernels::Rotary p{x.as(), y.as(), position.as<int64_t>(), tokens, stride, heads * head_dim, heads, head_dim, dim, 10000, interleaved,
                    false,  dtype};
  check(gpu::rotary(p, {}));
  const auto hx = download(x.as(), dtype, count);
  std::vector<double> out(tokens * heads * head_dim);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const double* from = &hx[t * stride + h * head_dim];
      double* to = &out[(t * heads + h) * head_dim];
      for (int d = dim; d < head_dim; ++d) to[d] = from[d];
      for (int i = 0; i < dim / 2; ++i) {
        const double angle = std::fmod(static_cast<double>(positions[t]) * std::pow(10000.0, -2.0 * i / dim), 2 * M_PI);
        const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + dim / 2;
        to[a] = from[a] * std::cos(angle) - from[b] * std::sin(angle), to[b] = from[a] * std::sin(angle) + from[b] * std::cos(angle);
      }
    }
  }
  report.expect(
      "rotary d" + std::to_string(head_dim) + " dim " + std::to_string(dim) + (interleaved ? " interleaved" : "") + type_name(dtype),
      relative_error(download(y.as(), dtype, tokens * heads * head_dim), out), dtype == DType::bf16 ? 2.5e-3 : 3e-6);
}

struct Convolution {
  std::vector<int64_t> starts;
  int64_t channels;
  int32_t taps;
  bool silu;
  DType dtype;
  bool halves = false;   // x and gate, and their gradients, are the halves of one tensor
  bool plain = false;    // no gate, no biases, no states
  bool in_bias = false;  // x and the gate have biases of their own
};

// Inputs of row r, channel c from taps − 1 before its start on.
std::vector<double> row_inputs(const Convolution& s, const std::vector<double>& x, const std::vector<double>& state, int64_t r, int64_t c) {
  std::vector<double> in;
  for (int64_t j = 0; j + 1 < s.taps; ++j) in.push_back(state[(r * s.channels + c) * (s.taps - 1) + j]);
  for (int64_t t = s.starts[r]; t < s.starts[r + 1]; ++t) in.push_back(x[t * s.channels + c]);
  return in;
}

struct ConvolutionGradients {
  std::vector<double> y, state, x, gate, weight, bias, initial;
};

// Tokens' channels with what is added to each.
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

// Of the gradients of x, then of the gate.
std::vector<double> column_sums_of(const ConvolutionGradients& of, int64_t channels) {
  std::vector<double> sums(2 * channels);
  for (size_t i = 0; i < of.x.size(); ++i) sums[i % channels] += of.x[i], sums[channels + i % channels] += of.gate[i];
  return sums;
}

// The channels of a tensor whose tokens are `stride` apart.
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
                           type_name(s.dtype);
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

// A step after the forward must continue it: outputs of a row's last token by either way.
// Rows that go on from slots of a state in the opposite order, against rows in order.
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
  p.state = state.as<float>(), p.y = stepped.as(), p.x_stride = length * channels, p.tokens = rows, p.state_is_settled = settled;
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

// Every third token has the same row.
std::vector<int64_t> embedding_ids(int64_t tokens, int64_t rows) {
  std::vector<int64_t> ids(tokens);
  for (int64_t t = 0; t < tokens; ++t) ids[t] = t % 3 == 0 ? rows / 2 : t * 7919 % rows;
  return ids;
}

void verify_embedding(Report& report, int64_t tokens, int64_t rows, int64_t width, DType dtype) {
  const std::vector<int64_t> ids = embedding_ids(tokens, rows);
  const Buffer grad = random_buffer(tokens * width, dtype, 1, 1), id = upload(ids), to = random_buffer(rows * width, dtype, 1, 2);
  std::vector<double> exact = download(to.as(), dtype, rows * width);
  const std::vector<double> g = download(grad.as(), dtype, tokens * width);
  for (int64_t i = 0; i < tokens * width; ++i) exact[ids[i / width] * width + i % width] += g[i];
  const kernels::EmbeddingBackward p{grad.as(), id.as<int64_t>(), to.as(), tokens, rows, width, dtype};
  const Buffer scratch(gpu::embedding_backward_scratch(p));
  check(gpu::embedding_backward(p, scratch.as(), {}));
  report.expect(
      "embedding backward " + std::to_string(tokens) + " of " + std::to_string(rows) + "x" + std::to_string(width) + type_name(dtype),
      relative_error(download(to.as(), dtype, rows * width), exact), allowed(dtype));
}

void time_embedding(Report& report, int64_t tokens, int64_t rows, int64_t width) {
  const int sets = 2;
  const std::vector<Buffer> grad = random_buffers(sets, tokens * width, DType::bf16, 1),
                            to = random_buffers(sets, rows * width, DType::bf16, 10);
  const std::vector<int64_t> ids = embedding_ids(tokens, rows);
  const Buffer id = upload(ids);
  const auto arguments = [&](int i) {
    return kernels::EmbeddingBackward{grad[i].as(), id.as<int64_t>(), to[i].as(), tokens, rows, width, DType::bf16};
  };
  const Buffer scratch(gpu::embedding_backward_scratch(arguments(0)));
  const auto used = static_cast<int64_t>(std::set<int64_t>(ids.begin(), ids.end()).size());
  report.time("embedding backward " + std::to_string(tokens) + " of " + std::to_string(rows) + "x" + std::to_string(width) + " bf16",
              (tokens + 2 * used) * width * 2, sets,
              [&](int i, cudaStream_t stream) { check(gpu::embedding_backward(arguments(i), scratch.as(), Stream{stream})); });
}

// Columns of a wider matrix.
void verify_column_sums(Report& report, int64_t rows, int64_t columns, DType dtype) {
  const int64_t stride = columns + 16;
  const Buffer x = random_buffer(rows * stride + columns, dtype, 1, 1), sums(columns * 4);
  const kernels::ColumnSums p{x.as(), sums.as(), rows, columns, stride, dtype};
  const Buffer scratch(gpu::column_sums_scratch(p));
  check(gpu::column_sums(p, scratch.as(), {}));
  const std::vector<double> all = download(x.as(), dtype, rows * stride);
  std::vector<double> exact(columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) exact[c] += all[r * stride + c];
  }
  report.expect("column_sums " + std::to_string(rows) + "x" + std::to_string(columns) + type_name(dtype),
                relative_error(download(sums.as(), dtype, columns), exact), allowed(dtype));
}

void time_column_sums(Report& report, int64_t rows, int64_t columns) {
  const int sets = working_sets(rows * columns * 2);
  const std::vector<Buffer> x = random_buffers(sets, rows * columns, DType::bf16, 1);
  const Buffer sums(columns * 2), scratch(gpu::column_sums_scratch({nullptr, nullptr, rows, columns, columns, DType::bf16}));
  report.time("column_sums " + std::to_string(rows) + "x" + std::to_string(columns) + " bf16", rows * columns * 2, sets,
              [&](int i, cudaStream_t stream) {
                check(gpu::column_sums({x[i].as(), sums.as(), rows, columns, columns, DType::bf16}, scratch.as(), Stream{stream}));
              });
}

// With an fp32 residual stream: alone, and as a part of it, whose gradient comes in and goes out in bf16.
void time_rms_norm_backward(Report& report, int64_t rows, int64_t width) {
  const int sets = 2;
  const int64_t count = rows * width;
  const std::vector<Buffer> x = random_buffers(sets, count, DType::f32, 1), g = random_buffers(sets, count, DType::bf16, 100),
                            grad_x = random_buffers(sets, count, DType::f32, 200), grad_sum = random_buffers(sets, count, DType::bf16, 300);
  const Buffer weight = random_buffer(width, DType::bf16, 1, 400), inverse_rms = random_buffer(rows, DType::f32, 1, 401);
  Buffer grad_weight(width * 4);
  for (const bool residual : {false, true}) {
    kernels::RmsNormBackward b;
    b.forward.weight = weight.as(), b.forward.inverse_rms = inverse_rms.as<float>();
    b.forward.rows = rows, b.forward.width = width, b.forward.dtype = DType::bf16;
    b.grad_weight = grad_weight.as<float>();
    const Buffer scratch(gpu::rms_norm_backward_scratch(b));
    const std::string name = "rms_norm backward " + std::to_string(rows) + "x" + std::to_string(width) + (residual ? " residual" : "");
    report.time(name, count * 10, sets, [&](int i, cudaStream_t stream) {
      b.forward.x = x[i].as(), b.grad_y = g[i].as();
      if (residual) {
        b.grad_sum = grad_sum[i].as(), b.grad_add = grad_x[i].as();
      } else {
        b.grad_x = grad_x[i].as();
      }
      check(gpu::rms_norm_backward(b, scratch.as(), Stream{stream}));
    });
  }
}

// A chunk of logits, which become their gradient.
void time_cross_entropy(Report& report) {
  const int64_t rows = 2668, vocab = 50304, count = rows * vocab;
  const int sets = 2;
  const std::vector<Buffer> logits = random_buffers(sets, count, DType::bf16, 1);
  const Buffer label = upload(std::vector<int64_t>(rows, 17)), loss(rows * 4);
  report.time("cross_entropy " + std::to_string(rows) + "x" + std::to_string(vocab) + " bf16", 4 * count, sets,
              [&](int i, cudaStream_t stream) {
                kernels::CrossEntropy p;
                p.logits = logits[i].as(), p.label = label.as<int64_t>(), p.loss = loss.as<float>();
                p.rows = rows, p.vocab = vocab, p.scale = 1.0F / 32768, p.gradient = true, p.dtype = DType::bf16;
                check(gpu::cross_entropy(p, Stream{stream}));
              });
}

// In place, the queries and keys of a joint projection of 16 heads of 64.
void time_rotary(Report& report, int32_t dim) {
  const int64_t tokens = 32768, columns = 3 * 1024;
  const std::vector<Buffer> qkv = random_buffers(2, tokens * columns, DType::bf16, 1);
  std::vector<int64_t> positions(tokens);
  for (int64_t t = 0; t < tokens; ++t) positions[t] = t % 2048;
  const Buffer position = upload(positions);
  report.time("rotary 32768x32x64 dim " + std::to_string(dim) + " in place bf16", tokens * 32 * dim * 4, 2,
              [&](int i, cudaStream_t stream) {
                kernels::Rotary p;
                p.x = p.y = qkv[i].as(), p.position = position.as<int64_t>(), p.tokens = tokens, p.x_stride = p.y_stride = columns;
                p.heads = 32, p.head_dim = 64, p.dim = dim, p.dtype = DType::bf16;
                check(gpu::rotary(p, Stream{stream}));
              });
}

// x and gate the halves of one tensor, with biases of their own.
void time_short_conv(Report& report, int64_t length, int64_t channels) {
  const int sets = working_sets(3 * length * channels * 2);
  const std::vector<Buffer> inputs = random_buffers(sets, length * 2 * channels, DType::bf16, 1);
  std::vector<Buffer> y;
  for (int i = 0; i < sets; ++i) y.emplace_back(length * channels * 2);
  const Buffer weight = random_buffer(channels * 3, DType::bf16, 0.5, 300), bias = random_buffer(3 * channels, DType::bf16, 0.5, 301),
               end = upload({0, length});
  report.time("short_conv " + std::to_string(length) + "x" + std::to_string(channels) + " taps 3 gated biased bf16",
              3 * length * channels * 2, sets, [&](int i, cudaStream_t stream) {
                kernels::ShortConv p;
                p.x = inputs[i].as(), p.gate = inputs[i].as<char>() + channels * 2, p.x_stride = p.gate_stride = 2 * channels;
                p.weight = weight.as(), p.bias = bias.as(), p.x_bias = bias.as<char>() + channels * 2,
                p.gate_bias = bias.as<char>() + channels * 4;
                p.y = y[i].as(), p.y_stride = p.channels = channels, p.row_start = end.as<int64_t>(), p.tokens = length, p.rows = 1;
                p.dtype = DType::bf16;
                check(gpu::short_conv_forward(p, Stream{stream}));
              });
}

// Rows of 2048, x and gate the halves of one tensor.
void time_short_conv_backward(Report& report, int32_t taps, DType dtype) {
  const int64_t rows = 16, tokens = rows * 2048, channels = 2048, count = tokens * channels, size = kernels::dtype_size(dtype);
  const int sets = 2;
  const std::vector<Buffer> inputs = random_buffers(sets, 2 * count, dtype, 1), g = random_buffers(sets, count, dtype, 100);
  std::vector<Buffer> grads;
  for (int i = 0; i < sets; ++i) grads.emplace_back(2 * count * size);
  std::vector<int64_t> row_starts;
  for (int64_t r = 0; r <= rows; ++r) row_starts.push_back(r * 2048);
  const Buffer weight = random_buffer(channels * taps, dtype, 0.5, 300), bias = random_buffer(channels, dtype, 0.5, 301),
               in_bias = random_buffer(2 * channels, dtype, 0.5, 302), starts = upload(row_starts);
  Buffer gw(channels * taps * 4), gb(channels * 4), sums(2 * channels * 4);
  const auto arguments = [&](int i) {
    kernels::ShortConvBackward b;
    b.forward = {inputs[i].as(),
                 inputs[i].as<char>() + channels * size,
                 weight.as(),
                 bias.as(),
                 nullptr,
                 nullptr,
                 starts.as<int64_t>(),
                 nullptr,
                 tokens,
                 rows,
                 channels,
                 2 * channels,
                 2 * channels,
                 channels,
                 taps,
                 true,
                 dtype};
    b.grad_y = g[i].as(), b.grad_x = grads[i].as(), b.grad_gate = grads[i].as<char>() + count * size;
    b.grad_weight = gw.as<float>(), b.grad_bias = gb.as<float>(), b.grad_x_stride = b.grad_gate_stride = channels;
    b.grad_sums = sums.as<float>();
    b.forward.x_bias = in_bias.as(), b.forward.gate_bias = in_bias.as<char>() + channels * size;
    return b;
  };
  Buffer scratch(gpu::short_conv_backward_scratch(arguments(0)));
  const std::string name = "short_conv backward 32768x2048 taps " + std::to_string(taps) + " gated biased" + type_name(dtype);
  report.time(name, 5 * count * size, sets,
              [&](int i, cudaStream_t stream) { check(gpu::short_conv_backward(arguments(i), scratch.as(), Stream{stream})); });
}

}  // namespace

void verify_layers(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  verify_rms_norm(report, 37, 1024, fp, bf);
  verify_rms_norm(report, 5, 1792, bf, bf);
  verify_rms_norm(report, 600, 48, fp, fp);
  verify_rms_norm(report, 7, 333, fp, fp);
  verify_rms_norm(report, 3, 8000, fp, bf);
  verify_swiglu(report, 33, 256, bf);
  verify_swiglu(report, 3, 37, fp);
  verify_rotary(report, 64, 64, false, bf);
  verify_rotary(report, 64, 64, false, fp);
  verify_rotary(report, 112, 56, true, fp);
  for (const Convolution& s : std::vector<Convolution>{{{0, 100, 100, 101, 150}, 64, 3, true, bf},
                                                       {{0, 2, 40}, 37, 4, false, fp},
                                                       {{0, 30, 33}, 24, 9, true, fp},
                                                       {{0, 50}, 256, 4, true, bf},
                                                       {{0, 20}, 5, 1, true, fp}}) {
    verify_short_conv(report, s);
  }
  // Rows that are empty or shorter than the taps, and that end at, before and after the ends of the backward's runs of 32 tokens.
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
  }
  verify_short_conv_slots(report, 3, bf);
  verify_short_conv_slots(report, 8, fp);
  verify_embedding(report, 1, 3, 8, fp), verify_embedding(report, 33, 5, 64, bf), verify_embedding(report, 5000, 300, 1032, bf);
  verify_embedding(report, 1000, 70000, 20, fp);
  for (const int64_t rows : {1, 70, 5000}) {
    verify_column_sums(report, rows, 8, bf), verify_column_sums(report, rows, 1040, bf), verify_column_sums(report, rows, 132, fp);
  }
  verify_short_conv_step(report, 40, 3, bf), verify_short_conv_step(report, 40, 3, bf, true);
  verify_short_conv_step(report, 17, 4, fp);
}

void time_layers(Report& report) {
  const int64_t tokens = 16 * 2048, width = 1024, bytes = tokens * width * 2;
  const int sets = working_sets(bytes);
  const std::vector<Buffer> x = random_buffers(sets, tokens * width, DType::bf16, 1),
                            h = random_buffers(sets, tokens * 2 * width, DType::bf16, 100);
  std::vector<Buffer> y;
  for (int i = 0; i < sets; ++i) y.emplace_back(tokens * width * 2);
  const Buffer weight = random_buffer(width * 16, DType::bf16, 1, 300);
  report.time("rms_norm 32768x1024 bf16", 2 * bytes, sets, [&](int i, cudaStream_t stream) {
    check(gpu::rms_norm_forward(
        {x[i].as(), nullptr, nullptr, weight.as(), y[i].as(), nullptr, tokens, width, 1e-5F, DType::bf16, DType::bf16}, Stream{stream}));
  });
  report.time("swiglu 32768x1024 bf16", 3 * bytes, sets, [&](int i, cudaStream_t stream) {
    check(gpu::swiglu_forward({h[i].as(), y[i].as(), tokens, width, DType::bf16}, Stream{stream}));
  });
  for (const auto& [length, channels] : {std::pair<int64_t, int64_t>{tokens, 2048}, {8192, 3584}, {100, 2048}})
    time_short_conv(report, length, channels);
  for (const int64_t columns : {1024, 4096}) time_column_sums(report, tokens, columns);
  time_cross_entropy(report);
  for (const int32_t dim : {32, 64}) time_rotary(report, dim);
  for (const int64_t norm_width : {1024, 1792}) time_rms_norm_backward(report, tokens, norm_width);
  for (const int32_t taps : {3, 4}) time_short_conv_backward(report, taps, DType::bf16);
  time_embedding(report, tokens, 50264, width);
  time_short_conv_backward(report, 3, DType::f32);
}

}  // namespace based::bench
