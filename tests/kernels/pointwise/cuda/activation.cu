#include "based/kernels/pointwise/activation.h"

#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::Activation;
using kernels::DType;

double exact(Activation function, double x) {
  const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  switch (function) {
    case Activation::silu: return x * sigmoid(x);
    case Activation::sigmoid: return sigmoid(x);
    case Activation::softplus: return softplus;
    case Activation::exp: return std::exp(x);
    case Activation::elu_plus_one: return x > 0 ? x + 1 : std::exp(x);
    default: return x - softplus;
  }
}

// Rows with `apart` unused elements between them, with and without factors for the columns.
void verify(Report& report, Activation function, int64_t rows, int64_t width, int64_t apart, DType dtype, DType y_dtype, bool factors) {
  const int64_t stride = width + apart;
  const Buffer x = random_buffer(rows * stride, dtype, 2, 1), bias = random_buffer(width, dtype, 1, 2),
               log_rate = random_buffer(width, dtype, 1, 3), y(rows * width * 4);
  kernels::Activate p;
  p.x = x.as(), p.y = y.as(), p.rows = rows, p.width = width, p.x_stride = stride;
  p.dtype = p.factor_dtype = dtype, p.y_dtype = y_dtype, p.function = function, p.scale = -0.25F;
  if (factors) p.bias = bias.as(), p.log_rate = log_rate.as();
  check(kernels::cuda::activate(p, {}));
  const auto hx = download(x.as(), dtype, rows * stride), hb = download(bias.as(), dtype, width),
             hr = download(log_rate.as(), dtype, width);
  std::vector<double> expected;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < width; ++c)
      expected.push_back(-0.25 * (factors ? std::exp(hr[c]) : 1) * exact(function, hx[r * stride + c] + (factors ? hb[c] : 0)));
  report.expect("activation " + std::to_string(static_cast<int>(function)) + " " + std::to_string(rows) + "x" + std::to_string(width) +
                    type_name(dtype) + type_name(y_dtype) + (factors ? " with factors" : ""),
                relative_error(download(y.as(), y_dtype, rows * width), expected), allowed(y_dtype));
}

void verify_activation(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  for (const Activation function :
       {Activation::silu, Activation::sigmoid, Activation::softplus, Activation::exp, Activation::log_sigmoid, Activation::elu_plus_one}) {
    verify(report, function, 37, 512, 0, bf, fp, false);
    verify(report, function, 5, 32, 8, bf, fp, true);
    verify(report, function, 7, 33, 3, bf, bf, true);
    verify(report, function, 3, 7, 0, fp, fp, false);
    verify(report, function, 9, 24, 4, fp, bf, true);
  }
}

const DefineFamily<Report> kActivation("activation", verify_activation);

}  // namespace
}  // namespace based::tests
