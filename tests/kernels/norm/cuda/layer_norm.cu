#include "based/kernels/norm/layer_norm.h"

#include <cmath>

#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

struct Expected {
  std::vector<double> y, grad, grad_weight, grad_bias;
};

// The expected results from the stored sum, in double precision.
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
  kernels::LayerNormBackward b{
      p, g.as(), grad.as(), grad.as(), grad_weight.as<float>(), grad_bias.as<float>()};  // grad_x overwrites grad_sum
  b.forward.x = sum.as(), b.forward.add = nullptr, b.forward.sum = nullptr;
  Buffer scratch(gpu::layer_norm_backward_scratch(b));
  check(gpu::layer_norm_backward(b, scratch.as(), {}));
  const std::vector<double> hx = download(x.as(), x_dtype, count), ha = download(add.as(), dtype, count),
                            kept = download(sum.as(), x_dtype, count);
  std::vector<double> s(hx.size());
  for (size_t i = 0; i < s.size(); ++i) s[i] = hx[i] + ha[i];
  const Expected expected = expected_of(kept, download(weight.as(), dtype, width), download(bias.as(), dtype, width),
                                        download(g.as(), dtype, count), download(more.as(), dtype, count), rows, width);
  const std::string name = "layer_norm " + std::to_string(rows) + "x" + std::to_string(width) + type_name(x_dtype) + type_name(dtype);
  const double limit = x_dtype == DType::bf16 ? 5e-3 : allowed(dtype);  // the kernel normalises the sum before it is rounded
  report.expect(name + ": sum", relative_error(kept, s), allowed(x_dtype));
  report.expect(name + ": y", relative_error(download(y.as(), dtype, count), expected.y), limit);
  report.expect(name + ": grad x", relative_error(download(grad.as(), dtype, count), expected.grad), limit);
  const double column_limit = x_dtype == DType::bf16 ? 5e-3 : 2e-6;
  report.expect(name + ": grad weight", relative_error(download(grad_weight.as(), DType::f32, width), expected.grad_weight), column_limit);
  report.expect(name + ": grad bias", relative_error(download(grad_bias.as(), DType::f32, width), expected.grad_bias), column_limit);
}

// Both norms; the expected gradients are computed from the stored s.
void verify_layer_norm_twice(Report& report, int64_t rows, int64_t width, DType x_dtype, DType dtype) {
  const int64_t count = rows * width;
  const Buffer x = random_buffer(count, x_dtype, 2, 1), add = random_buffer(count, dtype, 1, 2), weight = random_buffer(width, dtype, 1, 3),
               bias = random_buffer(width, dtype, 1, 4), next_weight = random_buffer(width, dtype, 1, 7),
               next_bias = random_buffer(width, dtype, 1, 8), g = random_buffer(count, dtype, 1, 5),
               more = random_buffer(count, dtype, 1, 6);
  const Buffer grad = copy_of(more);
  Buffer s(count * 4), sum(count * 4), y(count * 4), statistics(4 * rows * 4), columns(4 * width * 4);
  kernels::LayerNormTwice p;
  p.first.x = x.as(), p.first.add = add.as(), p.first.sum = s.as(), p.second.sum = sum.as(), p.second.y = y.as();
  kernels::LayerNormTwiceBackward b;
  for (kernels::LayerNorm* norm : {&p.first, &p.second}) {
    const bool is_first = norm == &p.first;
    norm->weight = (is_first ? weight : next_weight).as(), norm->bias = (is_first ? bias : next_bias).as();
    norm->mean = statistics.as<float>() + (is_first ? 0 : 2) * rows, norm->inverse_std = norm->mean + rows;
    norm->rows = rows, norm->width = width, norm->x_dtype = x_dtype, norm->dtype = dtype;
    b.grad_weight[is_first ? 0 : 1] = columns.as<float>() + (is_first ? 0 : 2) * width;
    b.grad_bias[is_first ? 0 : 1] = columns.as<float>() + (is_first ? 1 : 3) * width;
  }
  check(gpu::layer_norm_twice_forward(p, {}));
  b.first = p.first, b.second = p.second;
  b.first.x = s.as(), b.first.add = nullptr, b.first.sum = nullptr, b.second.sum = nullptr, b.second.y = nullptr;
  b.grad_y = g.as(), b.grad_sum = grad.as(), b.grad_x = grad.as();  // grad_x overwrites grad_sum
  Buffer scratch(gpu::layer_norm_twice_backward_scratch(b));
  check(gpu::layer_norm_twice_backward(b, scratch.as(), {}));
  const std::vector<double> kept = download(s.as(), x_dtype, count), none(kept.size());
  const auto of_dtype = [&](const Buffer& buffer, int64_t elements) { return download(buffer.as(), dtype, elements); };
  const auto norm_of = [&](const std::vector<double>& in, const Buffer& w, const Buffer& c, const std::vector<double>& from,
                           const std::vector<double>& other) {
    return expected_of(in, of_dtype(w, width), of_dtype(c, width), from, other, rows, width);
  };
  std::vector<double> wanted = norm_of(kept, weight, bias, none, none).y;
  for (size_t i = 0; i < kept.size(); ++i) wanted[i] += kept[i];
  const Expected second = norm_of(wanted, next_weight, next_bias, of_dtype(g, count), of_dtype(more, count));
  const Expected first = norm_of(kept, weight, bias, second.grad, second.grad);
  const std::string name = "layer_norm_twice " + std::to_string(rows) + "x" + std::to_string(width) + type_name(x_dtype) + type_name(dtype);
  const double limit = dtype == DType::bf16 ? 1e-2 : 4e-6;  // the first norm is rounded to dtype
  report.expect(name + ": sum", relative_error(download(sum.as(), x_dtype, count), wanted), limit);
  report.expect(name + ": y", relative_error(of_dtype(y, count), second.y), limit);
  report.expect(name + ": grad x", relative_error(of_dtype(grad, count), first.grad), limit);
  const std::vector<double> sums = download(columns.as(), DType::f32, 4 * width);
  const std::vector<double>* expected[] = {&first.grad_weight, &first.grad_bias, &second.grad_weight, &second.grad_bias};
  for (int i = 0; i < 4; ++i)
    report.expect(name + ": column sums " + std::to_string(i),
                  relative_error(std::vector<double>(sums.begin() + i * width, sums.begin() + (i + 1) * width), *expected[i]), limit);
}

void verify_layer_norm(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  for (const int64_t width : {24, 48, 64, 128, 200, 512, 1024}) {
    verify_layer_norm(report, 37, width, fp, fp);
    verify_layer_norm(report, 5000, width, fp, bf);
    verify_layer_norm_twice(report, 37, width, fp, fp);
    verify_layer_norm_twice(report, 5000, width, fp, bf);
  }
  verify_layer_norm_twice(report, 33, 128, bf, bf);
  verify_layer_norm_twice(report, 7, 333, fp, fp);
  verify_layer_norm(report, 33, 128, bf, bf);
  verify_layer_norm(report, 7, 333, fp, fp);
  verify_layer_norm(report, 1, 5, fp, bf);
}

const DefineFamily<Report> kLayerNorm("layer_norm", verify_layer_norm);

}  // namespace
}  // namespace based::tests
