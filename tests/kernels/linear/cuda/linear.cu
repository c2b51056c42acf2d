#include <cmath>

#include "based/kernels/linear/linear_step.h"
#include "tests/kernels/common/cuda/testing.cuh"
#include "tests/kernels/linear/cuda/linear_reference.cuh"

namespace based::tests {

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

using kernels::DType;
namespace gpu = kernels::cuda;

std::vector<double> expected_outputs(const kernels::Linear& p) { return exact_outputs(download(p.x, p.dtype, p.rows * p.x_stride), p); }

// Compares y with `exact` [rows, width], and checks that the padding between rows is unchanged.
void expect_rows(Report& report, const std::string& name, const kernels::Linear& p, const std::vector<double>& exact, int64_t width) {
  const auto y = download(p.y, p.y_dtype, p.rows * p.y_stride);
  std::vector<double> got;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t o = 0; o < width; ++o) got.push_back(y[r * p.y_stride + o]);
    for (int64_t o = width; o < p.y_stride; ++o)
      if (!std::isnan(y[r * p.y_stride + o])) report.fail(name + ": wrote beyond a row");
  }
  report.expect(name, relative_error(got, exact), allowed(p.dtype));
}

// The strides of x, weight and y exceed their row lengths.
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

// SwiGLU: the first half of the outputs times the SiLU of the second half.
void verify_swiglu_case(Report& report, int64_t rows, int64_t in, int64_t width, bool with_bias) {
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

// Layers of one row in one launch must give the bits of separate launches.
void verify_at_once(Report& report, int64_t in, const std::vector<int64_t>& outs, DType dtype) {
  const Buffer x = random_buffer(in, dtype, 1, 1);
  std::vector<Buffer> memory;
  std::vector<kernels::Linear> layers;
  for (const int64_t out : outs) {
    const size_t first = memory.size();
    memory.push_back(random_buffer(out * in, dtype, 1, 2 + first)), memory.push_back(random_buffer(out, dtype, 1, 3 + first));
    memory.emplace_back(out * 4);
    layers.push_back({x.as(), memory[first].as(), layers.empty() ? nullptr : memory[first + 1].as(), memory[first + 2].as(), 1, in, out, in,
                      in, out, dtype, dtype, false, true});
  }
  const auto outputs = [&] {
    std::vector<double> all;
    for (const kernels::Linear& p : layers)
      for (const double y : download(p.y, dtype, p.out)) all.push_back(y);
    return all;
  };
  for (const kernels::Linear& p : layers) check(gpu::linear(p, {}));
  const auto alone = outputs();
  for (const kernels::Linear& p : layers) check(cudaMemset(p.y, 0xFF, p.out * kernels::dtype_size(dtype)), "y");
  check(gpu::linears_of_one_row(layers, {}));
  const std::string name = std::to_string(outs.size()) + " linears of one row" + (dtype == DType::bf16 ? " bf16" : " fp32");
  report.expect(name, relative_error(outputs(), alone), 0);
}

// Layers of few rows.
void verify_linear(Report& report) {
  verify_at_once(report, 1024, {512, 512, 1024, 1024, 16}, DType::bf16), verify_at_once(report, 104, {4, 4096}, DType::f32);
  for (const int64_t rows : {1, 2, 8, 16, 20, 64, 65, 128, 131, 256}) {
    verify_swiglu_case(report, rows, 104, 8, true), verify_swiglu_case(report, rows, 512, 88, false);
    verify_swiglu_case(report, rows, 1792, 128, true);
  }
  verify_swiglu_case(report, 128, 256, 3584, false);
  for (const int64_t rows : {1, 8, 32})
    verify_one(report, rows, 1792, 7168, DType::bf16);  // weights do not fit in the stages of shared memory at once
  for (const int64_t in : {8, 64, 104, 1792, 3584}) {
    for (const int64_t out : {4, 68, 260, 1792}) {
      verify_one(report, 1, in, out, DType::bf16);
      verify_one(report, 3, in, out, DType::f32);
      if (in * out > 300000 && in != 1792) continue;
      for (const int64_t rows : {2, 5, 16, 17, 64, 100, 128, 129, 250}) verify_one(report, rows, in, out, DType::bf16);
    }
  }
}

const DefineFamily<Report> kLinear("linear", verify_linear);

}  // namespace
}  // namespace based::tests
