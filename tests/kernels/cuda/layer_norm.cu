#include "based/kernels/layer_norm.h"

#include <cmath>

#include "tests/kernels/cuda/cases.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

struct Expected {
  std::vector<double> y, grad, grad_weight, grad_bias;
};

// Of the sum that was kept, in double.
Expected expected_of(const std::vector<double>& s, const std::vector<double>& weight, const std::vector<double>& bias,
                     const std::vector<double>& g, const std::vector<double>& more, int64_t rows, int64_t width) {
  Expected to{std::vector<double>(s.size()), std::vector<double>(s.size()), std::vector<double>(width), std::vector<double>(width)};
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, squares = 0, sum = 0, dot = 0;
    for (int64_t i = r * width; i < (r + 1) * width; ++i) mean += s[i] / width;
    for (int64_t i = r * width; i < (r + 1) * width; ++i) squares += (s[i] - mean) * (s[i] - mean) / width;
    const double scale = 1 / std::sqrt(squares + 1e-5);
    for (int64_t c = 0, i = r * width; c < width; ++c, ++i) {
      const double unit = (s[i] - mean) * scale;
      to.y[i] = unit * weight[c] + bias[c];
      to.grad_weight[c] += g[i] * unit, to.grad_bias[c] += g[i];
      sum += g[i] * weight[c] / width, dot += g[i] * weight[c] * unit / width;
    }
    for (int64_t c = 0, i = r * width; c < width; ++c, ++i)
      to.grad[i] = scale * (g[i] * weight[c] - sum - (s[i] - mean) * scale * dot) + more[i];
  }
  return to;
}

void verify_layer_norm(Report& report, int64_t rows, int64_t width, DType x_dtype, DType dtype) {
  const int64_t count = rows * width;
  const Buffer add = random_buffer(count, dtype, 1, 2), weight = random_buffer(width, dtype, 1, 3),
               bias = random_buffer(width, dtype, 1, 4), g = random_buffer(count, dtype, 1, 5), more = random_buffer(count, dtype, 1, 6);
  const Buffer x = random_buffer(count, x_dtype, 2, 1), grad = copy_of(more);
  Buffer sum(count * 4), y(count * 4), mean(rows * 4), inverse_std(rows * 4), grad_weight(width * 4), grad_bias(width * 4);
  kernels::LayerNorm p{x.as(), add.as(), sum.as(), weight.as(), bias.as(), y.as(), mean.as<float>(), inverse_std.as<float>(),
                       rows,   width,    1e-5F,    x_dtype,     dtype};
  check(gpu::layer_norm_forward(p, {}));
  kernels::LayerNormBackward b{p, g.as(), grad.as(), grad.as(), grad_weight.as<float>(), grad_bias.as<float>()};  // where it came in
  b.forward.x = sum.as(), b.forward.add = nullptr, b.forward.sum = nullptr;
  Buffer scratch(gpu::layer_norm_backward_scratch(b));
  check(gpu::layer_norm_backward(b, scratch.as(), {}));
  const std::vector<double> hx = download(x.as(), x_dtype, count), ha = download(add.as(), dtype, count),
                            kept = download(sum.as(), x_dtype, count);
  std::vector<double> s(hx.size());
  for (size_t i = 0; i < s.size(); ++i) s[i] = hx[i] + ha[i];
  const Expected of = expected_of(kept, download(weight.as(), dtype, width), download(bias.as(), dtype, width),
                                  download(g.as(), dtype, count), download(more.as(), dtype, count), rows, width);
  const std::string name = "layer_norm " + std::to_string(rows) + "x" + std::to_string(width) + type_name(x_dtype) + type_name(dtype);
  const double limit = x_dtype == DType::bf16 ? 5e-3 : allowed(dtype);  // of the norm of a sum before it was rounded
  report.expect(name + ": sum", relative_error(kept, s), allowed(x_dtype));
  report.expect(name + ": y", relative_error(download(y.as(), dtype, count), of.y), limit);
  report.expect(name + ": grad x", relative_error(download(grad.as(), dtype, count), of.grad), limit);
  const double column_limit = x_dtype == DType::bf16 ? 5e-3 : 2e-6;
  report.expect(name + ": grad weight", relative_error(download(grad_weight.as(), DType::f32, width), of.grad_weight), column_limit);
  report.expect(name + ": grad bias", relative_error(download(grad_bias.as(), DType::f32, width), of.grad_bias), column_limit);
}

}  // namespace

void verify_layer_norm(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  for (const int64_t width : {24, 48, 64, 128, 200, 512, 1024}) {
    verify_layer_norm(report, 37, width, fp, fp);
    verify_layer_norm(report, 5000, width, fp, bf);
  }
  verify_layer_norm(report, 33, 128, bf, bf);
  verify_layer_norm(report, 7, 333, fp, fp);
  verify_layer_norm(report, 1, 5, fp, bf);
}

}  // namespace based::tests
