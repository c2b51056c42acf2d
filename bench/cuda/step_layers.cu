// The linear layer of few rows, and what else a step of decoding is made of, at the sizes of the 1.4B model.
#include <cmath>

#include "based/kernels/embedding.h"
#include "based/kernels/linear.h"
#include "based/kernels/pointwise.h"
#include "based/kernels/short_conv.h"
#include "bench/cuda/layers.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::Stream;
namespace gpu = kernels::cuda;

}  // namespace

std::vector<double> exact_outputs(const std::vector<double>& x, const kernels::Linear& p) {
  const auto weight = download(p.weight, p.dtype, p.out * p.weight_stride),
             bias = p.bias != nullptr ? download(p.bias, p.dtype, p.out) : std::vector<double>(p.out);
  std::vector<double> y;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t o = 0; o < p.out; ++o) {
      double sum = bias[o];
      for (int64_t i = 0; i < p.in; ++i) sum += x[r * p.x_stride + i] * weight[o * p.weight_stride + i];
      y.push_back(sum);
    }
  }
  return y;
}

std::vector<double> exact_swiglu(const std::vector<double>& h, int64_t width) {
  std::vector<double> y;
  for (auto row = h.begin(); row != h.end(); row += 2 * width)
    for (int64_t i = 0; i < width; ++i) y.push_back(row[i] * row[width + i] / (1 + std::exp(-row[width + i])));
  return y;
}

namespace {

std::vector<double> expected_outputs(const kernels::Linear& p) { return exact_outputs(download(p.x, p.dtype, p.rows * p.x_stride), p); }

// Against `exact` [rows, width]; the memory between the rows stays as it was.
void expect_rows(Report& report, const std::string& name, const kernels::Linear& p, const std::vector<double>& exact, int64_t width) {
  const auto y = download(p.y, p.y_dtype, p.rows * p.y_stride);
  std::vector<double> got;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t o = 0; o < width; ++o) got.push_back(y[r * p.y_stride + o]);
    for (int64_t o = width; o < p.y_stride; ++o)
      if (!std::isnan(y[r * p.y_stride + o])) report.fail(name + ": wrote beyond a row");
  }
  report.expect(name, relative_error(got, exact), p.dtype == DType::bf16 ? 2.5e-3 : 2e-6);
}

// Rows and weights lie further apart than they are long.
void verify_one(Report& report, int64_t rows, int64_t in, int64_t out, DType dtype) {
  const int64_t x_stride = in + 8, weight_stride = in + 16, y_stride = out + 4;
  const Buffer x = random_buffer(rows * x_stride, dtype, 1, 1), weight = random_buffer(out * weight_stride, dtype, 1, 2),
               bias = random_buffer(out, dtype, 3, 3);
  Buffer y(rows * y_stride * 4);
  const kernels::Linear p{x.as(),   weight.as(),   bias.as(), y.as(), rows,  in,    out,
                          x_stride, weight_stride, y_stride,  dtype,  dtype, false, true};
  const std::string name = "linear " + std::to_string(rows) + " x " + std::to_string(in) + " -> " + std::to_string(out) +
                           (dtype == DType::bf16 ? " bf16" : " fp32");
  if (!gpu::linear_supports(p)) return report.no_kernel(name);
  check(gpu::linear(p, {}));
  expect_rows(report, name, p, expected_outputs(p), out);
}

// The first half of the outputs times the SiLU of the second.
void verify_swiglu_of(Report& report, int64_t rows, int64_t in, int64_t width, bool with_bias) {
  const int64_t x_stride = in + 8, weight_stride = in + 16, y_stride = width + 8;
  const DType dtype = DType::bf16;
  const Buffer x = random_buffer(rows * x_stride, dtype, 1, 1), weight = random_buffer(2 * width * weight_stride, dtype, 0.1, 2),
               bias = random_buffer(2 * width, dtype, 1, 3);
  Buffer y(rows * y_stride * 2);
  const kernels::Linear p{
      x.as(), weight.as(), with_bias ? bias.as() : nullptr, y.as(), rows, in, 2 * width, x_stride, weight_stride, y_stride, dtype,
      dtype,  false,       with_bias || rows > 128};
  const std::string name = "linear_swiglu " + std::to_string(rows) + " x " + std::to_string(in) + " -> 2 x " + std::to_string(width);
  if (!gpu::linear_swiglu_supports(p)) return report.no_kernel(name);
  check(gpu::linear_swiglu(p, {}));
  expect_rows(report, name, p, exact_swiglu(expected_outputs(p), width), width);
}

// Each call has another weight, so that it comes from memory as in a step.
void time_linear(Report& report, int64_t rows, int64_t in, int64_t out, bool swiglu = false) {
  const int64_t bytes = in * out * 2;
  const int sets = working_sets(bytes);
  const std::vector<Buffer> weight = random_buffers(sets, in * out, DType::bf16, 1);
  const Buffer x = random_buffer(rows * in, DType::bf16, 1, 100), bias = random_buffer(out, DType::bf16, 1, 101), y(rows * out * 2);
  kernels::Linear p{x.as(), nullptr, bias.as(), y.as(), rows, in, out, in, in, out, DType::bf16, DType::bf16, false, true};
  if (swiglu) p.y_stride = out / 2;
  const std::string name = std::string(swiglu ? "linear_swiglu " : "linear ") + std::to_string(rows) + " x " + std::to_string(in) + " -> " +
                           std::to_string(out) + " bf16";
  if (swiglu ? !gpu::linear_swiglu_supports(p) : !gpu::linear_supports(p)) return;
  report.time(name, bytes, sets, [&](int i, cudaStream_t stream) {
    p.weight = weight[i].as();
    check(swiglu ? gpu::linear_swiglu(p, Stream{stream}) : gpu::linear(p, Stream{stream}));
  });
}

void time_pointwise(Report& report, int64_t rows, int64_t width) {
  const std::string at = std::to_string(rows) + "x" + std::to_string(width) + " bf16";
  Buffer residual = random_buffer(rows * width, DType::f32, 1, 1), y(rows * 2 * width * 2);
  const Buffer x = random_buffer(rows * 4 * width, DType::bf16, 1, 2), weight = random_buffer(width * 8, DType::bf16, 1, 3);
  report.time("rms_norm, residual added, " + at, rows * width * 12, 2, [&](int, cudaStream_t stream) {
    check(gpu::rms_norm_forward(
        {residual.as(), x.as(), residual.as(), weight.as(), y.as(), nullptr, rows, width, 1e-5F, DType::f32, DType::bf16}, Stream{stream}));
  });
  report.time("swiglu of twice " + at, rows * 2 * width * 6, 2, [&](int, cudaStream_t stream) {
    check(gpu::swiglu_forward({x.as(), y.as(), rows, 2 * width, DType::bf16}, Stream{stream}));
  });
  Buffer state = random_buffer(rows * 2 * width * 2, DType::f32, 1, 4);
  kernels::ShortConv conv{};
  conv.x = x.as(), conv.gate = x.as<char>() + 4 * width, conv.weight = weight.as(), conv.bias = weight.as(), conv.y = y.as();
  conv.state = state.as<float>(), conv.tokens = conv.rows = rows, conv.channels = 2 * width;
  conv.x_stride = conv.gate_stride = 4 * width, conv.y_stride = 2 * width, conv.taps = 3, conv.silu = true, conv.dtype = DType::bf16;
  report.time("short_conv_step of twice " + at, rows * 2 * width * (3 * 2 + 2 * 2 * 4), 2,
              [&](int, cudaStream_t stream) { check(gpu::short_conv_step(conv, Stream{stream})); });
}

void verify_embedding_step(Report& report, int64_t rows, int64_t width, DType dtype) {
  const int64_t vocab = 300;
  std::vector<int64_t> ids, slots, exact(rows + 2), before;
  for (int64_t s = 0; s < rows + 2; ++s) exact[s] = 3 * s + 5;
  for (int64_t r = 0; r < rows; ++r) ids.push_back(r % 5 == 1 ? -1 : r * 37 % vocab), slots.push_back((r + 1) % (rows + 2));
  const Buffer table = random_buffer(vocab * width, dtype, 1, 1), id = upload(ids), slot = upload(slots), seen = upload(exact),
               position = upload(slots), y(rows * width * 4);
  check(gpu::embedding_step({table.as(), id.as<int64_t>(), slot.as<int64_t>(), seen.as<int64_t>(), position.as<int64_t>(), y.as<float>(),
                             rows, vocab, width, dtype},
                            {}));
  const std::vector<double> all = download(table.as(), dtype, vocab * width);
  std::vector<double> wanted;
  for (int64_t r = 0; r < rows; ++r) {
    const auto from = all.begin() + std::max<int64_t>(ids[r], 0) * width;
    wanted.insert(wanted.end(), from, from + width), before.push_back(exact[slots[r]]++);
  }
  std::vector<int64_t> found(exact.size()), of_rows(before.size());
  check(cudaMemcpy(found.data(), seen.as(), found.size() * 8, cudaMemcpyDeviceToHost), "tokens seen");
  check(cudaMemcpy(of_rows.data(), position.as(), of_rows.size() * 8, cudaMemcpyDeviceToHost), "positions");
  const std::string name = "embedding_step " + std::to_string(rows) + "x" + std::to_string(width);
  report.expect(name, found == exact && of_rows == before ? relative_error(download(y.as(), DType::f32, rows * width), wanted) : 1, 0);
}

}  // namespace

void verify_linear(Report& report) {
  verify_embedding_step(report, 1, 1792, DType::bf16), verify_embedding_step(report, 128, 1024, DType::bf16);
  verify_embedding_step(report, 3, 7, DType::bf16), verify_embedding_step(report, 5, 20, DType::f32);
  for (const int64_t rows : {1, 2, 8, 16, 20, 64, 65, 128, 131, 256}) {
    verify_swiglu_of(report, rows, 104, 8, true), verify_swiglu_of(report, rows, 512, 88, false);
    verify_swiglu_of(report, rows, 1792, 128, true);
  }
  verify_swiglu_of(report, 128, 256, 3584, false);
  for (const int64_t rows : {1, 8, 32}) verify_one(report, rows, 1792, 7168, DType::bf16);  // more than shared memory holds
  for (const int64_t in : {8, 64, 104, 1792, 3584}) {
    for (const int64_t out : {4, 68, 260, 1792}) {
      verify_one(report, 1, in, out, DType::bf16);
      verify_one(report, 3, in, out, DType::f32);
      if (in * out > 300000 && in != 1792) continue;
      for (const int64_t rows : {2, 5, 16, 17, 64, 100, 128, 129, 250}) verify_one(report, rows, in, out, DType::bf16);
    }
  }
}

void time_step_layers(Report& report) {
  struct Size {
    int64_t in, out;
  };
  for (const int64_t rows : {1, 16, 128}) {
    for (const Size& s :
         std::initializer_list<Size>{{1792, 7168}, {3584, 1792}, {1792, 1792}, {1792, 256}, {1024, 4096}, {2048, 1024}, {1792, 50304}})
      time_linear(report, rows, s.in, s.out);
    for (const int64_t width : {1024, 1792}) time_linear(report, rows, width, 4 * width, true);
    time_pointwise(report, rows, 1792);
    time_sample(report, rows);
  }
}

}  // namespace based::bench
